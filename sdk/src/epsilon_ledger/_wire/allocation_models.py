"""Allocations of accounts, and the reservations that wait for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NotRequired, TypeAlias, TypedDict, cast

from epsilon_ledger._wire.models import Limit
from epsilon_ledger._wire.reservation_models import Reservation, Waiting

SchedulingRule: TypeAlias = Literal["first_come", "smallest_share", "most_packed"]


class UnlockOverTime(TypedDict):
    """A limit of which another equal part becomes usable at regular times, the first one at once.

    `parts` is by default one for each day; `since`, ISO 8601, is by default now, or as before.
    """

    type: Literal["over_time"]
    over_seconds: int
    parts: NotRequired[int]
    since: NotRequired[str]


class UnlockByReservations(TypedDict):
    """A limit of which every run that asks for a reservation unlocks an equal part; `since` as of `UnlockOverTime`."""

    type: Literal["by_reservations"]
    reservations: int
    since: NotRequired[str]


class Share(TypedDict):
    """What is promised to a budget directly under an account, by its id or path.

    `minimum` (default 0) of each window's budget is kept for it until the window ends. Its reservations have at most
    `maximum` (default 1) of the usable limit. `weight` (default 1) counts in the order of the reservations that wait.
    """

    account: str
    minimum: NotRequired[float]
    maximum: NotRequired[float]
    weight: NotRequired[float]


class Allocation(TypedDict, total=False):
    """How an account shares out its budget among reservations, all optional.

    `rule` is of a population, for all under it. A reservation that has waited for `aging_seconds` (default: a week) is
    delayed by no younger one; None: by any. `unlock` None: all of the limit is usable.
    """

    rule: SchedulingRule | None
    aging_seconds: int | None
    unlock: UnlockOverTime | UnlockByReservations | None
    shares: list[Share]


@dataclass(frozen=True, slots=True)
class AccountShare:
    """What is promised to a budget directly under an account."""

    account: str
    account_path: str
    minimum: float
    maximum: float
    weight: float


@dataclass(frozen=True, slots=True)
class AccountAllocation:
    """The allocation of an account, and what of its limit is usable; `etag` is for `replace_allocation`.

    Args:
        account: its id.
        path: its path.
        reservations_only: whether it has an allocation, and so admits steps of reservations only.
        rule: by which waiting reservations are served.
        aging_seconds: of waiting, after which no younger reservation delays one; None: any may.
        unlock: how the limit becomes usable; None: it is.
        shares: of the budgets directly under it.
        revision: number of changes.
        unlocked: usable part of the limit, in [0, 1].
        limit: of the account.
        next_unlock_at: when the next part becomes usable; None: never, or by arrivals.
        arrivals: runs that have asked for a reservation, if they unlock the limit.
        etag: entity tag.
    """

    account: str
    path: str
    reservations_only: bool
    rule: str | None
    aging_seconds: int | None
    unlock: Mapping[str, object] | None
    shares: tuple[AccountShare, ...]
    revision: int
    unlocked: float
    limit: Limit
    next_unlock_at: datetime | None
    arrivals: int | None
    etag: str | None = field(default=None, repr=False)

    @property
    def allocation(self) -> Allocation | None:
        """The allocation, to change and to give to `replace_allocation`; None: there is none."""
        if not self.reservations_only:
            return None
        shares: list[Share] = [
            {"account": each.account, "minimum": each.minimum, "maximum": each.maximum, "weight": each.weight}
            for each in self.shares
        ]
        terms: dict[str, object] = {"aging_seconds": self.aging_seconds, "unlock": self.unlock, "shares": shares}
        # Only a population has a rule.
        return cast("Allocation", terms if self.rule is None else {"rule": self.rule, **terms})


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A reservation that waits, and its run."""

    run: str
    run_path: str
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class AccountQueue:
    """The reservations that wait for an account or for one under it, the next one first; `reservations` counts them.

    At most 100 are listed.
    """

    account: str
    path: str
    reservations: int
    items: tuple[QueueEntry, ...]


@dataclass(frozen=True, slots=True)
class WaitPreview:
    """What would become of a reservation that arrived now.

    Attributes:
        fits: whether it would be reserved at once.
        waiting: its place and what it would wait for; None: it fits, or could never fit and would be refused.
    """

    fits: bool
    waiting: Waiting | None
