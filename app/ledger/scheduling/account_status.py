"""The status of an account: what is used, reserved and left of its limit, and how urgent that is."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Self

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import title_of
from app.ledger.filter.limits import Limit
from app.ledger.scheduling.availability import Available, room_of
from app.ledger.scheduling.withholding import LockedLimit

SOON: Final = timedelta(days=7)
AHEAD: Final = timedelta(days=30)

NEARLY_EXHAUSTED: Final = 0.98
LOW: Final = 0.8
HALF: Final = 0.5


class Severity(StrEnum):
    """How urgent the state of an account is, most urgent first."""

    OVER = "over"
    EXHAUSTED = "exhausted"
    LOW = "low"
    HALF = "half"
    OK = "ok"


class AccountStatus(NamedTuple):
    """The state of an account without its curves: one of thousands in a list, on a page or among the metrics.

    All parts are shares of an account's capacity (`Account.used`). What is `left` can really be taken now: the least
    that its limit and those above it leave. Severity and order use it, but for what is locked: that cannot be taken
    now, and is not used up either. A tuple is made several times as fast as a frozen dataclass.

    Args:
        quarantine: the reason, if the account is quarantined.
        max_partitions_per_unit: set if its children are disjoint parts.
        allocation: the stored text, if it shares out its budget.
        number: tells apart the runs at one path.
        created_at: None if its numbers were not read.
        limit: None if its numbers were not read, or its row is damaged, so that its spending is unknown.
        epsilon: of all that was charged, at the limit's delta; None until `with_epsilons`.
        used: share that is spent.
        used_including_reserved: share that is spent and reserved.
        remaining: share that its own limit leaves, neither spent nor reserved; at least 0.
        per_day: growth of the used share a day; None if there is not enough data.
        empty_at: when the limit is reached at that rate; None if never or unknown.
        rated_at: time of reading; None until the burn rate is known.
        available: what can be taken now, and the account that limits it; None: only its own limit is known.
        locked: what of its own limit is unlocked, if that is unlocked in parts.
        waiting: number of reservations that wait for it; 0 until `with_waiting_reservations`.
        path_empty_at: when the first limit along its path is reached, and `path_empty_by` the path of that account.
        display_name: what people see instead of its name; None until `with_metadata`, or without one.
        owner: likewise.
        archived: whether it or an account above it is archived, so that nothing can be taken.
    """

    organisation_id: str
    id: str
    kind: AccountKind
    parent_id: str | None
    population_id: str
    path: str
    depth: int
    updated_at: datetime
    version: int
    quarantine: str | None
    max_partitions_per_unit: int | None
    allocation: str | None
    number: int = 1
    created_at: datetime | None = None
    limit: Limit | None = None
    epsilon: float | None = None
    used: float = math.inf
    used_including_reserved: float = math.inf
    has_reserved: bool = False
    remaining: float = 0.0
    per_day: float | None = None
    empty_at: datetime | None = None
    rated_at: datetime | None = None
    available: Available | None = None
    locked: LockedLimit | None = None
    waiting: int = 0
    path_empty_at: datetime | None = None
    path_empty_by: str | None = None
    display_name: str | None = None
    owner: str | None = None
    archived: bool = False

    def with_balance(self, record: AccountRecord) -> Self:
        """Add what a population or budget has spent and reserved."""
        account = record.account
        assert account.limit is not None, "populations and budgets have limits"
        has_reserved = not account.held.is_zero
        used = account.used()
        return self._replace(
            created_at=record.created_at,
            limit=account.limit,
            used=used,
            used_including_reserved=max(used, account.used(account.spent + account.held)) if has_reserved else used,
            has_reserved=has_reserved,
            remaining=room_of(account),
        )

    @property
    def key(self) -> tuple[str, str]:
        """The ids of organisation and account."""
        return self.organisation_id, self.id

    @property
    def mark(self) -> tuple[object, ...]:
        """A token of the state; after a restore a version alone may repeat."""
        return self.version, self.updated_at, self.quarantine

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rpartition("/")[2]

    @property
    def title(self) -> str:
        """What people see: the display name, or the name."""
        return self.display_name or self.name

    @property
    def path_title(self) -> str:
        """The path, with the number of a run that is not the first."""
        return title_of(self.path, self.number)

    @property
    def parallel(self) -> bool:
        """Whether its children are disjoint parts."""
        return self.max_partitions_per_unit is not None

    @property
    def reservations_only(self) -> bool:
        """Whether it admits reserved steps only."""
        return self.allocation is not None

    @property
    def usable(self) -> float:
        """Share that its own limit leaves to charges: nothing in quarantine."""
        return 0.0 if self.quarantine is not None else self.remaining

    @property
    def left(self) -> float:
        """Share that can really be taken now: the least along the path."""
        if self.quarantine is not None or self.archived:
            return 0.0
        return self.remaining if self.available is None else self.available.share

    @property
    def locked_by(self) -> Available | None:
        """What limits it by what is locked, if unlocking leaves more."""
        found = self.available
        return None if found is None or found.when_unlocked is None or self.quarantine is not None else found

    @property
    def blocked_by(self) -> Available | None:
        """What limits it more than its own limit, if another account does; nothing is locked then."""
        found = self.available
        if found is not None and found.when_unlocked is not None:
            found = found.when_unlocked
        return None if found is None or found.account_id == self.id else found

    @property
    def is_locked(self) -> bool:
        """Whether next to nothing can be taken until more is unlocked."""
        if self.limit is None or self.locked_by is None or self.used_along_path >= NEARLY_EXHAUSTED:
            return False
        return self.left <= 1 - NEARLY_EXHAUSTED

    @property
    def reserved(self) -> float:
        """Share that reservations add."""
        return 0.0 if self.limit is None else self.used_including_reserved - self.used

    @property
    def is_blocked(self) -> bool:
        """Whether an account above leaves next to nothing of what its own limit leaves."""
        return self.used_including_reserved < NEARLY_EXHAUSTED <= self.used_along_path

    @property
    def used_along_path(self) -> float:
        """Used share with reservations: its own, or that of an account above that is fuller.

        A locked part of the limit does not count.
        """
        own, blocked_by = self.used_including_reserved, self.blocked_by
        if self.limit is None or blocked_by is None:
            return own
        return max(own, 1.0 if self.quarantine is not None else 1 - blocked_by.share)

    @property
    def time_to_exhaustion(self) -> timedelta | None:
        """Time until a limit along the path is reached, if the account is in use; None if never or unknown."""
        ends_at = self.empty_at
        if self.per_day and self.path_empty_at is not None:
            ends_at = self.path_empty_at
        return None if ends_at is None or self.rated_at is None else max(timedelta(0), ends_at - self.rated_at)

    @property
    def severity(self) -> Severity:
        """How urgent the account's state is."""
        ends_in = self.time_to_exhaustion
        if self.limit is None or self.used > 1 or self.quarantine is not None:
            return Severity.OVER
        used = self.used_along_path
        if used >= NEARLY_EXHAUSTED:
            return Severity.EXHAUSTED
        if used >= LOW or (ends_in is not None and ends_in <= SOON):
            return Severity.LOW
        return Severity.HALF if used >= HALF or (ends_in is not None and ends_in <= AHEAD) else Severity.OK

    @property
    def sort_key(self) -> tuple[int, float, str]:
        """Sorts the most urgent account first."""
        return _SEVERITIES.index(self.severity), -self.used_along_path, self.path


_SEVERITIES: Final = tuple(Severity)


def available_of(
    statuses: Iterable[AccountStatus], above_parts: Mapping[str, Available] | None = None
) -> dict[str, Available]:
    """Find what each account can still take, by id.

    `statuses` has parents before their children. `above_parts` has the result of `least_above_part` for parts of
    parallel accounts; for a part without one, the room of the parallel account as a whole counts, which is never more.
    """
    found: dict[str, Available] = {}
    for each in statuses:
        own = Available(each.usable, each.id, each.path)
        above = found.get(each.parent_id) if each.parent_id is not None else None
        if above_parts and each.id in above_parts:
            above = above_parts[each.id]
        found[each.id] = own if above is None or own.share <= above.share else above
    return found
