"""Requests before they are sent."""

import json
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from epsilon_ledger._wire.responses import Response

T = TypeVar("T")

_ENCODER = json.JSONEncoder(allow_nan=False)


@dataclass(slots=True)
class Request:
    """A logical request, independent of its attempts.

    Args:
        method: GET or POST.
        path: under the ledger's address, quoted, with its query.
        body: JSON, or None.
        key: idempotency key; every POST has its own.
        in_doubt: whether an attempt may have had an effect.
    """

    method: str
    path: str
    body: bytes | None = None
    key: str | None = None
    in_doubt: bool = False


RequestFlow: TypeAlias = Generator[Request, Response, T]
"""A generator that yields requests, receives responses and returns a result."""


def get(path: str) -> Request:
    """Build a GET request of a quoted path."""
    return Request("GET", path)


def post(path: str, body: Mapping[str, object]) -> Request:
    """Build a POST request with a new idempotency key; None members are left out.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    members = {name: value for name, value in body.items() if value is not None}
    return Request("POST", path, _ENCODER.encode(members).encode(), str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the class of its response."""

    request: Request
    shape: type[T]

    def flow(self) -> RequestFlow[T]:
        """Send the request and parse the response."""
        return (yield self.request).read(self.shape)
