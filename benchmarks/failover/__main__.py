"""Lose the leader of a cluster under load, again and again: `python -m benchmarks.failover [--rounds N]`.

Three database nodes and a service host run in network namespaces, with the files of deploy/high-availability: etcd,
Patroni, PostgreSQL, PgBouncer, HAProxy and two replicas of the service. It needs root and Debian's packages. Every
request is repeated until it is answered, and what the trainers were told is compared with the ledger. Exit 1 if a step
was lost or doubled, a budget exceeded, or a pause longer than 30 s.
"""

import argparse
import json
import platform
import sys
import tempfile
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.failover.cluster import ProgramsMissingError, Site, site
from benchmarks.failover.network import NamespacesMissingError
from benchmarks.failover.rounds import KINDS, Round, play

LONGEST_PAUSE_SECONDS: Final = 30.0
_HEAD: Final = "{:16}{:>7}{:>14}{:>6}{:>9}{:>13}{:>14}{:>15}{:>14}{:>8}"


def _keys(started: Site) -> dict[str, str]:
    leader = started.await_health()["leader"]
    started.ledger("org", "create", "hospital", node=leader)
    return {
        role: json.loads(started.ledger("keys", "create", "--org", "hospital", "--role", role, "--json", node=leader))[
            "key"
        ]
        for role in ("admin", "trainer")
    }


def _print(rounds: list[Round]) -> None:
    columns = ("rounds", "acknowledged", "lost", "doubled", "over budget", "pause, median", "pause, longest")
    print(_HEAD.format("leader", *columns, "longest wait", "sound"))
    groups = {kind: [each for each in rounds if each.kind == kind] for kind in KINDS} | {"all": rounds}
    for name, group in groups.items():
        if group:
            pauses = [each.pause for each in group]
            acknowledged, lost, doubled, over = (
                sum(getattr(each, of) for each in group) for of in ("acknowledged", "lost", "doubled", "over_budget")
            )
            sound = "no" if any(each.problems for each in group) else "yes"
            print(
                f"{name:16}{len(group):7}{acknowledged:14,}{lost:6}{doubled:9}{over:13}{median(pauses):12.1f} s"
                f"{max(pauses):13.1f} s{max(each.longest_wait for each in group):12.1f} s{sound:>8}"
            )


def main(count: int, kinds: list[str], folder: Path) -> int:
    """Play rounds of these kinds in turn, print each and the table, and return the exit code."""
    rounds: list[Round] = []
    with site(folder) as started:
        keys = _keys(started)
        for number, kind in enumerate(islice(cycle(kinds), count), 1):
            done = play(started, keys, kind, number)
            rounds.append(done)
            print(
                f"{number:3} {kind:16}{done.acknowledged:7,} steps, lost {done.lost}, doubled {done.doubled}, over "
                f"budget {done.over_budget}, pause {done.pause:.1f} s, longest wait {done.longest_wait:.1f} s"
                f"{'' if done.moved else ', the leader is the same'}",
                *done.problems[:20],
                sep="\n    ",
                flush=True,
            )
    print()
    _print(rounds)
    failed = any(each.lost or each.doubled or each.over_budget or each.problems for each in rounds)
    return int(failed or max(each.pause for each in rounds) > LONGEST_PAUSE_SECONDS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="of the rounds; repeatable; default: all")
    parser.add_argument("--folder", type=Path, help="for data and logs, which stay; default: a temporary one")
    asked = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}\n")
    try:
        with tempfile.TemporaryDirectory(prefix="failover-") as temporary:
            sys.exit(main(asked.rounds, asked.kind or list(KINDS), asked.folder or Path(temporary)))
    except (ProgramsMissingError, NamespacesMissingError) as error:
        sys.exit(f"SKIPPED, nothing was tried: {error}")
