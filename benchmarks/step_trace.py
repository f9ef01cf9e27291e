"""Functions called by one step, from request to row: `python -m benchmarks.step_trace`.

A warm process takes a durable step with `event`, `count` and `first_step` on SQLite, in a run under a budget of a
population. The request arrives on a connection of the server, of which only the network is left out. It counts the
entered functions of `app`, without comprehensions. `--calls` prints each of them.
"""

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

import app
from app.configuration.settings import Settings
from app.http.connections import BoundedConfig, BoundedConnection, Limits
from app.http.step_path import StepPath
from app.ledger.permissions import Role
from app.main import create_app
from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.service.auth.authentication import create_organisation
from app.service.keys.api_keys import create_key
from benchmarks.load import request
from benchmarks.servers import EVENT

WARM_STEPS = 30
LAYERS = ("accounting", "ledger", "persistence", "service", "api")
"""From the lowest to the highest, as in import-linter's contract; the connections and the logs are in none."""


@dataclass(frozen=True)
class Call:
    """An entered function.

    Args:
        file: relative to `app`.
        function: qualified name.
        depth: number of active functions of `app`.
        caller: file of the innermost of these; None: the event loop.
    """

    file: str
    function: str
    depth: int
    caller: str | None

    @property
    def climbs(self) -> bool:
        """Whether a lower layer called a higher one; the server, which ASGI calls to send, is in none."""
        return self.caller is not None and _height(self.caller) < _height(self.file) < len(LAYERS)


@dataclass(frozen=True)
class StepTrace:
    """The calls of one step, in order."""

    calls: tuple[Call, ...]

    def figures(self) -> dict[str, int]:
        """Count calls, distinct functions and files, changes of file, and calls to a higher layer."""
        files = [call.file for call in self.calls]
        return {
            "calls": len(self.calls),
            "functions": len({(call.file, call.function) for call in self.calls}),
            "files": len(set(files)),
            "switches between files": sum(a != b for a, b in itertools.pairwise(files)),
            "climbs back": sum(call.climbs for call in self.calls),
        }


class _Tracer:
    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self._stack: list[str] = []
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(self._root) or code.co_name.startswith("<"):
            return
        if event == "call":
            file = code.co_filename.removeprefix(self._root)
            caller = self._stack[-1] if self._stack else None
            self.calls.append(Call(file, code.co_qualname, len(self._stack), caller))
            self._stack.append(file)
        elif event == "return" and self._stack:
            self._stack.pop()


def _height(file: str) -> int:
    layer = file.split("/", 1)[0]
    return LAYERS.index(layer) if layer in LAYERS else len(LAYERS)


async def post(served: ASGIApp, key: str, path: str, body: object) -> dict[str, str]:
    """Send a request without a network, and return the body of its answer."""
    sent: list[Message] = []
    received: list[Message] = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    headers = {"host": "benchmark", "authorization": f"Bearer {key}", "content-type": "application/json"}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("benchmark", 80),
    }

    async def receive() -> Message:
        return received.pop() if received else await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    await served(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    assert sent[0]["status"] in {200, 201}, content
    answer: dict[str, str] = json.loads(content)
    return answer


async def register_runs(served: ASGIApp, key: str, count: int, planned: Sequence[dict[str, object]] = ()) -> list[str]:
    """Create a population and a budget with a plan, if any, and runs with a default event; return the runs' ids."""
    terms = {"limit": {"epsilon": 10_000, "delta": 1e-5}, "planned": [{"event": event} for event in planned]}
    population = {"name": "p", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
    await post(served, key, "/v1/populations", population | terms)
    await post(served, key, "/v1/budgets", {"name": "b", "parent": "p"} | terms)
    run = {"name": "r", "budget": "p/b", "event": EVENT}
    return [(await post(served, key, "/v1/runs", run))["id"] for _ in range(count)]


class Wire(asyncio.Transport):
    """Transport of a connection without a network; the answer ends with a brace."""

    def expect(self) -> "asyncio.Future[bytes]":
        """Wait for the next answer."""
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = b""
        return self._answer

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the answer, or a part of it."""
        self._received += data
        if self._received.endswith(b"}"):
            self._answer.set_result(self._received)

    def is_closing(self) -> bool:
        """Stay open."""
        return False


def open_connection(served: ASGIApp) -> tuple[BoundedConnection, Wire]:
    """Open a connection of the server to an application."""
    config = BoundedConfig(
        served, http=BoundedConnection, ws="none", lifespan="off", log_config=None, log_level="warning"
    )
    config.limits = Limits(head_seconds=60.0, body_seconds=60.0, connections=1)
    config.load()
    connection, wire = BoundedConnection(config, ServerState(), {}), Wire()
    connection.connection_made(wire)
    return connection, wire


async def take_step(connection: BoundedConnection, wire: Wire, key: str, path: str, body: object) -> None:
    """Send a plain request for a step by a known caller, and wait for its answer."""
    text = request(path, body, {"Authorization": f"Bearer {key}"})
    expected = wire.expect()
    connection.data_received(text.encode())
    answer = await expected
    assert answer.startswith(b"HTTP/1.1 200 "), answer


async def _trace(served: FastAPI, key: str) -> StepTrace:
    [run] = await register_runs(served, key, 1)
    path = f"/v1/runs/{run}/steps"
    connection, wire = open_connection(StepPath(served))
    for step in range(WARM_STEPS):
        await take_step(connection, wire, key, path, {"event": EVENT, "count": 1, "first_step": step})
    tracer = _Tracer(Path(app.__file__).parent)
    sys.setprofile(tracer)
    try:
        await take_step(connection, wire, key, path, {"event": EVENT, "count": 1, "first_step": WARM_STEPS})
    finally:
        sys.setprofile(None)
    return StepTrace(tuple(tracer.calls))


def trace_step() -> StepTrace:
    """Take steps on a new SQLite file, and trace the last one."""
    with tempfile.TemporaryDirectory() as folder:
        _, served, key = new_ledger(Path(folder))
        try:
            return asyncio.run(_trace(served, key))
        finally:
            served.state.store.database.dispose()


def new_ledger(folder: Path, url: str | None = None) -> tuple[str, FastAPI, str]:
    """Create a ledger, on SQLite unless a URL is given; return its URL, its application and the key of an admin."""
    url = url or f"sqlite:///{folder}/ledger.db"
    database = Database(url)
    upgrade(database)
    now = database.clock.now()
    key = create_key(database, create_organisation(database, "benchmark", now), Role.ADMIN, now).key
    database.dispose()
    # On a slow machine, too, a step finds its caller in the cache; on a fast one it is within its rate, which is kept.
    settings = Settings(database_url=url, rate_limit_per_second=1e6)
    return url, create_app(settings, caller_seconds=3600.0), key


def describe(calls: Iterable[Call]) -> str:
    """Format each call on a line, indented by its depth."""
    return "\n".join(f"{'  ' * call.depth}{call.file}: {call.function}" for call in calls)


def main() -> None:
    """Print the figures."""
    found = trace_step()
    for name, figure in found.figures().items():
        print(f"{name:24} {figure:5}")
    if "--calls" in sys.argv[1:]:
        print(describe(found.calls))


if __name__ == "__main__":
    main()
