"""Tails of privacy losses against those of the noises, and discrete bounds against the exact profile."""

from math import exp, expm1, log

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from app.accounting.formulas.gaussian_mixture import Mixture
from app.accounting.pld.connect_the_dots import Dots, Lattice, connect_the_dots, spread
from app.accounting.pld.discrete_laplace import DiscreteLaplacePair
from app.accounting.pld.gaussian_mixture import CasesPair, GaussianMixturePair, ReplacedMixturePair
from app.accounting.pld.pairs import (
    TAIL_ERROR,
    BoundedRangePair,
    FinitePair,
    GaussianPair,
    LaplacePair,
    Pair,
    normal_errors,
)
from app.accounting.pld.pairs import SampledPair as Sampled
from tests.soak import thinned

NOISES: dict[str, Pair] = {
    "gaussian": GaussianPair(1.3),
    "little noise": GaussianPair(0.4),
    "laplace": LaplacePair(0.8),
}
CONTINUOUS = NOISES | {
    f"{name}, one in {round(1 / q)}, {'removed' if removes else 'added'}": Sampled(q, pair, removes)
    for name, pair in NOISES.items()
    for q in (0.3, 1e-4)
    for removes in (True, False)
}
FINITE: dict[str, Pair] = {
    "exchanged": FinitePair.exchanged(0.7, 0.2),
    "pure": FinitePair.exchanged(2.0),
    "not symmetric": FinitePair((0.2, 0.8), (0.5, 0.5)),
}
RANGES: dict[str, Pair] = {f"bounded range {epsilon}": BoundedRangePair(epsilon) for epsilon in (0.3, 2.0)}
MIXTURES: dict[str, Pair] = {
    f"mixture, {name}, {'removed' if removes else 'added'}": GaussianMixturePair(mixture, removes)
    for name, mixture in {
        "rare": Mixture.of(1.3, (0, 0.5, 1), (0.9, 0.09, 0.01)),
        "always": Mixture.of(1.3, (0.2, 1), (0.5, 0.5)),
    }.items()
    for removes in (True, False)
}
REPLACED: dict[str, Pair] = {
    "replaced, rare": ReplacedMixturePair(Mixture.of(1.3, (0, 0.5, 1), (0.9, 0.09, 0.01))),
    "replaced, always": ReplacedMixturePair(Mixture.of(1.3, (0.2, 1), (0.5, 0.5))),
}
INTEGERS = [DiscreteLaplacePair(c, shift) for c, shift in ((0.7, 1), (0.013, 5), (0.4, 12), (1e-3, 2000))]
LOSSES = (-1.5, -0.31, -3e-5, 0.0, 2e-5, 0.11, 0.9, 3.0)


