"""Creation of populations with a second approver."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.ledger.account_records import Population
from app.ledger.errors import NameTakenError
from app.ledger.filters import FilterKind, Limit
from app.ledger.lookalikes import look_alike
from app.ledger.permissions import Permission
from app.ledger.policies import EMPTY_POLICY, ORGANISATION, PolicySource, effective
from app.ledger.proposals import Proposal, ProposalKind
from app.persistence.repositories import organisations
from app.persistence.repositories.account_values import planned_text, read_planned
from app.service.accounts.create import check_population, open_population
from app.service.accounts.partitions import AccountView, ParallelSpec
from app.service.accounts.spec import AccountSpec
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.governance.change_control import open_proposals, propose
from app.service.idempotency import Effect

MOST_WAITING: Final = 1000
"""Number of open proposals that a new name is compared with."""


def create_population(
    context: RequestContext, terms: AccountSpec, population: Population
) -> Effect[AccountView | Proposal]:
    """Create a population, or propose it if the policy requires a second person.

    Raises:
        As `check_population`; also NameTakenError: a proposed population has a lookalike of the name.
    """
    context.require_organisation_scope(Permission.ACCOUNT_MANAGE)

    def create(tx: Connection, ready: PrecomputedCosts) -> AccountView | Proposal:
        if needs_second_person(tx, context):
            return propose_population(tx, context, terms, population, ready)
        return open_population(tx, context, terms, population, ready)

    return create


def needs_second_person(tx: Connection, context: RequestContext) -> bool:
    """Check whether the organisation's policy requires a second person for populations."""
    policy = organisations.policy(tx, context.organisation_id)[0] or EMPTY_POLICY
    return effective((PolicySource(ORGANISATION, policy),)).approvers_to_create_population != 1


def propose_population(
    tx: Connection, context: RequestContext, terms: AccountSpec, population: Population, ready: PrecomputedCosts
) -> Proposal:
    """Propose a population; arguments and errors as `check_population`.

    Raises:
        NameTakenError: also if a population is proposed with this name or a lookalike.
    """
    check_population(tx, context, terms, population, ready)
    for waiting in open_proposals(tx, context, None, {ProposalKind.POPULATION}, limit=MOST_WAITING):
        other = waiting.proposed["name"]
        if look_alike(terms.name, other):
            raise NameTakenError(f"{waiting.id} proposes {other!r} already; decide it first.", name=other)
    told = f"The population {terms.name}: another person has to approve it."
    return propose(tx, context, ProposalKind.POPULATION, None, population_payload(terms, population), told)


def approve_population(tx: Connection, context: RequestContext, proposal: Proposal, ready: PrecomputedCosts) -> None:
    """Create a proposed population; the transaction has locked the organisation.

    Raises:
        NameTakenError: a population has this name or a lookalike by now.
        PolicyViolationError: a policy forbids it by now.
    """
    terms, population = parse_population_payload(proposal.proposed)
    open_population(tx, context, terms, population, ready, attested_by=proposal.proposed_by)


def population_payload(terms: AccountSpec, population: Population) -> dict[str, Any]:
    """Serialize a population for its proposal; `read_opening` is the inverse."""
    assert terms.limit is not None, "a population has a limit"
    facts: dict[str, Any] = {
        "name": terms.name,
        "limit": asdict(terms.limit),
        "filter": str(terms.filter),
        "planned": json.loads(planned_text(terms.planned)),
        "privacy_unit": population.privacy_unit,
        "neighboring_relation": str(population.relation),
        "size": population.size,
    }
    if terms.parallel is not None:
        facts["max_partitions_per_unit"] = terms.parallel.partitions_per_unit
        facts["attestation"] = terms.parallel.attestation
        facts["replacement_assumption"] = terms.parallel.replacement_assumption
    return facts


def parse_population_payload(facts: Mapping[str, Any]) -> tuple[AccountSpec, Population]:
    """Deserialize a proposed population."""
    parallel = None
    if "max_partitions_per_unit" in facts:
        parallel = ParallelSpec(facts["max_partitions_per_unit"], facts["attestation"], facts["replacement_assumption"])
    terms = AccountSpec(
        name=facts["name"],
        limit=Limit(**facts["limit"]),
        filter=FilterKind(facts["filter"]),
        planned=read_planned(json.dumps(facts["planned"])),
        parallel=parallel,
    )
    relation = NeighboringRelation(facts["neighboring_relation"])
    return terms, Population(facts["privacy_unit"], relation, facts["size"])
