"""Overhead of the client for a training step: `python -m benchmarks.sdk_overhead`.

One trainer, the service on the same machine, SQLite. The same DP-SGD step in numpy runs without the service, with a
call before each step, with grants of 50, and with grants of 50 requested in the background: in turn, for some hundred
steps, so that background work hits its own trainer. The overhead is the additional time of a step: of the medians, and
of the means, which include the server's work. For comparison: a POST of httpx2 to a bare endpoint, with the processor
time of both. Then the client's own processor time of a call, beside that of the same request through a socket, through
`http.client`, and of the client over httpx2; the asynchronous client's, too, on asyncio's own event loop.
"""

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from inspect import isawaitable
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import httpx2
import numpy as np

from benchmarks.servers import EVENT, Server, bare, ledger, steps_path
from epsilon_ledger import AsyncLedgerClient, LedgerClient, Run

ROUNDS, STEPS = 10, 200
RECORDS, FEATURES, CLASSES = 128, 784, 10
EVERY = 50
CALLS, WARM_UP = 2000, 50


def training_step(rng: np.random.Generator) -> Callable[[], object]:
    """Build a DP-SGD step of a softmax regression of about two milliseconds.

    On one core, because a BLAS with a thread for each core would compete with the server.
    """
    features = rng.normal(size=(RECORDS, FEATURES))
    labels = np.eye(CLASSES)[rng.integers(CLASSES, size=RECORDS)]
    weights = np.zeros((FEATURES, CLASSES))

    def step() -> None:
        scores = np.einsum("nf,fc->nc", features, weights)
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals = likely / likely.sum(axis=1, keepdims=True) - labels
        norms = np.sqrt(np.einsum("nf,nf->n", features, features) * np.einsum("nc,nc->n", residuals, residuals))
        clipped = residuals / np.maximum(norms, 1.0)[:, np.newaxis]
        total = np.einsum("nf,nc->fc", features, clipped) + rng.normal(scale=4.0, size=weights.shape)
        weights[:] -= 0.01 * total / RECORDS

    return step


class Cost(NamedTuple):
    """Microseconds of a call, and of the processor time of its thread."""

    waited: float
    processor: float


def cost(work: Callable[[], object]) -> Cost:
    """Measure a call."""
    start, started = time.perf_counter(), time.thread_time()
    work()
    return Cost((time.perf_counter() - start) * 1e6, (time.thread_time() - started) * 1e6)


