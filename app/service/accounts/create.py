"""Creation and listing of populations and budgets."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.ledger.accounts.account import MAX_DEPTH, Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord, Block, Population
from app.ledger.accounts.calendar import BlockSchedule
from app.ledger.accounts.metadata import metadata_of
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError, NameTakenError
from app.ledger.filter.limits import Limit
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.names import look_alike
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.ledger.runs.list_filters import AccountFilter
from app.ledger.settings.policies import EMPTY_POLICY, ORGANISATION, PolicySource, effective
from app.persistence.repositories import account_writes, accounts, organisations, partitions
from app.persistence.repositories.account_values import planned_text, read_planned
from app.service.accounts.lookup import AccountView, account_views, find_of_kind, find_parent
from app.service.accounts.metadata import require_unarchived
from app.service.accounts.names import require_name_free
from app.service.accounts.spec import (
    AccountSpec,
    ParallelSpec,
    account_audit_payload,
    build_attestation,
    check_account_limit,
    check_part,
    metadata_payload,
    new_account,
    partition_payload,
    require_dates,
    with_plan,
)
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.change_control import open_proposals, propose

MOST_WAITING: Final = 1000
"""Number of open proposals that a new name is compared with."""


@use_case(Permission.ACCOUNT_MANAGE, whole_organisation=True)
def create_population(
    tx: Connection, context: RequestContext, terms: AccountSpec, population: Population
) -> AccountView | Proposal:
    """Create a population, or propose it if the policy requires a second person.

    Raises:
        As `check_population`; also NameTakenError: a proposed population has a lookalike of the name.
    """
    account = check_population(tx, context, terms, population)
    policy = organisations.policy(tx, context.organisation_id)[0] or EMPTY_POLICY
    if effective((PolicySource(ORGANISATION, policy),)).approvers_to_create_population == 1:
        return _open(tx, context, account, [], population, terms)
    for waiting in open_proposals(tx, context, None, {ProposalKind.POPULATION}, limit=MOST_WAITING):
        other = waiting.proposed["name"]
        if look_alike(terms.name, other):
            raise NameTakenError(f"{waiting.id} proposes {other!r} already; decide it first.", name=other)
    summary = f"The population {terms.name}: another person has to approve it."
    return propose(tx, context, ProposalKind.POPULATION, None, population_payload(terms, population), summary)


def approve_population(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Create a proposed population; the transaction has locked the organisation.

    Raises:
        NameTakenError: a population has this name or a lookalike by now.
        PolicyViolationError: a policy forbids it by now.
    """
    terms, population = parse_population_payload(proposal.proposed)
    account = check_population(tx, context, terms, population)
    _open(tx, context, account, [], population, terms, attested_by=proposal.proposed_by)


def population_payload(terms: AccountSpec, population: Population) -> dict[str, Any]:
    """Serialize a population for its proposal; `parse_population_payload` is the inverse."""
    assert terms.limit is not None, "a population has a limit"
    facts: dict[str, Any] = {
        "name": terms.name,
        "limit": terms.limit.facts(),
        "planned": json.loads(planned_text(terms.planned)),
        "privacy_unit": population.privacy_unit,
        "neighboring_relation": str(population.relation),
        "size": population.size,
    }
    if terms.parallel is not None:
        facts["max_partitions_per_unit"] = terms.parallel.partitions_per_unit
        facts["attestation"] = terms.parallel.attestation
        facts["replacement_assumption"] = terms.parallel.replacement_assumption
    return facts | metadata_payload(1, terms.metadata)


def parse_population_payload(facts: Mapping[str, Any]) -> tuple[AccountSpec, Population]:
    """Deserialize a proposed population."""
    parallel = None
    if "max_partitions_per_unit" in facts:
        parallel = ParallelSpec(facts["max_partitions_per_unit"], facts["attestation"], facts["replacement_assumption"])
    terms = AccountSpec(
        name=facts["name"],
        limit=Limit.of(facts["limit"]),
        planned=read_planned(json.dumps(facts["planned"])),
        parallel=parallel,
        metadata=metadata_of(facts.get("metadata", {})),
    )
    relation = NeighboringRelation(facts["neighboring_relation"])
    return terms, Population(facts["privacy_unit"], relation, facts["size"])


def check_population(tx: Connection, context: RequestContext, terms: AccountSpec, population: Population) -> Account:
    """Validate a population and build its account; nothing is written.

    The transaction must have locked the organisation.

    Raises:
        NameTakenError: a population has this name or a lookalike.
        InvalidInputError: the attestation of its partitions is missing or incomplete.
        PolicyViolationError: a policy forbids it.
        Also those of `check_account_limit` and `with_plan`.
    """
    proposed = new_account(tx, context, AccountKind.POPULATION, None, terms, population.relation)
    check_account_limit(proposed, population)
    account = with_plan(proposed, [], context.costs)
    require_dates([account], population)
    if terms.parallel is not None:
        build_attestation(context, terms.parallel, population.relation)
    require_name_free(tx, context, None, terms.name, terms.metadata.display_name)
    return account


