"""The number of runs of a sweep is drawn from the very distribution that the sweep is charged for."""

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.errors import InvalidEventError
from app.accounting.formulas.repeat_and_select import log_inverse_gamma, number_of_runs

MEANS = (1.01, 1.5, 8.0, 100.0)
SHAPES = (-0.5, -0.1, 0.0, 1e-3, 0.3, 1.0, 5.0, 1000.0, None)


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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", MEANS)
def test_each_number_is_drawn_as_often_as_it_should_be(mean: float, shape: float | None) -> None:
    """Just above P(K > k) a draw gives at most k, just below it more than k."""
    with mpmath.workdps(40):
        beyond = mpmath.mpf(1)
        for k, probability in enumerate(probabilities(mean, shape, 400)):
            beyond -= probability
            if not 1e-9 < beyond < 1 - 1e-6 or (k > 24 and k % 8):
                continue
            assert number_of_runs(mean, shape, float(beyond * (1 + mpmath.mpf("1e-7")))) <= k
            assert number_of_runs(mean, shape, float(beyond * (1 - mpmath.mpf("1e-7")))) > k


@given(
    st.floats(1, 1e6),
    st.one_of(st.none(), st.floats(-0.5, 1e6)),
    st.floats(1e-15, 1, exclude_max=True),
    st.floats(0, 1),
)
def test_a_smaller_draw_never_gives_fewer_runs(mean: float, shape: float | None, uniform: float, share: float) -> None:
    smaller = max(uniform * share, 1e-16)
    assert number_of_runs(mean, shape, smaller) >= number_of_runs(mean, shape, uniform)


def test_a_mean_of_one_is_one_run_unless_it_may_be_none() -> None:
    assert number_of_runs(1, 1.0, 1e-9) == 1
    assert number_of_runs(1, None, 0.99) == 0


@pytest.mark.parametrize(("mean", "shape"), [(0.5, 1.0), (2e6, 1.0), (8.0, -0.6), (8.0, 2e6), (float("nan"), 1.0)])
def test_distribution_that_cannot_be_drawn_is_refused(mean: float, shape: float) -> None:
    with pytest.raises(InvalidEventError, match="is drawn for a mean in"):
        number_of_runs(mean, shape, 0.5)
