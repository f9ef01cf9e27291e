"""Events at their bounds and at random: each has a price or is refused, and nothing overflows."""

from itertools import product

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import EXHAUSTED, GRID_VERSION, PURE, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.rdp import curve_over
from tests.each import for_each
from tests.soak import few

from .event_strategies import EVENTS

FEW = np.append(orders(GRID_VERSION)[::99], PURE)
NOISES = (1e-3, 0.0199, 0.2, 3.0, 1e3, 1e6)
PROBABILITIES = (5e-324, 1e-160, 1e-9, 0.5, 1 - 2**-53)
EPSILONS = (5e-324, 1e-20, 1e-3, 30.0, 1e4)

LEAVES: list[DpEvent] = [
    *(dp.Gaussian(z) for z in NOISES),
    *(dp.Gaussian(z, "microbatch") for z in NOISES),
    *(dp.Laplace(z) for z in NOISES),
    *(dp.DiscreteGaussian(z) for z in NOISES),
    *(dp.TreeAggregation(z, (10**9, 1)) for z in NOISES),
    *(dp.Exponential(epsilon) for epsilon in EPSILONS),
    *(dp.MixtureOfGaussians(z, (0, 0.1, 1), (0.5, 0.5 - 1e-300, 1e-300)) for z in NOISES),
    *(dp.MixtureOfGaussians(z, (0.5, 1), (1 - 1e-9, 1e-9)) for z in NOISES),
    *(dp.PermuteAndFlip(epsilon) for epsilon in EPSILONS),
    *(dp.DiscreteLaplace(epsilon, distance) for epsilon, distance in product(EPSILONS, (1, 2, 65, 10**6))),
    *(dp.EpsilonDelta(epsilon, delta) for epsilon, delta in product(EPSILONS, (0.0, 5e-324, 0.49))),
    *(dp.RandomizedResponse(p, k) for p, k in product(PROBABILITIES, (2, 10**9))),
    dp.Zcdp(5e-324),
    dp.Zcdp(1e6, 1e6),
]
BATCHES: list[DpEvent] = [
    dp.SampledWithoutReplacement(10**9, size, dp.Gaussian(z)) for size, z in product((1, 10**3, 10**9 - 1), NOISES)
]
BATCHES += [
    dp.TruncatedPoissonSampled(size, q, most, dp.Gaussian(z))
    for size, q, most, z in product((1, 10**9), PROBABILITIES, (1, 10**6, 10**9), NOISES[::2])
]
BATCHES += [
    dp.SampledWithReplacement(size, places, dp.Gaussian(z))
    for size, places, z in product((1, 2, 10**9), (1, 30, 10**9), NOISES[::2])
]
SEARCHES = [
    dp.RepeatAndSelect(leaf, mean, shape)
    for leaf, mean, shape in product(LEAVES[::9], (1, 1 + 1e-12, 1e9), (-0.9999, 0, 1e6, None))
]
GROUPS = [dp.GroupPrivacy(size, leaf) for leaf, size in product(LEAVES[::3], (2, 10**6))]


@for_each([*LEAVES, *BATCHES, *SEARCHES, *GROUPS])
def test_an_event_at_its_bounds_has_a_price_or_is_refused(event: DpEvent) -> None:
    for relation in NeighboringRelation:
        _check(event, relation)


@for_each(product(LEAVES, PROBABILITIES))
def test_sample_at_the_bounds_costs_at_most_all_records(case: tuple[DpEvent, float]) -> None:
    event, q = case
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if _check(dp.PoissonSampled(q, event), relation):
        sampled, everybody = (curve_over(each, FEW, relation) for each in (dp.PoissonSampled(q, event), event))
        # Both are computed to 1e-13 or better, then rounded up.
        room = np.minimum(everybody.values // 10**12 + 1, EXHAUSTED - everybody.values)
        assert np.all(sampled.values <= everybody.values + room)
        assert sampled.delta <= everybody.delta


@few(100)
@example(
    event=dp.MixtureOfGaussians(1.0, (0.0, 1e-290, 10.0), (0.9, 0.09, 0.01)), relation=NeighboringRelation.REPLACE_ONE
)
@given(event=EVENTS, relation=st.sampled_from(list(NeighboringRelation)))
def test_any_event_has_a_price_or_is_refused(event: DpEvent, relation: NeighboringRelation) -> None:
    _check(event, relation)


def _check(event: DpEvent, relation: NeighboringRelation) -> bool:
    """Say whether an event has a price, which grows with the order; else its refusal is short."""
    curve, words = None, ""
    try:
        with np.errstate(all="raise", under="ignore"):
            curve = curve_over(event, FEW, relation)
    except UnsupportedEventError as refusal:
        words = str(refusal)
    if curve is None:
        assert 20 < len(words) < 700
        return False
    values = curve.values.astype(np.float64)
    assert np.all(np.diff(values) >= -1 - 1e-12 * values[1:])
    return True