def noise_below(pair: Pair, centre: float, x: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Density at x and probability below it of noise around a centre."""
    if isinstance(pair, GaussianPair):
        return mpmath.npdf(x, centre, pair.noise_multiplier), mpmath.ncdf(x, centre, pair.noise_multiplier)
    assert isinstance(pair, LaplacePair)
    away = mpmath.exp(-abs(x - centre) / mpmath.mpf(pair.noise_multiplier)) / 2
    return away / pair.noise_multiplier, 1 - away if x > centre else away


def both(pair: Pair, x: mpmath.mpf) -> tuple[tuple[mpmath.mpf, mpmath.mpf], tuple[mpmath.mpf, mpmath.mpf]]:
    """Density at x and probability below it of P and of Q."""
    if isinstance(pair, GaussianMixturePair | ReplacedMixturePair):
        alone = GaussianPair(pair.mixture.noise_multiplier)
        # As floats, the shares add up to 1 to within 2^-55 only, which a far tail shows.
        whole = mpmath.fsum(pair.mixture.shares)
        parts = [(size, share / whole) for size, share in zip(pair.mixture.sizes, pair.mixture.shares, strict=True)]
        left_out = noise_below(alone, 0, x)
        mixed, mirrored = (
            tuple(
                mpmath.fsum(share * noise_below(alone, side * size, x)[place] for size, share in parts)
                for place in (0, 1)
            )
            for side in (1, -1)
        )
        if isinstance(pair, ReplacedMixturePair):
            return mixed, mirrored
        return (mixed, left_out) if pair.removes else (left_out, mixed)
    if not isinstance(pair, Sampled):
        return noise_below(pair, 1, x), noise_below(pair, 0, x)
    q, taken, left_out = mpmath.mpf(pair.sampling_probability), *both(pair.pair, x)
    mixed = ((1 - q) * left_out[0] + q * taken[0], (1 - q) * left_out[1] + q * taken[1])
    return (mixed, left_out) if pair.removes else (left_out, mixed)


def exact_above(pair: Pair, loss: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """P and Q of a larger loss: the loss is monotone in x, so bisection finds where it is exceeded."""
    with mpmath.workdps(90):
        rises = not (isinstance(pair, Sampled | GaussianMixturePair) and not pair.removes)
        low, high = mpmath.mpf(-400), mpmath.mpf(400)
        for _ in range(160):
            middle = (low + high) / 2
            (p, _), (q, _) = both(pair, middle)
            low, high = (low, middle) if (mpmath.log(p / q) > loss) == rises else (middle, high)
        (_, p), (_, q) = both(pair, low if rises else high)
        return (1 - p, 1 - q) if rises else (p, q)


@pytest.mark.parametrize(
    "pair",
    [*thinned([*CONTINUOUS.values()], 6), *thinned([*MIXTURES.values()], 4), *thinned([*REPLACED.values()], 2)],
    ids=str,
)
def test_tails_are_those_of_the_noises(pair: Pair) -> None:
    found = pair.tails(np.array(LOSSES))
    assert 0 < found.loss_error < 1e-11
    for place, loss in enumerate(LOSSES):
        for below, above, exact in zip(
            (found.p_below[place], found.q_below[place]),
            (found.p_above[place], found.q_above[place]),
            exact_above(pair, loss),
            strict=True,
        ):
            # A loss is known to within its error, and the tails may change that much faster than it.
            assert above == pytest.approx(float(exact), rel=1e-9, abs=1e-60)
            assert below == pytest.approx(float(1 - exact), rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("pair", FINITE.values(), ids=FINITE)
def test_tails_of_few_outputs_are_sums(pair: FinitePair) -> None:
    found = pair.tails(np.array(LOSSES))
    for place, loss in enumerate(LOSSES):
        larger = [(p, q) for p, q in zip(pair.p, pair.q, strict=True) if log(p / q) > loss]
        assert found.p_above[place] == pytest.approx(sum(p for p, _ in larger), abs=TAIL_ERROR)
        assert found.q_above[place] == pytest.approx(sum(q for _, q in larger), abs=TAIL_ERROR)
        assert found.p_above[place] + found.p_below[place] == pytest.approx(1, abs=TAIL_ERROR)
        assert found.q_above[place] + found.q_below[place] == pytest.approx(1, abs=TAIL_ERROR)


@pytest.mark.parametrize("pair", INTEGERS, ids=str)
def test_tails_of_discrete_laplace_noise_are_sums_over_its_outputs(pair: DiscreteLaplacePair) -> None:
    with mpmath.workdps(40):
        c, shift = mpmath.mpf(pair.noise_parameter), pair.shift
        x = range(shift + 1)
        far = mpmath.exp(-c)
        q = [far**each * (1 if each in (0, shift) else 1 - far) / (1 + far) for each in x]
        steps = [float(c * (2 * each - shift)) for each in x]
        beside = [float(loss) for step in steps[:: 1 + shift // 9] for loss in (step - c / 3, step + c / 3)]
        wanted = np.unique(beside)
        found = pair.tails(wanted)
        for place, loss in enumerate(wanted):
            above = [each for each in x if steps[each] > loss]
            for p_or_q, below, more in ((q[::-1], found.p_below, found.p_above), (q, found.q_below, found.q_above)):
                exact = mpmath.fsum(p_or_q[each] for each in above)
                error = found.tail_errors[place]
                assert float(abs(more[place] - exact)) <= error * float(exact)
                assert float(abs(below[place] - (1 - exact))) <= error * float(1 - exact) + 1e-16


def test_errors_of_the_normal_distribution_are_within_half_of_their_bound() -> None:
    x = np.linspace(-37, 2, 3000)
    with mpmath.workdps(40):
        exact = [mpmath.ncdf(mpmath.mpf(float(each))) for each in x]
        off = [float(abs(mpmath.mpf(float(found)) / true - 1)) for found, true in zip(ndtr(x), exact, strict=True)]
    assert (np.array(off) <= normal_errors(x) / 2).all()


def test_tails_of_cases_are_means() -> None:
    cases = CasesPair((0.25, 0.75), (GaussianPair(1.3), Sampled(0.1, GaussianPair(0.7), removes=True)))
    found, (one, other) = cases.tails(np.array(LOSSES)), (pair.tails(np.array(LOSSES)) for pair in cases.pairs)
    for name in ("p_below", "p_above", "q_below", "q_above"):
        assert getattr(found, name) == pytest.approx(0.25 * getattr(one, name) + 0.75 * getattr(other, name), rel=1e-14)
    assert found.loss_error == max(one.loss_error, other.loss_error)


def profile(pair: Pair, epsilon: float) -> float:
    """The exact hockey-stick divergence of one step."""
    if isinstance(pair, BoundedRangePair):
        # The worst mechanism with two losses t and t - epsilon, searched.
        whole = expm1(pair.epsilon)
        each = [
            (exp(pair.epsilon) - exp(t)) / whole * max(0.0, -expm1(epsilon - t))
            + (exp(t) - 1) / whole * max(0.0, -expm1(epsilon - t + pair.epsilon))
            for t in np.linspace(0, pair.epsilon, 20001)
        ]
        return max(each)
    if isinstance(pair, FinitePair):
        return sum(max(0.0, p - exp(epsilon) * q) for p, q in zip(pair.p, pair.q, strict=True))
    p, q = exact_above(pair, epsilon)
    return float(p - mpmath.exp(epsilon) * q)


def profile_of_dots(dots: Dots, epsilon: float) -> float:
    return float(dots.masses[0] @ np.maximum(0, -np.expm1(epsilon - dots.losses)) + dots.infinite[0])


@pytest.mark.parametrize(
    "pair", thinned([*(CONTINUOUS | FINITE | RANGES).values()], 5), ids=CONTINUOUS | FINITE | RANGES
)
def test_the_dots_are_on_the_profile_and_lines_above_it(pair: Pair) -> None:
    around = spread(pair, 1e-14)
    spacing = around.deviation / 8
    dots = connect_the_dots([pair], Lattice.over(around.lowest, around.highest, spacing, 1.0, 1 / 24))
    size, zero = dots.places.size, int(np.searchsorted(dots.places, 0))
    for place in {zero - 1, min(zero, size - 2), (zero + size - 1) // 2}:
        here, there = float(dots.losses[place]), float(dots.losses[place + 1])
        assert profile_of_dots(dots, here) == pytest.approx(profile(pair, here), rel=1e-6, abs=2e-14)
        between = (here + there) / 2
        exact = profile(pair, between)
        assert profile_of_dots(dots, between) >= exact * (1 - 1e-12)
        share = -np.expm1(between - there) / -np.expm1(here - there)
        chord = share * profile_of_dots(dots, here) + (1 - share) * profile_of_dots(dots, there)
        assert profile_of_dots(dots, between) == pytest.approx(chord, rel=1e-6, abs=2e-14)


@pytest.mark.parametrize("pair", (CONTINUOUS | RANGES).values(), ids=CONTINUOUS | RANGES)
def test_no_mass_is_lost(pair: Pair) -> None:
    around = spread(pair, 1e-14)
    spacing = around.deviation / 16
    dots = connect_the_dots([pair], Lattice.over(around.lowest, around.highest, spacing, 0.1, 1 / 24))
    assert 1 <= float(dots.masses.sum() + dots.infinite[0]) <= 1 + 1e-8
    assert (dots.masses >= 0).all()
    assert float(dots.masses[0] @ np.exp(-dots.losses)) == pytest.approx(1, abs=1e-6)  # Q keeps its mass, too


def test_losses_outside_the_lattice_count_as_its_first_and_as_infinite() -> None:
    pair = GaussianPair(1.0)
    dots = connect_the_dots([pair], Lattice(0.125, -2, 16, 1, 1 / 24))
    assert dots.places.tolist() == list(range(-2, 17))
    below, above = pair.tails(np.array([-0.25])).p_below[0], pair.tails(np.array([2.0])).p_above[0]
    assert dots.infinite[0] == pytest.approx(above)
    assert dots.masses[0, 0] > below
    assert dots.masses.sum() + above == pytest.approx(1)
