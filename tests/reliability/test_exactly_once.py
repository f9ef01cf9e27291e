"""Lines fail, trainers and servers die: each request, repeated until answered, counts once."""

import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from io import BufferedIOBase, BufferedRWPair
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import httpx2
import pytest

from tests.polling import PATIENCE_SECONDS
from tests.reliability.clients import Trainer
from tests.reliability.conftest import LONG, ROUNDS, Service
from tests.reliability.jobs import Job, Site
from tests.servers import background_thread

CLIENTS, SHARED, WRITERS, RACED = (32, 8, 16, 60) if LONG else (6, 2, 6, 30)
LONGEST_DELAY_SECONDS = 0.05


class Fault(StrEnum):
    """What happens to one request and its reply."""

    PASS = "pass"
    DELAY = "delay"
    CUT_REQUEST = "cut request"
    """The server gets half of the request, the client no reply."""
    CUT_REPLY = "cut reply"
    """The server gets the request, the client half of the reply."""
    DROP_REPLY = "drop reply"
    """The server gets the request, the client no reply."""
    DUPLICATE = "duplicate"
    """The server gets the request twice, at once, on two connections; the client either reply."""


Plan = Callable[[int], Fault]
"""What happens to the n-th request, from 0."""


def at_random(seed: int, share: float = 0.4) -> Plan:
    """A plan that breaks this share of the requests, the same for the same seed."""

    def plan(number: int) -> Fault:
        chance = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable, not secret
        return chance.choice(list(Fault)[1:]) if chance.random() < share else Fault.PASS

    return plan


class FaultProxy(ThreadingTCPServer):
    """Stands between clients and the server at a port, which may die and come back there."""

    def __init__(self, upstream: int, plan: Plan, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Talk)
        self.counts: Counter[Fault] = Counter()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.chance = random.Random(seed)  # noqa: S311 - as above
        self._upstream, self._plan, self._lock = upstream, plan, threading.Lock()

    def next_fault(self) -> Fault:
        with self._lock:
            fault = self._plan(self.counts.total())
            self.counts[fault] += 1
        return fault

    def connect(self) -> BufferedRWPair:
        """A connection to the server."""
        with socket.create_connection(("127.0.0.1", self._upstream)) as there:
            return there.makefile("rwb")  # closes it


