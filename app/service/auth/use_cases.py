"""Use cases that write: each checks its caller, and then runs in one transaction of the caller's organisation."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, Generic, ParamSpec, TypeVar

from sqlalchemy import Connection

from app.ledger.permissions import Permission
from app.persistence.repositories import organisations
from app.service.auth.request_context import RequestContext

P = ParamSpec("P")
T = TypeVar("T")

Effect = Callable[[Connection], T]
"""Writes within a transaction, and returns the result; the caller was checked before."""


class UseCase(Generic[P, T]):
    """A use case, called with the context and its arguments; `use_case` makes it of a function.

    Args:
        write: the decorated function; another use case calls it within its own transaction.
        permit: raises PermissionDeniedError, given the arguments of the call.
        locks_organisation: whether the transaction locks the organisation first, so that its writes are serialized.
    """

    def __init__(
        self,
        write: Callable[Concatenate[Connection, RequestContext, P], T],
        permit: Callable[..., object],
        *,
        locks_organisation: bool,
    ) -> None:
        self.write = write
        self._permit = permit
        self._locks_organisation = locks_organisation
        update_wrapper(self, write)

    def __call__(self, context: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Check the caller, and run in a transaction of its own; see `run_effect`."""
        return run_effect(context, self.effect(context, *args, **kwargs))

    def effect(self, context: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> Effect[T]:
        """Check the caller, and return the effect, for a transaction that also stores the response."""
        self._permit(context, *args, **kwargs)

        def effect(tx: Connection) -> T:
            if self._locks_organisation:
                organisations.lock(tx, context.organisation_id)
            return self.write(tx, context, *args, **kwargs)

        return effect


def use_case(
    *needed: Permission,
    whole_organisation: bool = False,
    permit: Callable[..., object] | None = None,
    locks_organisation: bool = True,
) -> Callable[[Callable[Concatenate[Connection, RequestContext, P], T]], UseCase[P, T]]:
    """Make a use case of a function that writes in a transaction.

    Args:
        needed: permissions of the caller; without any, the function checks what the caller may do.
        whole_organisation: whether they must hold in the whole organisation.
        permit: checks the caller where what it needs depends on the arguments.
        locks_organisation: as of `UseCase`.
    """

    def require(context: RequestContext, *_: object, **__: object) -> None:
        for permission in needed:
            context.require_permission(permission, whole_organisation=whole_organisation)

    return lambda write: UseCase(write, permit or require, locks_organisation=locks_organisation)


def run_effect(context: RequestContext, effect: Effect[T]) -> T:
    """Run an effect in one transaction, again after losing a race, or once its costs are computed.

    Raises:
        As `RequestContext.run_with_costs` and `Database.retried`.
    """
    return context.run_with_costs(lambda: context.db.transact(context.organisation_id, effect))
