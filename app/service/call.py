"""What every use case is given."""

from dataclasses import dataclass
from datetime import datetime

from app.persistence.engine import Database
from app.service.access import Caller, Role, require


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, of which ledger, and when.

    Args:
        db: the ledger's database.
        caller: an authenticated key.
        now: in UTC; the only clock that a use case knows.
    """

    db: Database
    caller: Caller
    now: datetime

    @property
    def organisation_id(self) -> str:
        """Whose ledger."""
        return self.caller.organisation_id

    def require(self, needed: Role) -> None:
        """Let only a role pass, or one above it.

        Raises:
            InsufficientScopeError: the caller's role is below it.
        """
        require(self.caller, needed)
