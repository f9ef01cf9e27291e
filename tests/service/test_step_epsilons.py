"""Epsilon in the answers to steps: what its knots hold, who computes them, and what happens where that fails."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import GRID_VERSION, RdpCurve
from app.accounting.errors import PlanTooExpensiveError
from app.accounting.events import DpEvent, NeighboringRelation, fingerprint
from app.accounting.pld.counted_epsilons import CountedEpsilons
from app.accounting.rdp import event_curve
from app.accounting.tightest_epsilon import tightest_epsilon, tightest_knots
from app.charts.builders import run_chart
from app.charts.model import SeriesRole
from app.ledger.admission.counted_accounts import CountedAccount
from app.ledger.admission.epsilons_ahead import EpsilonsAhead
from app.ledger.errors import LedgerUnavailableError, RateLimitedError
from app.persistence.lru_cache import LruCache
from app.service.charging import workload_knots
from app.service.charging.step_epsilons import MOST_COMPOSED, MOST_WAITED, STEP_EPSILONS, StepEpsilons, Workload
from app.service.queries.run_detail import get_run_detail
from app.service.worker_pool import WORKER_POOL, Job
from tests.api.trainer import LOUD, QUIET, Trainer, gaussian
from tests.epsilons import by_curves, tightest
from tests.service.step_commands import CommandRunner, another
from tests.soak import few

ADD, DELTA = NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-5
MOST_ABOVE = 1.005
LATTICE = 3e-4
"""How much an epsilon that is computed alone may be above one that is computed for more steps."""

KINDS: list[DpEvent] = [
    dp.PoissonSampled(0.01, dp.Gaussian(1.1)),
    dp.Gaussian(40.0),
    dp.Laplace(60.0),
    dp.PoissonSampled(0.1, dp.Gaussian(2.0)),
    dp.PoissonSampled(0.02, dp.Laplace(3.0)),
    dp.EpsilonDelta(0.01, 1e-9),
    dp.Gaussian(25.0),
    dp.DiscreteGaussian(30.0),
]
STEP = KINDS[0]
CHOOSE = CountedAccount.choose_order


def curve_of(event: DpEvent) -> RdpCurve:
    return event_curve(event, ADD, GRID_VERSION)


def exact(counts: Mapping[DpEvent, int]) -> float:
    return tightest_epsilon(counts, {event: curve_of(event) for event in counts}, ADD, DELTA)


class Run:
    """A run that is charged, and what a table answers."""

    def __init__(self, table: StepEpsilons, name: str = "run") -> None:
        self.table, self.name = table, name
        self.counts: dict[DpEvent, int] = {}
        self.waits = 0

    def take(self, event: DpEvent, count: int = 1) -> float:
        """Charge steps, and get epsilon; what is missing is computed first."""
        self.counts[event] = self.counts.get(event, 0) + count
        found = self.find(event)
        if found is None:
            self.waits += 1
            counts, workload = self._named(), self._workload()
            events = {fingerprint(each): (each, curve_of(each)) for each in self.counts}
            self.table.missing(workload, counts, fingerprint(event), events).compute("org")
            found = self.find(event)
        assert found is not None, "what was missing was computed"
        assert all(count <= found.most[kind][0] for kind, count in self._named().items())
        return found.epsilons[0]

    def find(self, event: DpEvent) -> EpsilonsAhead | None:
        return self.table.find(self._workload(), self._named(), fingerprint(event))

    def _workload(self) -> Workload:
        return Workload.of(ADD, DELTA, self.name, self._named())

    def _named(self) -> dict[str, int]:
        return {fingerprint(event): count for event, count in self.counts.items()}


class Pool:
    """A pool of worker processes that does as it is told."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, outcome: Exception | None = None, *, full: bool = False
    ) -> None:
        self.jobs: list[Job[Any]] = []
        self.outcome, self.full = outcome, full
        monkeypatch.setattr(WORKER_POOL, "submit", self.submit)

    def submit(self, lane: str, job: Job[Any], *, urgent: bool = False) -> "Future[Any]":
        assert (lane, urgent) == ("epsilons", False)
        if self.full:
            raise RateLimitedError("Too many wait.", retry_after=2)
        self.jobs.append(job)
        future: Future[Any] = Future()
        if self.outcome is None:
            future.set_result(job.result())
        else:
            future.set_exception(self.outcome)
        return future


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool that never has time."""
    return Pool(monkeypatch, full=True)


def in_turns(length: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Orders of up to so many kinds: by chance, and one after the other again and again."""
    kinds = st.integers(1, length)
    counts = st.sampled_from([1, 1, 1, 2, 7, 40])
    by_chance = st.lists(st.tuples(st.integers(0, length - 1), counts), min_size=1, max_size=12)
    rounds = st.tuples(kinds, st.integers(2, 4)).map(
        lambda drawn: [(place, 1) for _ in range(drawn[1]) for place in range(drawn[0])]
    )
    return by_chance | rounds


