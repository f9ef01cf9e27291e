"""Replies are lost, requests doubled, writers race: every request, repeated until answered, counts once."""

import threading

import httpx2
import pytest

from tests.reliability.clients import Trainer, together
from tests.reliability.conftest import LONG, ROUNDS, Service
from tests.reliability.proxy import Fault, FaultProxy, Plan, at_random

CLIENTS, SHARED, WRITERS = (32, 8, 16) if LONG else (9, 3, 8)


def client(service: Service, proxy: FaultProxy) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {service.server.key('trainer')}"}
    return httpx2.Client(base_url=proxy.url, headers=headers, timeout=30, trust_env=False)


def script(*faults: Fault) -> Plan:
    return lambda number: faults[number] if number < len(faults) else Fault.PASS


@pytest.mark.parametrize("fault", Fault)
def test_request_counts_once_when_its_line_fails(service: Service, fault: Fault) -> None:
    budget = service.open_budget(1.2)
    with FaultProxy(service.server.port, script(fault, fault, fault)) as proxy, client(service, proxy) as http:
        trainer = Trainer(http, service.journal, 0)
        trainer.register(budget)
    with (
        FaultProxy(service.server.port, script(fault, fault, Fault.PASS, fault)) as proxy,
        client(service, proxy) as http,
    ):
        trainer.http = http
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
    budget = service.open_budget(1.5)
    registered = threading.Barrier(CLIENTS, timeout=60)
    shared = Trainer(service.server.client("trainer"), service.journal, CLIENTS)
    shared.register(budget)
    shared.http.close()

    def work(number: int) -> None:
        with client(service, proxy) as http:
            trainer = Trainer(http, service.journal, number)
            if number < SHARED:
                trainer.run = shared.run
            else:
                trainer.register(budget)
            registered.wait()
            trainer.exhaust(numbered=number >= SHARED)

    with FaultProxy(service.server.port, at_random(round_), round_) as proxy:
        together(CLIENTS, work)
    assert all(proxy.counts.values()), proxy.counts
    service.check()


@pytest.mark.both_databases
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_steps_that_fit_are_admitted_when_writers_share_a_budget(service: Service, round_: int) -> None:
    """Each writer has a run of its own; all runs share one budget."""
    budget = service.open_budget(epsilon=1.0 + 0.02 * (round_ % 10))
    start = threading.Barrier(WRITERS, timeout=60)

    def write(number: int) -> tuple[int, int]:
        with service.server.client("trainer") as http:
            writer = Trainer(http, service.journal, number)
            writer.register(budget)
            room = http.get(f"/v1/runs/{writer.run}").json()["steps_remaining"]
            start.wait()
            while writer.ask({"first_step": writer.next_step}, None).answers[0].status_code == 200:
                pass
            return writer.next_step, room

    taken = together(WRITERS, write)
    [room] = {room for _, room in taken}
    assert 40 < room < 2000
    assert sum(steps for steps, _ in taken) == service.journal.admitted == room
    service.check()
