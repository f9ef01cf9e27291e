"""Requests to the ledger before they are sent."""

import json
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from epsilon_ledger._wire.responses import Response

T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """A logical request, whatever number of tries it takes.

    Args:
        method: GET or POST.
        path: under the ledger's address, quoted, with its query.
        body: JSON in bytes, or None.
        key: idempotency key; every POST has its own.
        in_doubt: True once a try was sent, unless it surely had no effect.
    """

    method: str
    path: str
    body: bytes | None = None
    key: str | None = None
    in_doubt: bool = False


RequestFlow: TypeAlias = Generator[Request, Response, T]
"""A use case without its network: it yields requests, is sent their replies, and returns its result."""


def get(path: str) -> Request:
    """Prepare a read.

    Args:
        path: under the ledger's address, quoted, with its query.

    Returns:
        The request.
    """
    return Request("GET", path)


def post(path: str, body: Mapping[str, object]) -> Request:
    """Prepare a POST with an idempotency key of its own.

    Args:
        path: under the ledger's address, quoted, with its query.
        body: members for the JSON body; those that are None are left out.

    Returns:
        The request.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    told = {name: value for name, value in body.items() if value is not None}
    return Request("POST", path, json.dumps(told, allow_nan=False).encode(), str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the shape of its answer.

    Args:
        request: not sent yet.
        shape: the class of the answer's value.
    """

    request: Request
    shape: type[T]

    def talk(self) -> RequestFlow[T]:
        """Ask, and read the answer."""
        return (yield self.request).read(self.shape)
