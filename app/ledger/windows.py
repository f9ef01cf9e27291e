"""Windows: when something may be charged to an account."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from app.ledger.errors import BudgetClosedError, InvalidInputError


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which an account is open; it never changes.

    Args:
        opens_at: the first moment, aware; None: it was always open.
        closes_at: the first moment behind it, aware; None: it never closes.

    Raises:
        InvalidInputError: it closes before it opens.
    """

    opens_at: datetime | None = None
    closes_at: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse a window in which there is no moment."""
        if self.opens_at is not None and self.closes_at is not None and self.opens_at >= self.closes_at:
            raise InvalidInputError(
                f"The window opens at {self.opens_at.isoformat()} and closes at {self.closes_at.isoformat()}: "
                "`closes_at` must come after `opens_at`."
            )

    def holds(self, now: datetime) -> bool:
        """Whether the account is open now."""
        return (self.opens_at is None or self.opens_at <= now) and (self.closes_at is None or now < self.closes_at)

    def require(self, account_id: str, path: str, now: datetime) -> None:
        """Refuse what comes too early or too late.

        Args:
            account_id: whose window it is.
            path: of the account.
            now: an aware moment.

        Raises:
            BudgetClosedError: the account is not open now.
        """
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
"""The window of an account that has none."""


class Windowed(Protocol):
    """What has a window: an account."""

    @property
    def id(self) -> str:
        """With its type prefix."""

    @property
    def path(self) -> str:
        """Names from the population down."""

    @property
    def window(self) -> Window:
        """When something may be charged to it."""


def require_open(path: Iterable[Windowed], now: datetime) -> None:
    """Refuse what nobody has released yet outside of the window of an account that it would be charged to.

    Args:
        path: every account that it would touch.
        now: an aware moment.

    Raises:
        BudgetClosedError: one of them is not open yet, or not any more.
    """
    for account in path:
        if account.window is not ALWAYS:
            account.window.require(account.id, account.path, now)
