"""The strict reader of plain answers: it reads as h11 does, or leaves the answer to it."""

from collections.abc import Callable, Iterable

import h11
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsilon_ledger._net.plain_http import (
    MOST_BODY_BYTES,
    MOST_HEAD_BYTES,
    NotPlainError,
    PlainAnswer,
    read_plain_answer,
)

BODY = b'{"decision":"admitted"}'
ANSWER = b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 21:26:40 GMT\r\nContent-Length: 23\r\nX-Empty:\r\n\r\n" + BODY


def read(pieces: Iterable[bytes]) -> PlainAnswer:
    """Read an answer that arrives in pieces, after which the connection ends."""
    arriving = iter([*pieces, b""])
    return read_plain_answer(lambda: next(arriving), "http://ledger.test/v1/runs/run_1/steps")


def by_h11(received: bytes) -> tuple[int, dict[str, str], bytes, bool]:
    """Read an answer to a POST by h11: status, headers, body, and whether the connection may be used again."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("Host", "ledger.test")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(received)
    head, body = None, b""
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        if isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
    assert head is not None
    headers = {name.decode(): value.decode() for name, value in head.headers}
    keeps_alive = reader.their_state is h11.DONE and not reader.trailing_data[0]
    return head.status_code, headers, body, keeps_alive


def agree(received: bytes) -> bool:
    """Require that an answer is read as by h11, if it is read at all; return whether it is."""
    try:
        answer, keeps_alive = read([received])
    except httpx2.RemoteProtocolError:
        return False
    status, headers, body, alive = by_h11(received)
    assert (answer.status, answer.headers, answer.content) == (status, headers, body)
    assert alive or not keeps_alive
    return True


def test_answer_is_read_in_whatever_pieces_it_arrives() -> None:
    whole = read([ANSWER])
    assert whole.answer.status == 200
    assert whole.answer.headers == {"date": "Sun, 29 Nov 2026 21:26:40 GMT", "content-length": "23", "x-empty": ""}
    assert (whole.answer.content, whole.keeps_alive) == (BODY, True)
    for at in range(1, len(ANSWER)):
        assert read([ANSWER[:at], ANSWER[at:]]) == whole
    assert read(ANSWER[at : at + 1] for at in range(len(ANSWER))) == whole


def test_answer_that_is_cut_anywhere_is_no_answer() -> None:
    for at in range(len(ANSWER)):
        with pytest.raises(httpx2.RemoteProtocolError, match="Server disconnected") as cut:
            read([ANSWER[:at]] if at else [])
        assert not isinstance(cut.value, NotPlainError)


@pytest.mark.parametrize("split", [0, 1, 30])
def test_bytes_after_the_answer_are_no_part_of_it_and_end_the_connection(split: int) -> None:
    received = ANSWER + ANSWER
    end = len(ANSWER) - split
    answer, keeps_alive = read([received[:end], received[end:]] if split else [received])
    assert (answer.content, keeps_alive) == (BODY, False)


@pytest.mark.parametrize("status", [b"200", b"200 ", b"200 \tFine (so far)"])
def test_answer_may_have_any_reason_or_none(status: bytes) -> None:
    assert agree(ANSWER.replace(b"200 OK", status))


def edited(old: bytes, new: bytes) -> bytes:
    assert old in ANSWER
    return ANSWER.replace(old, new)


LENGTH = b"Content-Length: 23\r\n"
NOT_PLAIN = {
    "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER,
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ANSWER,
    "HTTP/1.0": edited(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/2": edited(b"HTTP/1.1", b"HTTP/2"),
    "something else": b"SSH-2.0-OpenSSH_9.6\r\n" + ANSWER,
    "lines that end otherwise": ANSWER.replace(b"\r\n", b"\n"),
    "a line that ends otherwise": edited(b"X-Empty:\r\n", b"X-Empty:\n"),
    "a bare carriage return": edited(b"X-Empty:", b"X-Empty: \r"),
    "an empty line first": b"\r\n" + ANSWER,
    "a folded line": edited(b"X-Empty:", b"X-Empty:\r\n folded"),
    "a space before the colon": edited(b"X-Empty:", b"X-Empty :"),
    "a line without a colon": edited(b"X-Empty:", b"X-Empty"),
    "a byte beyond ASCII": edited(b"X-Empty:", b"X-Empty: \xe9"),
    "a control character": edited(b"X-Empty:", b"X-Empty: \x00"),
    "no header": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "no length": edited(LENGTH, b""),
    "two lengths": edited(LENGTH, LENGTH * 2),
    "two different lengths": edited(LENGTH, LENGTH + b"content-length: 5\r\n"),
    "lengths in a list": edited(b": 23", b": 23, 23"),
    "a negative length": edited(b": 23", b": -23"),
    "a length with a sign": edited(b": 23", b": +23"),
    "a length with an underscore": edited(b": 23", b": 2_3"),
    "a hexadecimal length": edited(b": 23", b": 0x17"),
    "a length that is too large": edited(b": 23", b": %d" % (MOST_BODY_BYTES + 1)),
    "a length of a thousand digits": edited(b": 23", b": " + b"0" * 1000 + b"23"),
    "chunks": edited(LENGTH, b"Transfer-Encoding: chunked\r\n"),
    "chunks and a length": edited(LENGTH, LENGTH + b"transfer-encoding: chunked\r\n"),
    "compression": edited(LENGTH, LENGTH + b"Content-Encoding: gzip\r\n"),
    "no content": edited(b"200 OK", b"204 No Content"),
    "not modified": edited(b"200 OK", b"304 Not Modified"),
    "a status of four digits": edited(b"200 OK", b"2000 OK"),
    "a head that is too long": edited(b"X-Empty:", b"X-Long: " + b"x" * MOST_HEAD_BYTES),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_answer_that_is_not_plain_is_left_to_httpx2(name: str) -> None:
    with pytest.raises(NotPlainError):
        read([NOT_PLAIN[name]])


@pytest.mark.parametrize("endless", [b"x", b"x: y\r\n", b"x: y\n"])
def test_head_without_end_is_not_read_for_ever(endless: bytes) -> None:
    received = 0

    def receive() -> bytes:
        nonlocal received
        received += 1
        return endless * 100

    with pytest.raises(NotPlainError):
        read_plain_answer(receive, "")
    assert received * 100 <= MOST_HEAD_BYTES + 200


@pytest.mark.parametrize(("header", "kept"), [("close", False), ("Keep-Alive", True), ("upgrade, close", False)])
def test_connection_is_kept_only_if_the_server_keeps_it(header: str, *, kept: bool) -> None:
    received = edited(b"X-Empty:", f"Connection: {header}".encode())
    assert read([received]).keeps_alive is kept
    assert agree(received)


PIECES: list[bytes] = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b"\x00", b"\x7f", b"\xff", b"0", b"1", b"-", b"HTTP/1.1 "),
    *(b"Content-Length: 23\r\n", b"content-length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n\r\n", b"A: b\r\n", b"204", b"101"),
]
Edit = Callable[[bytes], bytes]


def edits() -> st.SearchStrategy[Edit]:
    """Insert a piece, or put it in the place of what stands there."""
    places, cuts = st.integers(0, len(ANSWER) + 20), st.integers(0, 6)
    return st.builds(
        lambda piece, at, cut: lambda text: text[:at] + piece + text[at + cut :],
        st.sampled_from(PIECES) | st.binary(max_size=2),
        places,
        cuts,
    )


@given(st.lists(edits(), max_size=4), st.booleans())
def test_edited_answer_is_read_as_h11_reads_it_or_not_at_all(changes: list[Edit], more: bool) -> None:  # noqa: FBT001
    received = ANSWER
    for change in changes:
        received = change(received)
    agree(received + ANSWER * more)