class _Talk(StreamRequestHandler):
    """One client's connection, with one of its own to the server; a fault ends both."""

    server: FaultProxy

    def handle(self) -> None:
        with suppress(OSError, EOFError), closing(self.server.connect()) as there:
            while reply := self._reply(_message(self.rfile), there):
                self.wfile.write(reply)

    def _reply(self, request: bytes, there: BufferedRWPair) -> bytes | None:
        fault = self.server.next_fault()
        if fault is Fault.DELAY:
            time.sleep(self.server.chance.uniform(0, LONGEST_DELAY_SECONDS))
        there.write(request[: len(request) // 2] if fault is Fault.CUT_REQUEST else request)
        there.flush()
        if fault is Fault.CUT_REQUEST:
            return None
        replies = []
        if fault is Fault.DUPLICATE:
            with closing(self.server.connect()) as twin:
                twin.write(request)
                twin.flush()
                replies.append(_message(twin))
        replies.append(_message(there))
        if fault is Fault.CUT_REPLY:
            self.wfile.write(replies[0][: len(replies[0]) // 2])
        return self.server.chance.choice(replies) if fault not in {Fault.CUT_REPLY, Fault.DROP_REPLY} else None


def _message(file: BufferedIOBase) -> bytes:
    """Read one whole request or reply, whose body has a length."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (line := file.readline()):
            raise EOFError
        head += line
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    body = file.read(int(length[1]) if length else 0)
    if length and len(body) < int(length[1]):
        raise EOFError
    return head + body


@contextmanager
def failing_line(service: Service, plan: Plan, seed: int = 0) -> Iterator[FaultProxy]:
    """A proxy before a service, in threads of its own."""
    proxy = FaultProxy(service.server.port, plan, seed)
    with background_thread(proxy):
        yield proxy


def _client(service: Service, proxy: FaultProxy) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {service.server.key('trainer')}"}
    return httpx2.Client(base_url=proxy.url, headers=headers, timeout=30, trust_env=False)


@pytest.mark.parametrize("fault", Fault)
def test_request_counts_once_when_its_line_fails(service: Service, fault: Fault) -> None:
    script = [fault, fault, Fault.PASS, fault, fault, Fault.PASS, fault]
    with (
        failing_line(service, lambda number: script[number] if number < len(script) else Fault.PASS) as proxy,
        _client(service, proxy) as http,
    ):
        trainer = Trainer(http, service.journal, 0).register(service.open_budget(1.2))
        trainer.ask({"first_step": 0, "count": 3}, None)
        trainer.ask({"count": 2}, f"{fault.name}-1")
        trainer.ask({"count": 10**6}, f"{fault.name}-2")
        trainer.ask({"first_step": 5}, f"{fault.name}-3")
        assert proxy.counts[fault] >= 3
    body = [asked.answers[0].json() for asked in service.journal.asked]
    assert [answer.get("next_step") for answer in body] == [3, 5, None, 6]
    service.check()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_requests_of_many_clients_count_once_when_every_line_fails(service: Service, round_: int) -> None:
    """Most have a run of their own, some share one; all runs share one budget, until it is spent."""
    budget = service.open_budget(1.5 if LONG else 0.8)
    registered = threading.Barrier(CLIENTS, timeout=60)
    with service.server.client("trainer") as http:
        shared = Trainer(http, service.journal, CLIENTS).register(budget)

    def work(number: int) -> None:
        with _client(service, proxy) as http:
            trainer = Trainer(http, service.journal, number)
            if number < SHARED:
                trainer.run = shared.run
            else:
                trainer.register(budget)
            registered.wait()
            trainer.exhaust(numbered=number >= SHARED)

    with failing_line(service, at_random(round_), round_) as proxy, ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))
    assert proxy.counts.keys() == set(Fault)
    service.check()


@pytest.mark.both_databases
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_steps_that_fit_are_admitted_when_writers_share_a_budget(service: Service, round_: int) -> None:
    """Each writer has a run of its own; all runs share one budget, of which most is spent before."""
    budget = service.open_budget(epsilon=1.0 + 0.02 * (round_ % 10))
    start = threading.Barrier(WRITERS, timeout=60)
    with service.server.client("trainer") as http:
        first = Trainer(http, service.journal, WRITERS).register(budget)
        room = http.get(f"/v1/runs/{first.run}").json()["steps_remaining"]
        first.ask({"first_step": 0, "count": room - RACED}, None)

    def write(number: int) -> int:
        with service.server.client("trainer") as http:
            writer = Trainer(http, service.journal, number).register(budget)
            start.wait()
            while writer.ask({"first_step": writer.next_step}, None).answers[0].status_code == 200:
                pass
            return writer.next_step

    with ThreadPoolExecutor(WRITERS) as pool:
        assert sum(pool.map(write, range(WRITERS))) == RACED
    service.check()


WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "grants": {"prefetch": 6},
    "background": {"prefetch": 6, "prefetch_in_background": True},
}
STEPS = 24 if LONG else 16
KILLS = 2 if LONG else 1
"""Of each trainer."""


@contextmanager
def site(
    service: Service, folder: Path, seed: int, epsilon: float, *ways: str
) -> Iterator[tuple[Site, FaultProxy, random.Random]]:
    """Trainers that share a budget, each a process with a journal of its releases, behind a line that fails."""
    budget, key = service.open_budget(epsilon), service.server.key("trainer")
    with failing_line(service, at_random(seed, 0.25), seed) as proxy:
        jobs = []
        for name in ways or WAYS:
            (folder / name).mkdir()
            asked = {"url": proxy.url, "key": key, "budget": budget, "steps": STEPS, "ahead": WAYS[name]}
            jobs.append(Job(folder / name, asked | {"patience": PATIENCE_SECONDS, "folder": str(folder / name)}))
        try:
            yield Site(service, jobs), proxy, random.Random(seed)  # noqa: S311 - as above
        finally:
            for process in [process for job in jobs for process in job.processes]:
                process.kill()
                process.wait()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_training_is_charged_exactly_when_the_line_fails_and_the_server_dies(
    service: Service, tmp_path: Path, round_: int
) -> None:
    with site(service, tmp_path, round_, 3.0) as (trainings, proxy, _):
        trainings.start()
        trainings.jobs[round_ % 3].await_steps(STEPS // 3)
        service.restart()
        trainings.finish()
        assert all(job.released().total() >= STEPS for job in trainings.jobs)
        assert proxy.counts.total() - proxy.counts[Fault.PASS] > 3
        trainings.is_charged(exactly=True)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_released_steps_are_charged_when_trainers_are_killed_and_restarted(
    service: Service, tmp_path: Path, round_: int
) -> None:
    """Near the end of their budget, so that some of them are refused."""
    with site(service, tmp_path, 1000 + round_, 0.6) as (trainings, _, chance):
        trainings.start()
        kills = [job for job in trainings.jobs for _ in range(KILLS)]
        chance.shuffle(kills)
        for number, job in enumerate(kills):
            job.await_steps(chance.randint(1, 7))
            if job.process.poll() is None:
                job.kill()
                if number == 0:
                    trainings.is_charged(exactly=False)
                if number == len(kills) // 2:
                    service.restart()
                job.start()
        trainings.finish()
        trainings.is_charged(exactly=False)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_released_steps_are_charged_when_a_replaced_trainer_wakes_up(
    service: Service, tmp_path: Path, round_: int
) -> None:
    """It is taken for dead, another process goes on from its checkpoint, and then it continues."""
    with site(service, tmp_path, 2000 + round_, 3.0, "grants", "background") as (trainings, _, chance):
        for job in trainings.jobs:
            job.start()
            job.await_steps(chance.randint(2, 12))
            asleep = job.process
            asleep.send_signal(signal.SIGSTOP)
            job.start()
            job.await_steps(chance.randint(1, 4))
            asleep.send_signal(signal.SIGCONT)
            asleep.wait(PATIENCE_SECONDS)
        trainings.finish()
        trainings.is_charged(exactly=False)
