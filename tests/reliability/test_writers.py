"""Many writers, one budget, one process: exactly what fits is admitted."""

import itertools
import threading

import pytest

from tests.reliability.clients import Trainer, together
from tests.reliability.conftest import ROUNDS, Service

WRITERS = 16


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_sixteen_writers_admit_exactly_what_fits(service: Service, round_: int) -> None:
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


def test_sixteen_writers_of_one_run_take_each_step_once(service: Service) -> None:
    """They race for the same step numbers: one effect each, the others get the first answer."""
    with service.server.client("trainer") as http:
        first = Trainer(http, service.journal, 0)
        first.register(service.open_budget(epsilon=1.2))
    start = threading.Barrier(WRITERS, timeout=60)
    fresh = itertools.count()

    def write(number: int) -> None:
        with service.server.client("trainer") as http:
            writer = Trainer(http, service.journal, number)
            writer.run = first.run
            start.wait()
            for step in range(20):
                answer = writer.ask({"first_step": step}, None).answers[0]
                assert answer.json()["next_step"] == step + 1
                if "idempotent-replayed" not in answer.headers:
                    next(fresh)

    together(WRITERS, write)
    assert next(fresh) == 20
    assert service.journal.admitted == 20
    service.check()
