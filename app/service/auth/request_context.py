"""What every use case is given."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.errors import InsufficientScopeError
from app.ledger.hash_chain import Actor
from app.ledger.permissions import PERMISSIONS, Permission, Role, holders
from app.persistence.database import Database
from app.service.audit_log import AuditEvent, record_event
from app.service.auth.authentication import CLI_ACTOR, Principal


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, of which ledger, and when.

    Args:
        db: the ledger's database.
        principal: an authenticated key, or person.
        now: in UTC, by the database's clock, and the latest that it may be; the only clock that a use case knows.
        request_id: of the HTTP request.
        earliest: that it may be; None: as `now`.
    """

    db: Database
    principal: Principal
    now: datetime
    request_id: str | None = None
    earliest: datetime | None = None

    @property
    def lapsed_by(self) -> datetime:
        """Leases that end by this moment have run out, whatever the error of the clock."""
        return self.earliest or self.now

    @property
    def organisation_id(self) -> str:
        """Whose ledger."""
        return self.principal.organisation_id

    @property
    def actor(self) -> Actor:
        """Who asks, and in which request, as chains keep it."""
        return Actor(self.principal.actor, self.request_id)

    def record(self, tx: Connection, act: AuditEvent) -> None:
        """Append to the organisation's chain what the caller does, in the transaction that does it."""
        record_event(tx, self.organisation_id, self.actor, act, self.now)

    def require_permission(self, needed: Permission) -> None:
        """Let only those pass who may.

        Raises:
            InsufficientScopeError: the caller's role does not allow it.
        """
        role = self.principal.role
        if needed not in PERMISSIONS[role]:
            allowed = [str(each) for each in holders(needed)]
            raise InsufficientScopeError(
                f"This needs one of the roles {', '.join(allowed)}; yours is {role}.",
                required_permission=str(needed),
                required_roles=allowed,
            )

    def require_organisation_scope(self, needed: Permission) -> None:
        """Let only those pass who may, and in the whole organisation.

        Raises:
            InsufficientScopeError: the caller's role does not allow it, or holds beneath one account only.
        """
        self.require_permission(needed)
        if self.principal.scope is not None:
            raise InsufficientScopeError(
                f"This concerns the whole organisation; your role holds on and beneath {self.principal.scope} only.",
                required_permission=str(needed),
                scope=self.principal.scope,
            )

    def require_scope(self, path: Collection[str]) -> None:
        """Let a caller that is bound to an account pass to what lies on or beneath it.

        Args:
            path: the ids of what is asked for and of all accounts above it.

        Raises:
            InsufficientScopeError: it lies elsewhere.
        """
        if self.principal.scope is not None and self.principal.scope not in path:
            raise InsufficientScopeError(
                f"Your role holds on and beneath {self.principal.scope} only, and this lies elsewhere.",
                scope=self.principal.scope,
            )


def cli_context(db: Database, organisation_id: str, now: datetime) -> RequestContext:
    """A call of whoever may run commands on the machine: nothing is kept from them.

    Args:
        db: the database on which the organisation lives.
        organisation_id: whose ledger.
        now: in UTC.
    """
    return RequestContext(db, Principal(organisation_id, CLI_ACTOR.actor, Role.ADMIN), now)
