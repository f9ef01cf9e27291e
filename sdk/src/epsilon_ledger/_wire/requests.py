"""Requests before they are sent."""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.matching import echoes
from epsilon_ledger._wire.responses import Page, Response

T = TypeVar("T")

MAX_PAGE = 200
"""Maximum number of items in a page of a list."""

_ENCODER = json.JSONEncoder(allow_nan=False)


@dataclass(slots=True)
class Request:
    """A logical request, independent of its attempts.

    Args:
        method: of HTTP.
        path: under the ledger's address, quoted, with its query.
        body: JSON, or None.
        key: idempotency key; every POST has its own, unless its response has a secret.
        in_doubt: whether an attempt may have had an effect.
        if_match: entity tag that the object must still have, or None.
        is_repeatable: whether to send it again after an attempt that may have had an effect.
        max_attempts: maximum number of attempts; None: that of the client.
        is_json: whether its response is JSON.
        echoes: members that its response must repeat, if it has them.
    """

    method: str
    path: str
    body: bytes | None = None
    key: str | None = None
    in_doubt: bool = False
    if_match: str | None = None
    is_repeatable: bool = True
    max_attempts: int | None = None
    is_json: bool = True
    echoes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a flow, of a random length in seconds."""

    least: float
    most: float


RequestFlow: TypeAlias = Generator[Request | Pause, Response, T]
"""A generator that yields requests and pauses, receives responses and returns a result."""


def get(path: str, query: Mapping[str, object] | None = None) -> Request:
    """Build a GET request of a quoted path, with the members of `query` that are not None.

    Raises:
        TypeError: a member of the query has another type than the API's.
    """
    return Request("GET", path + _query(query or {}))


def get_bytes(path: str, query: Mapping[str, object] | None = None) -> Request:
    """As `get`, for a response that is not JSON."""
    return Request("GET", path + _query(query or {}), is_json=False)


def post(path: str, body: Mapping[str, object], *, if_match: str | None = None) -> Request:
    """Build a POST request with a new idempotency key; None members are left out.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    return Request("POST", path, _encode(body), os.urandom(16).hex(), if_match=if_match, echoes=echoes(body))


def post_for_secret(path: str, body: Mapping[str, object]) -> Request:
    """Build a POST request whose response has a secret, which the ledger does not keep.

    It has no idempotency key, so that it is not sent again after an attempt that may have had an effect.
    """
    return Request("POST", path, _encode(body), is_repeatable=False, echoes=echoes(body))


def put(path: str, body: Mapping[str, object], *, if_match: str | None = None) -> Request:
    """Build a PUT request, with its None members."""
    return Request("PUT", path, _ENCODER.encode(body).encode(), if_match=if_match)


def patch(path: str, changes: Mapping[str, object]) -> Request:
    """Build a PATCH request of a JSON merge patch; its None members remove."""
    return Request("PATCH", path, _ENCODER.encode(changes).encode())


def delete(path: str, query: Mapping[str, object] | None = None, *, if_match: str | None = None) -> Request:
    """Build a DELETE request of a quoted path and a query as of `get`; its response is empty."""
    return Request("DELETE", path + _query(query or {}), if_match=if_match, is_json=False)


def _encode(body: Mapping[str, object]) -> bytes:
    return _ENCODER.encode({name: value for name, value in body.items() if value is not None}).encode()


def _query(members: Mapping[str, object]) -> str:
    """Encode a query with its question mark; sequences repeat their member, None members are left out."""
    pairs = [
        (name, _query_text(name, item))
        for name, value in members.items()
        if value is not None
        for item in ([value] if isinstance(value, str) or not isinstance(value, Sequence) else value)
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _query_text(name: str, value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat()
        case int() | float():
            return repr(value)
    raise TypeError(f"{name} must be a text, a number or a timestamp, not {value!r}.")


def path(kind: str, name: str) -> str:
    """Build the path of an object under the ledger's address."""
    return f"v1/{kind}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the class of its response."""

    request: Request
    shape: type[T]

    def flow(self) -> RequestFlow[T]:
        """Send the request and parse the response."""
        return (yield self.request).read(self.shape)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list of the API, to be read page by page.

    Args:
        path: of the list.
        query: its filters.
        shape: class of the items.
        page_size: maximum number of items in a page.
        references: flows that find the ids of further filters.
    """

    path: str
    query: Mapping[str, object]
    shape: type[T]
    page_size: int
    references: Mapping[str, Callable[[], RequestFlow[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the page size.

        Raises:
            ValueError: it is outside of [1, 200].
        """
        if not 1 <= whole("page_size", self.page_size) <= MAX_PAGE:
            raise ValueError(f"page_size must be in [1, {MAX_PAGE}], not {self.page_size}.")

    def resolve(self) -> RequestFlow["Listing[T]"]:
        """Find the ids of the filters that were given by path."""
        found: dict[str, object] = {}
        for name, find in self.references.items():
            found[name] = yield from find()
        return replace(self, query={**self.query, **found}, references={})

    def page(self, cursor: str | None) -> RequestFlow[Page[T]]:
        """Get the page at a cursor; None: the first one."""
        query = {**self.query, "limit": self.page_size, "after": cursor}
        return (yield get(self.path, query)).read_page(self.shape)

    def csv(self) -> RequestFlow[bytes]:
        """Get all of the list as CSV."""
        listing = yield from self.resolve()
        return (yield get_bytes(f"{listing.path}.csv", listing.query)).content
