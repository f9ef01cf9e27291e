"""How many steps of a plan fit: where a charge is truncated, and where a lowered limit takes reserved steps."""

from dataclasses import replace
from datetime import UTC, datetime
from math import exp, sqrt

import pytest
from scipy.stats import norm

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve
from app.ledger.accounts import Account
from app.ledger.admission import Admission, admit, first_that_fit, hold
from app.ledger.filters import Limit
from app.ledger.limit_changes import ActivePlan, revoked_plans, with_limit
from app.ledger.plan_filter import UNITS
from app.ledger.plans import Plan
from app.ledger.reservations import PlannedItem, Reservation, ReservationStatus
from app.ledger.step_events import MAX_COUNT, StepEvent, counts_of, first_steps
from app.ledger.tuning import DECLARED_SHARE, Tuning, planned_weights, weights_under

from .conftest import make_account, planning

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
STEP = PoissonSampled(0.001, Gaussian(1.0))
"""Under LIMIT no order admits it, and a plan has thousands of it."""

LIMIT = Limit(0.5, 1e-6)


def planned(event: DpEvent) -> tuple[Account, Plan]:
    """An account that plans an event without end."""
    account = planning(make_account(LIMIT.epsilon, LIMIT.delta), StepEvent(event, MAX_COUNT))
    assert account.plan is not None
    return account, account.plan


def test_a_charge_is_truncated_to_what_a_plan_has() -> None:
    account, plan = planned(STEP)
    steps = plan.bound.steps
    assert steps > 1000
    assert isinstance(admit([account], [account.price(StepEvent(STEP, steps))]), Admission)
    assert first_that_fit([account], [account.price(StepEvent(STEP, steps + 1))]) == steps


def test_a_lowered_limit_leaves_reservations_what_its_plan_still_has() -> None:
    account, plan = planned(STEP)
    reserved = plan.bound.steps // 2
    outcome = hold([account], [account.price(StepEvent(STEP, reserved))])
    assert isinstance(outcome, tuple)
    lower = replace(LIMIT, epsilon=0.45)
    lowered = with_limit(outcome[0], lower, weights_under(Tuning.of(outcome[0]), lower))
    assert lowered.plan is not None
    assert lowered.plan.bound.steps > reserved
    active = Reservation(
        "rsv_p",
        account.id,
        1,
        ReservationStatus.ACTIVE,
        (PlannedItem(STEP, reserved),),
        60,
        datetime(2026, 11, 25, tzinfo=UTC),
    )
    plans = [ActivePlan(active, (account.id,), lapsed=False)]
    curves: dict[DpEvent, RdpCurve] = {STEP: account.price(StepEvent(STEP, 1)).curve}
    assert revoked_plans(lowered, [], plans, curves) == []


@pytest.mark.parametrize(
    ("limit", "items"),
    [
        (Limit(3.0, 1e-5), [(EpsilonDelta(0.5, 1e-6), 4), (PoissonSampled(0.01, Gaussian(1.0)), 1000)]),
        (Limit(1.0, 1e-5), [(EpsilonDelta(0.2, 1e-7), 40), (Gaussian(10.0), 100)]),
    ],
)
def test_a_plan_may_begin_with_more_own_delta_than_it_goes_on_with(
    limit: Limit, items: list[tuple[DpEvent, int]]
) -> None:
    workload = tuple(StepEvent(event, count) for event, count in items)
    weights = planned_weights(limit, workload, ADD, 1, DECLARED_SHARE)
    assert weights.within(limit.delta)
    assert weights.plan is not None
    allowed = counts_of(first_steps(workload, weights.plan.steps))
    assert sum(event.delta * count for event, count in allowed.items() if isinstance(event, EpsilonDelta)) > 0
    own = sum(event_curve(event, ADD, 1).delta * count for event, count in allowed.items())
    assert own <= weights.set_aside()
    assert weights.plan.steps > 4


def planned_noise(noise: float, limit: Limit) -> Account:
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
    account = planned_noise(noise, limit)
    assert account.plan is not None
    most = sqrt(UNITS / account.plan.capacity[1]) * (1 + 1e-9)
    outcome = admit([account], [account.price(StepEvent(Gaussian(most), 1))])
    assert not isinstance(outcome, Admission) or delta(most, limit.epsilon) <= limit.delta


def test_one_release_that_uses_up_a_whole_plan_has_the_plans_delta() -> None:
    """A step takes 4608.06 units. So 0.02 % of 1 / z^2 would be given away, which the orders' share of delta hides."""
    limit = Limit(0.2, 1e-12)
    account = planned_noise(988_600.0, limit)
    assert account.plan is not None
    assert account.plan.bound.steps < MAX_COUNT
    nothing, most = (0,) * len(account.plan.capacity), sqrt(UNITS / account.plan.capacity[1]) * (1 + 1e-9)
    assert account.plan.repetitions(nothing, account.plan.workload.cost(Gaussian(most))) == 1
    assert delta(most, limit.epsilon) == pytest.approx(account.plan.bound.delta, rel=1e-4)
    assert delta(most, limit.epsilon) <= account.plan.bound.delta