def main() -> None:
    """Print the table."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ledger(f"sqlite:///{Path(folder) / 'ledger.db'}") as service,
        bare() as floor,
        httpx2.Client(base_url=f"http://127.0.0.1:{floor.port}", trust_env=False) as plain,
        LedgerClient(
            f"http://127.0.0.1:{service.port}", service.client.headers["Authorization"].removeprefix("Bearer ")
        ) as client,
    ):
        step = training_step(np.random.default_rng())
        runs: dict[str, Run | None] = {"no service": None}
        ways: dict[str, dict[str, int | bool]] = {
            "a call per step": {},
            f"grants of {EVERY}": {"prefetch": EVERY},
            f"grants of {EVERY}, background": {"prefetch": EVERY, "prefetch_in_background": True},
        }
        for name, how in ways.items():
            runs[name] = client.create_run(name, budget="p/b", event=EVENT, **how)  # type: ignore[arg-type]
        steps: dict[str, list[float]] = {name: [] for name in runs}
        asked: dict[str, list[Cost]] = {name: [] for name in runs}
        floors = []
        for number in range(ROUNDS):
            for name, run in runs.items():
                for _ in range(STEPS):
                    asked[name].append(Cost(0.0, 0.0) if run is None else cost(run.authorize))
                    steps[name].append(asked[name][-1].waited + cost(step).waited)
            for _ in range(STEPS):
                body = {"count": 1, "first_step": number}
                floors.append(cost(lambda body=body: plain.post("/steps", json=body).raise_for_status()))  # type: ignore[misc]
        for run in runs.values():
            if run is not None:
                run.complete()
        show(steps, asked, floors)
        asyncio.run(compare_calls(service))


def show(steps: dict[str, list[float]], asked: dict[str, list[Cost]], floors: list[Cost]) -> None:
    """Print the results."""
    without = steps["no service"]
    print(f"{'':28} {'step':>18} {'overhead':>18} {'authorize':>28}")
    print(
        f"{'microseconds':28} {'median':>9} {'mean':>8} {'median':>9} {'mean':>8} {'median':>9} {'mean':>8} {'99 %':>9}"
    )
    for name, times in steps.items():
        alone = sorted(call.waited for call in asked[name])
        print(
            f"{name:28} {median(times):9.1f} {mean(times):8.1f} {median(times) - median(without):9.1f} "
            f"{mean(times) - mean(without):8.1f} {median(alone):9.1f} {mean(alone):8.1f} "
            f"{alone[int(0.99 * len(alone))]:9.1f}"
        )
    calls = asked["a call per step"]
    for what, position in (("time", 0), ("processor time", 1)):
        call, post = (median(costs[position] for costs in measured) for measured in (calls, floors))
        print(f"{what} of a call per step: {call:.1f}, {call / post:.2f} times that of a bare POST ({post:.1f})")


async def compare_calls(service: Server) -> None:
    """Print the processor time of a call in several ways, each in turn with one through `http.client`.

    In pairs, because one way of the client would leave the code of the next one in the processor's caches.
    """
    print(f"\n{'processor time of a call':38} {'median':>9} {'least':>8} {'http.client':>12} {'ratio':>6}")
    async with calls(service) as (standard, ways):
        steps = count()
        for name, call in ways.items():
            pairs = [
                (cost(lambda: standard(next(steps))).processor, await processor_time(call))
                for _ in range(WARM_UP + CALLS)
            ]
            by_standard, taken = zip(*pairs[WARM_UP:], strict=True)
            middle = median(by_standard)
            print(f"{name:38} {median(taken):9.1f} {min(taken):8.1f} {middle:12.1f} {median(taken) / middle:6.2f}")


async def processor_time(call: Callable[[], object]) -> float:
    """Return the microseconds of processor time of a call, which may be awaited."""
    started = time.thread_time()
    answer = call()
    if isawaitable(answer):
        await answer
    return (time.thread_time() - started) * 1e6


@asynccontextmanager
async def calls(service: Server) -> AsyncIterator[tuple[Callable[[int], object], dict[str, Callable[[], object]]]]:
    """Yield a function that takes step n of a run by `http.client`, and others that take the next step of their own."""
    url, key = f"http://127.0.0.1:{service.port}", service.client.headers["Authorization"].removeprefix("Bearer ")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with (
        AsyncLedgerClient(url, key, transport=httpx2.AsyncHTTPTransport()) as async_over_httpx2,
        AsyncLedgerClient(url, key) as async_client,
    ):
        with (
            socket.create_connection(("127.0.0.1", service.port)) as connection,
            LedgerClient(url, key, transport=httpx2.HTTPTransport()) as over_httpx2,
            LedgerClient(url, key) as client,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines = [f"POST {steps_path(service)} HTTP/1.1", "Host: 127.0.0.1", *map(": ".join, headers.items()), ""]
            head = "\r\n".join(lines).encode()
            standard, path = HTTPConnection("127.0.0.1", service.port), steps_path(service)

            def by_socket(number: int) -> None:
                body = json.dumps({"count": 1, "first_step": number}).encode()
                connection.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
                status, _, content = connection.recv(1 << 16).partition(b"\r\n\r\n")
                assert status.startswith(b"HTTP/1.1 200 "), content
                json.loads(content)

            def by_http_client(number: int) -> None:
                standard.request("POST", path, json.dumps({"count": 1, "first_step": number}), headers)
                answer = standard.getresponse()
                content = json.loads(answer.read())
                assert answer.status == HTTPStatus.OK, content

            numbers = count()
            ways: dict[str, Callable[[], object]] = {"a socket": lambda: by_socket(next(numbers))}
            for name, each in (("over httpx2", over_httpx2), ("alone", client)):
                ways[f"the client, {name}"] = each.create_run("calls", budget="p/b", event=EVENT).authorize
            for name, other in (("over httpx2", async_over_httpx2), ("alone", async_client)):
                run = await other.create_run("calls", budget="p/b", event=EVENT)
                ways[f"the asynchronous client, {name}"] = run.authorize
            yield by_http_client, ways
            standard.close()


if __name__ == "__main__":
    main()
