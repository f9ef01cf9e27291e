"""An account's plan is one more coordinate of its filter: admission, used share, partitions, limits and weights."""

from dataclasses import replace
from fractions import Fraction
from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import GRID_VERSION, RdpCurve
from app.accounting.events import (
    DpEvent,
    EpsilonDelta,
    Exponential,
    Gaussian,
    Laplace,
    NeighboringRelation,
    PoissonSampled,
)
from app.accounting.formulas.analytic_gaussian import gaussian_delta
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import MOST_USED, Account, zero_curve
from app.ledger.admission.admission import Admission, first_that_fit, record
from app.ledger.filter.filters import filter_bounds, filter_weights
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, DEFAULT_SHARE, planned_weights
from app.ledger.plan.plan_filter import UNITS
from app.ledger.plan.plans import PlanState, is_allowed
from app.ledger.step_events import MAX_COUNT, StepEvent, counts_of, first_steps
from tests.ledger.conftest import admit, admitted, make_account, plan_of, planning, priced
from tests.ledger.plan.plan_models import EVENTS, Taken, charges, cost_of, limits, planned_accounts, plans, shares
from tests.soak import few

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
UNCOVERED = PoissonSampled(0.01, Gaussian(2.0))


@few(20)
@given(planned_accounts, charges)
def test_used_share_is_at_most_1_for_what_was_admitted_and_only_grows(account: Account, asked: Taken) -> None:
    assert account.used() == 0.0
    shares = [0.0]
    for event, count in asked:
        outcome = admit([account], event, count)
        if not isinstance(outcome, Admission):
            continue
        [account] = outcome.accounts
        assert outcome.used == account.used() <= 1.0
        shares.append(account.used())
        plan = account.plan
        if plan is None:  # the first charge was of another kind
            continue
        by_plan = plan.share(account.spent.used[account.id])
        assert account.used() == min(account.bounds().used(account.spent), by_plan)
        assert account.is_planned() == (by_plan <= 1)
        if by_plan <= 1:
            needed = plan.workload.steps_for(account.spent.used[account.id])
            assert needed is not None
            assert by_plan <= 1 if needed <= plan.bound.steps else by_plan > 1
    assert shares == sorted(shares)


@given(planned_accounts, st.integers(1, 5), st.booleans())
def test_an_uncovered_charge_ends_a_plan_that_was_begun(account: Account, count: int, reserved: bool) -> None:  # noqa: FBT001
    begun = cost_of(account, [(account.planned[0].event, 1)])
    account = account.with_hold(begun) if reserved else account.charged(begun)
    after = record([account], [priced(account, UNCOVERED, count)]).accounts[0]
    assert after.weights == account.weights  # held counts as touched
    plan, status = plan_of(after), after.plan_status
    assert status is not None
    assert status.state is PlanState.ENDED
    assert plan.share(after.spent.used[after.id]) == inf
    assert not after.is_planned()
    assert after.used() == after.bounds().used(after.spent) < MOST_USED
    assert record([after], [priced(after, account.planned[0].event)]).accounts[0].planned_repetitions((), None) == -1


@few(25)
@given(planned_accounts, st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4), st.booleans())
def test_the_first_charge_keeps_the_plan_or_tunes_the_orders_for_it(
    account: Account,
    events: list[DpEvent],
    voided: bool,  # noqa: FBT001
) -> None:
    other = {"bud_above": (0, 0)}
    account = replace(account, spent=account.spent.using({**account.spent.used, **other}))
    if voided:
        begun = account.with_hold(cost_of(account, [(account.planned[0].event, 1)]))
        account = begun.settle_hold(begun.held.times(0), begun.held.times(0))
    steps = [priced(account, event) for event in events]
    ready = account.prepared_for(steps)
    assert account.limit is not None
    if all(plan_of(account).workload.covers(event) for event in events):
        assert ready is account
        return
    assert ready.plan is None
    assert ready.weights == filter_weights(account.limit, steps[0].curve, GRID_VERSION)
    assert ready.spent.used == other
    assert account.id not in ready.held.used
    charged = record([account], steps).accounts[0]
    assert charged.spent.used == other
    assert charged.weights == charged.prepared_for([priced(account, Laplace(3.0))]).weights == ready.weights


