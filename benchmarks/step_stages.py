"""Processor time of a step over HTTP by stages: `python -m benchmarks.step_stages [--rounds N]`.

In this process and without the kernel's network: requests are handed to connections of the server as bytes, and their
answers are taken from a transport. SQLite with `synchronous=FULL`; groups of 64 steps of one run and of 64 runs, and a
lone step. Each moment belongs to the stage that began last. In turn: a bare FastAPI endpoint with the same models
under plain uvicorn, the service, and the service with the clocks of its stages. Medians of the rounds and the least, in
microseconds of processor time a step.
"""

import argparse
import asyncio
import gc
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final
from unittest.mock import patch

import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from app import gc_frozen
from app.http import step_path
from app.http.step_path import StepPath
from app.service.charging import commit_queue
from benchmarks import bare
from benchmarks.load import request
from benchmarks.step_groups import GROUP, STAGES
from benchmarks.step_groups import SHAPES as GROUPS
from benchmarks.step_trace import Wire, new_ledger, open_connection, register_runs

WARM_ROUNDS: Final = 20
LONGEST_SECONDS: Final = 30.0
"""Wait for the answers to a round."""

SHAPES: Final = ("64 steps, one run", "64 steps, 64 runs", "a lone step")

PARSE, HEAD, BODY, QUEUE = "parse, deadlines", "head, caller", "body", "queue, answer"
DECIDE, SQL, COMMIT = "group: load, decide", "group: rows, SQL", "group: begin and commit"
IN_GROUP: Final = {"charge": DECIDE, "refresh": DECIDE, "load": DECIDE, "decide": DECIDE, "write": SQL, "save": SQL}
"""Stage of the table, by the one inside of a group."""

TABLE: Final = (PARSE, HEAD, BODY, QUEUE, DECIDE, SQL, COMMIT)
BARE, SERVICE, CLOCKED = "bare FastAPI endpoint", "all", "all, with clocks"


class Stopwatch:
    """Divides processor time among stages, each of which lasts until the next one begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stage, self._since = PARSE, 0.0

    def begin(self, stage: str) -> str:
        """Begin a stage; return the one that it ends."""
        now, before = process_time(), self._stage
        self.seconds[before] += now - self._since
        self._stage, self._since = stage, now
        return before

    def restart(self) -> None:
        """Forget what was measured."""
        self.seconds.clear()
        self._stage, self._since = PARSE, process_time()

    def within(self, function: Callable[..., Any], stage: str, then: str | None = None) -> Callable[..., Any]:
        """Wrap a function that is a stage of its own, and followed by another one, by default the one before."""

        def wrapper(*arguments: object, **named: object) -> object:
            before = self.begin(stage)
            try:
                return function(*arguments, **named)
            finally:
                self.begin(then or before)

        return wrapper

    def application(self, served: ASGIApp) -> ASGIApp:
        """Wrap an application, whose stages are reading the head, and then receiving the body."""

        async def wrapper(scope: Scope, receive: Receive, send: Send) -> None:
            self.begin(HEAD)
            await served(scope, self.within(receive, BODY, BODY), send)

        return wrapper

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the stages behind the body where the service calls them."""
        with ExitStack() as stack:
            for place, function, stage, then in (
                (step_path, "read_body", BODY, QUEUE),
                (commit_queue, "commit_group", COMMIT, None),
                *((*where, IN_GROUP[name], None) for name, where in STAGES.items()),
            ):
                wrapped = self.within(getattr(place, function), stage, then)
                stack.enter_context(patch.object(place, function, wrapped))
            yield


class Contender:
    """Connections to an application, and what a step of each round took."""

    def __init__(self, connections: Sequence[tuple[HttpToolsProtocol, Wire]]) -> None:
        self._connections = connections
        self.microseconds: list[dict[str, float]] = []

    async def take(self, requests: Sequence[bytes], stopwatch: Stopwatch) -> None:
        """Send a request on each connection, and wait for the answers."""
        answers = [wire.expect() for _, wire in self._connections]
        stopwatch.restart()
        for (connection, _), text in zip(self._connections, requests, strict=True):
            connection.data_received(text)
        await asyncio.wait_for(asyncio.gather(*answers), LONGEST_SECONDS)
        stopwatch.begin(PARSE)
        refused = [answer.result() for answer in answers if not answer.result().startswith(b"HTTP/1.1 200 ")]
        assert not refused, refused[0]
        self.microseconds.append({name: took / len(requests) * 1e6 for name, took in stopwatch.seconds.items()})


def _plain_connection(application: ASGIApp) -> tuple[HttpToolsProtocol, Wire]:
    """Open a connection of plain uvicorn."""
    config = uvicorn.Config(application, ws="none", lifespan="off", log_config=None, log_level="warning")
    config.load()
    connection, wire = HttpToolsProtocol(config, ServerState(), {}), Wire()
    connection.connection_made(wire)
    return connection, wire


async def measured(folder: Path, steps: int, runs: int, rounds: int) -> dict[str, Contender]:
    """Take steps in groups; return what they took by contender."""
    _, served, key = new_ledger(folder)
    stopwatch = Stopwatch()
    with gc_frozen():
        ids = await register_runs(served, key, runs)
        path = StepPath(served)
        contenders = {
            BARE: Contender([_plain_connection(bare.app) for _ in range(steps)]),
            SERVICE: Contender([open_connection(path) for _ in range(steps)]),
            CLOCKED: Contender([open_connection(stopwatch.application(path)) for _ in range(steps)]),
        }
    headers, body = {"Authorization": f"Bearer {key}"}, {"count": 1}
    sent = [request(f"/v1/runs/{ids[number % runs]}/steps", body, headers).encode() for number in range(steps)]
    to_bare = [request("/steps", body, {}).encode()] * steps
    try:
        for _ in range(WARM_ROUNDS + rounds):
            await contenders[BARE].take(to_bare, stopwatch)
            await contenders[SERVICE].take(sent, stopwatch)
            with stopwatch.running():
                await contenders[CLOCKED].take(sent, stopwatch)
    finally:
        await served.state.store.charges.close()
        served.state.store.database.dispose()
    return contenders


def figures(contenders: dict[str, Contender]) -> dict[str, list[float]]:
    """Return microseconds a step, by row of the table."""
    rounds = {name: each.microseconds[WARM_ROUNDS:] for name, each in contenders.items()}
    rows = {stage: [taken.get(stage, 0.0) for taken in rounds[CLOCKED]] for stage in TABLE}
    return rows | {name: [sum(taken.values()) for taken in rounds[name]] for name in (SERVICE, CLOCKED, BARE)}


def main(rounds: int = 100) -> None:
    """Print the table."""
    tables = []
    thresholds = gc.get_threshold()
    for shape in SHAPES:
        steps, runs, _ = GROUPS[shape]
        with tempfile.TemporaryDirectory() as folder:
            tables.append(figures(uvloop.run(measured(Path(folder), steps, runs, rounds))))
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    print(f"{f'median / least of {rounds}, groups of {GROUP}':44}" + "".join(f"{shape:>20}" for shape in SHAPES))
    for row in tables[0]:
        cells = (f"{median(table[row]):.1f} / {min(table[row]):.1f}" for table in tables)
        print(f"{row:44}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    main(parser.parse_args().rounds)
