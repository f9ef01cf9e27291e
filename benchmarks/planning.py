"""Time of the most expensive plans, and their effect on others: `python -m benchmarks.planning` (some two minutes).

1. Processor time of 500 generated plans, each in a process without caches for it.
2. A live service, two organisations. Six clients of one send expensive plans without pause; a viewer of the other sends
   a trivial plan and its trainer takes a step, interleaved with health checks. The same without the six.
"""

import itertools
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from statistics import median

import httpx2

from benchmarks.awful_plans import awful_plans
from benchmarks.servers import Server, ledger_of_two, steps_path

SEED = 20261122
HOSTILE_CLIENTS = 6
PLANS_OF_EACH = 150
"""Prepared before the measurement, then sent repeatedly."""
SECONDS = 30.0
TRIVIAL = {"events": [{"event": {"type": "gaussian", "noise_multiplier": 3.0}, "count": 10}], "delta": 1e-5}


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as folder, ledger_of_two(f"sqlite:///{Path(folder) / 'l.db'}") as (ours, theirs):
        processor_times(theirs)
        waits(ours, theirs)


def processor_times(server: Server) -> None:
    """Print the processor time of each of 500 expensive plans."""
    for _ in range(2):  # the processes that calculate are started
        server.client.post("/v1/accounting/epsilon", json=TRIVIAL).raise_for_status()
        time.sleep(2.0)
    taken: list[tuple[float, int, str]] = []
    for path, body in awful_plans(random.Random(SEED), 500):  # noqa: S311 - repeatable
        before = server.processor_seconds()
        reply = server.client.post(path, json=body, timeout=120)
        assert "unknown member" not in reply.text, reply.text
        taken.append((server.processor_seconds() - before, reply.status_code, path))
    taken.sort(reverse=True)
    statuses = sorted({status for _, status, _ in taken})
    counts = ", ".join(f"{status}: {sum(s == status for _, s, _ in taken)}" for status in statuses)
    print(f"processor seconds of one of {len(taken)} plans (seed {SEED}); {counts}")
    largest, _, where = taken[0]
    print(f"largest {largest:.2f} ({where}), 95 % {taken[len(taken) // 20][0]:.2f}\n")


def waits(ours: Server, theirs: Server) -> None:
    """Print the latency of a trivial plan and a step, alone and during another organisation's load."""
    path, step = steps_path(ours), iter(range(10**9))

    def take_step() -> None:
        ours.client.post(path, json={"count": 1, "first_step": next(step)}).raise_for_status()

    def plan() -> None:
        ours.client.post("/v1/accounting/epsilon", json=TRIVIAL).raise_for_status()

    def ask_health() -> None:
        ours.client.get("/healthz").raise_for_status()

    probes = {"/healthz, the floor": ask_health, "a trivial plan": plan, "a step": take_step}
    print(f"{'':46} {'requests':>8} {'median ms':>10} {'95 % ms':>10} {'largest ms':>11}")
    for name, hostile in (("alone", 0), (f"beside {HOSTILE_CLIENTS} hostile clients", HOSTILE_CLIENTS)):
        with _hostile(theirs, hostile):
            waited = _in_turns(list(probes.values()))
        for what, times in zip(probes, waited, strict=True):
            row = median(times), times[int(0.95 * len(times))], times[-1]
            print(f"{f'{what}, {name}':46} {len(times):8} " + " ".join(f"{figure:10.1f}" for figure in row))


def _in_turns(probes: Sequence[Callable[[], None]]) -> list[list[float]]:
    """Return the sorted latencies in ms of requests sent in turn, so that all meet the same load."""
    waited: list[list[float]] = [[] for _ in probes]
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        for probe, times in zip(probes, waited, strict=True):
            start = time.perf_counter()
            probe()
            times.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.01)
    return [sorted(times) for times in waited]


@contextmanager
def _hostile(server: Server, clients: int) -> Iterator[None]:
    """Run clients that send expensive plans continuously, in another process."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Barrier(2), context.Event()
    arguments = (server.port, server.client.headers["Authorization"], clients, ready, stop)
    process = context.Process(target=_attack, args=arguments, daemon=True)
    process.start()
    try:
        ready.wait()
        time.sleep(1.0)
        yield
    finally:
        stop.set()
        process.join()


def _attack(port: int, authorization: str, clients: int, ready: Barrier, stop: Event) -> None:
    """Send the prepared plans until stopped."""
    prepared = [
        [(path, json.dumps(body).encode()) for path, body in awful_plans(random.Random(SEED + number), PLANS_OF_EACH)]  # noqa: S311 - repeatable
        for number in range(clients)
    ]
    headers = {"Authorization": authorization, "Content-Type": "application/json"}

    def send(plans: list[tuple[str, bytes]]) -> None:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120, trust_env=False) as own:
            for path, content in itertools.cycle(plans):
                if stop.is_set():
                    return
                with suppress(httpx2.TransportError):  # some of these clients are disconnected
                    own.post(path, content=content)

    ready.wait()
    with ThreadPoolExecutor(max(clients, 1)) as threads:
        list(threads.map(send, prepared))


if __name__ == "__main__":
    main()
