"""Allocations: how populations and budgets share out what they have among reservations (ADR 0041)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.errors import InvalidInputError
from app.ledger.governance.settings import ALLOCATION
from app.ledger.settings.allocation import Allocation, SchedulingRule, Share, Unlock, UnlockOverTime
from app.persistence.repositories import accounts
from app.service.accounts.locked_limits import Unlocked, read_unlocked
from app.service.accounts.lookup import find_parent
from app.service.auth.request_context import RequestContext
from app.service.setting_changes import SettingHandler, SettingRecord


@dataclass(frozen=True, slots=True)
class AllocationTerms:
    """A new allocation as it is asked for; shares name budgets by id or path.

    `since` of an unlock that does not say when it begins is None: it begins now, or goes on if nothing else changes.
    """

    rule: SchedulingRule | None
    aging_seconds: int | None
    unlock: Unlock | None
    unlock_begins: bool
    shares: Mapping[str, Share]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord(SettingRecord[Allocation | None]):
    """The allocation of an account and its state; without one, steps need no reservation.

    Args:
        unlocked: usable part of its limit.
        next_unlock_at: when the next part becomes usable; None: never, or it depends on arrivals.
        arrivals: runs that have asked for a reservation, if they unlock the limit.
        paths: of the accounts with a share, by id.
    """

    unlocked: Fraction
    next_unlock_at: datetime | None
    arrivals: int | None
    paths: Mapping[str, str]


def find_allocation(tx: Connection, context: RequestContext, path: Sequence[AccountRecord]) -> AllocationRecord:
    """Describe the allocation of the last account of a path, and what it has unlocked.

    The entity tag depends on what is usable, too.
    """
    account, owner = path[-1].account, context.organisation_id
    allocation, revision = account.allocation, account.allocation_revision
    unlocked = Unlocked()
    if allocation is not None:
        unlocked = read_unlocked(tx, owner, account.id, allocation, context.lapsed_by)
    unlock = None if allocation is None else allocation.unlock
    next_at = None
    if isinstance(unlock, UnlockOverTime):
        window = unlock.window(context.now) + 1
        next_at = unlock.begin(window) if window < unlock.parts else None
    shared = sorted(allocation.shares) if allocation is not None else []
    usable = f"{unlocked.part.numerator}.{unlocked.part.denominator}.{unlocked.arrivals}"
    return AllocationRecord(
        *(account.id, path, allocation, revision, f'"{account.id}-allocation-{revision}-{usable}"'),
        unlocked=unlocked.part,
        next_unlock_at=next_at,
        arrivals=unlocked.arrivals,
        paths={each.account.id: each.account.path for each in accounts.read_many(tx, owner, shared)} if shared else {},
    )


def build_allocation(
    context: RequestContext, terms: AllocationTerms | None, tx: Connection, before: AllocationRecord
) -> Allocation | None:
    """Build the allocation that replaces another one; an unlock that does not begin anew goes on.

    Raises:
        InvalidInputError: a value is out of range, a rule is not a population's, or a share is not of a budget directly
            under a sequential account.
    """
    if terms is None:
        return None
    account = before.account
    is_population = account.kind is AccountKind.POPULATION
    if terms.rule is not None and not is_population:
        raise InvalidInputError(
            f"{account.path} is a {account.kind}: reservations are served in the order of their population's rule. "
            "Leave `rule` out, and set it on the population.",
            field="rule",
        )
    rule = terms.rule or (SchedulingRule.FIRST_COME if is_population else None)
    shares = {_share_holder(tx, context, account, name): share for name, share in terms.shares.items()}
    if len(shares) < len(terms.shares):
        raise InvalidInputError("`shares` names a budget by its id and by its path. Send one share.", field="shares")
    return Allocation(rule, terms.aging_seconds, _continued(account, terms), shares)


def _continued(account: Account, terms: AllocationTerms) -> Unlock | None:
    before = None if account.allocation is None else account.allocation.unlock
    unlock = terms.unlock
    if unlock is None or terms.unlock_begins or before is None or type(before) is not type(unlock):
        return unlock
    continued = replace(unlock, since=before.since)
    return continued if continued == before else unlock


def _share_holder(tx: Connection, context: RequestContext, account: Account, name: str) -> str:
    found = find_parent(tx, context, name).account
    if found.parent_id != account.id:
        raise InvalidInputError(
            f"{found.path} is not directly under {account.path}; `shares` names its own budgets.", field="shares"
        )
    if account.partitions_per_unit is not None:
        raise InvalidInputError(
            f"{account.path} is composed in parallel: its parts hold different people and share nothing. Leave "
            "`shares` out, and set the limit of each part.",
            field="shares",
        )
    return found.id


ALLOCATIONS: Final = SettingHandler(ALLOCATION, find_allocation)
