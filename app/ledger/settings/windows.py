"""Windows: the time in which an account may be charged."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.ledger.errors import InvalidInputError


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
                "`closes_at` must come after `opens_at`.",
                field="closes_at",
            )

    def holds(self, now: datetime) -> bool:
        """Check whether the account is open now."""
        return (self.opens_at is None or self.opens_at <= now) and (self.closes_at is None or now < self.closes_at)


ALWAYS: Final = Window()
"""The window of an account without one."""
