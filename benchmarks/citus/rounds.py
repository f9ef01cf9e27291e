"""Kill the servers of a cluster under the load of several organisations, and count what was lost."""

import time
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Final

from benchmarks.citus.cluster import CitusCluster
from benchmarks.failover.load import Load
from tests.postgres import Cluster
from tests.reliability.history import Journal
from tests.servers import LiveServer

PER_WORKER: Final = 2
"""Organisations on each worker."""

WARM_ANSWERS: Final = 30
DOWN_SECONDS: Final = 2.0
AFTERWARDS_ANSWERS: Final = 30


@dataclass(frozen=True)
class Kill:
    """The result of one round.

    Args:
        server: its name.
        acknowledged: steps that the trainers were told of.
        lost, doubled: steps of these that the ledger does not have, or has more of.
        over_budget: accounts that have spent more than their limit.
        answered: requests that were answered while the server was down, sent meanwhile by organisations on others.
        pause: the longest time in which an organisation's trainers had no answer, in seconds.
        others_pause: the same of the organisations on other servers; None: there are none.
        problems: of the verification, and of the comparison with the journal.
    """

    server: str
    acknowledged: int
    lost: int
    doubled: int
    over_budget: int
    answered: int
    pause: float
    others_pause: float | None
    problems: tuple[str, ...]


def organisations(cluster: CitusCluster, service: LiveServer) -> dict[str, str]:
    """Create organisations until each worker has some; return the names of `PER_WORKER` of each, and their worker's."""
    found: dict[str, list[str]] = {name: [] for name in cluster.servers if name != "coordinator"}
    for number in count():
        name = f"organisation-{number}"
        service.key("admin", name)
        service.key("trainer", name)
        worker = cluster.worker_of(name)
        if len(found[worker]) < PER_WORKER:
            found[worker].append(name)
        if all(len(names) == PER_WORKER for names in found.values()):
            return {name: worker for worker, names in found.items() for name in names}
    raise AssertionError("unreachable")


def play(cluster: CitusCluster, service: LiveServer, queue_of: dict[str, str], name: str, number: int) -> Kill:
    """Kill a server under the load of organisations, given with their workers, and start it again."""
    journal = Journal()
    loads = {
        each: Load(
            service.url, {role: service.key(role, each) for role in ("admin", "trainer")}, f"round{number}", journal
        )
        for each in queue_of
    }
    others = [load for each, load in loads.items() if name not in ("coordinator", queue_of[each])]
    with ExitStack() as stack:
        for load in loads.values():
            stack.enter_context(load.at_work())
        for load in loads.values():
            load.await_answers(WARM_ANSWERS)
        began, answered = _down_for_a_while(cluster.servers[name], others)
        for load in loads.values():
            load.await_answers(AFTERWARDS_ANSWERS)
    found = next(iter(loads.values())).tally(cluster.url)
    return Kill(
        name,
        found.acknowledged,
        found.lost,
        found.doubled,
        sum(load.over_budget() for load in loads.values()),
        answered,
        max(load.pause(began) for load in loads.values()),
        max((load.pause(began) for load in others), default=None),
        found.problems,
    )


def _down_for_a_while(server: Cluster, loads: Collection[Load]) -> tuple[float, int]:
    """Kill a server, start it again, and return when it was killed, and the requests answered until its start."""
    began = time.monotonic()
    server.kill()
    time.sleep(DOWN_SECONDS)
    answered = sum(sent > began + 0.1 for load in loads for sent, _ in list(load.waits))
    server.start()
    return began, answered