@few(6)
@given(order=in_turns(MOST_COMPOSED), start=st.integers(0, len(KINDS) - 1))
def test_answer_is_little_above_the_epsilon_of_its_counts(order: list[tuple[int, int]], start: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Pool(patch, full=True)
        run, last = Run(StepEpsilons()), 0.0
        for place, count in order:
            epsilon = run.take(KINDS[(start + place) % len(KINDS)], count)
            certified = exact(run.counts)
            assert certified * (1 - LATTICE) <= epsilon <= certified * MOST_ABOVE, run.counts
            assert epsilon >= last * (1 - LATTICE), "more was charged"
            last = epsilon


@pytest.mark.soak
@given(order=in_turns(MOST_COMPOSED), start=st.integers(0, len(KINDS) - 1))
def test_every_answer_is_little_above_the_epsilon_of_its_counts(order: list[tuple[int, int]], start: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Pool(patch)
        run = Run(StepEpsilons())
        for place, count in order * 5:
            epsilon = run.take(KINDS[(start + place) % len(KINDS)], count)
            assert exact(run.counts) * (1 - LATTICE) <= epsilon <= exact(run.counts) * MOST_ABOVE, run.counts


def test_epsilon_that_jumps_is_not_read_from_a_knot_behind_the_jump(idle: Pool) -> None:
    """19, 20 and 21 of them cost 1.5888, 1.5980 and 1.6798: a chord would be below the truth."""
    run, pure = Run(StepEpsilons()), dp.EpsilonDelta(0.1)
    for _ in range(24):
        epsilon = run.take(pure)
        assert exact(run.counts) * (1 - LATTICE) <= epsilon <= exact(run.counts) * MOST_ABOVE
    assert idle.jobs == []


@pytest.mark.usefixtures("idle")
def test_runs_of_one_kind_share_what_was_computed() -> None:
    table = StepEpsilons()
    first, second = Run(table, "first"), Run(table, "second")
    for _ in range(60):
        first.take(STEP)
    assert first.waits > 0
    answers = [second.take(STEP) for _ in range(60)]
    assert second.waits == 0
    for count, epsilon in enumerate(answers, 1):
        assert exact({STEP: count}) * (1 - LATTICE) <= epsilon <= exact({STEP: count}) * MOST_ABOVE


@pytest.mark.usefixtures("idle")
def test_run_far_ahead_leaves_no_gap_for_one_behind() -> None:
    table = StepEpsilons()
    Run(table, "first").take(STEP)
    far, near = Run(table, "far"), Run(table, "near")
    far.take(STEP, 5000)
    for count in (3, 400, 2000, 2594):
        epsilon = near.take(STEP, count)
        assert exact(near.counts) * (1 - LATTICE) <= epsilon <= exact(near.counts) * MOST_ABOVE
    assert far.take(STEP) <= exact(far.counts) * MOST_ABOVE


@pytest.mark.usefixtures("idle")
def test_runs_of_several_kinds_have_knots_of_their_own() -> None:
    table = StepEpsilons()
    runs = [Run(table, name) for name in ("first", "second")]
    for event in (STEP, KINDS[1]):
        for run in runs:
            run.take(event)
    assert [run.waits > 0 for run in runs] == [True, True]


def test_run_that_begins_late_is_answered_as_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its knots are far below those of a run that was charged for long."""
    Pool(monkeypatch)
    table = StepEpsilons()
    far, late = Run(table, "far"), Run(table, "late")
    for _ in range(1500):
        far.take(STEP, 1 + far.counts.get(STEP, 0) // 200)
    for _ in range(40):
        epsilon = late.take(STEP)
        assert exact(late.counts) * (1 - LATTICE) <= epsilon <= exact(late.counts) * MOST_ABOVE
    assert late.waits <= 2
    knots = table._known.get(Workload(ADD, DELTA, "", (fingerprint(STEP),)))
    assert knots is not None
    assert len(knots.knots) < 2000


@few(12)
@given(first=st.integers(1, 2000), further=st.integers(0, 60))
def test_epsilons_that_are_found_together_hold_each_for_its_counts(first: int, further: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Pool(patch)
        run = Run(StepEpsilons())
        run.take(STEP, first)
        run.take(STEP, further)
        most, found = run.counts[STEP] - 1, run.find(STEP)
        assert found is not None
        for up_to, epsilon in zip(found.most[fingerprint(STEP)], found.epsilons, strict=True):
            for count in {most + 1, up_to}:  # the least and the most of its counts
                certified = exact({STEP: count})
                assert certified * (1 - LATTICE) <= epsilon <= certified * MOST_ABOVE
            most = up_to


def test_knots_are_computed_before_a_step_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, run = Pool(monkeypatch), Run(StepEpsilons())
    run.take(STEP)
    waited = run.waits
    for _ in range(300):
        epsilon = run.take(STEP)
        assert epsilon <= exact(run.counts) * MOST_ABOVE
    assert run.waits == waited, "all further ones came from the pool"
    assert 1 <= len(pool.jobs) <= 4


def test_knots_of_a_cycle_are_computed_before_a_step_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, run = Pool(monkeypatch), Run(StepEpsilons())
    cycle = [STEP, STEP, KINDS[1]]
    for event in cycle * 4:
        run.take(event)
    waited = run.waits
    for event in cycle * 30:
        run.take(event)
    assert run.waits == waited
    assert pool.jobs
    assert exact(run.counts) * (1 - LATTICE) <= run.take(STEP) <= exact(run.counts) * MOST_ABOVE


def test_worker_process_computes_the_same_knots() -> None:
    """A process of its own, as a ledger has it."""
    job = Job(tightest_knots, ({STEP: 5}, [STEP], {STEP: curve_of(STEP)}, ADD, DELTA, 6))
    there = WORKER_POOL.submit("epsilons", job).result(timeout=120)
    assert there == job.result()
    assert [knot.counts[STEP] for knot in there] == sorted({knot.counts[STEP] for knot in there})


@pytest.mark.parametrize("outcome", [LedgerUnavailableError("It died."), PlanTooExpensiveError("Too long.")])
def test_failed_calculation_ahead_is_made_up_for(monkeypatch: pytest.MonkeyPatch, outcome: Exception) -> None:
    pool, run = Pool(monkeypatch, outcome), Run(StepEpsilons())
    for _ in range(90):
        epsilon = run.take(STEP)
        assert exact(run.counts) * (1 - LATTICE) <= epsilon <= exact(run.counts) * MOST_ABOVE
    assert pool.jobs
    assert run.waits > 1, "then a step waits"


def too_expensive(*_: object) -> float:
    raise PlanTooExpensiveError("It takes more work than a step may wait for.")


def test_step_whose_distributions_take_too_long_has_the_epsilon_of_its_curves(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STEP_EPSILONS, "_known", LruCache(4))
    monkeypatch.setattr(STEP_EPSILONS, "_computed", LruCache(4))
    monkeypatch.setattr(CountedEpsilons, "epsilon", too_expensive)
    Pool(monkeypatch, LedgerUnavailableError("It died."))
    for steps in range(1, 20):
        answer = trainer.steps(first_step=steps - 1).json()
        assert (answer["decision"], answer["next_step"]) == ("admitted", steps)
        proven = by_curves((LOUD, steps))
        assert proven * (1 - 1e-12) <= answer["epsilon"] <= proven * MOST_ABOVE
    assert trainer.path()[0].spent == trainer.price((LOUD, 19)), "no step was lost"
    assert trainer.sound()


def test_answers_over_http_are_those_of_the_counts(trainer: Trainer) -> None:
    steep, other = {"type": "laplace", "noise_multiplier": 300.0}, gaussian(75.0)
    charged = [(LOUD, 2), (QUIET, 1), (steep, 5), (LOUD, 1), (other, 1), (steep, 1), (LOUD, 9)]
    for place, (event, count) in enumerate(charged, 1):
        answer = trainer.steps(event=event, count=count).raise_for_status().json()
        certified = tightest(*charged[:place])
        assert certified * (1 - LATTICE) <= answer["epsilon"] <= certified * MOST_ABOVE
        assert trainer.read()["epsilon"] == certified
    preview = trainer.steps(event=LOUD, count=3, dry_run=True).json()
    assert preview["epsilon"] >= tightest(*charged, (LOUD, 3)) * (1 - LATTICE)
    assert trainer.read()["epsilon"] == tightest(*charged)


def test_chart_of_steps_whose_answers_repeat_an_epsilon_is_smooth(trainer: Trainer) -> None:
    quiet = gaussian(600.0)
    trainer.steps(event=quiet, count=500).raise_for_status()
    answers = [trainer.steps(event=quiet).raise_for_status().json()["epsilon"] for _ in range(40)]
    assert len(set(answers)) < len(answers) // 2, "several answers have one epsilon"
    seen = get_run_detail(CommandRunner(trainer.ledger).call(), trainer.run)
    [line] = [each for each in run_chart(seen).series if each.role is SeriesRole.SPENT]
    drawn = [(int(step), epsilon) for step, epsilon in line.points if step > 500]
    assert len(drawn) > 3
    for step, epsilon in drawn:
        certified = tightest((quiet, step))
        assert epsilon is not None
        assert certified * (1 - LATTICE) <= epsilon <= certified * (1 + LATTICE)
    assert drawn[-1] == (540, tightest((quiet, 540)))


def test_answers_of_many_kinds_are_those_of_their_curves(trainer: Trainer) -> None:
    kinds = [gaussian(60.0 + place) for place in range(MOST_COMPOSED + 1)]
    charged = [(kind, 1) for kind in kinds * 3]
    for place, (event, _) in enumerate(charged, 1):
        answer = trainer.steps(event=event).raise_for_status().json()
        if place > MOST_COMPOSED:
            proven = by_curves(*charged[:place])
            assert proven * (1 - 1e-12) <= answer["epsilon"] <= proven * MOST_ABOVE


def test_answers_of_many_kinds_keep_the_order_that_decides(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []

    def choose(own: CountedAccount, number: int, delta: float) -> None:
        chosen.append(own.counts_after(number))
        CHOOSE(own, number, delta)

    monkeypatch.setattr(CountedAccount, "choose_order", choose)
    kinds = [gaussian(60.0 + place) for place in range(MOST_COMPOSED + 1)]
    charged = [(kind, 1) for kind in kinds * 20]
    for place, (event, _) in enumerate(charged, 1):
        answer = trainer.steps(event=event).raise_for_status().json()
        if place > MOST_COMPOSED:
            proven = by_curves(*charged[:place])
            assert proven * (1 - 1e-12) <= answer["epsilon"] <= proven * 1.002
    assert 5 < len(chosen) < len(charged) // 3


def test_steps_do_not_wait_for_epsilons_behind_many_others(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEP_EPSILONS, "_known", LruCache(4))
    monkeypatch.setattr(STEP_EPSILONS, "waited", MOST_WAITED)
    monkeypatch.setattr(StepEpsilons, "missing", pytest.fail)
    charged = [(LOUD, 1), (QUIET, 1), (LOUD, 1), (LOUD, 1), (LOUD, 1), (QUIET, 1)]
    for place, (event, _) in enumerate(charged, 1):
        answer = trainer.steps(event=event).raise_for_status().json()
        proven = by_curves(*charged[:place])
        assert proven * (1 - 1e-12) <= answer["epsilon"] <= proven * 1.002
        assert trainer.read()["epsilon"] == tightest(*charged[:place])


def test_epsilons_that_were_known_ahead_end_with_another_event(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of the events before it, also where its own epsilon is that of the curves."""
    other = gaussian(59.0)
    Trainer(trainer.ledger, another(trainer.ledger)).steps(event=other).raise_for_status()  # its price is known
    charged = [(LOUD, 1)] * 40
    for _ in charged:
        trainer.steps(event=LOUD).raise_for_status()
    with monkeypatch.context() as busy:
        busy.setattr(STEP_EPSILONS, "waited", MOST_WAITED)
        for event in (other, LOUD, other, LOUD, LOUD):
            charged.append((event, 1))
            answer = trainer.steps(event=event).raise_for_status().json()
            assert answer["epsilon"] >= tightest(*charged) * (1 - LATTICE)
            assert answer["epsilon"] <= by_curves(*charged) * 1.002


def test_runs_that_begin_alike_compute_their_knots_once(idle: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    known = StepEpsilons()
    first = Run(known, "first")
    answers = [first.take(kind) for kind in KINDS[:3]]
    monkeypatch.setattr(workload_knots, "tightest_knots", pytest.fail)
    second = Run(known, "second")
    assert [second.take(kind) for kind in KINDS[:3]] == answers
    assert second.waits == first.waits - 1, "one kind's knots are those of every run"
    assert idle.jobs == []
