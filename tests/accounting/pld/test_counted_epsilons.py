"""Epsilons of many counts of the same events: by dp_accounting, finer lattices and closed forms."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import exp, inf, log, log1p, sqrt

import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.pld import counted_epsilons
from app.accounting.pld.accountant import left_of_delta, own_delta, pld_epsilon
from app.accounting.pld.counted_epsilons import CountedEpsilons
from app.accounting.pld.events import composed
from app.accounting.pld.plans import FINEST, plan_epsilon
from app.accounting.pld.prefixes import pure_epsilon
from app.accounting.pricing_effort import bounded
from app.accounting.pure_losses import worst_loss
from tests.soak import few

ADD, REPLACE, _ = NeighboringRelation


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(log(low), log(high)).map(lambda x: min(exp(x), high))


def sampled(q: float, z: float) -> DpEvent:
    return dp.PoissonSampled(q, dp.Gaussian(z))


SAMPLED = st.builds(sampled, logarithmic(1e-4, 1), st.floats(0.7, 6))
WITH_DELTA = st.builds(dp.EpsilonDelta, logarithmic(1e-3, 1), logarithmic(1e-16, 1e-13))
ANY = [st.builds(dp.Gaussian, logarithmic(4, 100)), st.builds(dp.Laplace, logarithmic(0.5, 100)), WITH_DELTA]
INTEGERS = st.builds(dp.DiscreteGaussian, st.floats(3, 30), st.integers(1, 3))
ANSWERS = st.builds(dp.RandomizedResponse, st.floats(0.2, 0.99), st.integers(2, 10))
COUNTS = logarithmic(1, 1e6).map(int)
DELTAS = logarithmic(1e-12, 1e-3)
ADDED = st.tuples(
    st.just(ADD), st.dictionaries(st.one_of(SAMPLED, SAMPLED, INTEGERS, *ANY), COUNTS, min_size=1, max_size=6)
)
REPLACED = st.tuples(st.just(REPLACE), st.dictionaries(st.one_of(ANSWERS, *ANY), COUNTS, min_size=1, max_size=4))


def finest(events: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> float:
    left = left_of_delta(delta, own_delta(events, relation))
    if left <= 0:
        return inf
    found = max(plan_epsilon(pairs, left, FINEST) for pairs in composed(events, relation))
    return min(found, pure_epsilon(sum(count * worst_loss(event, relation) for event, count in events.items()), left))


def is_close(events: Mapping[DpEvent, int], relation: NeighboringRelation, delta: float) -> bool:
    found = CountedEpsilons(relation, delta).epsilon(events)
    return found <= finest(events, relation, delta) * (1 + 5e-4)


@few(30)
@given(workload=ADDED | REPLACED, delta=DELTAS)
def test_epsilon_is_at_most_a_little_above_that_of_the_finest_lattice(
    workload: tuple[NeighboringRelation, dict[DpEvent, int]], delta: float
) -> None:
    relation, events = workload
    assert is_close(events, relation, delta)


@pytest.mark.soak
@given(workload=ADDED | REPLACED, delta=logarithmic(1e-30, 1e-2))
def test_epsilon_of_any_delta_is_at_most_a_little_above(
    workload: tuple[NeighboringRelation, dict[DpEvent, int]], delta: float
) -> None:
    relation, events = workload
    assert is_close(events, relation, delta)


KNOWN = st.one_of(
    st.tuples(st.just("sampled"), logarithmic(1e-3, 0.5), st.floats(0.7, 4)),
    st.tuples(st.just("laplace"), st.just(1.0), logarithmic(1, 50)),
)


@few(8)
@given(kinds=st.lists(st.tuples(KNOWN, logarithmic(1, 2000).map(int)), min_size=1, max_size=3), delta=DELTAS)
def test_epsilon_is_not_below_an_optimistic_distribution(
    kinds: list[tuple[tuple[str, float, float], int]], delta: float
) -> None:
    events, total = dict[DpEvent, int](), theirs.identity(1e-3, pessimistic_estimate=False)
    for (name, q, z), count in kinds:
        made = {"sampled": theirs.from_gaussian_mechanism, "laplace": theirs.from_laplace_mechanism}[name]
        loss = made(
            z, value_discretization_interval=1e-3, sampling_prob=q, pessimistic_estimate=False, use_connect_dots=False
        )
        total = total.compose(loss.self_compose(count))
        event = dp.Laplace(z) if name == "laplace" else sampled(q, z)
        events[event] = events.get(event, 0) + count
    assert total.get_epsilon_for_delta(delta) <= CountedEpsilons(ADD, delta).epsilon(events)


def test_sixteen_steps_read_what_the_finest_lattice_gives() -> None:
    found = CountedEpsilons(ADD, 1e-5).epsilon({sampled(0.125, 2.0): 16})
    assert 1.23031 <= found <= 1.23031 * (1 + 1e-4)


@pytest.mark.parametrize(
    "event", [sampled(0.01, 1.1), dp.Laplace(20.0), dp.EpsilonDelta(0.1)], ids=lambda e: type(e).__name__
)
def test_epsilon_does_not_jump_at_the_ends_of_octaves(event: DpEvent) -> None:
    epsilons = CountedEpsilons(ADD, 1e-6)
    for power in (2, 5, 8, 11, 16):
        for count in (2**power - 1, 2**power):
            known = pld_epsilon({event: count}, ADD, 1e-6)
            assert epsilons.epsilon({event: count}) == pytest.approx(known, rel=3e-4)


@few(6)
@given(event=SAMPLED, other=st.sampled_from([sampled(0.01, 1.0), dp.Laplace(30.0)]), count=COUNTS, beside=COUNTS)
def test_epsilon_rises_with_each_count(event: DpEvent, other: DpEvent, count: int, beside: int) -> None:
    epsilons = CountedEpsilons(ADD, 1e-6)
    found = epsilons.epsilon({event: count, other: beside})
    assert found <= epsilons.epsilon({event: 2 * count, other: beside}) * (1 + 5e-4)
    assert found <= epsilons.epsilon({event: count, other: 2 * beside}) * (1 + 5e-4)


@pytest.fixture
def octaves(monkeypatch: pytest.MonkeyPatch) -> counted_epsilons.Octaves:
    found = counted_epsilons.Octaves()
    monkeypatch.setattr(counted_epsilons, "_octaves", found)
    return found


WORKLOADS = [{sampled(0.01, 1.0): 10**power, dp.Laplace(50.0): 3 * power} for power in (2, 3, 4, 5)]


def test_epsilon_does_not_depend_on_what_was_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(workloads: list[dict[DpEvent, int]]) -> list[float]:
        monkeypatch.setattr(counted_epsilons, "_octaves", counted_epsilons.Octaves())
        return [CountedEpsilons(ADD, 1e-6).epsilon(events) for events in workloads]

    workloads = [*WORKLOADS, *({event: count + 1 for event, count in each.items()} for each in WORKLOADS)]
    others = [dict(reversed(each.items())) for each in reversed(workloads)]
    assert asked(workloads) == asked(others)[::-1]


def test_threads_share_what_is_prepared(octaves: counted_epsilons.Octaves) -> None:
    del octaves
    epsilons = CountedEpsilons(ADD, 1e-6)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(epsilons.epsilon, WORKLOADS * 4))
    assert found == [epsilons.epsilon(each) for each in WORKLOADS] * 4


def test_loss_used_last_is_kept_and_memory_is_bounded(
    octaves: counted_epsilons.Octaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_epsilons, "MOST_KEPT", 10_000)
    epsilons = CountedEpsilons(ADD, 1e-6)
    found = [epsilons.epsilon({sampled(0.01, 1.0): 2**power}) for power in range(6, 20)]
    assert 0 < octaves.size <= 10_000
    assert [epsilons.epsilon({sampled(0.01, 1.0): 2**power}) for power in range(6, 20)] == found


def test_work_counts_for_each_request_whether_it_was_done_before_or_not(octaves: counted_epsilons.Octaves) -> None:
    del octaves
    epsilons, events = CountedEpsilons(ADD, 1e-6), {sampled(0.02, 1.0): 777}
    for _ in range(2):
        with bounded(500), pytest.raises(PlanTooExpensiveError):
            epsilons.epsilon(events)
    with bounded():
        assert epsilons.epsilon(events) < inf


def test_event_without_a_pair_is_refused() -> None:
    with pytest.raises(UnsupportedEventError):
        CountedEpsilons(ADD, 1e-6).epsilon({dp.Zcdp(0.1): 3, dp.Gaussian(3.0): 1})


def test_own_deltas_may_leave_nothing() -> None:
    epsilons = CountedEpsilons(ADD, 1e-6)
    failing = dp.EpsilonDelta(0.1, 3e-7)
    assert epsilons.epsilon({failing: 4}) == inf
    assert epsilons.epsilon({failing: 3}) == pytest.approx(pld_epsilon({failing: 3}, ADD, 1e-6), rel=3e-4)


def test_nothing_costs_nothing() -> None:
    epsilons = CountedEpsilons(ADD, 1e-6)
    assert epsilons.epsilon({}) == epsilons.epsilon({sampled(0.1, 1.0): 0}) == epsilons.epsilon({dp.NoOp(): 9}) == 0
    assert CountedEpsilons(ADD, 1e-3).epsilon({sampled(1e-4, 2.0): 1}) == 0


def test_gaussian_noise_alone_has_its_closed_form() -> None:
    found = CountedEpsilons(ADD, 1e-6).epsilon({dp.Gaussian(20.0): 50, dp.Gaussian(30.0): 4})
    exact = gaussian_epsilon(sqrt(50 / 400 + 4 / 900), 1e-6)
    assert exact <= found <= exact * (1 + 1e-12)


def test_pure_losses_add_up_exactly() -> None:
    assert CountedEpsilons(ADD, 1e-30).epsilon({dp.Laplace(10.0): 3}) == pytest.approx(0.3, rel=1e-9)


def test_one_answer_has_its_closed_form() -> None:
    exact = 1 + log1p(-1e-3 * (1 + exp(-1)))
    assert exact <= CountedEpsilons(ADD, 1e-3).epsilon({dp.EpsilonDelta(1.0): 1}) <= exact * (1 + 3e-4)


def test_many_kinds_are_computed_one_by_one() -> None:
    events: dict[DpEvent, int] = {
        sampled(0.01, 1.0 + place / 100): 10 for place in range(counted_epsilons.MOST_SHARED + 1)
    }
    assert CountedEpsilons(ADD, 1e-6).epsilon(events) == pld_epsilon(events, ADD, 1e-6)


@pytest.mark.parametrize("losses", [{dp.Gaussian(1e-3): 1, dp.Laplace(3.0): 1}, {dp.EpsilonDelta(1e-17): 10**9}])
def test_losses_beyond_every_lattice_are_computed_one_by_one(losses: dict[DpEvent, int]) -> None:
    assert CountedEpsilons(ADD, 1e-6).epsilon(losses) == pld_epsilon(losses, ADD, 1e-6)