@given(limits, plans, shares)
def test_all_parts_are_within_delta_exactly(
    limit: tuple[float, float], items: tuple[StepEvent, ...], share: float
) -> None:
    account = planning(make_account(*limit), *items, share=share)
    weights, workload = account.weights, plan_of(account).workload
    assert weights is not None
    bound = weights.plan
    assert bound is not None
    assert Fraction(limit[1]) * (1 - Fraction(1, 10**12)) <= sum(map(Fraction, weights.parts)) <= Fraction(limit[1])
    assert weights.reserve >= 0.01 * limit[1] * (1 - 1e-9)
    own = any(event_curve(item.event, ADD).delta for item in items)
    assert (bound.delta < share * limit[1] * (1 - 1e-9)) == own
    assert own or bound.delta == share * limit[1]
    assert bound.share == share
    assert is_allowed(items, ADD, limit[0], bound)
    assert workload.delta(bound.steps, limit[0], bound.delta) <= bound.delta
    if bound.steps < workload.steps:
        assert workload.delta(bound.steps + 1, limit[0], bound.delta) > bound.delta * (1 - 1e-5)
    again = planned_weights(Limit(*limit), items, ADD, GRID_VERSION, share, bound)
    assert again == weights  # as it is verified


FILTERS: list[tuple[Limit, DpEvent, tuple[int, ...], tuple[float, float, float], int, int]] = [
    (
        *(Limit(1.0, 1e-5), Gaussian(40.0), (130, 164, 204, 255, 284, 318, 397, 496, 616)),
        *((9.600000000000001e-06, 3.7499999999962544e-08, 1.0000000000029921e-07), 54375716318298, 100000000000),
    ),
    (
        *(Limit(8.0, 1e-8), PoissonSampled(0.01, Gaussian(1.1)), (57, 72, 93, 117, 131, 147, 184, 230, 287)),
        *((9.6e-09, 3.7499999999962544e-11, 1.0000000000029992e-10), 499806662550092, 100000000),
    ),
    (
        *(Limit(3.0, 1e-5), EpsilonDelta(0.1, 1e-8), (78, 100, 126, 157, 177, 198, 247, 307, 383)),
        *((9.22699344519413e-06, 3.604294314525356e-08, 4.846630096438427e-07), 187540377870530, 484663009643),
    ),
]


@pytest.mark.parametrize(("limit", "event", "indices", "parts", "total", "room"), FILTERS)
def test_filter_without_a_plan_never_changes(
    limit: Limit,
    event: DpEvent,
    indices: tuple[int, ...],
    parts: tuple[float, float, float],
    total: int,
    room: int,
) -> None:
    """The numbers were computed before accounts had plans; the bounds are summed."""
    weights = filter_weights(limit, event_curve(event, ADD), GRID_VERSION)
    centre, around, reserve = parts
    assert weights.indices == indices
    assert weights.deltas == tuple(centre if place == 4 else around for place in range(9))
    assert (weights.reserve, weights.plan) == (reserve, None)
    gate = filter_bounds(limit, weights, GRID_VERSION)
    assert (sum(gate.bounds.tolist()), gate.room) == (total, room)
    assert gate.bounds.tolist()[:3] == [-1, -1, -1]
    ready = make_account(limit.epsilon, limit.delta).prepared_for([priced(make_account(), event)])
    assert (ready.weights, ready.spent) == (weights, RdpCurve.zero(ready.spent.values.size))


def test_account_without_reservations_has_no_reserved_steps() -> None:
    event = Laplace(10.0)
    account = planning(make_account(), StepEvent(event, 5))
    status = account.settle_hold(cost_of(account, [(event, 3)]), zero_curve()).plan_status
    assert status is not None
    assert (status.steps_used, status.steps_reserved) == (3, 0)


