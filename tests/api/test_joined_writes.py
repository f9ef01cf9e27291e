"""Head and body of a response are sent together, and nothing that was written is kept back."""

import asyncio
from collections.abc import Callable

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from app.http.connections import _JoinedWrites

Sent = list[bytes | str]


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: Sent = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def write_eof(self) -> None:
        self.sent.append("eof")

    def close(self) -> None:
        self.sent.append("close")

    def is_closing(self) -> bool:
        return "close" in self.sent


def _sent(act: Callable[[_JoinedWrites], None], *, turns: int = 0) -> Sent:
    """Write head and body, act, and list what was sent so many turns of the event loop later."""

    async def run() -> Sent:
        transport = _Transport()
        joined = _JoinedWrites(transport, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"body")
        assert transport.sent == []
        act(joined)
        for _ in range(turns):
            await asyncio.sleep(0)
        return transport.sent

    return asyncio.run(run())


@pytest.mark.parametrize(("ends", "marks"), [("flush", []), ("close", ["close"]), ("write_eof", ["eof"])])
def test_head_and_body_are_sent_together_before_what_ends_the_response(ends: str, marks: Sent) -> None:
    assert _sent(lambda joined: getattr(joined, ends)()) == [b"head body", *marks]


def test_response_that_goes_on_later_is_sent_after_a_turn_of_the_loop() -> None:
    assert _sent(lambda _: None, turns=1) == [b"head body"]


def test_long_part_is_sent_at_once_so_that_its_transport_may_pause() -> None:
    part = b"x" * (HIGH_WATER_LIMIT + 1)
    assert _sent(lambda joined: joined.write(part)) == [b"head body" + part]


def test_nothing_is_sent_twice() -> None:
    assert _sent(lambda joined: joined.flush(), turns=2) == [b"head body"]
