"""Plans of `benchmarks.tightness`, with exact epsilons or bounds.

Bounds are dp_accounting's privacy loss distributions (PLD), rounded down and up; for mechanisms without them, an
instance bounds the worst case from below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, reduce
from math import exp, log1p, sqrt
from typing import Any, Final

import numpy as np
from dp_accounting import dp_event as theirs
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld

from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SelfComposed,
    TreeAggregation,
)

DELTA: Final = 1e-5
MNIST: Final = 256 / 60_000
EPOCHS: Final = 60
MNIST_STEPS: Final = EPOCHS * 60_000 // 256

_times: Final = theirs.SelfComposedDpEvent

Loss = Any
"""A privacy loss distribution of dp_accounting, which is untyped."""


@dataclass(frozen=True)
class Plan:
    """A plan and its readings.

    Args:
        name: for the table.
        event: the whole plan.
        low: returns its exact epsilon, or a lower bound.
        high: returns its exact epsilon, or an upper bound; None if only Rényi bounds are known.
        other: the plan as dp_accounting's event; None if its Rényi accountant lacks the mechanism.
        relation: neighbouring relation.
    """

    name: str
    event: DpEvent
    low: Callable[[], float]
    high: Callable[[], float] | None
    other: theirs.DpEvent | None
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE


def plans() -> list[Plan]:
    """Return the plans in the order of the table."""
    return [
        _dp_sgd("DP-SGD, q 256/60000, z 1.1", MNIST, 1.1, MNIST_STEPS, 4e-6),
        _dp_sgd("DP-SGD, q 0.01, z 4", 0.01, 4, 10_000, 1e-6),
        _dp_sgd("DP-SGD, q 0.001, z 1", 0.001, 1, 1_000, 4e-6),
        _dp_sgd("DP-SGD, q 0.1, z 0.3", 0.1, 0.3, 10, 1e-4),
        _dp_sgd("DP-SGD, q 0.5, z 30", 0.5, 30, 2_000, 4e-6),
        *_kinds_of_dp_sgd(),
        *_gaussians(),
        *_pure(),
        *_others(),
    ]


def gaussian_loss(z: float, q: float = 1.0, step: float | None = None) -> Loss:
    """Compute the privacy loss distribution of a Gaussian on a Poisson sample.

    Args:
        z: noise multiplier.
        q: sampling probability.
        step: losses are rounded down to multiples of it; None: up, with dp_accounting's defaults.
    """
    if step is None:
        return pld.from_gaussian_mechanism(z, sampling_prob=q)
    return pld.from_gaussian_mechanism(
        z, sampling_prob=q, pessimistic_estimate=False, value_discretization_interval=step, use_connect_dots=False
    )


def epsilon(loss: Loss) -> float:
    """Compute the epsilon of a privacy loss distribution."""
    return float(loss.get_epsilon_for_delta(DELTA))


@cache
def _sampled_epsilon(z: float, q: float, steps: int, step: float | None = None) -> float:
    return epsilon(gaussian_loss(z, q, step).self_compose(steps))


def _decay_epsilon(step: float, *, up: bool) -> float:
    losses = (
        pld.from_gaussian_mechanism(
            2 / (1 + 0.02 * t),
            sampling_prob=0.05,
            pessimistic_estimate=up,
            value_discretization_interval=step,
            use_connect_dots=up,
        )
        for t in range(60)
    )
    return epsilon(reduce(lambda one, other: one.compose(other), losses))


def _dp_sgd(name: str, q: float, z: float, steps: int, step: float) -> Plan:
    return Plan(
        f"{name}, {steps:,} steps",
        SelfComposed(PoissonSampled(q, Gaussian(z)), steps),
        lambda: _sampled_epsilon(z, q, steps, step),
        lambda: _sampled_epsilon(z, q, steps),
        _times(theirs.PoissonSampledDpEvent(q, theirs.GaussianDpEvent(z)), steps),
    )


def _kinds_of_dp_sgd() -> list[Plan]:
    gradients, count = 1.1, 12.8
    together = (gradients**-2 + (2 * count) ** -2) ** -0.5
    both = theirs.ComposedDpEvent([theirs.GaussianDpEvent(gradients), theirs.GaussianDpEvent(2 * count)])
    return [
        Plan(
            "adaptive clipping, q 0.01, gradients 1.1, count 12.8, 2,000 steps",
            SelfComposed(
                PoissonSampled(0.01, AdaptiveClipping(gradient_noise_multiplier=gradients, count_noise_stddev=count)),
                2_000,
            ),
            lambda: _sampled_epsilon(together, 0.01, 2_000, 1e-5),
            lambda: _sampled_epsilon(together, 0.01, 2_000),
            _times(theirs.PoissonSampledDpEvent(0.01, both), 2_000),
        ),
        Plan(
            "decay 2 / (1 + 0.02 t), q 0.05, 60 steps",
            Decay("time", 0.02, 60, PoissonSampled(0.05, Gaussian(2))),
            lambda: _decay_epsilon(1e-4, up=False),
            lambda: _decay_epsilon(1e-3, up=True),
            theirs.ComposedDpEvent(
                [theirs.PoissonSampledDpEvent(0.05, theirs.GaussianDpEvent(2 / (1 + 0.02 * t))) for t in range(60)]
            ),
        ),
        Plan(
            "fixed batches, 256 of 60,000, z 2.2, 14,062 steps, replace-one",
            SelfComposed(SampledWithoutReplacement(60_000, 256, Gaussian(2.2)), MNIST_STEPS),
            # Where the batches without the record snapshot like those with the other one, it is Poisson's pair.
            lambda: _sampled_epsilon(1.1, MNIST, MNIST_STEPS, 4e-6),
            None,
            _times(theirs.SampledWithoutReplacementDpEvent(60_000, 256, theirs.GaussianDpEvent(1.1)), MNIST_STEPS),
            NeighboringRelation.REPLACE_ONE,
        ),
    ]


def _gaussians() -> list[Plan]:
    one = partial(get_epsilon_gaussian, 5.0, DELTA)
    tree = partial(get_epsilon_gaussian, 20 / sqrt(5 * 7), DELTA)  # 100 has seven binary digits
    return [
        Plan("one Gaussian, z 5", Gaussian(5), one, one, theirs.GaussianDpEvent(5.0)),
        Plan(
            "tree aggregation, z 20, trees of 100 and 50 steps, 5 epochs",
            SelfComposed(TreeAggregation(20, (100, 50)), 5),
            tree,
            tree,
            _times(theirs.SingleEpochTreeAggregationDpEvent(20.0, [100, 50]), 5),
            NeighboringRelation.REPLACE_SPECIAL,
        ),
    ]


def _pure() -> list[Plan]:
    one = 1 + 2 * log1p(-DELTA)  # the exact delta at e is 1 - exp((e - 1) / 2)
    return [
        Plan("Laplace, z 1", Laplace(1), lambda: one, lambda: one, theirs.LaplaceDpEvent(1.0)),
        Plan(
            "Laplace, z 20, 100 times",
            SelfComposed(Laplace(20), 100),
            lambda: epsilon(_laplace_loss(20, 1.0, up=False).self_compose(100)),
            lambda: epsilon(_laplace_loss(20, 1.0, up=True).self_compose(100)),
            _times(theirs.LaplaceDpEvent(20.0), 100),
        ),
        Plan(
            "Laplace, q 0.01, z 1, 1,000 times",
            SelfComposed(PoissonSampled(0.01, Laplace(1)), 1_000),
            lambda: epsilon(_laplace_loss(1, 0.01, up=False).self_compose(1_000)),
            lambda: epsilon(_laplace_loss(1, 0.01, up=True).self_compose(1_000)),
            None,
        ),
        Plan(
            "randomized response, p 0.9, k 10, 10 times, replace-one",
            SelfComposed(RandomizedResponse(0.9, 10), 10),
            lambda: _answers_epsilon(up=False),
            lambda: _answers_epsilon(up=True),
            _times(theirs.RandomizedResponseDpEvent(0.9, 10), 10),
            NeighboringRelation.REPLACE_ONE,
        ),
        Plan(
            "exponential, epsilon 0.1, 100 times",
            SelfComposed(Exponential(0.1), 100),
            lambda: epsilon(_choice_loss(0.1).self_compose(100)),
            None,
            None,
        ),
    ]


def _others() -> list[Plan]:
    return [
        Plan(
            "Gaussian, z 20, 50 times, with (0.1, 1e-7)-DP, 10 times",
            Composed((SelfComposed(Gaussian(20), 50), SelfComposed(EpsilonDelta(0.1, 1e-7), 10))),
            lambda: epsilon(_mixed_loss(up=False)),
            lambda: epsilon(_mixed_loss(up=True)),
            None,
        ),
        Plan(
            "best of K Gaussian runs, z 4, K geometric with mean 10",
            RepeatAndSelect(Gaussian(4), 10, 1),
            lambda: _selected_epsilon(4, 10),
            None,
            theirs.RepeatAndSelectDpEvent(theirs.GaussianDpEvent(4.0), 10.0, 1.0),
        ),
    ]


def _laplace_loss(z: float, q: float, *, up: bool) -> Loss:
    return pld.from_laplace_mechanism(
        z,
        sampling_prob=q,
        pessimistic_estimate=up,
        value_discretization_interval=1e-4 if up else 1e-6,
        use_connect_dots=up,
    )


def _answers_epsilon(*, up: bool) -> float:
    # One answer replaced is dp_accounting's default.
    return epsilon(pld.from_randomized_response(0.9, 10, up, 1e-5).self_compose(10))


def _choice_loss(e: float) -> Loss:
    """Compute the loss of the exponential mechanism with two candidates whose scores a record moves apart."""
    kept = -log1p(exp(-e / 2))
    return pld.from_two_probability_mass_functions(
        {0: kept - e / 2, 1: kept},
        {0: kept, 1: kept - e / 2},
        pessimistic_estimate=False,
        value_discretization_interval=1e-5,
    )


def _mixed_loss(*, up: bool) -> Loss:
    stated = common.DifferentialPrivacyParameters(0.1, 1e-7)
    if up:
        return gaussian_loss(20 / sqrt(50)).compose(pld.from_privacy_parameters(stated).self_compose(10))
    high = (1 - stated.delta) / (1 + exp(-stated.epsilon))
    # Losses of 0.1 are 1000 steps of 1e-4: only the Gaussian's are rounded.
    masses = {1000: high, -1000: 1 - stated.delta - high}
    make = pld.PrivacyLossDistribution.create_from_rounded_probability
    other = make(masses, stated.delta, 1e-4, pessimistic_estimate=False)
    return gaussian_loss(20 / sqrt(50), step=1e-4).compose(other.self_compose(10))


def _selected_epsilon(z: float, mean: float) -> float:
    """Compute the epsilon of the maximum of K Gaussians, K geometric, summed over a fine grid of outputs."""
    x = np.arange(-12, 12 + 1 / z, 1e-4)
    selected = []
    for centre in (0.0, 1 / z):
        density = np.exp(-((x - centre) ** 2) / 2)
        below = np.cumsum(density) / density.sum()
        weights = density / (1 - (1 - 1 / mean) * below) ** 2
        selected.append(weights / weights.sum())
    low, high = 0.0, 20.0
    while high - low > 1e-7:  # noqa: PLR2004 - far below the digits that are shown
        middle = (low + high) / 2
        deltas = [np.maximum(p - exp(middle) * q, 0).sum() for p, q in (selected, selected[::-1])]
        low, high = (middle, high) if max(deltas) > DELTA else (low, middle)
    return low
