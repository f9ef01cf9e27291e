"""Accounts as requests name them: by id, or by path of names."""

from sqlalchemy import Connection

from app.ledger.accounts import AccountKind
from app.ledger.composition import budgets_of
from app.ledger.errors import NotFoundError
from app.persistence.repositories import accounts, locks
from app.persistence.repositories.accounts import AccountRecord
from app.service.auth.request_context import RequestContext


def require_reach(tx: Connection, call: RequestContext, account_id: str) -> None:
    """Let the caller pass to an account that lies on or beneath the one to which its role is bound.

    Raises:
        InsufficientScopeError: it lies elsewhere.
    """
    if call.principal.scope is not None:
        call.require_scope(locks.ids_above(tx, call.organisation_id, account_id))


def require_every_budget(tx: Connection, call: RequestContext, account_id: str) -> None:
    """Let the caller decide about a run only if every budget that it charges is in the caller's reach, not just one.

    Raises:
        InsufficientScopeError: one of them lies elsewhere.
    """
    if call.principal.scope is None:
        return
    path = [record.account for record in accounts.path_of(tx, call.organisation_id, account_id)]
    budgets = budgets_of(path) if path[-1].kind is AccountKind.RUN else ()
    if len(budgets) > 1:
        for budget in budgets:
            require_reach(tx, call, budget.id)


def find_account(tx: Connection, call: RequestContext, reference: str) -> AccountRecord:
    """The account that a request names: a population or a budget by id or path, or a run by id.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: it is out of the caller's reach.
    """
    found = accounts.find(tx, call.organisation_id, reference)
    if found is None:
        return find_parent(tx, call, reference)
    require_reach(tx, call, found.account.id)
    return found


def find_path_of(tx: Connection, call: RequestContext, reference: str) -> list[AccountRecord]:
    """An account that a request names and all accounts above it, locked if the transaction writes.

    Args:
        tx: the caller's transaction.
        call: who asks.
        reference: as of `find_account`; by its id, the account is read once.

    Returns:
        None above one beneath it; the account is the last.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: it is out of the caller's reach.
    """
    path = accounts.path_of(tx, call.organisation_id, reference)
    if not path:
        path = accounts.path_of(tx, call.organisation_id, find_parent(tx, call, reference).account.id)
    call.require_scope([record.account.id for record in path])
    return path


def find_parent(tx: Connection, call: RequestContext, reference: str) -> AccountRecord:
    """The population or budget that a request names.

    Args:
        tx: the caller's transaction.
        call: who asks.
        reference: id, or path of names such as "mimic/icu-team".

    Returns:
        The account.

    Raises:
        NotFoundError: the organisation has none such.
        InsufficientScopeError: it is out of the caller's reach.
    """
    found = accounts.find(tx, call.organisation_id, reference)
    if found is None or found.account.kind is AccountKind.RUN:
        found = accounts.find_by_path(tx, call.organisation_id, reference)
    if found is None:
        raise NotFoundError(
            f"There is no population or budget {reference!r} in your organisation; "
            "give its id, or its path such as mimic/icu-team."
        )
    require_reach(tx, call, found.account.id)
    return found
