"""Parallel composition: attestations, data blocks and account views."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from app.accounting.events import NeighboringRelation
from app.ledger.account_records import AccountRecord, Attestation, Block
from app.ledger.accounts import Account, AccountKind
from app.ledger.composition import MAX_PARTITIONS
from app.ledger.errors import InvalidInputError
from app.persistence.repositories import accounts, partitions
from app.persistence.repositories.dp_events import CostCache
from app.service.auth.request_context import RequestContext


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    """The attestation that an account's children are disjoint partitions.

    Args:
        partitions_per_unit: number of partitions that one privacy unit may be in.
        attestation: why they are disjoint and chosen independently of the data.
        replacement_assumption: effect of replacing a unit; only for replace_one.
    """

    partitions_per_unit: int
    attestation: str | None
    replacement_assumption: str | None


@dataclass(frozen=True, slots=True)
class AccountView:
    """A population or budget with its population's account, attestation and data block."""

    record: AccountRecord
    population: Account
    attestation: Attestation | None
    block: Block | None


def partition_payload(said: Attestation | None, block: Block | None) -> dict[str, object]:
    """Build the part of an audit payload about attestation and block."""
    facts: dict[str, object] = {}
    if said is not None:
        facts["attestation"] = said.text
        facts["replacement_assumption"] = said.replacement_assumption
        facts["attested_by"] = said.attested_by
        facts["attested_at"] = said.attested_at.isoformat()
    if block is not None:
        facts["block"] = [block.data_from.isoformat(), block.data_to.isoformat(), block.label]
    return facts


def budget_payload(budgets: Sequence[str]) -> dict[str, object]:
    """Build the audit payload of several budgets of a run."""
    return {"budgets": list(budgets)} if len(budgets) > 1 else {}


def build_attestation(
    context: RequestContext, said: ParallelSpec, relation: NeighboringRelation, by: str | None = None
) -> Attestation:
    """Build the attestation of an account composed in parallel.

    Raises:
        InvalidInputError: the attestation is missing, or the relation needs or forbids the replacement assumption.
    """
    if said.attestation is None or not said.attestation.strip():
        raise InvalidInputError(
            "`composition` is parallel, so an `attestation` is needed: say why the parts are disjoint and chosen "
            'independently of the data, such as "each patient is treated at one site; sites were fixed beforehand".'
        )
    if relation is NeighboringRelation.REPLACE_ONE:
        if said.replacement_assumption is None:
            raise InvalidInputError(
                "Under replace_one a replaced unit may leave one part and enter another. Say in "
                "`replacement_assumption` either stay_in_their_parts (a unit's place fixes its part, whatever is "
                "there) or removal_is_bounded (the mechanisms of a part bound what it loses when a unit leaves or "
                "enters)."
            )
    elif said.replacement_assumption is not None:
        raise InvalidInputError(
            f"`replacement_assumption` applies to the relation replace_one only; this one is {relation}."
        )
    return Attestation(said.attestation, said.replacement_assumption, by or context.principal.actor, context.now)


def check_part(tx: Connection, context: RequestContext, parent: Account, block: Block | None) -> None:
    """Check that a parent has room for a budget and its block.

    Raises:
        InvalidInputError: the parent has the maximum of partitions, the parent of a block is not composed in parallel,
            or the block overlaps another one.
    """
    if parent.partitions_per_unit is None:
        if block is not None:
            raise InvalidInputError(
                f"A block is a part of an account that is composed in parallel, and {parent.path} is not: the "
                "spending of its children adds up. Create the block under a parallel population or budget."
            )
        return
    siblings = [record.account for record in accounts.children(tx, context.organisation_id, [parent.id])]
    if len(siblings) >= MAX_PARTITIONS:
        raise InvalidInputError(f"{parent.path} has {MAX_PARTITIONS} parts already, the most that an account may have.")
    if block is None:
        return
    taken = partitions.blocks_of(tx, context.organisation_id, [sibling.id for sibling in siblings])
    for sibling in siblings:
        other = taken.get(sibling.id)
        if other is not None and other.data_from < block.data_to and block.data_from < other.data_to:
            raise InvalidInputError(
                f"The block overlaps {sibling.path}, which has the data from {other.data_from.isoformat()} to "
                f"{other.data_to.isoformat()}. Blocks of one account are disjoint."
            )


def account_views(tx: Connection, context: RequestContext, records: Sequence[AccountRecord]) -> list[AccountView]:
    """Add population, attestation and block to accounts; the order is kept."""
    roots = {each.account.id: each.account for each in records if each.account.kind is AccountKind.POPULATION}
    missing = {each.account.population_id for each in records} - roots.keys()
    if missing:
        found = accounts.find_many(tx, CostCache(), context.organisation_id, sorted(missing))
        roots |= {each.account.id: each.account for each in found}
    composed = [each.account.id for each in records if each.account.partitions_per_unit is not None]
    said = partitions.attested(tx, context.organisation_id, composed) if composed else {}
    lower = [each.account.id for each in records if each.account.kind is AccountKind.BUDGET]
    blocks = partitions.blocks_of(tx, context.organisation_id, lower) if lower else {}
    return [
        AccountView(each, roots[each.account.population_id], said.get(each.account.id), blocks.get(each.account.id))
        for each in records
    ]
