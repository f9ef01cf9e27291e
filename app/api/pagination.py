"""Cursors of lists: opaque to the caller."""

import base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, TypeVar

from fastapi import Query

from app.ledger.errors import InvalidInputError
from app.persistence.repositories.decision_queries import Place

MAX_PAGE = 200
MAX_DIGITS = 18
"""Of a place in a numbered list: what has more, no database counts to."""

T = TypeVar("T")

PageLimit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at the most.")]
After = Annotated[
    str | None,
    Query(max_length=200, description="The cursor `next` of the page before; empty: from the start."),
]


def encode_cursor(value: str) -> str:
    """A cursor for a place in a list."""
    return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> str | None:
    """The place that a cursor stands for.

    Raises:
        InvalidInputError: it is no cursor of this service.
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
    """The place in a list whose items are numbered.

    Args:
        cursor: of the page before; None or empty: from the start.
        start: the place before the first item.

    Raises:
        InvalidInputError: it is no cursor of such a list.
    """
    place = decode_cursor(cursor)
    if place is None:
        return start
    if not place.isdecimal() or len(place) > MAX_DIGITS:
        raise InvalidInputError(f"{cursor!a} is not a cursor of this list; send the `next` of an earlier page.")
    return int(place)


def encode_position(place: Place) -> str:
    """What a cursor remembers of a decision."""
    return f"{place.created_at.isoformat()}/{place.run_id}/{place.position}"


def decode_position_cursor(cursor: str | None) -> Place | None:
    """The place in a list of decisions.

    Args:
        cursor: of the page before; None or empty: from the newest.

    Raises:
        InvalidInputError: it is no cursor of such a list.
    """
    place = decode_cursor(cursor)
    if place is None:
        return None
    at, _, of_run = place.partition("/")
    run_id, _, position = of_run.partition("/")
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        moment = datetime.min  # noqa: DTZ901 - it has no zone, and so is no moment of a cursor
    if moment.utcoffset() != timedelta(0) or not position.isdecimal() or len(position) > MAX_DIGITS:
        raise InvalidInputError(f"{cursor!a} is not a cursor of this list; send the `next` of an earlier page.")
    return Place(moment, run_id, int(position))


def split_page(found: Sequence[T], limit: int, place: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """A page of what was found with `limit + 1`, and the cursor of the next one.

    Args:
        found: at most `limit + 1` things.
        limit: how many the page may hold.
        place: what the cursor remembers of the last one.

    Returns:
        The page; the cursor is None on the last page.
    """
    shown = found[:limit]
    return shown, encode_cursor(place(shown[-1])) if len(found) > limit else None
