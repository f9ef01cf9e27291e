"""Pages of lists by keyset: a cursor has the values that the last item is sorted by."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Integer, Row, Select, and_, or_

from app.ledger.ids import is_id
from app.ledger.pages import Page, PageRequest, is_moment, keyset_text
from app.persistence.tables.base import NumberedId, UtcDateTime

R = TypeVar("R")
T = TypeVar("T")


def lies_behind(
    keys: Sequence[ColumnElement[Any]], place: Sequence[object], *, descending: bool = True
) -> ColumnElement[bool]:
    """Build the condition that a row, sorted by `keys`, comes after a place."""
    key, value = keys[0], place[0]
    further = key < value if descending else key > value
    if len(keys) == 1:
        return further
    return or_(further, and_(key == value, lies_behind(keys[1:], place[1:], descending=descending)))


def cut_page(found: Sequence[R], limit: int, place: Callable[[R], str], read: Callable[[R], T]) -> Page[T]:
    """Make a page of what was found, which is one item more than `limit` if there is a next page."""
    shown = found[:limit]
    return Page([read(each) for each in shown], place(shown[-1]) if len(found) > limit else None)


def read_page(
    tx: Connection,
    found: Select[Any],
    place: Column[Any],
    request: PageRequest,
    read: Callable[[Row[Any]], T],
    *,
    oldest_first: bool = False,
) -> Page[T]:
    """Read a page of the selected rows, the newest first.

    Args:
        tx: the transaction.
        found: selects all rows of the list.
        place: column of an id or a number that grows with time; it is selected, and is the cursor.
        request: which page.
        read: converts a row.
        oldest_first: reads the list forward.

    Raises:
        InvalidInputError: the list is numbered or of accounts, and the cursor is of another list.
    """
    after = _place_after(place, request)
    if after is not None:
        found = found.where(lies_behind([place], [after], descending=not oldest_first))
    order = place if oldest_first else place.desc()
    rows = tx.execute(found.order_by(None).order_by(order).limit(request.limit + 1)).all()
    return cut_page(rows, request.limit, lambda row: str(getattr(row, place.name)), read)


def read_sorted_page(
    tx: Connection,
    found: Select[Any],
    order: tuple[ColumnElement[Any], Column[Any]],
    request: PageRequest,
    name: str,
    *,
    descending: bool,
) -> Page[str]:
    """Read a page of the ids of the selected accounts, sorted by a time or a text and the id.

    The cursor has the name of the order and the last account's values, so that an account that moves meanwhile is
    neither lost nor repeated.

    Raises:
        InvalidInputError: the cursor is of another list or order.
    """
    value = order[0]
    if request.after is not None:
        # JSON escapes what a printable cursor cannot have: NUL and halves of surrogates, which no database takes.
        is_time = isinstance(value.type, UtcDateTime)
        last, last_id = request.keyset(name, is_moment if is_time else str.isprintable, is_id)
        at = datetime.fromisoformat(last) if is_time else last
        found = found.where(lies_behind(order, (at, last_id), descending=descending))
    keys = [key.desc() for key in order] if descending else order
    rows = tx.execute(found.add_columns(value).order_by(None).order_by(*keys).limit(request.limit + 1)).all()

    def place(row: Row[Any]) -> str:
        account_id, last = tuple(row)
        return keyset_text(name, last.isoformat() if isinstance(last, datetime) else last, account_id)

    return cut_page(rows, request.limit, place, lambda row: str(row[0]))


def _place_after(place: Column[Any], request: PageRequest) -> int | str | None:
    if isinstance(place.type, Integer):
        return request.position()
    return request.account_id() if isinstance(place.type, NumberedId) else request.after
