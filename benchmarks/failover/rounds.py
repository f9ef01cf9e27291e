"""Ways in which the leader is lost, and one round of each."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.failover.cluster import NODES, Site
from benchmarks.failover.load import Load
from benchmarks.failover.network import Host

WARM_ANSWERS: Final = 150
AFTERWARDS_ANSWERS: Final = 100


@dataclass(frozen=True)
class Round:
    """What one failover did.

    Args:
        kind: how the leader was lost.
        acknowledged: steps.
        lost: of them.
        doubled: steps that were charged without an acknowledgement, or twice.
        over_budget: accounts.
        pause: longest time without any answer, in seconds.
        longest_wait: of one trainer, in seconds.
        problems: of the verification and of the comparison with the journal.
        moved: whether another node leads.
    """

    kind: str
    acknowledged: int
    lost: int
    doubled: int
    over_budget: int
    pause: float
    longest_wait: float
    problems: tuple[str, ...]
    moved: bool


def kill_server(site: Site, leader: Host) -> None:
    """Kill the leader's PostgreSQL: `kill -9` of its postmaster."""
    os.kill(site.postmaster(leader), signal.SIGKILL)


def kill_node(site: Site, leader: Host) -> None:
    """Kill every process of the leader's node."""
    del site
    leader.kill()


def unplug_node(site: Site, leader: Host) -> None:
    """Cut the leader off from everything."""
    del site
    leader.unplug()


def isolate_node(site: Site, leader: Host) -> None:
    """Cut the leader off from the other nodes; the service still reaches it, and it still believes that it leads."""
    del site
    leader.cut_off([node for node in NODES if node != leader])


def switch_over(site: Site, leader: Host) -> None:
    """Let an operator make the standby the leader, by patronictl."""
    del leader
    site.switch_over()


KINDS: Final[dict[str, Callable[[Site, Host], None]]] = {
    "server killed": kill_server,
    "node killed": kill_node,
    "node unplugged": unplug_node,
    "node isolated": isolate_node,
    "switchover": switch_over,
}


def play(site: Site, keys: dict[str, str], kind: str, number: int) -> Round:
    """Lose the leader under load, let it return under load, and count."""
    leader = site.await_health()["leader"]
    load = Load(site.url, keys, f"round{number}")
    with load.at_work():
        load.await_answers(WARM_ANSWERS)
        began = time.monotonic()
        KINDS[kind](site, leader)
        load.await_answers(AFTERWARDS_ANSWERS, since=began + 0.5)
        leader.reconnect()
        if kind == "node killed":
            site.start_node(leader)
        successor = site.await_health()["leader"]
        load.await_answers(AFTERWARDS_ANSWERS)
    found = load.tally(site.database_url(successor))
    return Round(
        kind,
        found.acknowledged,
        found.lost,
        found.doubled,
        load.over_budget(),
        load.pause(began),
        load.longest_wait(began),
        found.problems,
        moved=successor != leader,
    )
