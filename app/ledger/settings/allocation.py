"""Allocation: how an account shares out its budget among reservations that compete for it (ADR 0041).

An account with an allocation admits reservations only: a part of its limit may still be locked, parts may be promised
to the budgets under it, and who waits is served by a rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from app.accounting.exact_losses import exact
from app.ledger.errors import InvalidInputError

MAX_PARTS: Final = 1000
"""Maximum number of parts in which a limit is unlocked."""

MAX_SECONDS: Final = 10 * 366 * 24 * 3600
"""Ten years: the longest time over which a limit is unlocked, or after which nobody is overtaken."""

DEFAULT_AGING_SECONDS: Final = 7 * 24 * 3600

ALL: Final = Fraction(1)


class SchedulingRule(StrEnum):
    """Which of the reservations that wait is served first; `app.ledger.scheduling.queue` has the definitions."""

    FIRST_COME = "first_come"
    SMALLEST_SHARE = "smallest_share"
    MOST_PACKED = "most_packed"


@dataclass(frozen=True, slots=True)
class UnlockOverTime:
    """A limit of which another equal part becomes usable at regular times.

    Args:
        since: when the first part became usable.
        over: until the last part does so, and the length of one part more.
        parts: number of parts, 1 to 1,000. Each lasts a window of `over / parts`.

    Source: PrivateKube (Luo et al., OSDI 2021), DPF-T.
    """

    since: datetime
    over: timedelta
    parts: int

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.parts <= MAX_PARTS:
            raise InvalidInputError(f"A limit is unlocked in 1 to {MAX_PARTS} parts, not {self.parts}.", field="parts")
        if not timedelta(seconds=self.parts) <= self.over <= timedelta(seconds=MAX_SECONDS):
            raise InvalidInputError(
                f"A limit is unlocked over 1 second for each part to {MAX_SECONDS} seconds, not "
                f"{self.over.total_seconds():g}.",
                field="over_seconds",
            )

    def window(self, now: datetime) -> int:
        """Count the windows that have ended; at most `parts - 1`, and -1 before the first one."""
        if now < self.since:
            return -1
        return min((now - self.since) * self.parts // self.over, self.parts - 1)

    def fraction(self, now: datetime) -> Fraction:
        """Compute the usable part of the limit."""
        return Fraction(self.window(now) + 1, self.parts)

    def window_part(self, now: datetime) -> Fraction:
        """Compute the part of the limit that the current window has unlocked; none before the first, after the last."""
        ended = now >= self.begin(self.parts)
        return Fraction(0) if ended or now < self.since else Fraction(1, self.parts)

    def begin(self, window: int) -> datetime:
        """Compute when a window begins, or the last one ends, rounded up to a microsecond."""
        return self.since - (-(self.over * window) // timedelta(microseconds=self.parts)) * timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class UnlockByReservations:
    """A limit of which every run that asks for a reservation unlocks an equal part.

    Args:
        since: runs that asked before do not count.
        reservations: number of runs that unlock the whole limit, 1 to 1,000,000. The fair share of one of them is the
            limit divided by this number.

    Source: PrivateKube (Luo et al., OSDI 2021), DPF-N.
    """

    since: datetime
    reservations: int

    def __post_init__(self) -> None:
        """Check the range."""
        if not 1 <= self.reservations <= 1_000_000:  # noqa: PLR2004 - documented above
            raise InvalidInputError(
                f"1 to 1000000 reservations unlock a limit, not {self.reservations}.", field="reservations"
            )

    def fraction(self, arrivals: int) -> Fraction:
        """Compute the usable part of the limit after some runs have asked."""
        return Fraction(min(arrivals, self.reservations), self.reservations)


Unlock = UnlockOverTime | UnlockByReservations


@dataclass(frozen=True, slots=True)
class Share:
    """What is promised to a budget directly under an account.

    Args:
        minimum: part of every window's budget that is kept for it until the window ends, in [0, 1].
        maximum: part of the usable limit that its reservations may have, in (0, 1].
        weight: of its reservations in the order of those that wait, 0.001 to 1,000.
    """

    minimum: float = 0.0
    maximum: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (0 <= self.minimum <= self.maximum <= 1 and self.maximum > 0):
            raise InvalidInputError(
                f"A share has 0 <= minimum <= maximum <= 1 and maximum > 0, not {self.minimum:g} and {self.maximum:g}.",
                field="shares",
            )
        if not 0.001 <= self.weight <= 1000:  # noqa: PLR2004 - documented above
            raise InvalidInputError(f"A weight is 0.001 to 1000, not {self.weight:g}.", field="shares")


DEFAULT_SHARE: Final = Share()


@dataclass(frozen=True, slots=True)
class Allocation:
    """How an account shares out its budget.

    Args:
        rule: who is next; only a population has one, and it holds for all reservations under it.
        aging_seconds: a reservation that has waited for so long is overtaken no more; None: it may be, for ever.
        unlock: how the limit becomes usable; None: it is.
        shares: of the budgets directly under the account, by id; others have `DEFAULT_SHARE`.

    Raises:
        InvalidInputError: a value is out of range, or the minimums are more than the whole.
    """

    rule: SchedulingRule | None = None
    aging_seconds: int | None = DEFAULT_AGING_SECONDS
    unlock: Unlock | None = None
    shares: Mapping[str, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the ranges and the sum of the minimums."""
        if self.aging_seconds is not None and not 0 <= self.aging_seconds <= MAX_SECONDS:
            raise InvalidInputError(
                f"`aging_seconds` is 0 to {MAX_SECONDS}, or null, not {self.aging_seconds}.", field="aging_seconds"
            )
        promised = sum(exact(share.minimum) for share in self.shares.values())
        if promised > 1:
            raise InvalidInputError(
                f"The minimums of the shares are {float(promised):g} together; they may be 1 at most.", field="shares"
            )

    def share_of(self, account_id: str) -> Share:
        """Get the share of an account under it."""
        return self.shares.get(account_id, DEFAULT_SHARE)


