"""What became of a limit: whether it was changed or exceeded, how, and what therefore holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, zero_curve
from app.ledger.filter.limits import Limit
from app.persistence.repositories.release_times import first_overdrawing_report
from app.service.audit.limit_history import LimitInForce, limits_in_force


class ExcessCause(StrEnum):
    """How more came to be released than a limit allows."""

    REPORTED = "reported"
    LOWERED = "lowered"
    REPORTED_AND_LOWERED = "reported_and_lowered"


@dataclass(frozen=True, slots=True)
class Excess:
    """An exceeded limit.

    Args:
        reported_at: when steps were first reported that exceeded a limit; None: none were.
        lowered_at: when the limit was last lowered; None: it never was.
    """

    reported_at: datetime | None
    lowered_at: datetime | None

    @property
    def cause(self) -> ExcessCause | None:
        """Which of the two it was; None: the log is damaged."""
        if self.reported_at is None:
            return None if self.lowered_at is None else ExcessCause.LOWERED
        return ExcessCause.REPORTED if self.lowered_at is None else ExcessCause.REPORTED_AND_LOWERED

    def facts(self) -> dict[str, Any]:
        """Serialize it."""
        times = {"reported_at": self.reported_at, "lowered_at": self.lowered_at}
        return {"cause": self.cause and str(self.cause)} | {name: at and at.isoformat() for name, at in times.items()}


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """An account with the limits that were in force, oldest first; `excess` None: its limit was not exceeded."""

    account: Account
    history: Sequence[LimitInForce]
    excess: Excess | None

    @property
    def limit(self) -> Limit:
        """The limit in force."""
        assert self.account.limit is not None, "it governs by its limit"
        return self.account.limit

    @property
    def is_changed(self) -> bool:
        """Whether another limit was in force before."""
        return self.account.limit_revision > 0

    @property
    def proven(self) -> Limit | None:
        """The smallest limit that is at least each that was in force; None: it was exceeded."""
        if self.excess is not None:
            return None
        return largest([self.limit, *(each.limit for each in self.history if each.limit.has_rule_of(self.limit))])


def standing_of(tx: Connection, organisation_id: str, account: Account) -> LimitStanding:
    """Read what became of the limit of an account."""
    history = limits_in_force(tx, organisation_id, account)
    excess = None
    if is_exceeded(account):
        reported = first_overdrawing_report(tx, organisation_id, account.id)
        excess = Excess(reported, max((each.since for each in history if each.is_lower), default=None))
    return LimitStanding(account, history, excess)


def is_exceeded(account: Account) -> bool:
    """Whether more was released under an account than its limit allows."""
    released = replace(account, held=zero_curve(account.grid_version))
    return not released.spent.is_zero and not released.fits()


def largest(limits: Sequence[Limit]) -> Limit:
    """Find the smallest limit that is at least each of some in one unit."""
    most = max(each.value for each in limits)
    return replace(limits[0], value=most, delta=max(each.delta for each in limits))