@given(planned_accounts, st.floats(1e-3, 3.0))
def test_usage_below_a_share_is_the_largest(account: Account, share: float) -> None:
    plan = plan_of(account)
    most = plan.usage_below(Fraction(share))
    assert all(
        Fraction(used) < Fraction(share) * there or not used for used, there in zip(most, plan.capacity, strict=True)
    )
    assert all(Fraction(used + 1) >= Fraction(share) * there for used, there in zip(most, plan.capacity, strict=True))


def test_a_charge_is_truncated_to_what_a_plan_has() -> None:
    event = PoissonSampled(0.001, Gaussian(1.0))  # no order admits it, and a plan has thousands of it
    account = planning(make_account(0.5, 1e-6), StepEvent(event, MAX_COUNT))
    steps = plan_of(account).bound.steps
    assert steps > 1000
    admitted([account], event, steps)
    assert first_that_fit([account], [priced(account, event, steps + 1)]) == steps


@pytest.mark.parametrize("count", [100, MAX_COUNT])
@pytest.mark.parametrize("share", [DECLARED_SHARE, DEFAULT_SHARE])
def test_a_plan_is_not_taken_where_the_orders_admit_more(count: int, share: float) -> None:
    limit, event = Limit(1.0, 1e-5), Exponential(0.1)
    weights = planned_weights(limit, (StepEvent(event, count),), ADD, 1, share)
    assert weights == filter_weights(limit, event_curve(event, ADD, 1), 1)
    bounds = filter_bounds(limit, weights, 1)
    assert bounds.repetitions(zero_curve(), event_curve(event, ADD, 1)) == 25  # with a plan 22 or 23
    quiet = planned_weights(limit, (StepEvent(PoissonSampled(0.01, Gaussian(1.0)), count),), ADD, 1, share)
    assert quiet.plan is not None


@pytest.mark.parametrize(
    ("limit", "items"),
    [
        (Limit(3.0, 1e-5), [(EpsilonDelta(0.5, 1e-6), 4), (PoissonSampled(0.01, Gaussian(1.0)), 1000)]),
        (Limit(1.0, 1e-5), [(EpsilonDelta(0.2, 1e-7), 40), (Gaussian(10.0), 100)]),
    ],
)
def test_a_plan_may_begin_with_more_own_delta_than_it_goes_on_with(limit: Limit, items: Taken) -> None:
    workload = tuple(StepEvent(event, count) for event, count in items)
    weights = planned_weights(limit, workload, ADD, 1, DECLARED_SHARE)
    assert weights.within(limit.delta)
    assert weights.plan is not None
    allowed = counts_of(first_steps(workload, weights.plan.steps))
    assert sum(event.delta * count for event, count in allowed.items() if isinstance(event, EpsilonDelta)) > 0
    own = sum(event_curve(event, ADD, 1).delta * count for event, count in allowed.items())
    assert own <= weights.set_aside()
    assert weights.plan.steps > 4


@pytest.mark.parametrize(
    ("noise", "limit"), [(1e6, Limit(0.1, 1e-6)), (1e6, Limit(0.16, 1e-9)), (988_600.0, Limit(0.2, 1e-12))]
)
def test_one_release_that_uses_up_a_whole_plan_is_within_the_limit(noise: float, limit: Limit) -> None:
    """The plan holds so many steps of far more noise than one release that its units allow.

    A step of the last takes 4608.06 units: 0.02 % of 1 / z^2 would be given away, hidden by the orders' share of delta.
    """
    account = planning(make_account(limit.epsilon, limit.delta), StepEvent(Gaussian(noise), MAX_COUNT))
    plan = plan_of(account)
    most = sqrt(UNITS / plan.capacity[1]) * (1 + 1e-9)
    delta = gaussian_delta(1 / most, limit.epsilon)
    assert not isinstance(admit([account], Gaussian(most)), Admission) or delta <= limit.delta
    if plan.bound.steps < MAX_COUNT:
        assert plan.repetitions((0,) * len(plan.capacity), plan.workload.cost(Gaussian(most))) == 1
        assert plan.bound.delta * (1 - 1e-4) <= delta <= plan.bound.delta * (1 + 1e-9)