def facts_of(allocation: Allocation) -> dict[str, Any]:
    """Convert an allocation to JSON; `allocation_of` is the inverse."""
    unlock = allocation.unlock
    facts: dict[str, Any] = {
        "rule": None if allocation.rule is None else str(allocation.rule),
        "aging_seconds": allocation.aging_seconds,
        "unlock": None,
        "shares": {
            account_id: {"minimum": share.minimum, "maximum": share.maximum, "weight": share.weight}
            for account_id, share in sorted(allocation.shares.items())
        },
    }
    if isinstance(unlock, UnlockOverTime):
        seconds = unlock.over.total_seconds()
        facts["unlock"] = {"since": unlock.since.isoformat(), "over_seconds": seconds, "parts": unlock.parts}
    elif unlock is not None:
        facts["unlock"] = {"since": unlock.since.isoformat(), "reservations": unlock.reservations}
    return facts


def allocation_of(facts: Mapping[str, Any]) -> Allocation:
    """Parse an allocation that `facts_of` wrote."""
    rule, unlock = facts["rule"], facts["unlock"]
    return Allocation(
        rule=None if rule is None else SchedulingRule(rule),
        aging_seconds=facts["aging_seconds"],
        unlock=None if unlock is None else _unlock_of(unlock),
        shares={account_id: Share(**share) for account_id, share in facts["shares"].items()},
    )


def _unlock_of(facts: Mapping[str, Any]) -> Unlock:
    since = datetime.fromisoformat(facts["since"])
    if "reservations" in facts:
        return UnlockByReservations(since, facts["reservations"])
    return UnlockOverTime(since, timedelta(seconds=facts["over_seconds"]), facts["parts"])


def unlocks_earlier(before: Allocation | None, after: Allocation | None) -> bool:
    """Check whether an allocation may make a part of the limit usable earlier than the one before it.

    False only where it is plain that no moment, or number of reservations, has a larger usable part. Changes that
    cannot be compared count as earlier.
    """
    was = None if before is None else before.unlock
    will = None if after is None else after.unlock
    if was is None:
        return False
    if isinstance(was, UnlockOverTime) and isinstance(will, UnlockOverTime):
        return will.since < was.since or not _is_slower(was, will)
    if isinstance(was, UnlockByReservations) and isinstance(will, UnlockByReservations):
        return will.since < was.since or will.reservations < was.reservations
    return True


def _is_slower(was: UnlockOverTime, will: UnlockOverTime) -> bool:
    """Check that an unlock over time is nowhere faster than another one that begins with it.

    With windows of length w and p parts, (floor(t / w) + 1) / p is usable at time t. That falls with w and with p. It
    also falls when each of the p windows is cut into k: floor(k x) + 1 <= k (floor(x) + 1).
    """
    longer = will.over * was.parts >= was.over * will.parts
    cut = will.over >= was.over and will.parts % was.parts == 0
    return cut or (longer and will.parts >= was.parts)
