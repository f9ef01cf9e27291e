"""Effect of hostile and slow receivers on others: `python -m benchmarks.webhooks` (some five minutes).

1. A live service, two organisations. One has 20 webhooks at a hostile server, and sends test events to all of them
   all the time; a trainer of the other takes steps. The same alone, in turns.
2. Four organisations have 20 webhooks each that never answer, and alerts for all of them. How long does an alert of a
   fifth one take?
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Final
from unittest.mock import patch

import httpx2

from benchmarks.servers import Server, another_organisation, ledger_of_two, steps_path
from tests.hostile_servers import ENDLESS_BODIES, ENDLESS_HEADS, OK, SLOW, TLS_FLOODS, Answer, hostile

WEBHOOKS: Final = 20
SECONDS: Final = 8.0
TURNS: Final = 2
"""Seconds of each turn, and how many of each kind."""

PAUSE_SECONDS: Final = 0.02
"""Time between test events."""

ANSWERS: Final = {
    "interim answers without end": ENDLESS_HEADS["interim answers"],
    "headers without end": ENDLESS_HEADS["headers"],
    "a body without end": ENDLESS_BODIES["a body"],
    "byte by byte": SLOW["a slow header"],
    "silence": SLOW["silence"],
    "TLS messages without end": TLS_FLOODS["hello requests"],
    "204 at once": Answer(b"HTTP/1.1 204 No Content\r\n\r\n"),
}


def main() -> None:
    """Print both tables."""
    allowed = {"EPSILON_LEDGER_WEBHOOKS_ALLOW_PRIVATE": "true"}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, allowed):
        url = f"sqlite:///{Path(folder) / 'l.db'}"
        with ledger_of_two(url, "admin") as (ours, theirs):
            waits(ours, theirs)
            bystander(url, ours, theirs)


def waits(ours: Server, theirs: Server) -> None:
    """Print the latency of a step, alone and beside the webhooks of another organisation."""
    path = steps_path(ours)
    print(f"{'a step':46} {'requests':>8} {'median ms':>10} {'95 % ms':>10} {'largest ms':>11} {'events':>8}")
    for name, answer in ANSWERS.items():
        alone: list[float] = []
        beside: list[float] = []
        events = 0
        with receivers(theirs, answer, "https" if name.startswith("TLS") else "http") as made:
            for _ in range(TURNS):
                alone += _steps(ours, path)
                with _test_events(theirs, made) as sent:
                    beside += _steps(ours, path)
                events += sum(sent)
        _print_row("alone", alone, 0)
        _print_row(f"beside {WEBHOOKS} webhooks: {name}", beside, events)
        print(f"{'median beside / alone':46} {median(beside) / median(alone):19.2f}")


def bystander(url: str, ours: Server, theirs: Server) -> None:
    """Print how long an alert takes beside 80 webhooks of four organisations that never answer."""
    with ExitStack() as stack:
        others = [stack.enter_context(another_organisation(url, ours, name, "admin")) for name in ("b", "c", "d")]
        for server in (theirs, *others):
            made = stack.enter_context(receivers(server, SLOW["silence"]))
            stack.enter_context(_test_events(server, made))
        time.sleep(5.0)
        taken = []
        with receivers(ours, Answer(OK + b"\r\n"), count=1) as [receiver]:
            for _ in range(20):
                start = time.perf_counter()
                delivery = ours.client.post(f"/v1/receivers/{receiver}/test").raise_for_status().json()["id"]
                while not _is_delivered(ours, receiver, delivery):
                    time.sleep(0.02)
                taken.append(time.perf_counter() - start)
    print(f"an alert beside {4 * WEBHOOKS} silent webhooks: median {median(taken):.2f} s, longest {max(taken):.2f} s")


def _is_delivered(server: Server, receiver: str, delivery: str) -> bool:
    page = server.client.get(f"/v1/deliveries?receiver={receiver}&status=delivered&limit=200").raise_for_status().json()
    return delivery in {each["id"] for each in page["items"]}


def _steps(server: Server, path: str) -> list[float]:
    """Take steps for `SECONDS`, and return their milliseconds."""
    taken = []
    again = Server(server.process, server.port, server.client)  # its connection has been idle for too long
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        taken.append(again.timed("POST", path, {"count": 1}))
        time.sleep(0.005)
    return taken


def _print_row(name: str, times: Sequence[float], events: int) -> None:
    ordered = sorted(times)
    row = median(ordered), ordered[int(0.95 * len(ordered))], ordered[-1]
    print(f"{name:46} {len(times):8} {' '.join(f'{figure:10.1f}' for figure in row)}  {events:8}")


@contextmanager
def receivers(server: Server, answer: Answer, scheme: str = "http", count: int = WEBHOOKS) -> Iterator[list[str]]:
    """Run a server in a process of its own, and webhooks that lead to it; yield their ids."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, answer), daemon=True)
    process.start()
    made = []
    try:
        port = here.recv()
        for number in range(count):
            body = {"url": f"{scheme}://127.0.0.1:{port}/{number}"}
            made.append(server.client.post("/v1/receivers", json=body).raise_for_status().json()["id"])
        yield made
    finally:
        for each in made:
            server.client.delete(f"/v1/receivers/{each}").raise_for_status()
        here.send(None)
        process.join()


def _serve(pipe: Connection, answer: Answer) -> None:
    with hostile(answer) as server:
        pipe.send(server.port)
        pipe.recv()


@contextmanager
def _test_events(server: Server, made: Sequence[str]) -> Iterator[list[int]]:
    """Send test events to receivers in turn without pause; yield a list that gets their number."""
    stop, sent = Event(), [0]

    def send() -> None:
        with httpx2.Client(base_url=server.client.base_url, headers=server.client.headers, trust_env=False) as client:
            while not stop.is_set():
                for each in made:
                    with suppress(httpx2.TransportError):
                        client.post(f"/v1/receivers/{each}/test", timeout=60)
                        sent[0] += 1
                    if stop.wait(PAUSE_SECONDS):
                        return

    thread = Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
