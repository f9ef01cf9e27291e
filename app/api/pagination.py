"""Pages of lists, and their opaque cursors."""

import base64
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request, Response

from app.api.route import etag_response
from app.api.schemas.common import Output, Page
from app.ledger.errors import InvalidInputError
from app.ledger.pages import Page as DomainPage
from app.ledger.pages import PageRequest

MAX_PAGE = 200
MAX_CURSOR = 1000
"""Of a list that is sorted by names."""

T = TypeVar("T")
S = TypeVar("S", bound=Output)

After = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR, description="The `next` cursor of the previous page; empty: the first page."),
]


AnyAccount = Annotated[str | None, Query(max_length=2000)]
"""Id or path of an account that a list is about."""

NamedAccount = Annotated[AnyAccount, Query(min_length=1)]


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


def page_response(request: Request, found: DomainPage[T], schema: type[Page[S]], render: Callable[[T], S]) -> Response:
    """Build the response of a list: the page with an entity tag, or 304."""
    items = [render(item) for item in found.items]
    return etag_response(request, schema(items=items, next=encode_cursor(found.next)))
