"""Lookup of accounts by id or path, within the caller's scope."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord, Attestation, Block
from app.ledger.accounts.metadata import AccountMetadata
from app.ledger.admission.composition import budgets_of
from app.ledger.errors import NotFoundError
from app.ledger.governance.steps_lost import StepsLost
from app.ledger.scheduling.availability import Available
from app.persistence.repositories import account_metadata, accounts, locks, partitions
from app.persistence.repositories.dp_events import CostCache
from app.service.accounts.availability import read_available
from app.service.accounts.epsilons import read_epsilons
from app.service.accounts.spec import ID_PREFIXES
from app.service.accounts.tuning import read_steps_lost
from app.service.auth.request_context import RequestContext


@dataclass(frozen=True, slots=True)
class AccountView:
    """A population or budget with its metadata, its population, what it can still take, attestation and data block.

    Args:
        epsilon: of all that it was charged, at its limit's delta; `lifetime` likewise of its population.
        lost: registered steps that do not fit because its filter is not tuned to them; None: few or none.
    """

    record: AccountRecord
    about: AccountMetadata
    epsilon: float
    population: Account
    lifetime: float
    available: Available
    attestation: Attestation | None
    block: Block | None
    lost: StepsLost | None = None


def require_reach(tx: Connection, context: RequestContext, account_id: str) -> None:
    """Require that an account is at or under the caller's scope."""
    if context.principal.scope is not None:
        context.require_scope(locks.ancestor_ids(tx, context.organisation_id, account_id))


def require_every_budget(tx: Connection, context: RequestContext, account_id: str) -> None:
    """Require that every budget charged by a run is in the caller's scope."""
    if context.principal.scope is None:
        return
    path = [record.account for record in accounts.path_of(tx, context.organisation_id, account_id)]
    budgets = budgets_of(path) if path[-1].kind is AccountKind.RUN else ()
    if len(budgets) > 1:
        for budget in budgets:
            require_reach(tx, context, budget.id)


_FINDERS: Final = {
    AccountKind.POPULATION: "GET /v1/populations?name= finds a population by its name, such as mimic",
    AccountKind.BUDGET: "GET /v1/budgets?path= finds a budget by its path, such as mimic/icu-team",
    AccountKind.RUN: "GET /v1/runs?path= finds runs by their path, such as mimic/icu-team/model",
}


def missing_account_error(kind: AccountKind, reference: str) -> NotFoundError:
    """Build the error about an unknown id, with a way to find the id if the reference has not the form of one."""
    hint = "" if reference.startswith(f"{ID_PREFIXES[kind]}_") else f"; {_FINDERS[kind]}"
    return NotFoundError(f"There is no {kind} with the id {reference!r} in your organisation{hint}.")


def find_of_kind(tx: Connection, context: RequestContext, kind: AccountKind, reference: str) -> AccountRecord:
    """Find an account of one kind by id, or a population or budget by path."""
    found = _look_up(tx, context, reference, {kind})
    if found is None:
        raise missing_account_error(kind, reference)
    require_reach(tx, context, found.account.id)
    return found


def find_account(tx: Connection, context: RequestContext, reference: str) -> AccountRecord:
    """Find a population or budget by id or path, or a run by id."""
    found = accounts.find(tx, context.organisation_id, reference)
    if found is None:
        return find_parent(tx, context, reference)
    require_reach(tx, context, found.account.id)
    return found


def find_scope(tx: Connection, context: RequestContext, reference: str | None) -> str | None:
    """Get the id of the account that a list is about: the given one, or else the caller's scope, None: none."""
    return context.principal.scope if reference is None else find_account(tx, context, reference).account.id


def find_path_of(tx: Connection, context: RequestContext, reference: str) -> list[AccountRecord]:
    """Read an account and its ancestors, root first; a writing transaction locks them.

    References are as in `find_account`; an id saves one read.
    """
    path = accounts.path_of(tx, context.organisation_id, reference)
    if not path:
        path = accounts.path_of(tx, context.organisation_id, find_parent(tx, context, reference).account.id)
    context.require_scope([record.account.id for record in path])
    return path


def find_parent(tx: Connection, context: RequestContext, reference: str) -> AccountRecord:
    """Find a population or budget by id, or by path ("mimic/icu-team")."""
    found = _look_up(tx, context, reference, {AccountKind.POPULATION, AccountKind.BUDGET})
    if found is None:
        raise NotFoundError(
            f"There is no population or budget {reference!r} in your organisation; "
            "give its id, or its path such as mimic/icu-team."
        )
    require_reach(tx, context, found.account.id)
    return found


def _look_up(
    tx: Connection, context: RequestContext, reference: str, kinds: Collection[AccountKind]
) -> AccountRecord | None:
    """Look up an account of some kinds by id, or a population or budget by path."""
    found = accounts.find(tx, context.organisation_id, reference)
    if found is None or found.account.kind not in kinds:
        found = accounts.find_by_path(tx, context.organisation_id, reference)
    return found if found is not None and found.account.kind in kinds else None


def account_views(tx: Connection, context: RequestContext, records: Sequence[AccountRecord]) -> list[AccountView]:
    """Add metadata, population, what is available, attestation and block to accounts; the order is kept."""
    roots = {each.account.id: each for each in records if each.account.kind is AccountKind.POPULATION}
    missing = {each.account.population_id for each in records} - roots.keys()
    if missing:
        found = accounts.find_many(tx, CostCache(), context.organisation_id, sorted(missing))
        roots |= {each.account.id: each for each in found}
    read = {each.account.id: each for each in (*records, *roots.values())}
    values = read_epsilons(tx, context.organisation_id, [(each, None) for each in read.values()])
    epsilons = dict(zip(read, values, strict=True))
    composed = [each.account.id for each in records if each.account.partitions_per_unit is not None]
    said = partitions.attested(tx, context.organisation_id, composed) if composed else {}
    lower = [each.account.id for each in records if each.account.kind is AccountKind.BUDGET]
    blocks = partitions.blocks_of(tx, context.organisation_id, lower) if lower else {}
    about = account_metadata.find_many(tx, context.organisation_id, [each.account.id for each in records])
    lost = read_steps_lost(tx, context.organisation_id, [each.account for each in records])
    available = read_available(tx, context.organisation_id, records, context.lapsed_by)
    return [
        AccountView(
            each,
            about[each.account.id],
            epsilons[each.account.id],
            roots[each.account.population_id].account,
            epsilons[each.account.population_id],
            available[each.account.id],
            said.get(each.account.id),
            blocks.get(each.account.id),
            lost.get(each.account.id),
        )
        for each in records
    ]
