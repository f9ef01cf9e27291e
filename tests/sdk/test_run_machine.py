"""Trainers do anything in any order, the line fails anyhow, time passes: what was released is charged, and no more."""

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from app.ledger.runs.reservations import has_lapsed
from epsilon_ledger import BudgetExceededError, Event, LedgerError, Run
from epsilon_ledger._run.run_properties import RunStateDict
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.sdk.simulation import HUSHED, LOUD, QUIET, TRIES, Simulation, charges_of, simulated
from tests.sdk.wire import Fault
from tests.soak import thinned

SCHEDULES: dict[str, Callable[[int], Event] | None] = {
    "none": None,
    "fading": lambda step: {"type": "gaussian", "noise_multiplier": 40.0 - step // 2},
    "in turns": lambda step: [LOUD, QUIET, LOUD, HUSHED][step % 4],
}
PHASES = (Phase.reuse, Phase.generate, *([Phase.shrink] if ROUNDS > 1 else []))

places = st.integers(0, 5)
counts = st.sampled_from([1, 1, 1, 2, 3, 7])
kinds = st.sampled_from([None, None, None, LOUD, QUIET])
troubles: st.SearchStrategy[list[Fault]] = st.lists(st.sampled_from(list(Fault)), max_size=TRIES + 2) | st.just([])
"""What befalls the next tries."""


def twenty_steps(ledger: Ledger) -> None:
    """Make a budget for some twenty steps."""
    ledger.population()
    ledger.budget(limit={"epsilon": 0.35, "delta": 1e-5})


class Trainers(RuleBasedStateMachine):
    """A ledger of its own for each example."""

    @initialize(
        every=st.sampled_from([1, 3, 3, 6]), background=st.booleans(), schedule=st.sampled_from(list(SCHEDULES))
    )
    def opened(self, every: int, schedule: str, *, background: bool) -> None:
        self.opening = ExitStack()
        folder = Path(self.opening.enter_context(TemporaryDirectory()))
        self.world: Simulation = self.opening.enter_context(simulated(folder, twenty_steps))
        self.ahead: dict[str, Any] = {"prefetch": every, "schedule": SCHEDULES[schedule]}
        self.ahead["prefetch_in_background"] = background and every > 1
        self.rivals = [self.world.run(), self.world.run()]
        self.run = self.world.run(**self.ahead)
        self.processes: list[Run] = [self.run]
        self.checkpoints: list[RunStateDict] = [self.run.state_dict()]
        self.unsettled: dict[int, Callable[[], Sequence[Event]]] = {}
        self.alone = True  # nobody else was there, and nothing was forfeited
        self.overdrawn = False

    def process(self, place: int) -> Run:
        return self.processes[place % len(self.processes)]

    def attempt(self, ask: Callable[[], object], faults: Sequence[Fault]) -> LedgerError | None:
        """Ask, while the line fails; a trainer can live with whatever the client says."""
        self.world.fails(*faults)
        error = None
        try:
            ask()
        except LedgerError as found:
            error = found
        wait([each._inflight for each in self.processes if each._inflight is not None])
        self.world.faults.clear()
        return error

    def takes(self, run: Run, ask: Callable[[], Sequence[Event]], faults: Sequence[Fault], *, insist: bool) -> None:
        """Ask for steps, or settle the ones before, and note what was released."""
        place = id(run)

        def settle() -> None:
            asked = self.unsettled.get(place, ask)
            self.unsettled[place] = asked
            try:
                released = asked()
            except BudgetExceededError:
                del self.unsettled[place]
                raise
            del self.unsettled[place]
            self.world.note(run, released)

        if self.attempt(settle, faults) is not None and insist:
            self.attempt(settle, [])
        if not run._protocol.step_requests.in_doubt:
            self.unsettled.pop(place, None)

    @rule(place=places, count=counts, kind=kinds, faults=troubles, insist=st.booleans())
    def authorize(self, place: int, count: int, kind: Event | None, faults: list[Fault], *, insist: bool) -> None:
        run = self.process(place)

        def ask() -> list[Event]:
            doing = self.world.foretold(run, count, kind)
            assert run.authorize(count, event=kind).count == count
            return doing

        self.takes(run, ask, faults, insist=insist)

    @rule(place=places, count=st.integers(1, 30), how=st.sampled_from(["list", "truncate", "report"]), faults=troubles)
    def otherwise(self, place: int, count: int, how: str, faults: list[Fault]) -> None:
        """Ask for several events, or for as many steps as fit, or report a step."""
        run = self.process(place)

        def ask() -> list[Event]:
            if how == "list":
                run.authorize(events=[{"event": event, "count": 1} for event in (LOUD, QUIET)])
                return [LOUD, QUIET]
            if how == "truncate":
                return [LOUD] * run.authorize(count, event=LOUD, truncate=True).count
            self.overdrawn |= bool(run.report(event=QUIET).overdrawn)
            return [QUIET]

        self.takes(run, ask, faults, insist=True)
        self.overdrawn |= self.run.refresh().status == "overdrawn"

    @rule(place=places, what=st.sampled_from(["preview", "refresh", "pause", "resume", "resume"]), faults=troubles)
    def other(self, place: int, what: str, faults: list[Fault]) -> None:
        self.attempt(getattr(self.process(place), what), faults)

    @rule(place=places)
    def checkpoint(self, place: int) -> None:
        self.checkpoints.append(self.process(place).state_dict())

    @rule(place=places, faults=troubles)
    def taken_over(self, place: int, faults: list[Fault]) -> None:
        self.alone = False
        state = self.checkpoints[place % len(self.checkpoints)]
        self.attempt(lambda: self.processes.append(self.world.client().resume_run(state, **self.ahead)), faults)

    @precondition(lambda self: self.ahead["schedule"] is None)
    @rule(asks_ahead=st.booleans())
    def looked_up(self, *, asks_ahead: bool) -> None:
        self.alone = False
        ahead = self.ahead if asks_ahead else {}
        self.attempt(lambda: self.processes.append(self.world.client().get_run(self.run.id, **ahead)), [])

    @rule(seconds=st.sampled_from([50.0, 50.0, 100.0, 299.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.sleep(seconds)
        granted = charges_of(self.world.ledger.database, self.run.id).reservation
        self.alone = self.alone and (granted is None or not has_lapsed(granted, self.world.clock.now()))

    @rule()
    def what_was_late_arrives(self) -> None:
        self.world.deliver()

    @rule(place=places, count=st.integers(1, 6))
    def somebody_else_trains(self, place: int, count: int) -> None:
        self.attempt(lambda: self.world.authorize(self.rivals[place % 2], count), [])

    @precondition(lambda self: len(self.processes) > 1)
    @rule(place=places, how=st.sampled_from(["complete", "abort"]), faults=troubles)
    def ended(self, place: int, how: str, faults: list[Fault]) -> None:
        self.attempt(getattr(self.process(place), how), faults)

    @invariant()
    def what_was_released_is_charged_or_set_aside(self) -> None:
        assert self.world.covers(limits=not self.overdrawn)

    def teardown(self) -> None:
        """The last process comes to a clean end, if it can; if it was the only one, all is exact."""
        last = self.processes[-1]
        self.attempt(last.resume, [])
        if id(last) in self.unsettled:
            self.takes(last, list, [], insist=True)
        error = self.attempt(last.complete, [])
        self.world.deliver()
        if self.alone:
            assert error is None, error
            assert self.world.exact(self.run, limits=not self.overdrawn)
        assert self.world.covers(limits=not self.overdrawn)
        assert self.world.sound()
        self.opening.close()


@pytest.mark.parametrize("examples", thinned([3, 100], 2))
def test_whatever_trainers_do(examples: int) -> None:
    run_machine(
        Trainers,
        settings=settings(
            max_examples=examples * ROUNDS,
            stateful_step_count=25,
            deadline=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )
