"""Discrete Gaussian noise: tails against exact sums, moves of several coordinates, and events in plans."""

from fractions import Fraction
from functools import cache
from math import floor, log1p

import mpmath
import numpy as np
import pytest

from app.accounting import events as dp
from app.accounting.curves import Floats
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.pld.accountant import pld_epsilon
from app.accounting.pld.connect_the_dots import Lattice, connect_the_dots, spread
from app.accounting.pld.discrete_gaussian import LEAST, SUMMED, DiscreteGaussianPair
from app.accounting.pld.domination import mechanisms
from app.accounting.pld.events import dominating_pairs
from app.accounting.pld.pairs import TAIL_ERROR, GaussianPair, Pair, SampledPair
from tests.soak import thinned

ADD, REPLACE, SPECIAL = NeighboringRelation
FARTHEST = 26.5
"""Standard deviations at which the exact sums begin: less than 1e-152 is beyond."""

PAIRS = [
    *[(0.3, 1), (0.3, 2), (0.9, 1), (1.0, 1), (1.7, 3), (4.5, 2), (4.5, 60), (4.5, 300), (30.0, 1), (30.0, 7)],
    *[(30.0, 90), (700.3, 5), (700.3, 900), (SUMMED - 0.1, 3), (SUMMED, 3)],
    *(pytest.param(2500.7, shift, marks=pytest.mark.soak) for shift in (1, 1999)),
]


@cache
def sums(sigma: float) -> list[mpmath.mpf]:
    """The exact probabilities of at least 0, 1, 2 ..."""
    with mpmath.workdps(40):
        c = 1 / (2 * mpmath.mpf(sigma) ** 2)
        factor, masses = mpmath.exp(-c), [mpmath.mpf(1)]
        ratio, square = factor, factor**2
        while len(masses) <= max(FARTHEST * sigma, 3):
            masses.append(masses[-1] * ratio)
            ratio *= square
        found = [mpmath.mpf(0)]
        for mass in reversed(masses):
            found.append(found[-1] + mass)
        whole = 2 * found[-1] - 1
        return [each / whole for each in reversed(found)]


def at_least(sigma: float, least: int) -> mpmath.mpf:
    with mpmath.workdps(50):
        if least <= 0:
            return 1 - at_least(sigma, 1 - least)
        return sums(sigma)[min(least, len(sums(sigma)) - 1)]


def loss_of(pair: DiscreteGaussianPair, x: int) -> float:
    """The privacy loss at an integer, rounded."""
    return float(Fraction(2 * pair.shift * x - pair.shift**2) / (2 * Fraction(pair.sigma) ** 2))


