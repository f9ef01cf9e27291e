"""What the dearest plans take, and what they cost others: `python -m benchmarks.planning` (some two minutes).

1. The processor time of 500 generated awful plans, each in a process that has computed nothing of it before.
2. A live service, two organisations. Six clients of one send awful plans without a pause; a viewer of the other asks a
   trivial plan every 50 ms, and its trainer takes steps on one connection. The same is measured without the six.
"""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from benchmarks.awful_plans import awful_plans
from benchmarks.servers import Server, ledger_of_two, steps_path

SEED = 20261122
HOSTILE_CLIENTS = 6
SECONDS = 20.0
TRIVIAL = {"events": [{"event": {"type": "gaussian", "noise_multiplier": 3.0}, "count": 10}], "delta": 1e-5}


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as folder, ledger_of_two(f"sqlite:///{Path(folder) / 'l.db'}") as (ours, theirs):
        processor_times(theirs)
        waits(ours, theirs)


def processor_times(server: Server) -> None:
    """Print what each of 500 awful plans takes of the service's processors."""
    taken: list[tuple[float, int, str]] = []
    for path, body in awful_plans(random.Random(SEED), 500):  # noqa: S311 - repeatable
        before = server.processor_seconds()
        reply = server.client.post(path, json=body, timeout=120)
        taken.append((server.processor_seconds() - before, reply.status_code, path))
    taken.sort(reverse=True)
    statuses = sorted({status for _, status, _ in taken})
    counts = ", ".join(f"{status}: {sum(s == status for _, s, _ in taken)}" for status in statuses)
    print(f"processor seconds of one of {len(taken)} plans (seed {SEED}); {counts}")
    largest, _, where = taken[0]
    print(f"largest {largest:.2f} ({where}), 95 % {taken[len(taken) // 20][0]:.2f}\n")


def waits(ours: Server, theirs: Server) -> None:
    """Print what a trivial plan and a step wait, alone and beside hostile clients of another organisation."""
    path, step = steps_path(ours), iter(range(10**9))

    def take_step() -> None:
        ours.client.post(path, json={"count": 1, "first_step": next(step)}).raise_for_status()

    def plan() -> None:
        ours.client.post("/v1/accounting/epsilon", json=TRIVIAL).raise_for_status()

    print(f"{'':34} {'median ms':>10} {'95 % ms':>10} {'largest ms':>11}")
    for name, hostile in (("alone", 0), (f"beside {HOSTILE_CLIENTS} hostile clients", HOSTILE_CLIENTS)):
        with _hostile(theirs, hostile):
            for what, work in (("a trivial plan", plan), ("a step", take_step)):
                times = sorted(_timed(work))
                row = median(times), times[int(0.95 * len(times))], times[-1]
                print(f"{f'{what}, {name}':34} " + " ".join(f"{figure:10.1f}" for figure in row))


def _timed(work: Callable[[], None]) -> Iterator[float]:
    until = time.perf_counter() + SECONDS / 2
    while (start := time.perf_counter()) < until:
        work()
        yield (time.perf_counter() - start) * 1e3
        time.sleep(0.02)


@contextmanager
def _hostile(server: Server, clients: int) -> Iterator[None]:
    """Let so many clients send awful plans, one after the other."""
    stop = threading.Event()

    def send(number: int) -> None:
        headers: Any = dict(server.client.headers)
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{server.port}", headers=headers, timeout=120, trust_env=False
        ) as own:
            for path, body in awful_plans(random.Random(SEED + number), 10_000):  # noqa: S311 - repeatable
                if stop.is_set():
                    return
                with suppress(httpx2.TransportError):  # whoever is hostile is cut off at times
                    own.post(path, json=body)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
