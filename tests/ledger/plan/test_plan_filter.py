"""What a plan covers: its coordinates against matchings, and domination."""

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from app.accounting import events as dp
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.domination import Mechanism, dominates, mechanisms
from app.ledger.plan import plan_filter
from app.ledger.plan.plan_filter import Chains, Workload, repeated, repetitions
from app.ledger.step_events import StepEvent
from tests.each import for_each

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def test_a_plan_is_pickled_without_what_it_remembers() -> None:
    workload = Workload.of([StepEvent(dp.Gaussian(2.0), 10), StepEvent(dp.Laplace(3.0), 5)], ADD)
    first = pickle.dumps(workload)
    for noise in range(1, 50):
        workload.cost(dp.Gaussian(float(noise)))
        workload.cost(dp.Laplace(float(noise)))
    assert workload.covers(dp.Gaussian(2.0))
    assert pickle.dumps(workload) == first
    again = pickle.loads(first)  # noqa: S301 - its own
    assert again.cost(dp.Laplace(4.0)) == workload.cost(dp.Laplace(4.0))
    assert again.capacity(12) == workload.capacity(12)


def test_a_plan_remembers_so_many_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_filter, "MOST_KNOWN", 10)
    workload = Workload.of([StepEvent(dp.Gaussian(2.0), 10)], ADD)
    costs = [workload.cost(dp.Gaussian(float(noise))) for noise in range(1, 50)]
    assert len(workload._costs) <= 10
    assert len(workload.chains._costs) <= 10
    assert [workload.cost(dp.Gaussian(float(noise))) for noise in range(1, 50)] == costs


FAMILIES = [
    *(dp.EpsilonDelta(epsilon / 2) for epsilon in (1, 2, 3, 4)),
    *(dp.Laplace(noise) for noise in (2.0, 3.0, 5.0)),
    *(dp.PermuteAndFlip(epsilon) for epsilon in (0.1, 1 / 3, 0.5)),
    *(dp.DiscreteGaussian(12.0 / moves, moves) for moves in (1, 2, 3)),
    *(dp.DiscreteLaplace(0.1, moves) for moves in (1, 2, 3)),
    *(dp.PoissonSampled(0.01, dp.Gaussian(z)) for z in (1.0, 2.0, 3.0)),
]
of_families = st.lists(st.sampled_from(FAMILIES).map(lambda event: next(iter(mechanisms(event, ADD)))), min_size=1)


@given(plan=of_families, charges=of_families)
def test_coordinates_fit_iff_every_charge_finds_a_mechanism_of_its_own(
    plan: list[Mechanism], charges: list[Mechanism]
) -> None:
    chains = Chains.of(plan)
    capacity, used = (chains.cost(Counter(each)) for each in (plan, charges))
    edges = csr_array([[dominates(held, asked) for held in plan] for asked in charges])
    matched = maximum_bipartite_matching(edges, perm_type="column")
    assert (repetitions(capacity, used, used) >= 0) == bool((matched >= 0).all())


def sampled(q: float, z: float) -> dp.PoissonSampled:
    return dp.PoissonSampled(q, dp.Gaussian(z))


def test_a_charge_is_covered_by_less_noise_and_more_data() -> None:
    workload = Workload.of([StepEvent(sampled(0.02, 1.0), 5)], ADD)
    for event in (sampled(0.02, 1.0), sampled(0.02, 1.5), sampled(0.01, 1.0)):
        assert workload.cost(event) == (0, 0, 1)
    others = (dp.Gaussian(9.0), dp.Laplace(9.0), dp.PoissonSampled(0.01, dp.Laplace(9.0)))
    for other in (sampled(0.02, 0.99), sampled(0.021, 1.0), *others):
        assert repetitions(workload.capacity(5), (0, 0, 0), workload.cost(other)) == 0


def _sampled(noise: float) -> DpEvent:
    return dp.PoissonSampled(0.1, dp.Gaussian(noise))


NEAR: tuple[tuple[NeighboringRelation, Callable[[float], DpEvent], float], ...] = (
    *((ADD, each, 0.3) for each in (dp.Gaussian, dp.Laplace, dp.Exponential, dp.PermuteAndFlip, _sampled)),
    (ADD, lambda q: dp.PoissonSampled(q, dp.Gaussian(1.7)), 0.1),
    (ADD, lambda epsilon: dp.PoissonSampled(0.1, dp.EpsilonDelta(epsilon, 1e-8)), 0.7),
    (ADD, lambda c: dp.DiscreteLaplace(c, 3), 0.3),
    (ADD, lambda noise: dp.MixtureOfGaussians(noise, (0, 1, 2), (0.5, 0.25, 0.25)), 0.7),
    (ADD, lambda noise: dp.TruncatedPoissonSampled(1000, 0.01, 60, dp.Gaussian(noise)), 1.7),
    (ADD, lambda noise: dp.Decay("exp", 0.01, 50, _sampled(noise)), 1.7),
    (ADD, lambda noise: dp.GroupPrivacy(3, dp.Laplace(noise)), 1.7),
    *(
        (ADD, each, 0.3)
        for each in (lambda q: dp.GroupPrivacy(2, sampled(q, 1.7)), lambda epsilon: dp.Laplace(epsilon=epsilon))
    ),
    (ADD, lambda q: dp.GroupPrivacy(9, sampled(q, 1.7)), 0.1),
    (REPLACE, lambda q: sampled(q, 1.7), 0.1),
    (REPLACE, lambda noise: sampled(0.1, noise), 1.7),
    (REPLACE, lambda q: dp.GroupPrivacy(2, sampled(q, 1.7)), 0.1),
    (REPLACE, lambda p: dp.RandomizedResponse(p, 2), 0.3),
    (REPLACE, lambda p: dp.RandomizedResponse(p, 4), 0.3),
)


