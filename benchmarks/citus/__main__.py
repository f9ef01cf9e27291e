"""Try the service on a Citus cluster: `python -m benchmarks.citus --source FOLDER [--rounds N]`, or `make citus`.

Citus is built from the source, a folder or a git repository, beside a copy of the PostgreSQL programs; nothing is
installed in the system. A coordinator and two workers then run on this machine. The tests of tests/citus come first,
then rounds in which each server is killed under the load of four organisations, then the throughput beside that of one
PostgreSQL server. Exit 1 if a test failed, a step was lost or doubled, or a budget exceeded; 2 without a source.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from app.persistence.citus import distribute
from app.persistence.database import Database
from app.persistence.schema import upgrade
from benchmarks.citus.build import VERSION, NoSourceError, programs
from benchmarks.citus.cluster import CitusCluster, citus_cluster
from benchmarks.citus.rounds import Kill, organisations, play
from benchmarks.citus.speed import compare
from tests.citus.conftest import PROGRAMS, UNLIMITED
from tests.postgres import Cluster
from tests.servers import LiveServer


@contextmanager
def served(url: str, folder: Path, *, distributed: bool) -> Iterator[LiveServer]:
    """Run a service on an empty database, which is migrated, and distributed if it is a cluster's."""
    for work in (upgrade, distribute) if distributed else (upgrade,):
        database = Database(url)
        work(database)
        database.dispose()
    folder.mkdir()
    service = LiveServer(folder, url, environment=UNLIMITED, interpreted=True)
    service.start()
    try:
        yield service
    finally:
        service.kill()


def tested(binaries: Path) -> bool:
    """Run the tests; return whether they passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "citus", "tests/citus"]
    return subprocess.run(command, env=os.environ | {PROGRAMS: str(binaries)}, check=False).returncode == 0


def kill_rounds(cluster: CitusCluster, service: LiveServer, queue_of: dict[str, str], count: int) -> list[Kill]:
    """Kill each server in turn, and print each round and the table."""
    done: list[Kill] = []
    for number, name in enumerate(islice(cycle(reversed(cluster.servers)), count), 1):
        found = play(cluster, service, queue_of, name, number)
        done.append(found)
        others = "" if found.others_pause is None else f", of the others {found.others_pause:.1f} s"
        print(
            f"{number:3} {name:12}{found.acknowledged:7,} steps, lost {found.lost}, doubled {found.doubled}, over "
            f"budget {found.over_budget}, longest pause {found.pause:.1f} s{others}, answered meanwhile "
            f"{found.answered}",
            *found.problems[:20],
            sep="\n    ",
            flush=True,
        )
    for name in cluster.servers:
        group = [each for each in done if each.server == name]
        if group:
            pauses = [each.pause for each in group]
            print(f"{name:12} {len(group)} rounds, pause: median {median(pauses):.1f} s, longest {max(pauses):.1f} s")
    return done


def main(binaries: Path, count: int) -> int:
    """Run everything, and return the exit code."""
    passed = tested(binaries)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(citus_cluster(binaries))
        service = stack.enter_context(served(cluster.url, folder / "citus", distributed=True))
        queue_of = organisations(cluster, service)
        kills = kill_rounds(cluster, service, queue_of, count)
        single = Cluster.create(programs=binaries)
        stack.callback(single.remove)
        plain = stack.enter_context(served(single.create_database("ledger"), folder / "single", distributed=False))
        names = list(queue_of)
        compare({"one PostgreSQL server": (plain, names), "Citus, two workers": (service, names)})
    bad = any(each.lost or each.doubled or each.over_budget or each.problems for each in kills)
    return int(bad or not passed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=os.environ.get("CITUS_SOURCE", ""), help="default: CITUS_SOURCE")
    parser.add_argument("--version", default=VERSION, help="tag to take, if the source is a git repository")
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    where = f"Python {platform.python_version()}, {platform.machine()}, Citus {asked.version}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {where}\n", flush=True)
    try:
        found = programs(asked.source, asked.version)
    except NoSourceError as error:
        print(f"NOTHING WAS TRIED. {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(found, asked.rounds))
