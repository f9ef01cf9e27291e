"""Limits in pure epsilon, rho and mu: exact for decimals, and they hold under adaptive choices (ADR 0052)."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import exp, log

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import GRID_VERSION
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import (
    AdaptiveClipping,
    Composed,
    Decay,
    DiscreteGaussian,
    DpEvent,
    EpsilonDelta,
    Gaussian,
    GroupPrivacy,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
    RandomizedResponse,
    SelfComposed,
    Zcdp,
)
from app.accounting.exact_losses import PER_NAT, UNBOUNDED_LOSSES
from app.accounting.formulas.analytic_gaussian import gaussian_delta, gaussian_epsilon
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from app.ledger.admission.admission import Admission, admit
from app.ledger.filter.limits import Limit, Unit
from app.ledger.governance.unit_checks import require_priced, why_unpriced
from tests.ledger.conftest import make_account, priced

ADDED, REPLACED = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
MU, RHO = Unit.MU, Unit.RHO
Play = tuple[float, float]
"""Probabilities of a course of a game in both worlds."""
Rule = Callable[[Account, DpEvent], Account | None]


def taken(account: Account, event: DpEvent, count: int = 1) -> Account | None:
    """The account after a charge; None if it is refused."""
    outcome = admit([account], [priced(account, event, count)])
    return outcome.accounts[0] if isinstance(outcome, Admission) else None


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12), st.sampled_from([MU, RHO]), st.integers(1, 400))
def test_gaussian_noises_in_decimals_fit_as_fractions_do(noises: list[int], unit: Unit, value: int) -> None:
    account, left = make_account(value / 100, 0.0, unit), Fraction(value, 100)
    left = left**2 if unit is MU else 2 * left
    for noise in noises:
        cost = Fraction(100, noise) ** 2
        after = taken(account, Gaussian(noise / 100))
        assert (after is not None) is (cost <= left)
        if after is not None:
            account, left = after, left - cost
    assert account.used() == pytest.approx(float(1 - left / (Fraction(value, 100) ** 2 if unit is MU else value / 50)))


@pytest.mark.parametrize("noise", [3.0, 7.0, 10.0, 37.0, 99.0, 997.0])
@pytest.mark.parametrize(("value", "unit"), [(1.0, MU), (0.5, RHO)])
def test_noise_squared_is_the_number_of_steps_of_mu_one(noise: float, value: float, unit: Unit) -> None:
    account, steps = make_account(value, 0.0, unit), int(noise**2)
    full = taken(account, Gaussian(noise), steps)
    assert full is not None
    assert (full.used(), taken(full, Gaussian(noise)), taken(full, Gaussian(1e6))) == (1.0, None, None)
    assert taken(account, Gaussian(noise), steps + 1) is None or noise == 12.5


def _games(account: Account, rule: Rule, rng: np.random.Generator, depth: int = 3) -> Iterator[Play]:
    """Play an adaptive game: each answer, in cells, decides the noise of the next release, down to what is left."""
    cells = np.concatenate([[-np.inf], np.sort(rng.normal(0.5, 1, 5)), [np.inf]])

    def after(now: Account, left: int) -> list[Play]:
        wished = [float(f"{each:.3g}") for each in rng.uniform(0.9, 3.0, 3)]
        for noise in (*sorted(wished), 30.0) if left else ():
            charged = rule(now, Gaussian(noise))
            if charged is not None:
                worlds = [np.diff(scipy.stats.norm.cdf(cells, mean)) for mean in (0.0, 1 / noise)]
                plays = [after(charged, left - 1) for _ in worlds[0]]
                return [
                    (one * p, other * q) for one, other, further in zip(*worlds, plays, strict=True) for p, q in further
                ]
        return [(1.0, 1.0)]

    yield from after(account, depth)


def _excess_of_mu(plays: Sequence[Play], mu: float) -> float:
    """The largest quotient of a delta and that of Gaussian DP, over epsilons and both directions."""
    one, other = map(np.array, zip(*plays, strict=True))
    return max(
        float(np.maximum(p - exp(epsilon) * q, 0).sum()) / gaussian_delta(mu, epsilon)
        for p, q in ((one, other), (other, one))
        for epsilon in (0.0, 0.3, 1.0, 2.0, 3.0)
    )


def _excess_of_rho(plays: Sequence[Play], rho: float) -> float:
    """The largest quotient of a Rényi divergence and rho times its order, over orders and both directions."""
    one, other = map(np.array, zip(*plays, strict=True))
    return max(
        log(float((p**order * q ** (1 - order)).sum())) / (order - 1) / (rho * order)
        for p, q in ((one, other), (other, one))
        for order in (1.1, 2.0, 5.0, 20.0)
    )


@pytest.mark.parametrize("seed", range(12))
def test_adaptive_games_stay_within_mu_and_rho(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert _excess_of_mu(list(_games(make_account(1.0, 0.0, MU), taken, rng)), 1.0) <= 1
    assert _excess_of_rho(list(_games(make_account(0.5, 0.0, RHO), taken, rng)), 0.5) <= 1


def test_games_find_that_a_filter_must_not_forget() -> None:
    def forgetful(account: Account, event: DpEvent) -> Account | None:
        return account if taken(account, event) is not None else None

    rng = np.random.default_rng(1)
    plays = [list(_games(make_account(1.0, 0.0, MU), forgetful, rng)) for _ in range(6)]
    assert max(_excess_of_mu(each, 1.0) for each in plays) > 1
    assert max(_excess_of_rho(each, 0.5) for each in plays) > 1


SQUARE = Fraction(1, 100)
LOSSES: list[tuple[DpEvent, NeighboringRelation, Fraction | None, Fraction | None]] = [
    (Gaussian(10.0), ADDED, SQUARE / 2, SQUARE),
    (Gaussian(10.0), REPLACED, 2 * SQUARE, 4 * SQUARE),
    (Gaussian(10.0, "microbatch"), ADDED, 2 * SQUARE, 4 * SQUARE),
    (DiscreteGaussian(10.0), ADDED, SQUARE / 2, None),
    (Zcdp(0.1), ADDED, Fraction(1, 10), None),
    (Zcdp(0.1, xi=0.1), ADDED, None, None),
    (AdaptiveClipping(10.0), ADDED, SQUARE / 2, SQUARE),
    (AdaptiveClipping(None, 20.0, 5.0), ADDED, (SQUARE / 4 + SQUARE) / 2, SQUARE / 4 + SQUARE),
    (Composed((Gaussian(10.0), Gaussian(5.0), Gaussian(5.0))), ADDED, SQUARE * 9 / 2, 9 * SQUARE),
    (SelfComposed(Gaussian(10.0), 7), ADDED, 7 * SQUARE / 2, 7 * SQUARE),
    (Composed((Gaussian(10.0), Zcdp(0.1))), ADDED, SQUARE / 2 + Fraction(1, 10), None),
    (GroupPrivacy(3, Gaussian(10.0)), ADDED, 9 * SQUARE / 2, 9 * SQUARE),
    (GroupPrivacy(3, Zcdp(0.1, delta=1e-9)), ADDED, None, None),
    (PoissonSampled(1.0, Gaussian(10.0)), ADDED, SQUARE / 2, SQUARE),
    (PoissonSampled(0.5, Gaussian(10.0)), ADDED, None, None),
    (PoissonSampled(0.0, Gaussian(10.0)), ADDED, Fraction(0), Fraction(0)),
    (Decay("step", 0.0, 4, Gaussian(10.0)), ADDED, 4 * SQUARE / 2, 4 * SQUARE),
    (Laplace(10.0), ADDED, None, None),
    (RandomizedResponse(1.0, 2), REPLACED, Fraction(0), Fraction(0)),
]


@pytest.mark.parametrize(("event", "relation", "rho", "mu_squared"), LOSSES, ids=lambda each: str(each)[:40])
def test_events_have_their_exact_losses(
    event: DpEvent, relation: NeighboringRelation, rho: Fraction | None, mu_squared: Fraction | None
) -> None:
    exact = event_curve(event, relation, GRID_VERSION).exact if "Group" not in str(event) or rho else None
    found = exact or UNBOUNDED_LOSSES
    assert found.rho == (UNBOUNDED_LOSSES.rho if rho is None else rho * PER_NAT)
    assert found.mu_squared == (UNBOUNDED_LOSSES.mu_squared if mu_squared is None else mu_squared * PER_NAT)


@pytest.mark.parametrize(
    ("limit", "event", "named"),
    [
        (Limit(1.0, 0.0), Gaussian(1.0), "gaussian has no bound on its privacy loss .* epsilon with a positive delta"),
        (Limit(1.0, 0.0), EpsilonDelta(0.1, 1e-9), "epsilon_delta has a delta of its own"),
        (Limit(1.0, 0.0, RHO), Composed((Gaussian(1.0), Laplace(1.0))), "laplace has no rho"),
        (Limit(1.0, 0.0, RHO), Zcdp(0.1, delta=1e-9), "zcdp has a delta of its own.* rho with a delta"),
        (Limit(1.0, 0.0, MU), DiscreteGaussian(1.0), "discrete_gaussian has no mu .* limits in rho"),
        (Limit(1.0, 0.0, MU), PoissonSampled(0.1, Gaussian(1.0)), "poisson_sampled has no mu .* positive delta"),
    ],
)
def test_event_without_a_value_is_refused_by_name_with_the_units_that_have_one(
    limit: Limit, event: DpEvent, named: str
) -> None:
    account = make_account(limit.value, limit.delta, limit.unit)
    with pytest.raises(UnsupportedEventError, match=named):
        require_priced([account], [event])
    require_priced([make_account()], [event])


def test_own_deltas_of_zcdp_add_up_to_the_delta_of_a_limit_in_rho() -> None:
    limit, event = Limit(1.0, 1e-6, RHO), Zcdp(0.01, delta=1e-7)
    assert why_unpriced(limit, event, ADDED) is None
    full = taken(make_account(1.0, 1e-6, RHO), event, 10)
    assert full is not None
    assert (taken(full, event), taken(full, Zcdp(0.01)) is not None) == (None, True)


def test_equivalents_follow_from_the_limit() -> None:
    mu, rho, pure = Limit(1.0, 0.0, MU), Limit(0.5, 0.0, RHO), Limit(1.0, 0.0)
    assert mu.epsilon_at(1e-6) == gaussian_epsilon(1.0, 1e-6) < rho.epsilon_at(1e-6) < 5.23
    assert rho.epsilon_at(1e-6) < 0.5 + 2 * np.sqrt(0.5 * log(1e6))
    assert (mu.rho, mu.mu, rho.rho, rho.mu, pure.rho) == (0.5, 1.0, 0.5, None, 0.5)
    assert pure.mu is not None
    assert gaussian_delta(pure.mu, 0.0) == pytest.approx((exp(1) - 1) / (exp(1) + 1))
    assert (pure.epsilon_at(0.0), Limit(1.0, 1e-6).epsilon_at(1e-7), mu.epsilon_at(0.0)) == (1.0, np.inf, np.inf)
    with_delta = Limit(0.5, 1e-9, RHO)
    assert (with_delta.shown_delta, with_delta.epsilon) == (2e-9, rho.epsilon_at(1e-9))
