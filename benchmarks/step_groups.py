"""Processor time of a step inside a group: `python -m benchmarks.step_groups [--rounds N]`.

In this process and without HTTP, on SQLite with `synchronous=FULL`: groups of 64 steps of one run, of 64 runs and of
ten events in turn, and a lone step. Each stage is timed where `commit_group` calls it; what remains begins and commits
the transaction. Medians over the rounds, in microseconds of processor time, and the bytes that a step adds to the
write-ahead log. Then the same steps of accounts with plans and without, in turn, and the ratio.
"""

import argparse
import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import cycle
from pathlib import Path
from statistics import median
from time import process_time
from unittest.mock import patch

from sqlalchemy import select
from starlette.types import ASGIApp

from app.accounting.events import Gaussian, PoissonSampled
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import organisations
from app.service.auth.authentication import Principal
from app.service.auth.request_context import RequestContext
from app.service.charging import groups
from app.service.charging.counted_steps import CountedSteps
from app.service.charging.ledger_state import LedgerState
from app.service.charging.requests import StepCommand, StepRequest, StepResult
from app.service.costing import CostNotReadyError
from benchmarks.servers import different_events
from benchmarks.step_trace import new_ledger, post, register_runs

GROUP = 64
WARM_ROUNDS = 20
STAGES = {
    "refresh": (groups, "refresh"),
    "charge": (CountedSteps, "charge_all"),
    "write": (CountedSteps, "save"),
    "load": (groups, "load"),
    "decide": (groups, "decide_command"),
    "save": (groups, "save"),
}
"""Where `commit_group` calls them: what is read, counted, and then what the rule decides."""

KINDS = 10
SHAPES = {
    "64 steps, one run": (GROUP, 1, 1),
    "64 steps, 64 runs": (GROUP, GROUP, 1),
    "64 steps, ten events": (GROUP, 1, KINDS),
    "a lone step": (1, 1, 1),
}
"""By name: steps of a group, their runs, and the kinds of events that alternate."""


class Groups:
    """A ledger whose groups are committed here, and the processor time of each stage."""

    def __init__(self, folder: Path, runs: int, kinds: int, *, planned: bool = False) -> None:
        url, served, key = new_ledger(folder)
        self.log = folder / "ledger.db-wal"
        self.database = Database(url)
        self.run_ids = asyncio.run(_charged_runs(served, key, runs, kinds, planned=planned))
        with self.database.read(ALL_TENANTS) as tx:
            organisation = tx.execute(select(organisations.c.id)).scalar_one()
        self._principal = Principal(organisation, "key_benchmark", Role.TRAINER)
        self._memory = LedgerState()
        self._next = dict.fromkeys(self.run_ids, kinds)
        self._events = cycle([PoissonSampled(0.001, Gaussian(10.0 + kind)) for kind in range(kinds)])

    def commands(self, steps: int) -> list[StepCommand]:
        """Build one-step commands of the runs in turn."""
        made = []
        for number in range(steps):
            run_id = self.run_ids[number % len(self.run_ids)]
            context = RequestContext(self.database, self._principal, self.database.clock.now())
            made.append(StepCommand(context, StepRequest(run_id, ((next(self._events), 1),), self._next[run_id], None)))
            self._next[run_id] += 1
        return made

    def committed(self, commands: Sequence[StepCommand]) -> dict[str, float]:
        """Commit a group; return the seconds of processor time by stage, without those of epsilons it waits for."""
        seconds: dict[str, float] = defaultdict(float)
        waiting, whole = commands, 0.0
        with ExitStack() as stack:
            for name, (place, function) in STAGES.items():
                stack.enter_context(patch.object(place, function, timed(getattr(place, function), seconds, name)))
            while waiting:
                began = process_time()
                outcomes = groups.commit_group(self.database, self._memory, waiting)
                whole += process_time() - began
                waiting = self._repeated(waiting, outcomes)
        return {**seconds, "begin and commit": whole - sum(seconds.values()), "total": whole}

    def _repeated(self, commands: Sequence[StepCommand], outcomes: Sequence[object]) -> list[StepCommand]:
        """Compute what commands wait for, and get these, which must be sent again."""
        again = []
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, StepResult) and outcome.decision.admitted:
                continue
            assert isinstance(outcome, CostNotReadyError), outcome
            outcome.compute(self._principal.organisation_id)
            again.append(command)
        return again


async def _charged_runs(served: ASGIApp, key: str, count: int, kinds: int, *, planned: bool) -> list[str]:
    """Register runs and take a step of each kind in each of them, which stores the costs."""
    run_ids = await register_runs(served, key, count, different_events(1) if planned else ())
    for run_id in run_ids:
        for event in different_events(kinds):
            await post(served, key, f"/v1/runs/{run_id}/steps", {"event": event})
    return run_ids


def timed(function: Callable[..., object], seconds: dict[str, float], name: str) -> Callable[..., object]:
    """Wrap a function so that its processor time is added up under a name."""

    def wrapper(*arguments: object, **named: object) -> object:
        began = process_time()
        try:
            return function(*arguments, **named)
        finally:
            seconds[name] += process_time() - began

    return wrapper


def measured(steps: int, runs: int, kinds: int, rounds: int) -> tuple[dict[str, float], float]:
    """Return microseconds a step by stage, and bytes of log a step."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Groups(Path(folder), runs, kinds)
        with closing(ledger.database.engine.raw_connection()) as watching:  # the log is kept while somebody reads
            for _ in range(WARM_ROUNDS):
                ledger.committed(ledger.commands(steps))
            watching.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            times = [ledger.committed(ledger.commands(steps)) for _ in range(rounds)]
            size = ledger.log.stat().st_size
        ledger.database.dispose()
    names = (*STAGES, "begin and commit", "total")
    per_step = {name: median(each.get(name, 0.0) for each in times) / steps * 1e6 for name in names}
    return per_step, size / rounds / steps


def compared(steps: int, runs: int, rounds: int) -> tuple[float, float]:
    """Return microseconds a step without plans and with them, measured in turn."""
    with ExitStack() as stack:
        ledgers = []
        for planned in (False, True):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            ledgers.append(Groups(Path(folder), runs, 1, planned=planned))
            stack.callback(ledgers[-1].database.dispose)
        times: list[list[float]] = [[], []]
        for _ in range(WARM_ROUNDS + rounds):
            for ledger, found in zip(ledgers, times, strict=True):
                found.append(ledger.committed(ledger.commands(steps))["total"] / steps * 1e6)
    without, planned_too = (median(found[WARM_ROUNDS:]) for found in times)
    return without, planned_too


def main(rounds: int = 60) -> None:
    """Print the tables."""
    print(f"{'':20}" + "".join(f"{name:>18}" for name in (*STAGES, "begin and commit", "total", "bytes of log")))
    for name, (steps, runs, kinds) in SHAPES.items():
        per_step, size = measured(steps, runs, kinds, rounds)
        figures = [per_step[stage] for stage in (*STAGES, "begin and commit", "total")]
        print(f"{name:20}" + "".join(f"{figure:18.1f}" for figure in figures) + f"{size:18,.0f}")
    print(f"\n{'':20}{'without plans':>18}{'with plans':>18}{'ratio':>18}")
    for name, (steps, runs, kinds) in SHAPES.items():
        if kinds == 1:
            without, planned = compared(steps, runs, 2 * rounds)
            print(f"{name:20}{without:18.1f}{planned:18.1f}{planned / without:18.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    main(parser.parse_args().rounds)
