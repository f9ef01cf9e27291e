"""The price of a sweep against the exact divergence of small sweeps."""

from collections.abc import Sequence
from itertools import product
from math import inf, nan

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import GRID_VERSION, orders
from app.accounting.errors import InvalidEventError
from app.accounting.formulas.mechanisms import gaussian_rdp, pure_dp_rdp
from app.accounting.formulas.repeat_and_select import log_inverse_gamma, number_of_runs, repeat_and_select_rdp
from tests.each import for_each
from tests.soak import few

DIGITS = 40
GRID = orders(GRID_VERSION)
SHAPES = (-0.9, -0.5, 0.0, 0.5, 1.0, 3.0, inf)


def generating_function(x: mpmath.mpf, y: mpmath.mpf, shape: float) -> mpmath.mpf:
    """Return E[x^K] where K is truncated negative binomial with ln(1/gamma) = y."""
    gamma = mpmath.exp(-y)
    if shape == 0:
        return mpmath.log(1 - (1 - gamma) * x) / -y
    h = mpmath.mpf(shape)
    return ((1 - (1 - gamma) * x) ** -h - 1) / (gamma**-h - 1)


def best_of_many(weights: Sequence[float], mean: float, shape: float) -> list[mpmath.mpf]:
    """Return the distribution of the best of K runs; outputs are sorted from worst to best, none comes first."""
    cumulated = [mpmath.fsum(weights[:n]) for n in range(1, len(weights))]
    if shape == inf:
        below = [mpmath.exp(mean * (x - 1)) for x in [mpmath.mpf(0), *cumulated]]
        none = below[0]
    else:
        y = mpmath.mpf(log_inverse_gamma(mean, shape))
        below = [generating_function(x, y, shape) for x in [mpmath.mpf(0), *cumulated]]
        none = mpmath.mpf(0)
    return [none, *(high - low for low, high in zip(below, [*below[1:], mpmath.mpf(1)], strict=True))]


def exact(p: Sequence[mpmath.mpf], q: Sequence[mpmath.mpf], order: float) -> float:
    a = mpmath.mpf(order)
    moment = mpmath.fsum(x**a * y ** (1 - a) for x, y in zip(p, q, strict=True) if y > 0)
    return float(mpmath.log(moment) / (a - 1))


@for_each(product((1.5, 10.0, 300.0), SHAPES))
def test_no_sweep_of_randomized_responses_costs_more(case: tuple[float, float]) -> None:
    mean, shape = case
    for epsilon in (0.1, 1.0):
        bound = repeat_and_select_rdp(pure_dp_rdp(epsilon, GRID), GRID, mean, shape)
        odds = mpmath.exp(mpmath.mpf(epsilon))
        for share in (mpmath.mpf(1), 1 / mpmath.mpf(mean), mpmath.mpf("1e-4")):
            # A good result that one data set makes likelier by the factor exp(epsilon), and the rest in one lump,
            # which it does not make less likely by more than that.
            good = share * odds / (1 + odds)
            p, q = [1 - good, good], [1 - good / odds, good / odds]
            for first, second in ((p, q), (q, p)):
                best, other = best_of_many(first, mean, shape), best_of_many(second, mean, shape)
                for place in (10, 600, 1300):
                    assert exact(best, other, GRID[place]) <= bound[place]


@for_each(product((1 + 1e-12, 1.001, 30.0, 1e9), (-0.99, -0.5, -1e-9, 0.0, 1e-12, 1e-3, 1.0, 5.0, 1e3, 1e6)))
def test_the_parameter_has_the_mean_and_is_rounded_up(case: tuple[float, float]) -> None:
    mean, shape = case
    y, h = mpmath.mpf(log_inverse_gamma(mean, shape)), mpmath.mpf(shape)
    reached = mpmath.expm1(y) / y if shape == 0 else h * mpmath.expm1(y) / -mpmath.expm1(-h * y)
    excess = (reached - 1) / (mpmath.mpf(mean) - 1) - 1
    assert 0 <= excess <= 4e-13 * max(1, y)


def test_one_run_costs_what_one_run_costs() -> None:
    one_run = gaussian_rdp(2.0, GRID)
    for shape in SHAPES[:-1]:
        assert np.array_equal(repeat_and_select_rdp(one_run, GRID, 1.0, shape), one_run)


