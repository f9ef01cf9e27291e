"""Processes go on from any checkpoint of a training with one charge, in any order: each release is paid for.

A release is what a process adds to the data: of a reproducible training it is a function of the charge and the step,
otherwise it is new each time. A charge pays for one release of each of its steps.
"""

import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from epsilon_ledger import ChargedAgainWarning, LedgerError, Run, TrainingCharge, TrainingStateDict
from epsilon_ledger._run.run_properties import RunStateDict
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.sdk.charges import charged_and_held
from tests.sdk.simulation import QUIET, TRIES, Clock, Fault, Simulation, clock_of_all, new_world
from tests.sdk.test_run_machine import PHASES

STEPS = 4
places = st.integers(0, 7)
troubles: st.SearchStrategy[list[Fault]] = st.lists(st.sampled_from(list(Fault)), max_size=TRIES) | st.just([])


@dataclass
class Process:
    """A trainer: its run, and its charge if it has one."""

    run: Run
    training: TrainingCharge | None = None


class Trainings(RuleBasedStateMachine):
    """One run, trained by processes that know each other's checkpoints."""

    ledger: Ledger
    clock: Clock

    @initialize(ahead=st.sampled_from([{}, {"authorize_every": 3}]))
    def opened(self, ahead: dict[str, Any]) -> None:
        self.clock.reset()
        self.world: Simulation = new_world(self.ledger, self.clock, 3.0)
        self.ahead = ahead
        self.first = self.world.run(**ahead)
        self.processes = [Process(self.first)]
        self.checkpoints: list[tuple[RunStateDict, TrainingStateDict | None]] = [(self.first.state_dict(), None)]
        self.draws: Iterator[int] = itertools.count()
        self.released: defaultdict[tuple[str, int], set[object]] = defaultdict(set)

    def attempt(self, ask: Callable[[], object], faults: Sequence[Fault] = ()) -> None:
        self.world.wire.fails(*faults)
        with suppress(LedgerError), warnings.catch_warnings():
            warnings.simplefilter("ignore", ChargedAgainWarning)
            ask()
        self.world.wire.faults.clear()

    def process(self, place: int) -> Process:
        return self.processes[place % len(self.processes)]

    @rule(place=places, kept=places, reproducible=st.booleans(), anew=st.booleans(), faults=troubles)
    def charge(self, place: int, kept: int, faults: list[Fault], *, reproducible: bool, anew: bool) -> None:
        process = self.process(place)
        resume = None if anew else self.checkpoints[kept % len(self.checkpoints)][1]

        def ask() -> None:
            process.training = process.run.charge_training(QUIET, steps=STEPS, resume=resume, reproducible=reproducible)

        self.attempt(ask, faults)

    @rule(place=places, count=st.integers(1, 2))
    def step(self, place: int, count: int) -> None:
        training = self.process(place).training
        if training is None:
            return

        def ask() -> None:
            training.authorize(count)
            state = training.state_dict()
            for step in range(training.step - count, training.step):
                draw = "its key" if state["reproducible"] else next(self.draws)
                self.released[state["charge"], step].add(draw)

        self.attempt(ask)

    @rule(place=places)
    def checkpoint(self, place: int) -> None:
        process = self.process(place)
        training = process.training
        self.checkpoints.append((process.run.state_dict(), None if training is None else training.state_dict()))

    @rule(place=places)
    def suspend(self, place: int) -> None:
        process = self.process(place)
        if process.training is not None:
            self.checkpoints.append((process.run.state_dict(), process.training.suspend()))

    @rule(kept=places, faults=troubles)
    def resume(self, kept: int, faults: list[Fault]) -> None:
        state, _ = self.checkpoints[kept % len(self.checkpoints)]
        self.attempt(
            lambda: self.processes.append(Process(self.world.client().resume_run(state, **self.ahead))), faults
        )

    @rule()
    def look_up(self) -> None:
        self.attempt(lambda: self.processes.append(Process(self.world.client().get_run(self.first.id))))

    @rule(place=places, faults=troubles)
    def refresh(self, place: int, faults: list[Fault]) -> None:
        self.attempt(self.process(place).run.refresh, faults)

    @rule()
    def what_was_late_arrives(self) -> None:
        self.world.wire.deliver()

    @invariant()
    def every_release_is_paid_for(self) -> None:
        """No step of a charge has two releases, and every charge with a release is in the ledger."""
        assert all(len(draws) == 1 for draws in self.released.values()), self.released
        charged, _ = charged_and_held(self.ledger.database, self.first.id)
        assert len({charge for charge, _ in self.released}) <= charged.total()

    def teardown(self) -> None:
        self.world.close()


def test_whichever_process_goes_on_from_whichever_checkpoint(whole_ledger: Ledger) -> None:
    with clock_of_all() as clock:
        Trainings.ledger, Trainings.clock = whole_ledger, clock
        run_machine(
            Trainings,
            settings=settings(
                max_examples=6 * ROUNDS,
                stateful_step_count=25,
                deadline=None,
                phases=PHASES,
                suppress_health_check=list(HealthCheck),
            ),
        )
