"""The state of organisations' moves on this database, and the stop of their accounts."""

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, select, update

from app.ledger.errors import LedgerUnavailableError
from app.ledger.moves import Move, MoveState
from app.persistence.repositories.expressions import owned_by
from app.persistence.repositories.row_copies import BATCH
from app.persistence.tables import accounts, organisations

_MOVES: Final[Select[Any]] = select(
    organisations.c.id, organisations.c.move_state, organisations.c.move_placement, organisations.c.move_token
)


def _move(row: Row[Any]) -> Move | None:
    if row.move_state is None:
        return None
    return Move(MoveState(row.move_state), row.move_placement, row.move_token)


def find(tx: Connection, id_or_name: str) -> tuple[str, Move | None] | None:
    """Find an organisation's id and its move, which it may not have, by id or name; None: it has no row here."""
    row = tx.execute(
        _MOVES.where((organisations.c.id == id_or_name) | (organisations.c.name == id_or_name))
    ).one_or_none()
    return None if row is None else (row.id, _move(row))


def require(tx: Connection, organisation_id: str, move: Move | None) -> None:
    """Lock an organisation's row and require its move.

    Raises:
        LedgerUnavailableError: it has another one, such as one that another command has taken over.
    """
    locked = _MOVES.where(organisations.c.id == organisation_id).with_for_update(key_share=True)
    row = tx.execute(locked).one_or_none()
    if row is None or _move(row) != move:
        raise LedgerUnavailableError("Another command has taken this move over, or has finished it; this one stops.")


def put(tx: Connection, organisation_id: str, move: Move | None) -> None:
    """Write the move of an organisation whose row is locked."""
    values = (None, None, None) if move is None else (str(move.state), move.placement, move.token)
    columns = ("move_state", "move_placement", "move_token")
    here = update(organisations).where(organisations.c.id == organisation_id)
    tx.execute(here.values(dict(zip(columns, values, strict=True))))


def set_moving(tx: Connection, organisation_id: str, now: datetime, *, moving: bool) -> bool:
    """Stop a batch of accounts, or let it go on; return whether there were some.

    Each gets a new version: who has it in memory must read it again, and finds that it is moving.
    """
    since = accounts.c.moving_since
    others = select(accounts.c.id).where(
        owned_by(accounts, organisation_id), since.is_(None) if moving else since.is_not(None)
    )
    locked = others.order_by(accounts.c.depth, accounts.c.id).limit(BATCH).with_for_update(key_share=True)
    found = tx.execute(locked).scalars().all()
    here = owned_by(accounts, organisation_id) & accounts.c.id.in_(found)
    tx.execute(
        update(accounts)
        .where(here)
        .values(moving_since=now if moving else None, version=accounts.c.version + 1, updated_at=now)
    )
    return bool(found)
