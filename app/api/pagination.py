"""Opaque cursors of lists."""

import base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, TypeVar

from fastapi import Query

from app.ledger.decisions import DecisionCursor
from app.ledger.errors import InvalidInputError

MAX_PAGE = 200
MAX_DIGITS = 18
"""Maximum number of digits of a position: beyond that, no database counts."""

T = TypeVar("T")

PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of items.")]
After = Annotated[
    str | None,
    Query(max_length=200, description="The `next` cursor of the previous page; empty: the first page."),
]


def encode_cursor(value: str) -> str:
    """Encode a position as a cursor."""
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> str | None:
    """Decode a cursor.

    Raises:
        InvalidInputError: the cursor is invalid.
    """
    if not cursor:
        return None
    try:
        place = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except ValueError as error:
        raise InvalidInputError(f"{cursor!a} is not a cursor; send the `next` of an earlier page.") from error
    if not place.isprintable():
        raise InvalidInputError(f"{cursor!a} is not a cursor; send the `next` of an earlier page.")
    return place


def decode_position(cursor: str | None, start: int) -> int:
    """Decode the cursor of a numbered list; without one return `start`.

    Raises:
        InvalidInputError: the cursor is invalid.
    """
    place = decode_cursor(cursor)
    if place is None:
        return start
    if not place.isdecimal() or len(place) > MAX_DIGITS:
        raise InvalidInputError(f"{cursor!a} is not a cursor of this list; send the `next` of an earlier page.")
    return int(place)


def encode_position(place: DecisionCursor) -> str:
    """Encode the position of a decision."""
    return f"{place.created_at.isoformat()}/{place.run_id}/{place.position}"


def decode_position_cursor(cursor: str | None) -> DecisionCursor | None:
    """Decode the cursor of a list of decisions; without one return None.

    Raises:
        InvalidInputError: the cursor is invalid.
    """
    place = decode_cursor(cursor)
    if place is None:
        return None
    at, _, of_run = place.partition("/")
    run_id, _, position = of_run.partition("/")
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        moment = datetime.min  # noqa: DTZ901 - without a zone it is never in a cursor
    if moment.utcoffset() != timedelta(0) or not position.isdecimal() or len(position) > MAX_DIGITS:
        raise InvalidInputError(f"{cursor!a} is not a cursor of this list; send the `next` of an earlier page.")
    return DecisionCursor(moment, run_id, int(position))


def split_page(found: Sequence[T], limit: int, place: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """Split `limit + 1` items into a page and the cursor of the next one, or None.

    `place` returns the position of an item.
    """
    shown = found[:limit]
    return shown, encode_cursor(place(shown[-1])) if len(found) > limit else None
