"""The least noise and the most sampling of plans."""

from math import log

import pytest
from dp_accounting.pld import privacy_loss_distribution as reference

from app.accounting.calibration.monotone_search import decimal, index_at_or_below
from app.accounting.calibration.solvers import DIGITS
from app.accounting.errors import PlanTooExpensiveError, UnsupportedEventError
from app.accounting.events import (
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    with_noise_multiplier,
    with_sampling_probability,
)
from app.accounting.formulas.analytic_gaussian import gaussian_delta
from app.accounting.pld.calibration import PlanTarget, max_plan_sampling_probability, min_plan_noise_multiplier
from app.accounting.work import bounded

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE

TARGETS: dict[str, tuple[DpEvent, PlanTarget]] = {
    "dp-sgd": (PoissonSampled(0.01, Gaussian(1.0)), PlanTarget(ADD, 1000, 2.0, 1e-6)),
    "few steps": (PoissonSampled(0.2, Gaussian(1.0)), PlanTarget(ADD, 10, 1.0, 1e-5)),
    "with others": (
        PoissonSampled(0.05, Gaussian(1.0)),
        PlanTarget(ADD, 200, 4.0, 1e-6, {Gaussian(10.0): 5, PoissonSampled(0.01, Gaussian(2.0)): 100}),
    ),
    "the same event among others": (
        PoissonSampled(0.05, Gaussian(3.0)),
        PlanTarget(ADD, 100, 2.0, 1e-6, {PoissonSampled(0.05, Gaussian(3.0)): 100}),
    ),
    "laplace": (PoissonSampled(0.1, Laplace(1.0)), PlanTarget(ADD, 100, 1.0, 1e-6)),
}


def neighbour(value: float, by: int) -> float:
    return decimal(index_at_or_below(value, DIGITS) + by, DIGITS)


@pytest.mark.parametrize(("event", "target"), TARGETS.values(), ids=TARGETS)
def test_the_least_noise_fits_and_less_does_not(event: DpEvent, target: PlanTarget) -> None:
    found = min_plan_noise_multiplier(event, target)
    assert found is not None
    assert target.log_excess(with_noise_multiplier(event, found)) <= 0
    assert target.log_excess(with_noise_multiplier(event, neighbour(found, -1))) > 0


@pytest.mark.parametrize("name", ["dp-sgd", "few steps", "with others"])
def test_the_most_sampling_fits_and_more_does_not(name: str) -> None:
    event, target = TARGETS[name]
    found = max_plan_sampling_probability(event, target)
    assert found is not None
    assert target.log_excess(with_sampling_probability(event, found)) <= 0
    assert target.log_excess(with_sampling_probability(event, neighbour(found, 1))) > 0


def test_the_noise_is_that_of_dp_accounting() -> None:
    found = min_plan_noise_multiplier(*TARGETS["dp-sgd"])
    assert found is not None
    deltas = [
        reference.from_gaussian_mechanism(z, sampling_prob=0.01, value_discretization_interval=1e-4)
        .self_compose(1000)
        .get_delta_for_epsilon(2.0)
        for z in (found * (1 - 1e-4), found * (1 + 1e-5))
    ]
    assert deltas[0] > 1e-6 > deltas[1]


def test_noise_on_all_data_has_its_closed_form() -> None:
    found = min_plan_noise_multiplier(Gaussian(1.0), PlanTarget(REPLACE, 4, 1.0, 1e-6))
    assert found is not None
    assert gaussian_delta(4 / found, 1.0) <= 1e-6 < gaussian_delta(4 / neighbour(found, -1), 1.0)


def test_where_others_take_all_nothing_fits() -> None:
    target = PlanTarget(ADD, 10, 1.0, 1e-6, {EpsilonDelta(3.0, 0.0): 1})
    assert min_plan_noise_multiplier(PoissonSampled(0.1, Gaussian(1.0)), target) is None
    assert max_plan_sampling_probability(PoissonSampled(0.1, Gaussian(1.0)), target) is None


def test_where_everything_fits_the_bound_is_the_answer() -> None:
    assert max_plan_sampling_probability(PoissonSampled(0.1, Gaussian(100.0)), PlanTarget(ADD, 1, 1.0, 1e-6)) == 1
    assert min_plan_noise_multiplier(PoissonSampled(1e-9, Gaussian(1.0)), PlanTarget(ADD, 1, 9.0, 1e-6)) == 1e-3


def test_events_without_a_pair_are_refused() -> None:
    with pytest.raises(UnsupportedEventError):
        min_plan_noise_multiplier(DiscreteGaussian(1.0), PlanTarget(ADD, 1, 1.0, 1e-6))


def test_a_calibration_counts_its_work() -> None:
    event, target = TARGETS["dp-sgd"]
    with bounded():
        assert min_plan_noise_multiplier(event, target)
    with bounded(50_000), pytest.raises(PlanTooExpensiveError):
        min_plan_noise_multiplier(event, target)


def test_excess_is_over_the_limit() -> None:
    event, target = TARGETS["dp-sgd"]
    assert target.approximate_log_excess(event) == pytest.approx(target.log_excess(event), abs=0.5)
    assert target.log_excess(Gaussian(1e6)) == pytest.approx(-700 - log(1e-6))
