"""Gaussian noise on all data of a plan, counted in whole units: what is admitted stays within the limit, exactly."""

from math import exp, sqrt

import pytest
from scipy.stats import norm

from app.accounting.events import Gaussian
from app.ledger.accounts import Account
from app.ledger.admission import Admission, admit
from app.ledger.filters import Limit
from app.ledger.plan_filter import UNITS
from app.ledger.step_events import MAX_COUNT, StepEvent

from .conftest import make_account, planning


def planned(noise: float, limit: Limit) -> Account:
    """An account that plans one kind of Gaussian noise on all data."""
    return planning(make_account(limit.epsilon, limit.delta), StepEvent(Gaussian(noise), MAX_COUNT))


def delta(noise: float, epsilon: float) -> float:
    """The exact delta of Gaussian noise on all data (Balle and Wang 2018, arXiv 1805.06530, Theorem 8)."""
    at, half = epsilon * noise, 1 / (2 * noise)
    return float(norm.cdf(half - at) - exp(epsilon) * norm.cdf(-half - at))


@pytest.mark.parametrize(
    ("noise", "limit"), [(1e6, Limit(0.1, 1e-6)), (1e6, Limit(0.16, 1e-9)), (988_600.0, Limit(0.2, 1e-12))]
)
def test_one_release_for_a_whole_plan_is_within_the_limit(noise: float, limit: Limit) -> None:
    """The plan holds so many steps of far more noise than one release that its units allow."""
    account = planned(noise, limit)
    assert account.plan is not None
    most = sqrt(UNITS / account.plan.capacity[1]) * (1 + 1e-9)
    outcome = admit([account], [account.price(StepEvent(Gaussian(most), 1))])
    assert not isinstance(outcome, Admission) or delta(most, limit.epsilon) <= limit.delta


def test_one_release_that_uses_up_a_whole_plan_has_the_plans_delta() -> None:
    """A step takes 4608.06 units. So 0.02 % of 1 / z^2 would be given away, which the orders' share of delta hides."""
    limit = Limit(0.2, 1e-12)
    account = planned(988_600.0, limit)
    assert account.plan is not None
    assert account.plan.bound.steps < MAX_COUNT
    nothing, most = (0,) * len(account.plan.capacity), sqrt(UNITS / account.plan.capacity[1]) * (1 + 1e-9)
    assert account.plan.repetitions(nothing, account.plan.workload.cost(Gaussian(most))) == 1
    assert delta(most, limit.epsilon) == pytest.approx(account.plan.bound.delta, rel=1e-4)
    assert delta(most, limit.epsilon) <= account.plan.bound.delta
