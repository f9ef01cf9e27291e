"""Names by which people tell populations, and budgets under one parent, apart."""

from collections.abc import Iterable

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.errors import NameTakenError
from app.ledger.names import look_alike
from app.persistence.repositories import accounts
from app.service.auth.request_context import RequestContext


def require_name_free(
    tx: Connection, context: RequestContext, parent_id: str | None, name: str, display_name: str | None
) -> None:
    """Refuse the name or display name of a new account if a sibling has it, or a lookalike.

    `parent_id` None: a population. The organisation must be locked, so that no sibling is created meanwhile.
    """
    beside = accounts.names_beside(tx, context.organisation_id, parent_id)
    if name in (other for other, _ in beside):
        raise NameTakenError(f"There is {name!r} already; choose another name.", name=name)
    taken = [shown for pair in beside for shown in pair if shown is not None]
    _require_apart(name, taken)
    if display_name is not None:
        _require_apart(display_name, taken)


def require_display_name_free(tx: Connection, context: RequestContext, account: Account, display_name: str) -> None:
    """Refuse a changed display name that a sibling has as its name or display name, or a lookalike.

    Runs share paths, and so may they share display names. The organisation must be locked.
    """
    if account.kind is AccountKind.RUN:
        return
    beside = accounts.names_beside(tx, context.organisation_id, account.parent_id, account.id)
    _require_apart(display_name, [shown for pair in beside for shown in pair if shown is not None])


def _require_apart(name: str, taken: Iterable[str]) -> None:
    for other in taken:
        if look_alike(name, other):
            raise NameTakenError(
                f"{name!r} differs from {other!r}, which exists, only by case, separators or look-alike characters; "
                "choose a more distinct name.",
                name=other,
            )
