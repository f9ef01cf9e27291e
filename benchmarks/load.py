"""Load generator: `wrk` if it is on the PATH, else raw sockets in a separate process.

`python -m benchmarks.load --port N --seconds S FILE` sends the requests in the file, a JSON list with a list of HTTP
requests for each connection, repeatedly and sequentially on each connection, and prints the result.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Final, cast

import uvloop

Requests = Sequence[Sequence[str]]
"""HTTP requests for each connection."""

NUMBER: Final = "0000000000000000000"
"""Text that is replaced by a new number of the same length in each request."""

_WRK = """
local requests = { %s }
local place, began, next, number = '%s', os.time(), 0, 0
local numbered = requests[1]:find(place, 1, true)
request = function()
  next, number = next %% #requests + 1, number + 1
  if not numbered then return requests[next] end
  return (requests[next]:gsub(place, string.format('%%010d%%09d', began, number)))
end
done = function(summary, latency)
  io.write(string.format('\\n{"replies": %%d, "failed": %%d, "seconds": %%f, "median_ms": %%f, "late_ms": %%f}\\n',
    summary.requests, summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""


@dataclass(frozen=True)
class Load:
    """Result of a load test.

    Args:
        replies: number of responses.
        failed: number of responses other than 200, or lost.
        seconds: duration.
        median_ms: median latency.
        late_ms: 99th percentile of the latency.
    """

    replies: int
    failed: int
    seconds: float
    median_ms: float
    late_ms: float

    @property
    def rate(self) -> float:
        """Responses per second."""
        return self.replies / self.seconds


def request(path: str, body: object, headers: Mapping[str, str]) -> str:
    """Build a POST request with a JSON body."""
    content = json.dumps(body, separators=(",", ":"))
    fields = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": len(content), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n{content}"


def loaded(port: int, requests: Requests, seconds: float) -> Load:
    """Send requests from another process for some seconds.

    `wrk` distributes the requests over the connections in turn.

    Raises:
        AssertionError: a response was not 200.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        if shutil.which("wrk"):
            quoted = (json.dumps(text) for turn in zip(*map(cycle, requests), strict=False) for text in turn)
            dealt = ", ".join(text for text, _ in zip(quoted, range(_dealt(requests)), strict=False))
            file.write(_WRK % (dealt, NUMBER))
            connections = ["-t1", f"-c{len(requests)}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
            command = ["wrk", *connections, "-s", file.name, f"http://127.0.0.1:{port}"]
        else:
            json.dump(requests, file)
            command = [
                sys.executable,
                "-m",
                "benchmarks.load",
                "--port",
                str(port),
                "--seconds",
                str(seconds),
                file.name,
            ]
        file.flush()
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    load = Load(**json.loads(told.strip().splitlines()[-1]))
    assert load.replies > 0, told
    assert load.failed == 0, f"{load.failed} of {load.replies} replies were not 200"
    return load


def _dealt(requests: Requests) -> int:
    """Return the number of requests for wrk: all of all connections."""
    return len(requests) * max(len(own) for own in requests)


_NUMBER: Final = NUMBER.encode()
_numbers = count(time.time_ns())


class _Client(asyncio.Protocol):
    """Connection that sends the next request after each response."""

    def __init__(self, requests: Sequence[bytes], statuses: Counter[bytes], times: list[float]) -> None:
        self._requests = cycle(requests)
        self._numbered = any(_NUMBER in request for request in requests)
        self._statuses = statuses
        self._times = times
        self._got = b""
        self._since = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._send()

    def data_received(self, data: bytes) -> None:
        """Count a complete response, and send the next request."""
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found:
            return
        start = head.lower().index(b"content-length:") + len(b"content-length:")
        if len(body) < int(head[start:].split(b"\r\n", 1)[0]):
            return
        self._statuses[head[9:12]] += 1
        self._times.append(time.perf_counter() - self._since)
        self._got = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the lost request, except at the end."""
        del exc
        self._statuses[b"lost"] += 1

    def _send(self) -> None:
        assert self._transport is not None
        self._since = time.perf_counter()
        request = next(self._requests)
        self._transport.write(request.replace(_NUMBER, b"%d" % next(_numbers)) if self._numbered else request)


async def _run(port: int, requests: Requests, seconds: float) -> Load:
    statuses: Counter[bytes] = Counter()
    times: list[float] = []
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    for own in requests:
        encoded = [text.encode("ascii") for text in own]
        await loop.create_connection(lambda own=encoded: _Client(own, statuses, times), "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.sleep(seconds)
    seen, took = dict(statuses), time.perf_counter() - start
    ordered = sorted(times) or [0.0]
    replies = sum(count for status, count in seen.items() if status != b"lost")
    failed = sum(count for status, count in seen.items() if status != b"200")
    late = ordered[int(0.99 * len(ordered))]
    return Load(replies, failed, took, ordered[len(ordered) // 2] * 1e3, late * 1e3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    print(json.dumps(asdict(uvloop.run(_run(asked.port, json.loads(asked.file.read_text()), asked.seconds)))))
