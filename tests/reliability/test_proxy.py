"""Replies are lost, requests doubled, connections cut: every request, repeated until answered, counts once."""

import threading

import httpx2
import pytest

from tests.reliability.clients import Trainer, together
from tests.reliability.conftest import ROUNDS, Service
from tests.reliability.proxy import Fault, FaultProxy, Plan, at_random

CLIENTS = 32
SHARED = 8


def client(service: Service, proxy: FaultProxy) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {service.server.key('trainer')}"}
    return httpx2.Client(base_url=proxy.url, headers=headers, timeout=30, trust_env=False)


def script(*faults: Fault) -> Plan:
    return lambda number: faults[number] if number < len(faults) else Fault.PASS


@pytest.mark.parametrize("fault", Fault)
def test_one_request_counts_once_whatever_happens_to_it(service: Service, fault: Fault) -> None:
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
def test_thirty_two_clients_through_a_proxy_that_breaks_everything(service: Service, round_: int) -> None:
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
