"""The request context that use cases receive."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeVar

from sqlalchemy import Connection

from app.ledger.audit import SERVICE, Actor, AuditAction, AuditEvent
from app.ledger.errors import NotFoundError, PermissionDeniedError
from app.ledger.permissions import PERMISSIONS, RUN_PREFIX, Permission, Role, holders
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import organisations
from app.persistence.repositories.audit import record_event
from app.service.auth.authentication import CLI_ACTOR, Principal
from app.service.costing import CostNotReadyError, PrecomputedCosts

T = TypeVar("T")

_OF_NEW_RUN: Final = frozenset({Permission.LEDGER_READ, Permission.RUN_MANAGE})
"""Permissions of a single-use key before its run is registered."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The caller, the ledger and the time of a request.

    Args:
        now: in UTC, the latest time that the database's clock may show; use cases know no other clock.
        earliest: the earliest time that it may show; None: same as `now`.
        costs: computed for this request so far, outside of its transactions.
    """

    db: Database
    principal: Principal
    now: datetime
    request_id: str | None = None
    earliest: datetime | None = None
    costs: PrecomputedCosts = field(default_factory=PrecomputedCosts, compare=False)

    @property
    def lapsed_by(self) -> datetime:
        """Leases that end by this time have expired, and periods that begin by it have begun.

        That holds whatever the error of the clock.
        """
        return self.earliest or self.now

    @property
    def organisation_id(self) -> str:
        """The caller's organisation."""
        return self.principal.organisation_id

    @property
    def actor(self) -> Actor:
        """The caller and the request, as the audit log records them."""
        return Actor(self.principal.actor, self.request_id)

    @contextmanager
    def read(
        self, needed: Permission = Permission.LEDGER_READ, *, whole_organisation: bool = False
    ) -> Iterator[Connection]:
        """Require a permission, maybe in the whole organisation, and open a read transaction."""
        self.require_permission(needed, whole_organisation=whole_organisation)
        with self.db.read(self.organisation_id) as tx:
            yield tx

    def run_with_costs(self, work: Callable[[], T]) -> T:
        """Run a transaction, and repeat it when costs are missing.

        The transaction that misses costs is rolled back without changes, and they are computed without the lock.

        Raises:
            UnsupportedEventError: an event has no sound bound under the population's relation.
            RateLimitedError: too many calculations of the organisation are waiting.
        """
        while True:
            try:
                return work()
            except CostNotReadyError as missing:
                missing.compute(self.organisation_id)

    def record(
        self,
        tx: Connection,
        action: AuditAction,
        subject: str,
        before: Mapping[str, object] | None = None,
        after: Mapping[str, object] | None = None,
        reason: str | None = None,
    ) -> None:
        """Append an audit event of the caller, in the transaction of the change; see `AuditEvent`."""
        event = AuditEvent(action, subject, before, after, reason)
        record_event(tx, self.organisation_id, self.actor, event, self.now)

    def require_permission(self, needed: Permission, *, whole_organisation: bool = False) -> None:
        """Raise PermissionDeniedError if the caller's role lacks a permission, maybe in the whole organisation."""
        role = self.principal.role
        if needed not in PERMISSIONS[role]:
            allowed = [str(each) for each in holders(needed)]
            raise PermissionDeniedError(
                f"This needs one of the roles {', '.join(allowed)}; yours is {role}.",
                required_permission=str(needed),
                required_roles=allowed,
            )
        if self.principal.registers_run and needed not in _OF_NEW_RUN:
            raise PermissionDeniedError(
                "This key is for one run, and has registered none yet. Register the run first.",
                required_permission=str(needed),
                scope=self.principal.scope,
            )
        if whole_organisation and self.principal.scope is not None:
            raise PermissionDeniedError(
                f"This concerns the whole organisation; your role is limited to {self.principal.scope} only.",
                required_permission=str(needed),
                scope=self.principal.scope,
            )

    def bound_to(self, run_id: str) -> "RequestContext":
        """Get the context of a single-use key after it has registered a run, or this one of another caller."""
        if not self.principal.single_use:
            return self
        return replace(self, principal=replace(self.principal, scope=run_id, registers_run=False))

    def require_scope(self, path: Collection[str]) -> None:
        """Raise PermissionDeniedError if the role's account is not in the path of an object.

        A key that is to register a run reaches no other run.
        """
        if self.principal.registers_run and any(each.startswith(RUN_PREFIX) for each in path):
            raise PermissionDeniedError(
                "This key is for the run that it registers, and for no other one.", scope=self.principal.scope
            )
        if self.principal.scope is not None and self.principal.scope not in path:
            raise PermissionDeniedError(
                f"Your role is limited to {self.principal.scope} only, and this lies elsewhere.",
                scope=self.principal.scope,
            )


def service_context(
    db: Database, organisation_id: str, now: datetime | None = None, earliest: datetime | None = None
) -> RequestContext:
    """Build the context of the service's own work in an organisation, which has all permissions.

    `now` None: the bounds on the database's clock.
    """
    if now is None:
        moment = db.clock.moment()
        now, earliest = moment.latest, moment.earliest
    return RequestContext(db, Principal(organisation_id, SERVICE.id, Role.ADMIN), now, earliest=earliest)


def cli_context(db: Database, organisation_id: str, now: datetime) -> RequestContext:
    """Build the context of a command, which has all permissions."""
    return RequestContext(db, Principal(organisation_id, CLI_ACTOR.id, Role.ADMIN), now)


def find_cli_context(db: Database, organisation: str, now: datetime) -> RequestContext:
    """Build the context of a command for an organisation, given by id or name.

    Raises:
        NotFoundError: there is no such organisation.
    """
    with db.read(ALL_TENANTS) as tx:
        organisation_id = organisations.find_organisation(tx, organisation)
    if organisation_id is None:
        raise NotFoundError(
            f"There is no organisation {organisation!r}; make it with `epsilon-ledger init` or `org create`."
        )
    return cli_context(db, organisation_id, now)