def test_orders_without_a_bound_stay_without_one() -> None:
    one_run = np.where(GRID < 20, gaussian_rdp(2.0, GRID), np.inf)
    for shape in SHAPES:
        bound = repeat_and_select_rdp(one_run, GRID, 10.0, shape)
        assert np.array_equal(np.isfinite(bound), np.isfinite(one_run))
        assert np.isinf(repeat_and_select_rdp(np.full_like(GRID, np.inf), GRID, 10.0, shape)).all()


@few(25)
@given(z=st.floats(0.1, 100), log_mean=st.floats(0, 9), shape=st.sampled_from(SHAPES), step=st.floats(1e-3, 1))
def test_more_runs_or_a_dearer_run_never_cost_less(z: float, log_mean: float, shape: float, step: float) -> None:
    mean = float(np.exp(log_mean))
    bound = repeat_and_select_rdp(gaussian_rdp(z, GRID), GRID, mean, shape)
    more_runs = repeat_and_select_rdp(gaussian_rdp(z, GRID), GRID, mean * (1 + step), shape)
    dearer = repeat_and_select_rdp(gaussian_rdp(z / (1 + step), GRID), GRID, mean, shape)
    assert np.all(bound >= gaussian_rdp(z, GRID))
    assert np.all(np.diff(bound) >= 0)
    assert np.all(more_runs >= bound * (1 - 1e-12))
    assert np.all(dearer >= bound * (1 - 1e-12))


def test_impossible_numbers_of_runs_are_refused() -> None:
    for mean, shape in ((0.5, 1.0), (inf, 1.0), (nan, 1.0), (2.0, -1.0), (2.0, nan)):
        with pytest.raises(InvalidEventError, match="must be"):
            repeat_and_select_rdp(gaussian_rdp(1.0, GRID), GRID, mean, shape)
    for mean, shape in ((0.5, 1.0), (2e6, 1.0), (8.0, -0.6), (8.0, 2e6), (nan, 1.0)):
        with pytest.raises(InvalidEventError, match="is drawn for a mean in"):
            number_of_runs(mean, shape, 0.5)


def probabilities(mean: float, shape: float | None, most: int) -> list[mpmath.mpf]:
    """P(K = 0), P(K = 1), ..., P(K = most), one after the other from their ratios (Papernot, Steinke 2022)."""
    if shape is None:
        found = [mpmath.exp(-mpmath.mpf(mean))]
        for k in range(most):
            found.append(found[-1] * mean / (k + 1))
        return found
    gamma, h = mpmath.exp(-mpmath.mpf(log_inverse_gamma(mean, shape))), mpmath.mpf(shape)
    x = 1 - gamma
    first = -x / mpmath.log(gamma) if shape == 0 else h * x / (gamma**-h - 1)
    found = [mpmath.mpf(0), first]
    for k in range(1, most):
        found.append(found[-1] * (k + h) / (k + 1) * x)
    return found


@for_each(product((1.01, 8.0, 100.0), (-0.5, -0.1, 0.0, 0.3, 5.0, 1000.0, None)))
def test_each_number_is_drawn_as_often_as_it_should_be(case: tuple[float, float | None]) -> None:
    """Just above P(K > k) a draw gives at most k, just below it more than k."""
    mean, shape = case
    with mpmath.workdps(40):
        beyond = mpmath.mpf(1)
        for k, probability in enumerate(probabilities(mean, shape, 80)):
            beyond -= probability
            if not 1e-9 < beyond < 1 - 1e-6 or (k > 12 and k % 8):
                continue
            assert number_of_runs(mean, shape, float(beyond * (1 + mpmath.mpf("1e-7")))) <= k
            assert number_of_runs(mean, shape, float(beyond * (1 - mpmath.mpf("1e-7")))) > k


@given(st.floats(1, 1e6), st.none() | st.floats(-0.5, 1e6), st.floats(1e-15, 1, exclude_max=True), st.floats(0, 1))
def test_a_smaller_draw_never_gives_fewer_runs(mean: float, shape: float | None, uniform: float, share: float) -> None:
    smaller = max(uniform * share, 1e-16)
    assert number_of_runs(mean, shape, smaller) >= number_of_runs(mean, shape, uniform)


def test_a_mean_of_one_is_one_run_unless_it_may_be_none() -> None:
    assert (number_of_runs(1, 1.0, 1e-9), number_of_runs(1, None, 0.99)) == (1, 0)
