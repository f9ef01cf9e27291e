"""Populations that a second person opens."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.ledger.errors import NameTakenError
from app.ledger.filters import FilterKind, Limit
from app.ledger.lookalikes import look_alike
from app.ledger.permissions import Permission
from app.ledger.policies import NOTHING_SAID, ORGANISATION, PolicySource, effective
from app.persistence.repositories import organisations
from app.persistence.repositories.accounts import Population, planned_text, read_planned
from app.persistence.repositories.proposals import Proposal, ProposalKind
from app.service.accounts.create import check_population, open_population
from app.service.accounts.partitions import AccountView, ParallelSpec
from app.service.accounts.spec import AccountSpec
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.governance.proposing import open_proposals, propose
from app.service.idempotency import IdempotentRequest, ResponseOverride, StoredResponse, run_idempotent

PROPOSED: Final = 202
"""What is answered where 201 would mean that the population is there."""

MOST_WAITING: Final = 1000
"""How many proposed populations a new one's name is held against; nobody leaves so many undecided."""


def create_population(
    call: RequestContext,
    terms: AccountSpec,
    population: Population,
    identity: IdempotentRequest,
    opened: Callable[[AccountView], str],
    proposed: Callable[[Proposal], str],
) -> StoredResponse:
    """Open the account of the people whose data is used, or propose it, where the policy wants a second person.

    Args:
        call: needs ACCOUNT_MANAGE, in the whole organisation.
        terms: name, limit, filter, planned workload.
        population: privacy unit, neighboring relation, size.
        identity: of the request.
        opened: makes the reply's body where it is opened.
        proposed: makes the reply's body where another person has to approve it.

    Returns:
        The reply: 201 if it is opened, 202 if it is proposed.

    Raises:
        As `check_population`; and NameTakenError: another one with a name that looks like it is proposed.
    """
    call.require_organisation_scope(Permission.ACCOUNT_MANAGE)

    def create(tx: Connection, ready: PrecomputedCosts) -> str | ResponseOverride:
        if needs_second_person(tx, call):
            return ResponseOverride(proposed(propose_population(tx, call, terms, population, ready)), PROPOSED)
        return opened(open_population(tx, call, terms, population, ready))

    return run_idempotent(call, identity, create)


def needs_second_person(tx: Connection, call: RequestContext) -> bool:
    """Whether the organisation's policy lets nobody open a population alone."""
    policy = organisations.policy(tx, call.organisation_id)[0] or NOTHING_SAID
    return effective((PolicySource(ORGANISATION, policy),)).approvers_to_create_population != 1


def propose_population(
    tx: Connection, call: RequestContext, terms: AccountSpec, population: Population, ready: PrecomputedCosts
) -> Proposal:
    """Propose a population that could be opened now.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who proposes it.
        terms: name, limit, filter, planned workload.
        population: privacy unit, neighboring relation, size.
        ready: has the curves of what is planned.

    Returns:
        The proposal.

    Raises:
        NameTakenError: a population has this name, or one that looks like it, or is proposed with it.
    """
    check_population(tx, call, terms, population, ready)
    for waiting in open_proposals(tx, call, None, {ProposalKind.POPULATION}, limit=MOST_WAITING):
        other = waiting.proposed["name"]
        if look_alike(terms.name, other):
            raise NameTakenError(
                f"{waiting.id} proposes {other!r} already; approve, reject or withdraw it first.", name=other
            )
    told = f"The population {terms.name}: another person has to approve it."
    return propose(tx, call, ProposalKind.POPULATION, None, opening_facts(terms, population), told)


def approve_population(tx: Connection, call: RequestContext, proposal: Proposal, ready: PrecomputedCosts) -> None:
    """Open the population that was proposed.

    Args:
        tx: a writer's transaction, which has locked the organisation.
        call: who approves.
        proposal: open, of another person.
        ready: has the curves of what is planned.

    Raises:
        NameTakenError: a population has this name by now, or one that looks like it.
        PolicyViolationError: a policy does not allow it.
    """
    terms, population = read_opening(proposal.proposed)
    open_population(tx, call, terms, population, ready, attested_by=proposal.proposed_by)


def opening_facts(terms: AccountSpec, population: Population) -> dict[str, Any]:
    """What a population would be opened with, as JSON; `read_opening` reads it."""
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


def read_opening(facts: Mapping[str, Any]) -> tuple[AccountSpec, Population]:
    """What a population would be opened with, as it was proposed."""
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
