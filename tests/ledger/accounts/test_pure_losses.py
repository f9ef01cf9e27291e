"""Pure losses add up as people write them: what sums to the limit fits, and nothing more."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import exp, log1p, mp, mpf

from app.accounting.events import (
    Composed,
    DiscreteLaplace,
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    GroupPrivacy,
    Laplace,
    NeighboringRelation,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    SelfComposed,
)
from app.accounting.exact_losses import PER_NAT, UNBOUNDED, pure_limit, pure_nats
from app.accounting.pure_losses import pure_loss
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from app.ledger.step_events import StepEvent
from tests.ledger.conftest import admitted, chained, make_account, planning, refused, repetitions_left

TENTH = Laplace(epsilon=0.1)
ADDED, REPLACED = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
SMALLEST = EpsilonDelta(1e-300)


def charged(account: Account, *events: DpEvent) -> Account:
    for event in events:
        [account] = admitted([account], event).accounts
    return account


@pytest.mark.parametrize(
    ("epsilon", "events"),
    [
        (1.0, [Laplace(1.0)]),
        (1.0, [Laplace(3.0)] * 3),
        (0.3, [EpsilonDelta(0.1), EpsilonDelta(0.2)]),
        (1.0, [EpsilonDelta(0.7), EpsilonDelta(0.1), EpsilonDelta(0.2)]),
        (1.0, [EpsilonDelta(0.1), EpsilonDelta(0.9)]),
        (1.0, [TENTH] * 10),
        (0.7, [Exponential(0.1), PermuteAndFlip(0.2), DiscreteLaplace(0.1, 3), Laplace(10.0)]),
        (0.6, [Composed((TENTH, EpsilonDelta(0.2))), SelfComposed(TENTH, 3)]),
        (3.0, [GroupPrivacy(10, TENTH), GroupPrivacy(3, Laplace(3.0)), PoissonSampled(1.0, Laplace(1.0))]),
        (1e-3, [Laplace(1000.0)]),
    ],
)
@pytest.mark.parametrize("delta", [1e-6, 1e-30])
def test_releases_whose_sum_is_the_limit_fit_and_one_more_does_not(
    epsilon: float, events: list[DpEvent], delta: float
) -> None:
    for order in (events, events[::-1]):
        full = charged(make_account(epsilon, delta), *order)
        assert full.spent.pure == pure_limit(epsilon)
        assert refused([full], order[0]).used_requested > 1
        if delta == 1e-30:  # at a larger one, the orders may have room for a little more
            assert full.rdp_epsilon(delta) == epsilon
            assert full.used() == 1
            assert refused([full], SMALLEST).used_requested > 1


def test_refusal_says_what_the_sum_would_be() -> None:
    full = charged(make_account(1.0, 1e-30), *[TENTH] * 10)
    refusal = refused([full], TENTH)
    assert (refusal.used, refusal.used_requested, refusal.max_steps_that_fit) == (1.0, 1.1, 0)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[float, list[float]]:
    """Decimals that people write, and the float that reads as their sum."""
    digits = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(1, 9 * 10 ** (digits - 1)), min_size=1, max_size=12))
    epsilons = [float(Decimal(number).scaleb(-digits)) for number in numbers]
    return float(Decimal(sum(numbers)).scaleb(-digits)), epsilons


@given(workloads(), st.sampled_from([1e-5, 1e-12, 1e-30]))
def test_decimals_that_sum_to_the_limit_fit_exactly(workload: tuple[float, list[float]], delta: float) -> None:
    limit, epsilons = workload
    full = charged(make_account(limit, delta), *map(EpsilonDelta, epsilons))
    assert full.spent.pure == pure_limit(limit)
    assert full.used() <= 1
    more = full.spent.pure + event_curve(SMALLEST, ADDED).pure
    assert more > pure_limit(limit)
    if full.used() == 1:  # else the orders have room for more
        refused([full], SMALLEST)


def test_repetitions_are_counted_exactly() -> None:
    account = charged(make_account(1.0, 1e-30), TENTH)
    assert repetitions_left([account], TENTH)[0] == 9
    assert repetitions_left([account], Laplace(epsilon=0.3))[0] == 3
    assert refused([account], TENTH, 10).max_steps_that_fit == 9
    assert charged(account, *[Laplace(epsilon=0.3)] * 3).used() == 1


def test_pure_loss_needs_no_delta_and_own_deltas_need_theirs() -> None:
    account = make_account(1.0, 1e-6)
    half = EpsilonDelta(0.5, 4e-7)
    full = charged(account, half, half)
    assert full.rdp_epsilon(1e-6) == 1
    assert refused([full], EpsilonDelta(0.0, 4e-7)).delta_left < 4e-7


def test_limits_of_the_whole_path_hold() -> None:
    path = chained(make_account(1.0, 1e-6), make_account(0.3, 1e-6))
    path = admitted(path, EpsilonDelta(0.1)).accounts
    path = admitted(path, EpsilonDelta(0.2)).accounts
    assert refused(path, SMALLEST).binding.id == path[1].id


def test_gaussian_noise_leaves_no_pure_loss() -> None:
    account = charged(make_account(3.0, 1e-6), TENTH)
    assert account.spent.pure == PER_NAT // 10
    assert charged(account, Gaussian(50.0)).spent.pure == UNBOUNDED


def test_pure_releases_beside_a_plan_of_gaussian_noise_are_exact_until_it_begins() -> None:
    account = planning(make_account(1.0, 1e-30), StepEvent(Gaussian(40.0), 100))
    full = charged(account, *[TENTH] * 10)
    assert full.used() == 1
    refused([full], TENTH)


@pytest.mark.parametrize(
    ("event", "relation", "loss"),
    [
        (Laplace(0.07), ADDED, Fraction(100, 7)),
        (Laplace(epsilon=0.07), ADDED, Fraction(7, 100)),
        (Laplace(1.5), REPLACED, Fraction(4, 3)),
        (Laplace(epsilon=0.07), REPLACED, Fraction(7, 100)),
        (DiscreteLaplace(0.1, 3), REPLACED, Fraction(6, 10)),
        (Composed((TENTH, TENTH, Exponential(0.3))), ADDED, Fraction(5, 10)),
        (GroupPrivacy(7, SelfComposed(TENTH, 3)), ADDED, Fraction(21, 10)),
        (PoissonSampled(0.5, TENTH), REPLACED, Fraction(1, 10)),
    ],
)
def test_loss_is_the_quotient_that_is_written(event: DpEvent, relation: NeighboringRelation, loss: Fraction) -> None:
    assert pure_loss(event, relation) == loss * PER_NAT
    assert event_curve(event, relation).pure == loss * PER_NAT


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(1e6),
        Composed((TENTH, Gaussian(1e6))),
        GroupPrivacy(2, PoissonSampled(0.1, EpsilonDelta(0.1, 1e-9))),
        EpsilonDelta(10_000.0),
    ],
)
def test_loss_without_a_bound_never_fits(event: DpEvent) -> None:
    if event == EpsilonDelta(10_000.0):
        event = SelfComposed(event, 10**9)
    assert event_curve(event, ADDED).pure == UNBOUNDED
    account = charged(make_account(1e4, 1e-6), TENTH)
    assert account.exact_left(account.bounds(), event_curve(event, ADDED)) < 0


@example(p=0.9999999999999994, k=2, q=0.5, epsilon=1.0)
@given(p=st.floats(1e-9, 1.0), k=st.integers(2, 50), q=st.floats(1e-6, 0.999), epsilon=st.floats(1e-3, 20.0))
def test_computed_loss_is_rounded_up_a_little(p: float, k: int, q: float, epsilon: float) -> None:
    """Compare logarithms with rationals: e^loss is the largest quotient of probabilities, up to 1e-12."""
    with mp.workdps(50):
        answered = exp(mpf(pure_loss(RandomizedResponse(p, k), REPLACED)) / PER_NAT)
        least = min(mpf(p), mpf(repr(p)))  # near 1 they differ by a part of 1 - p
        quotient = (k - (k - 1) * least) / least
        assert quotient <= answered <= quotient ** (1 + mpf(1e-12)) * (1 + mpf(1e-15))
        sampled = exp(mpf(pure_loss(PoissonSampled(q, EpsilonDelta(epsilon)), ADDED)) / PER_NAT)
        exact = 1 + mpf(q) * (exp(mpf(repr(epsilon))) - 1)
        assert exact <= sampled * (1 + mpf(1e-18))
        assert sampled <= exact ** (1 + mpf(1e-12)) * (1 + mpf(1e-15))
        assert pure_nats(pure_loss(EpsilonDelta(epsilon), ADDED)) == epsilon


def test_sample_of_a_probability_with_few_digits_loses_no_less_than_is_written() -> None:
    event, written = PoissonSampled(1.5e-323, EpsilonDelta(750.0)), mpf("1.5e-323")  # the float is 1 % smaller
    with mp.workdps(50):
        assert pure_loss(event, ADDED) >= log1p(written * (exp(mpf(750)) - 1)) * PER_NAT