@use_case(Permission.ACCOUNT_MANAGE)
def create_budget(tx: Connection, context: RequestContext, parent: str, terms: AccountSpec) -> AccountView:
    """Create a budget under a population or another budget.

    Raises:
        InvalidInputError: the tree would be too deep, the parent has too many partitions, the attestation is missing
            or incomplete, or the block is not allowed here or overlaps another one.
        AccountArchivedError: the parent, or an account above it, is archived.
        NameTakenError: the parent has a budget of this name or a lookalike.
        Also those of `check_account_limit`, `with_plan` and `require_dates`.
    """
    return open_budget(tx, context, find_parent(tx, context, parent), terms)


@use_case(Permission.ACCOUNT_MANAGE)
def create_blocks(
    tx: Connection, context: RequestContext, parent: str, schedule: BlockSchedule, count: int
) -> list[AccountView]:
    """Create a budget for each of the first blocks of a schedule, all or none.

    Raises:
        As `create_budget`, for the first block that cannot be created.
    """
    above = find_parent(tx, context, parent)
    return [open_budget(tx, context, above, block_terms(schedule, block)) for block in schedule.blocks(count)]


def block_terms(schedule: BlockSchedule, block: Block) -> AccountSpec:
    """Specify the budget of a schedule's block."""
    return AccountSpec(schedule.name_of(block), schedule.limit, (), block=block)


def open_budget(tx: Connection, context: RequestContext, above: AccountRecord, terms: AccountSpec) -> AccountView:
    """Create a budget as `create_budget`; the organisation is locked and the caller authorised."""
    *path, account = check_budget(tx, context, above, terms)
    return _open(tx, context, account, path, None, terms)


def check_budget(tx: Connection, context: RequestContext, above: AccountRecord, terms: AccountSpec) -> list[Account]:
    """Validate a budget as `create_budget`, and return its path with its account at the end; nothing is written."""
    require_unarchived(tx, context, above.account.id)
    if above.account.depth >= MAX_DEPTH:
        raise InvalidInputError(f"Budgets are at most {MAX_DEPTH} levels under their population.")
    check_part(tx, context, above.account, terms.block)
    ancestors = accounts.path_of(tx, context.organisation_id, above.account.id)
    proposed = new_account(tx, context, AccountKind.BUDGET, above.account, terms, above.account.relation)
    check_account_limit(proposed, above.population)
    path = [record.account for record in ancestors]
    account = with_plan(proposed, path, context.costs)
    require_dates([*path, account], above.population)
    require_name_free(tx, context, above.account.id, terms.name, terms.metadata.display_name)
    return [*path, account]


def get_account(context: RequestContext, kind: AccountKind, account_id: str) -> AccountView:
    """Get a population or a budget by id, or a population by its name."""
    with context.read() as tx:
        found = find_of_kind(tx, context, kind, account_id)
        [view] = account_views(tx, context, [found])
    return view


def list_accounts(
    context: RequestContext,
    wanted: AccountFilter,
    page: PageRequest,
) -> Page[AccountView]:
    """List populations or budgets in the caller's scope; `wanted.parent` may be a path."""
    with context.read() as tx:
        if wanted.parent is not None:
            wanted = replace(wanted, parent=find_parent(tx, context, wanted.parent).account.id)
        found = accounts.page(tx, context.organisation_id, wanted, page, context.principal.scope)
        return found.map(lambda records: account_views(tx, context, records))


def _open(
    tx: Connection,
    context: RequestContext,
    account: Account,
    ancestors: list[Account],
    population: Population | None,
    terms: AccountSpec,
    *,
    attested_by: str | None = None,
) -> AccountView:
    """Write an account; `attested_by` attests that its partitions are disjoint, None: the caller."""
    said = None if terms.parallel is None else build_attestation(context, terms.parallel, account.relation, attested_by)
    whose = context.organisation_id
    number = account_writes.add(tx, whose, account, ancestors, population, context.now, metadata=terms.metadata)
    if said is not None:
        partitions.attest(tx, context.organisation_id, said, account_id=account.id)
    if terms.block is not None:
        partitions.add_block(tx, context.organisation_id, terms.block, account_id=account.id)
    opened = accounts.find(tx, context.organisation_id, account.id)
    assert opened is not None
    [view] = account_views(tx, context, [opened])
    facts = account_audit_payload(account, population) | partition_payload(said, terms.block)
    facts |= metadata_payload(number, terms.metadata)
    context.record(tx, AuditAction(f"{account.kind}.created"), account.id, after=facts)
    return view
