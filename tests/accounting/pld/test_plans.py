"""Delta of compositions against closed forms and dp_accounting, and the largest number of repetitions."""

from math import exp, inf, log, sqrt

import mpmath
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.pld import plans
from app.accounting.pld.pairs import FinitePair, GaussianPair, LaplacePair, Pair, SampledPair
from app.accounting.pld.plans import plan_delta, plan_epsilon, plan_log_delta
from tests.soak import few

EPSILONS = st.floats(log(0.05), log(20)).map(exp)


def both_ways(q: float, z: float) -> tuple[Pair, Pair]:
    return SampledPair(q, GaussianPair(z), removes=True), SampledPair(q, GaussianPair(z), removes=False)


@given(
    noise=st.floats(log(0.5), log(200)).map(exp),
    count=st.floats(0, log(1e5)).map(lambda x: int(exp(x))),
    epsilon=EPSILONS,
)
def test_gaussian_noise_is_bounded_by_its_closed_form(noise: float, count: int, epsilon: float) -> None:
    exact = gaussian_delta(sqrt(count) / noise, epsilon)
    assume(1e-20 < exact < 0.5)
    found = plan_log_delta({GaussianPair(noise): count}, epsilon, exact)
    assert log(exact) * (1 + 1e-12) <= found <= log(exact) + 0.05


@few(20)
@given(
    pure=st.floats(log(1e-3), log(3)).map(exp),
    count=st.floats(0, log(2000)).map(lambda x: int(exp(x))),
    epsilon=EPSILONS,
)
def test_randomized_response_is_bounded_by_its_binomial_sum(pure: float, count: int, epsilon: float) -> None:
    exact, sooner = binomial_log_delta(pure, count, epsilon), binomial_log_delta(pure, count, 0.99 * epsilon)
    assume(log(1e-15) < exact)
    found = plan_log_delta({FinitePair.exchanged(pure): count}, epsilon, exp(exact))
    assert exact <= found <= sooner + 0.1  # the lattice moves each loss a little


def binomial_log_delta(pure: float, count: int, epsilon: float) -> float:
    with mpmath.workdps(40):
        likely = 1 / (1 + mpmath.exp(-mpmath.mpf(pure)))
        exact = mpmath.mpf(0)
        for larger in range(count + 1):
            loss = (2 * larger - count) * mpmath.mpf(pure)
            if loss > epsilon:
                chance = mpmath.binomial(count, larger) * likely**larger * (1 - likely) ** (count - larger)
                exact += chance * -mpmath.expm1(epsilon - loss)
        return float(mpmath.log(exact)) if exact else -inf


@given(
    parts=st.lists(
        st.tuples(st.floats(2, 60), st.integers(1, 300)), min_size=2, max_size=4, unique_by=lambda part: part[0]
    ),
    epsilon=EPSILONS,
)
def test_different_noises_are_bounded_by_their_sum(parts: list[tuple[float, int]], epsilon: float) -> None:
    exact = gaussian_delta(sqrt(sum(count / noise**2 for noise, count in parts)), epsilon)
    assume(1e-15 < exact < 0.5)
    found = plan_log_delta({GaussianPair(noise): count for noise, count in parts}, epsilon, exact)
    assert log(exact) * (1 + 1e-12) <= found <= log(exact) + 0.05


@few(20)
@given(
    q=st.floats(log(1e-3), log(0.5)).map(exp),
    z=st.floats(0.5, 5),
    count=st.floats(log(10), log(1e4)).map(lambda x: int(exp(x))),
    delta=st.floats(log(1e-10), log(1e-3)).map(exp),
    removes=st.booleans(),
)
def test_delta_at_the_epsilon_found_is_the_one_asked_for(
    q: float,
    z: float,
    count: int,
    delta: float,
    removes: bool,  # noqa: FBT001
) -> None:
    plan: dict[Pair, int] = {SampledPair(q, GaussianPair(z), removes): count}
    epsilon = plan_epsilon(plan, delta)
    # Delta is computed on other lattices, which differ by about a hundredth.
    assert plan_delta(plan, epsilon * 1.02) < 1.02 * delta
    if epsilon:
        assert plan_delta(plan, epsilon * 0.98) > 0.98 * delta


@pytest.mark.parametrize("delta", [1e-9, 1e-5])
@pytest.mark.parametrize("miss", [1e-5, 1e-3, 0.03])
def test_an_epsilon_below_the_root_is_raised_until_it_is_proven(
    monkeypatch: pytest.MonkeyPatch, delta: float, miss: float
) -> None:
    plan: dict[Pair, int] = {both_ways(0.01, 1.0)[0]: 1000}
    proven = plan_epsilon(plan, delta)
    monkeypatch.setattr(plans, "_root_in_epsilon", lambda *_: proven * (1 - miss))
    assert plan_delta(plan, plan_epsilon(plan, delta)) <= delta * (1 + 1e-3)


def test_epsilon_is_infinite_where_losses_are_too_large() -> None:
    plan: dict[Pair, int] = {LaplacePair(1e-5): 1, LaplacePair(3.0): 1}
    assert plan_epsilon(plan, 1e-6) == inf
    assert plan_delta(plan, 1.0) == 1


def test_gaussian_noise_alone_has_its_closed_form() -> None:
    plan: dict[Pair, int] = {GaussianPair(20.0): 50, GaussianPair(30.0): 4}
    mu = sqrt(50 / 400 + 4 / 900)
    assert gaussian_epsilon(mu, 1e-6) <= plan_epsilon(plan, 1e-6) <= gaussian_epsilon(mu, 1e-6) * (1 + 1e-12)
    assert gaussian_delta(mu, 1.5) <= plan_delta(plan, 1.5) <= gaussian_delta(mu, 1.5) * (1 + 1e-12)