@for_each(NEAR)
def test_a_parameter_that_differs_in_the_last_place_uses_up_what_was_planned(
    case: tuple[NeighboringRelation, Callable[[float], DpEvent], float],
) -> None:
    relation, make, meant = case
    workload = Workload.of([StepEvent(make(meant), 10)], relation)

    def fitting(sent: float) -> float:
        return repetitions(workload.capacity(10), workload.capacity(0), workload.cost(make(sent)))

    assert {fitting(sent) for sent in (meant, nextafter(meant, 0), nextafter(meant, 9), float(np.float32(meant)))} == {
        10
    }
    assert min(fitting(meant * (1 + change)) for change in (-(2**-20), 2**-20)) < 10


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_many_sampling_probabilities_are_planned(relation: NeighboringRelation) -> None:
    events = [dp.PoissonSampled(0.001 * (1 + place / 30), dp.Gaussian(1.1)) for place in range(150)]
    workload = Workload.of([StepEvent(each, 20) for each in events], relation)
    used = workload.capacity(0)
    for each in events:
        used = repeated(used, workload.cost(each), 20)
    assert used == workload.capacity(workload.steps)


def test_composed_event_counts_its_mechanisms() -> None:
    quiet, loud = sampled(0.02, 2.0), sampled(0.02, 1.0)
    workload = Workload.of([StepEvent(quiet, 5), StepEvent(loud, 3)], ADD)
    assert workload.capacity(8) == (0, 0, 8, 3)
    assert workload.capacity(6) == (0, 0, 6, 1)
    assert workload.cost(dp.SelfComposed(dp.Composed((quiet, loud, loud)), 2)) == (0, 0, 6, 4)


def test_a_mechanism_of_the_plan_is_charged_to_itself_where_another_covers_it_too() -> None:
    widest, narrow, both = sampled(0.04, 2.0), sampled(0.02, 1.5), sampled(0.02, 2.5)
    workload = Workload.of([StepEvent(each, 1) for each in (widest, narrow, both)], ADD)
    used = workload.chains.cost(Counter({}))
    for event in (widest, narrow, both):
        assert repetitions(workload.capacity(3), used, workload.cost(event)) >= 1
        used = tuple(map(sum, zip(used, workload.cost(event), strict=True)))
    assert used == workload.capacity(3)


@given(noises=st.lists(st.floats(1, 1e4), min_size=1, max_size=30))
def test_noise_on_all_data_is_used_up_by_its_sum(noises: list[float]) -> None:
    workload = Workload.of([StepEvent(dp.Gaussian(each), 1) for each in noises], ADD)
    capacity = workload.capacity(len(noises))
    together = workload.cost(dp.Gaussian(sum(1 / each**2 for each in noises) ** -0.5 * (1 + 1e-9)))
    assert repetitions(capacity, (0, 0), together) == 1
    assert repetitions(capacity, together, workload.cost(dp.Gaussian(min(noises)))) == 0


def test_events_without_a_proven_pair_are_refused_as_items_and_not_covered() -> None:
    fixed = dp.SampledWithoutReplacement(100, 10, dp.Gaussian(1.0))
    with pytest.raises(UnsupportedEventError, match="batch of fixed size"):
        Workload.of([StepEvent(fixed, 1)], ADD)
    assert Workload.of([StepEvent(sampled(0.02, 1.0), 5)], ADD).cost(fixed)[0] == 1


@pytest.mark.parametrize(("steps", "epsilon"), [(300, 0.3), (5000, 0.8)])
def test_a_schedule_is_planned_step_by_step(steps: int, epsilon: float) -> None:
    schedule = dp.Decay("exp", 0.5 / steps, steps, sampled(0.01, 2.0))
    workload = Workload.of([StepEvent(schedule, 1)], ADD)
    fitting = workload.longest(epsilon, 1e-6)
    assert 0 < fitting < steps
    capacity, used = workload.capacity(fitting), workload.capacity(0)
    admitted = 0
    while True:
        step = replace(schedule, steps=1, first_step=admitted)
        if repetitions(capacity, used, workload.cost(step)) < 1:
            break
        used = tuple(map(sum, zip(used, workload.cost(step), strict=True)))
        admitted += 1
    assert admitted == fitting


def test_steps_of_a_plan_are_those_of_its_events_and_of_each_step_of_a_schedule() -> None:
    schedule = dp.Decay("exp", 0.02, 60, sampled(0.05, 2.0))
    items = ((dp.Gaussian(8.0), 3), (schedule, 1), (schedule, 5), (sampled(0.1, 1.0), 2))
    workload = Workload.of([StepEvent(*item) for item in items], ADD)
    assert [workload.steps_of(count) for count in range(12)] == [0, 1, 2, 3, 63, 64, 65, 66, 67, 68, 69, 70]
    assert workload.steps_of(11) == workload.steps
    constant = dp.Decay("exp", 0.0, 60, sampled(0.05, 2.0))
    steady = Workload.of([StepEvent(constant, 1), StepEvent(dp.Gaussian(8.0), 2)], ADD)
    assert [steady.steps_of(count) for count in range(4)] == [0, 60, 61, 62]
