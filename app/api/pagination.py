"""Pages of lists, and their opaque cursors."""

import base64
from typing import Annotated

from fastapi import Depends, Query

from app.ledger.errors import InvalidInputError
from app.ledger.pages import PageRequest

MAX_PAGE = 200
MAX_CURSOR = 1000
"""Of a list that is sorted by names."""

After = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR, description="The `next` cursor of the previous page; empty: the first page."),
]


def encode_cursor(place: str | None) -> str | None:
    """Encode a place of a list as a cursor; None stays None."""
    return None if place is None else base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> str | None:
    """Decode a cursor; an empty one is None.

    Raises:
        InvalidInputError: the cursor is invalid.
    """
    if not cursor:
        return None
    try:
        place = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise InvalidInputError(f"{cursor!a} is not a cursor; send the `next` of an earlier page.") from error
    if not place.isprintable():
        raise InvalidInputError(f"{cursor!a} is not a cursor; send the `next` of an earlier page.")
    return place


# A coroutine although it awaits nothing: FastAPI runs plain functions in threads.
async def _page(
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of items.")] = 50,
    after: After = None,
) -> PageRequest:
    return PageRequest(limit, decode_cursor(after))


PageRequestDep = Annotated[PageRequest, Depends(_page)]