def losses_around_jumps(pair: DiscreteGaussianPair) -> Floats:
    """Losses a little below and above those of integers on both sides, and between them."""
    steps = [0, 0.01, 0.3, 1, 4, 9, 15, 21, 23.4, 23.6, 25]
    places = {sign * floor(step * pair.sigma) for step in steps for sign in (-1, 1)}
    at = sorted({loss_of(pair, x + each) for x in places for each in (0, pair.shift, pair.shift // 2)})
    jump = (pair.shift / pair.sigma) ** 2 / pair.shift
    return np.array(sorted({each + part * jump for each in at for part in (-0.5, -1e-4, 1e-4, 0.5)}))


def exact_tails(pair: DiscreteGaussianPair, loss: float) -> list[mpmath.mpf]:
    """Probabilities of at most and of more than a loss, under P and under Q."""
    last = floor(Fraction(loss) * Fraction(pair.sigma) ** 2 / pair.shift + Fraction(pair.shift, 2))
    moved = last - pair.shift
    return [at_least(pair.sigma, each) for each in (-moved, moved + 1, -last, last + 1)]


@pytest.mark.parametrize(("sigma", "shift"), PAIRS)
def test_tails_are_sums_between_the_jumps(sigma: float, shift: int) -> None:
    pair = DiscreteGaussianPair(sigma, shift)
    losses = losses_around_jumps(pair)
    found = pair.tails(losses)
    assert 0 < found.loss_error < 1e-4 * (shift / sigma) ** 2 / shift  # none of the losses is so close to a jump
    for place, loss in enumerate(losses):
        each = (found.p_below, found.p_above, found.q_below, found.q_above)
        for tail, exact in zip(each, exact_tails(pair, float(loss)), strict=True):
            raised = max(exact, LEAST) + LEAST
            assert abs(float((mpmath.mpf(float(tail[place])) - raised) / raised)) <= TAIL_ERROR
            assert tail[place] >= LEAST


def test_tails_of_much_noise_are_those_of_continuous_noise() -> None:
    losses = np.array([-1e-5, -2e-6, 0.0, 2e-6, 1e-5])
    found, continuous = (pair.tails(losses) for pair in (DiscreteGaussianPair(1e12, 2 * 10**6), GaussianPair(5e5)))
    for name in ("p_below", "p_above", "q_below", "q_above"):
        assert getattr(found, name) == pytest.approx(getattr(continuous, name), rel=1e-11)


def exact_profile(pair: Pair, epsilon: float) -> mpmath.mpf:
    """The hockey-stick divergence, summed over the integers."""
    q, inner = (pair.sampling_probability, pair.pair) if isinstance(pair, SampledPair) else (1.0, pair)
    assert isinstance(inner, DiscreteGaussianPair)
    reach = floor(FARTHEST * inner.sigma) + 1
    with mpmath.workdps(50):
        q, factor, total = mpmath.mpf(q), mpmath.exp(epsilon), mpmath.mpf(0)
        most = at_least(inner.sigma, 0) - at_least(inner.sigma, 1)

        def mass(x: int) -> mpmath.mpf:
            return most * mpmath.exp(-(x**2) / (2 * mpmath.mpf(inner.sigma) ** 2))

        for x in range(-reach, reach + inner.shift + 1):
            taken, left_out = mass(x - inner.shift), mass(x)
            mixed = q * taken + (1 - q) * left_out
            one, other = (left_out, mixed) if isinstance(pair, SampledPair) and not pair.removes else (mixed, left_out)
            total += max(one - factor * other, 0)
        return total


SMALL = [(0.3, 1), (1.0, 1), (1.7, 3), (4.5, 2), (4.5, 60), (4.5, 110), (9.0, 30)]
WHOLE = [DiscreteGaussianPair(sigma, shift) for sigma, shift in SMALL]
SAMPLED = [SampledPair(q, pair, removes) for pair in WHOLE for q in (0.4, 1e-3) for removes in (True, False)]


@pytest.mark.parametrize("pair", thinned([*WHOLE, *SAMPLED], 6), ids=str)
def test_the_dots_are_never_below_the_profile(pair: Pair) -> None:
    around = spread(pair, 1e-60)
    lattice = Lattice.over(around.lowest, around.highest, max(around.deviation, 1e-3) / 8, 1.0, 1 / 24)
    dots = connect_the_dots([pair], lattice)
    top = min(float(dots.losses[-1]) + 0.5, 250.0)
    for epsilon in [*np.linspace(-2, top, 9), *dots.losses[:: max(dots.losses.size // 6, 1)]]:
        late = float(epsilon) - float(dots.loss_errors[0])
        bound = float(dots.masses[0] @ -np.expm1(np.minimum(late - dots.losses, 0)) + dots.infinite[0])
        assert bound * (1 + 1e-14) >= exact_profile(pair, float(epsilon))


@pytest.mark.parametrize("removes", [True, False])
def test_rounding_on_a_sample_adds_no_mass_to_a_cell(removes: bool) -> None:  # noqa: FBT001
    q = 0.3
    end = log1p(-q) if removes else -log1p(-q)  # of the losses of a mixture
    losses = np.sort(end + np.array([-3.0, -2.0, -1e-3, 1e-3, 2.0, 3.0]))
    found = SampledPair(q, DiscreteGaussianPair(4.5, 3), removes).tails(losses)
    sides = [(found.p_below, found.p_above), (found.q_below, found.q_above)]
    for lower, upper in sides:
        beyond, within = (lower[:3], upper[:3]) if removes else (upper[3:], lower[3:])
        assert beyond == pytest.approx(2 * LEAST, rel=1e-12)
        assert within == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    ("event", "relation", "sigma", "shift"),
    [
        (dp.DiscreteGaussian(4.0, 3), ADD, 12.0, 3),
        (dp.DiscreteGaussian(4.0, 3), SPECIAL, 12.0, 3),
        (dp.DiscreteGaussian(4.0, 3), REPLACE, 12.0, 6),
        (dp.GroupPrivacy(5, dp.DiscreteGaussian(10.0, 2)), ADD, 20.0, 10),
        (dp.GroupPrivacy(5, dp.DiscreteGaussian(10.0, 2)), REPLACE, 20.0, 20),
        (dp.SelfComposed(dp.GroupPrivacy(2, dp.GroupPrivacy(3, dp.DiscreteGaussian(12.0, 1))), 1), ADD, 12.0, 6),
        (dp.PoissonSampled(1.0, dp.DiscreteGaussian(4.0, 3)), ADD, 12.0, 3),
        (dp.DiscreteGaussian(1e6, 10**6), REPLACE, 1e12, 2 * 10**6),
    ],
)
def test_the_relation_and_the_group_move_the_sum_and_keep_the_noise(
    event: DpEvent, relation: NeighboringRelation, sigma: float, shift: int
) -> None:
    [(found, count)] = mechanisms(event, relation).items()
    assert found.removal == found.addition
    assert isinstance(found.removal, DiscreteGaussianPair)
    assert found.removal.sigma == pytest.approx(sigma, rel=2**-52)
    assert (found.removal.shift, count) == (shift, 1)


def test_a_sample_is_of_the_pair_of_the_whole_event() -> None:
    found = dominating_pairs(dp.PoissonSampled(0.1, dp.GroupPrivacy(2, dp.DiscreteGaussian(8.0, 3))), ADD)
    pair = DiscreteGaussianPair(24.0, 6)
    assert found.removal == {SampledPair(0.1, pair, removes=True): 1}
    assert found.addition == {SampledPair(0.1, pair, removes=False): 1}


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("wrap", [lambda event: event, lambda event: dp.Composed((event, dp.DiscreteGaussian(4.0, 3)))])
def test_an_event_without_its_sensitivity_is_refused_by_name(relation: NeighboringRelation, wrap: type) -> None:
    with pytest.raises(UnsupportedEventError, match=f"discrete_gaussian under {relation} without `sensitivity`. Add"):
        pld_epsilon({wrap(dp.DiscreteGaussian(4.0)): 1}, relation, 1e-5)
