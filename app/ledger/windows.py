"""Windows: the time in which an account may be charged."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from app.ledger.errors import BudgetClosedError, InvalidInputError


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open interval of aware times in which an account is open.

    None is unbounded.
    """

    opens_at: datetime | None = None
    closes_at: datetime | None = None

    def __post_init__(self) -> None:
        """Reject an empty window."""
        if self.opens_at is not None and self.closes_at is not None and self.opens_at >= self.closes_at:
            raise InvalidInputError(
                f"The window opens at {self.opens_at.isoformat()} and closes at {self.closes_at.isoformat()}: "
                "`closes_at` must come after `opens_at`."
            )

    def holds(self, now: datetime) -> bool:
        """Check whether the account is open now."""
        return (self.opens_at is None or self.opens_at <= now) and (self.closes_at is None or now < self.closes_at)

    def require(self, account_id: str, path: str, now: datetime) -> None:
        """Raise BudgetClosedError unless the account is open now."""
        if self.holds(now):
            return
        opens, closes = self.opens_at and self.opens_at.isoformat(), self.closes_at and self.closes_at.isoformat()
        late = self.opens_at is None or self.opens_at <= now
        raise BudgetClosedError(
            f"{path} has been closed since {closes}: nothing more is taken from it. Ask for a budget that is open."
            if late
            else f"{path} opens at {opens}: nothing is taken from it before. Ask again then.",
            account=account_id,
            account_path=path,
            opens_at=opens,
            closes_at=closes,
        )


ALWAYS: Final = Window()
"""The window of an account without one."""


class Windowed(Protocol):
    """An account, as far as windows need it."""

    @property
    def id(self) -> str:
        """ID with its type prefix."""

    @property
    def path(self) -> str:
        """Names from the population down."""

    @property
    def window(self) -> Window:
        """When it may be charged."""


def require_open(path: Iterable[Windowed], now: datetime) -> None:
    """Raise BudgetClosedError unless all accounts that a new charge touches are open."""
    for account in path:
        if account.window is not ALWAYS:
            account.window.require(account.id, account.path, now)
