"""Epsilon of equal steps by the composition theorems of textbooks, for comparison with curves and distributions."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from app.accounting.events import (
    DpEvent,
    NeighboringRelation,
    PoissonSampled,
    SampledWithoutReplacement,
    without_no_ops,
)
from app.accounting.formulas.amplification import sampled_epsilon_delta
from app.accounting.formulas.analytic_gaussian import gaussian_epsilon
from app.accounting.formulas.composition import advanced_epsilons, optimal_epsilons, textbook_gaussian_epsilon
from app.accounting.zcdp import zcdp_bound

SHARES: Final = np.concatenate([np.geomspace(1e-4, 0.5, 16), 1 - np.geomspace(0.5, 1e-4, 16)[1:]])
"""Shares of delta that the steps get; the composition gets the rest."""


@dataclass(frozen=True, slots=True)
class ComposedReleases:
    """Epsilons of equal Gaussian steps, in nats, by each theorem.

    Args:
        textbook: by the textbook's formula for one step, and the sum of epsilons; infinite where a step's epsilon,
            before sampling, is 1 or more, since the formula is not proven there.
        basic: sum of the steps' exact epsilons.
        advanced: of Dwork, Rothblum, Vadhan 2010.
        optimal: of Kairouz, Oh, Viswanath 2015.
    """

    textbook: float
    basic: float
    advanced: float
    optimal: float


def compose_releases(
    event: DpEvent, count: int, delta: float, relation: NeighboringRelation
) -> ComposedReleases | None:
    """Compute the epsilons of `count` equal steps at `delta`; None unless they are Gaussian noise, maybe on samples.

    A step's delta is that of the sum without sampling times the sampling probability (Balle, Barthe, Gaboardi 2018,
    arXiv 1807.01647, Theorems 8 and 9).
    """
    found = _gaussian_on_sample(event, relation)
    if found is None:
        return None
    mu, probability = found

    def amplified(epsilon_of: Callable[[float, float], float], share: float) -> float:
        of_sum = share / probability
        return 0.0 if of_sum >= 1 else sampled_epsilon_delta(probability, epsilon_of(mu, of_sum), of_sum)[0]

    textbook = amplified(textbook_gaussian_epsilon, delta / count)
    shares = delta * SHARES / count
    epsilons = np.array([amplified(gaussian_epsilon, share) for share in shares])
    # 1 - (1 - share)^k (1 - slack) is at most delta.
    slacks = -np.expm1(np.log1p(-delta) - count * np.log1p(-shares))
    basic = count * amplified(gaussian_epsilon, delta / count)
    return ComposedReleases(
        textbook=count * textbook,
        basic=basic,
        advanced=float(np.min(advanced_epsilons(epsilons, count, delta * (1 - SHARES)))),
        optimal=min(basic, float(np.min(optimal_epsilons(epsilons, count, slacks)))),
    )


def _gaussian_on_sample(event: DpEvent, relation: NeighboringRelation) -> tuple[float, float] | None:
    """Get mu of a Gaussian sum and its sampling probability, where sampling is known to amplify under the relation."""
    probability, event = 1.0, without_no_ops(event)
    if isinstance(event, PoissonSampled) and relation is not NeighboringRelation.REPLACE_ONE:
        probability, event = event.sampling_probability, event.event
    elif isinstance(event, SampledWithoutReplacement) and relation is NeighboringRelation.REPLACE_ONE:
        probability, event = event.sample_size / event.source_dataset_size, event.event
    bound = zcdp_bound(event, relation)
    return (sqrt(2 * bound.rho), probability) if bound is not None and bound.is_gaussian and bound.rho else None
