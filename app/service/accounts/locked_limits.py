"""What part of an account's limit is unlocked, read from the ledger."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.scheduling.account_status import AccountStatus
from app.ledger.scheduling.availability import room_of, unlocked_room_of
from app.ledger.scheduling.withholding import LockedLimit, Withholding
from app.ledger.settings.allocation import ALL, Allocation, UnlockByReservations, UnlockOverTime
from app.persistence.lru_cache import LruCache
from app.persistence.repositories import waiting
from app.service.accounts.damaged_rows import read_tolerating_damage

CACHED_ACCOUNTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Unlocked:
    """What of a limit is unlocked.

    Args:
        part: of the limit.
        window: part of the limit that the current window has unlocked.
        since: when that window began; None: always.
        arrivals: runs that have asked for a reservation, if they unlock the limit.
    """

    part: Fraction = ALL
    window: Fraction = ALL
    since: datetime | None = None
    arrivals: int | None = None


def read_unlocked(
    tx: Connection,
    organisation_id: str,
    account_id: str,
    allocation: Allocation,
    now: datetime,
    asking: str | None = None,
) -> Unlocked:
    """Read what is unlocked of the limit of an account.

    Args:
        tx: the transaction.
        organisation_id: of the account.
        account_id: of the account.
        allocation: of the account.
        now: the earliest time that it may be, so that nothing is unlocked too early.
        asking: a run that asks for a reservation just now, and counts as an arrival.
    """
    unlock = allocation.unlock
    if isinstance(unlock, UnlockOverTime):
        window = unlock.window(now)
        if window < 0:
            return Unlocked(Fraction(0), Fraction(0), unlock.since)
        return Unlocked(unlock.fraction(now), unlock.window_part(now), unlock.begin(window))
    if isinstance(unlock, UnlockByReservations):
        arrivals = waiting.count_asking(tx, organisation_id, account_id, unlock.since, but=asking)
        fraction = unlock.fraction(arrivals + (asking is not None))
        return Unlocked(fraction, fraction, unlock.since, arrivals)
    return Unlocked()


def read_locked_limits(
    tx: Connection, organisation_id: str, accounts: Iterable[Account], now: datetime
) -> dict[str, LockedLimit]:
    """Read what is locked of the limits of those accounts that unlock theirs, by id."""
    found = {}
    for account in accounts:
        allocation = account.allocation
        if allocation is None or allocation.unlock is None or account.limit is None:
            continue
        part = read_unlocked(tx, organisation_id, account.id, allocation, now).part
        withholding = Withholding(allocation, part)
        found[account.id] = LockedLimit(withholding, room_of(account) - unlocked_room_of(account, withholding))
    return found


def room_within(limits: Mapping[str, LockedLimit]) -> Callable[[Account], float]:
    """Get the function that computes what the limits of accounts leave now."""

    def room(account: Account) -> float:
        limit = limits.get(account.id)
        return room_of(account) if limit is None else unlocked_room_of(account, limit.withholding)

    return room


class LockedLimitReader:
    """Reads what is locked of limits; caches the accounts that unlock theirs. Thread-safe."""

    def __init__(self) -> None:
        self._known: LruCache[tuple[str, str], tuple[tuple[object, ...], Account]] = LruCache(CACHED_ACCOUNTS)

    def read(
        self, tx: Connection, organisation_id: str, statuses: Sequence[AccountStatus], now: datetime
    ) -> dict[str, LockedLimit]:
        """Read what is locked of limits, by id of those accounts that unlock theirs; damaged ones are left out."""
        allocating = [each for each in statuses if each.allocation is not None]
        if not allocating:
            return {}
        found, missing = [], {}
        for each in allocating:
            kept = self._known.get(each.key)
            if kept is not None and kept[0] == each.mark:
                found.append(kept[1])
            else:
                missing[each.id] = each
        if missing:
            read, _ = read_tolerating_damage(tx, organisation_id, list(missing), lambda record: record.account)
            for account in read.values():
                self._known.put(missing[account.id].key, (missing[account.id].mark, account))
            found += read.values()
        return read_locked_limits(tx, organisation_id, found, now)
