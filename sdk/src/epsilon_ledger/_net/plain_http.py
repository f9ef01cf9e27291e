"""The plain answers of HTTP/1.1, which is what the ledger gives to a step: a short head, and a body of known length.

Everything else is refused rather than guessed at: `NotPlainError` leaves it to httpx2.
"""

import re
from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias

import httpx2

from epsilon_ledger._wire.responses import HttpAnswer

MOST_HEAD_BYTES: Final = 16 * 1024
MOST_BODY_BYTES: Final = 1024 * 1024

_END: Final = b"\r\n\r\n"
_HEAD: Final = re.compile(
    rb"HTTP/1\.1 [2-5][0-9][0-9](?: [\t -~]*)?\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)+\r\n"
)
_BODILESS: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_CODINGS: Final = frozenset({"transfer-encoding", "content-encoding"})


class NotPlainError(httpx2.RemoteProtocolError):
    """The answer is none that is read here: httpx2 repeats its request, which may have had an effect."""


class PlainAnswer(NamedTuple):
    """An answer, and whether its connection may carry the next request."""

    answer: HttpAnswer
    keeps_alive: bool


AnswerReader: TypeAlias = Generator[None, bytes, PlainAnswer]
"""Waits for the next bytes of the connection; none: it has ended."""


def read_plain_answer(receive: Callable[[], bytes], url: str) -> PlainAnswer:
    """Read one answer to its end.

    Args:
        receive: gets the next bytes of the connection; none: it has ended.
        url: of the request.

    Raises:
        NotPlainError, httpx2.RemoteProtocolError: as `answer_reader`.
    """
    reader = answer_reader(url)
    next(reader)
    try:
        while True:
            reader.send(receive())
    except StopIteration as end:
        answer: PlainAnswer = end.value
        return answer


def answer_reader(url: str) -> AnswerReader:
    """Read one answer to its end, without I/O.

    Args:
        url: of the request.

    Raises:
        NotPlainError: it is chunked, compressed, interim, too large, or no HTTP/1.1.
        httpx2.RemoteProtocolError: the connection ended before the answer.
    """
    received = bytearray((yield))
    if not received:
        raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")
    while (end := received.find(_END)) < 0:
        # A line that ends otherwise would be waited for until the deadline.
        if len(received) > MOST_HEAD_BYTES or received.count(b"\n") != received.count(b"\r\n"):
            raise NotPlainError("the head of the answer is too long, or not one of HTTP/1.1")
        received += _some((yield))
    start = end + len(_END)
    status, headers = _parse_head(bytes(received[:start]))
    end = start + _body_length(status, headers)
    while len(received) < end:
        received += _some((yield))
    keeps_alive = len(received) == end and headers.get("connection", "keep-alive").lower() == "keep-alive"
    return PlainAnswer(HttpAnswer(status, headers, bytes(received[start:end]), url), keeps_alive)


def _some(received: bytes) -> bytes:
    if not received:
        raise httpx2.RemoteProtocolError("Server disconnected in the middle of its response.")
    return received


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Parse a status line and headers; their names are in lower case."""
    if len(head) > MOST_HEAD_BYTES or _HEAD.fullmatch(head) is None:
        raise NotPlainError("the head of the answer is too long, or not one of HTTP/1.1")
    status, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if len(headers) < len(lines):
        raise NotPlainError("the answer has a header twice")
    return int(status[9:12]), headers


def _body_length(status: int, headers: dict[str, str]) -> int:
    """Return the bytes of the body, which the answer must state."""
    length = headers.get("content-length", "")
    is_stated = length.isdecimal() and len(length) <= len(str(MOST_BODY_BYTES)) and int(length) <= MOST_BODY_BYTES
    if not is_stated or status in _BODILESS or not _CODINGS.isdisjoint(headers):
        raise NotPlainError("the answer has a coding, or no length that is read here")
    return int(length)
