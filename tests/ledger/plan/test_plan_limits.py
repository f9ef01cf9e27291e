"""Another limit allows more or less of a plan; a lower one revokes planned steps that nothing has room for."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import Gaussian, Laplace, NeighboringRelation
from app.ledger.accounts.account import Account, with_usage
from app.ledger.admission.admission import Admission, record
from app.ledger.filter.filters import FilterWeights
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, DEFAULT_SHARE
from app.ledger.governance.limit_changes import ActiveReservation, revoked_reservations
from app.ledger.plan.plans import is_allowed
from app.ledger.runs import reservations
from app.ledger.runs.reservations import Reservation, ReservationStatus
from app.ledger.step_events import MAX_COUNT, StepEvent, total_cost
from tests.ledger.conftest import admit, chained, make_account, plan_of, planning, priced
from tests.ledger.ledger_model import LedgerModel, limited_to, most_that
from tests.ledger.plan.plan_models import EVENTS, LIMITS, Taken, charges, cost_of, planned_accounts, plans, shares
from tests.soak import few

HIGH = Limit(3.0, 1e-6)


def reserved(number: int, items: Taken, used: int = 0) -> Reservation:
    planned = reservations.items_of([StepEvent(event, count) for event, count in items])
    first = replace(planned[0], used=min(used, planned[0].count))
    expires = datetime(2026, 11, 25, tzinfo=UTC)
    return Reservation(f"res_{number}", "run", 1, ReservationStatus.ACTIVE, (first, *planned[1:]), 60, expires)


def held(path: tuple[Account, ...], reservations: Sequence[Reservation]) -> tuple[Account, ...]:
    """Hold the reservations on every account of the path."""
    steps = [priced(path[0], item.event, item.count) for each in reservations for item in each.items]
    cost = total_cost(with_usage(path, steps))
    return tuple(account.with_hold(cost) for account in path)


def revoked(path: tuple[Account, ...], limit: Limit, reservations: Sequence[Reservation]) -> list[Reservation]:
    """Lower the budget's limit."""
    budget, run = path
    active = [ActiveReservation(each, (budget.id, run.id), lapsed=False) for each in reservations]
    curves = {event: priced(budget, event).curve for event in {i.event for r in reservations for i in r.items}}
    return revoked_reservations(limited_to(budget, limit), [run], active, curves)


def limit_of(account: Account) -> Limit:
    assert account.limit is not None
    return account.limit


def weights_of(account: Account) -> FilterWeights:
    assert account.weights is not None
    return account.weights


def one_run(path: tuple[Account, ...]) -> LedgerModel:
    """Model a budget that one run charges."""
    curves = {event: priced(path[0], event).curve for event in {*EVENTS, path[0].planned[0].event}}
    model = LedgerModel(path[0].relation, {event: curve.using({}) for event, curve in curves.items()})
    model.accounts = {path[0].id: path[0]}
    assert model.register("run", path[0].id)
    return model


items = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(1, 80)), min_size=1, max_size=3, unique_by=lambda i: i[0]
)


@few(10)  # each searches for a number of steps
@given(
    plans, shares, items, st.lists(items, min_size=1, max_size=3), st.integers(0, 3), st.sampled_from([0.5, 1.0, 2.0])
)
def test_as_many_planned_steps_are_kept_as_the_rule_admits(
    planned: tuple[StepEvent, ...], share: float, spent: Taken, plan_items: list[Taken], used: int, epsilon: float
) -> None:
    budget = planning(make_account(HIGH.epsilon, HIGH.delta, name="b"), *planned, share=share)
    path = chained(budget, make_account(name="run", limited=False))
    spent = [(planned[0].event, 1), *spent]  # the plan is begun
    path = record(path, [priced(budget, event, count) for event, count in spent]).accounts
    made = [reserved(number, each, used) for number, each in enumerate(plan_items)]
    path = held(path, made)
    limit = Limit(epsilon, HIGH.delta)
    after = {each.id: each for each in revoked(path, limit, made)}
    model, ledger = limited_to(path[0], limit), one_run(path)
    assert (model.plan is not None) == (path[0].plan is not None)
    taken = [("run", *each) for each in spent]
    taken += [("run", each.items[0].event, each.items[0].used) for each in made]
    for each in made:
        full = False
        for item, kept in zip(each.items, after.get(each.id, each).items, strict=True):
            most = 0 if full else most_that(lambda n: ledger.admits(model, [*taken, ("run", item.event, n)]))  # noqa: B023
            expected = min(item.left, max(0, most))
            assert (kept.left, kept.revoked) == (expected, item.unused - expected)
            taken, full = [*taken, ("run", item.event, expected)], expected < item.left


@pytest.mark.parametrize("other", [False, True], ids=["as planned", "of another kind first"])
def test_more_is_kept_by_the_plan_than_by_the_orders(other: bool) -> None:  # noqa: FBT001
    event, limit = Gaussian(40.0), Limit(1.0, 1e-6)
    budget = planning(make_account(HIGH.epsilon, HIGH.delta, name="b"), StepEvent(event, MAX_COUNT))
    path = chained(budget, make_account(name="run", limited=False))
    path = record(path, [priced(budget, event)]).accounts
    if other:
        path = record(path, [priced(budget, Laplace(1000.0))]).accounts
    made = [reserved(0, [(event, 60)]), reserved(1, [(event, 60)])]
    lowered = limited_to(path[0], limit)
    most = plan_of(lowered).bound.steps
    by_orders = replace(lowered, weights=replace(lowered.weights, plan=None)) if lowered.weights else lowered
    fewer = by_orders.repetitions((), priced(budget, event).curve)
    assert fewer < most - 1 < 120
    after = revoked(held(path, made), limit, made)
    assert 120 - sum(each.steps_revoked for each in after) == (fewer if other else most - 1)
    assert after[-1].steps_revoked > 0
    assert revoked(held(path, made), HIGH, made) == []


@few(4)  # as well
@given(
    planned_accounts, charges, st.lists(st.tuples(st.floats(0.4, 4.0), st.floats(1e-7, 1e-4)), min_size=1, max_size=4)
)
def test_higher_limit_admits_all_that_a_lower_one_admitted(
    account: Account, asked: Taken, changes: list[tuple[float, float]]
) -> None:
    shared = [Fraction(part) / Fraction(limit_of(account).delta) for part in weights_of(account).parts]
    account = account.charged(cost_of(account, [(account.planned[0].event, 1)]))
    for event, count in asked:
        outcome = admit([account], event, count)
        account = outcome.accounts[0] if isinstance(outcome, Admission) else account
    for limit in changes:
        before, account = account, limited_to(account, Limit(*limit))
        assert weights_of(account).within(limit[1])
        now = [Fraction(part) / Fraction(limit[1]) for part in weights_of(account).parts]
        assert all(share * (1 - Fraction(1, 10**10)) <= each <= share for each, share in zip(now, shared, strict=True))
        assert is_allowed(account.planned, NeighboringRelation.ADD_OR_REMOVE_ONE, limit[0], plan_of(account).bound)
        if limit[0] >= limit_of(before).epsilon and limit[1] >= limit_of(before).delta:
            assert plan_of(account).bound.steps >= plan_of(before).bound.steps
            assert account.fits() >= before.fits()
            assert account.is_planned() >= before.is_planned()
            assert account.repetitions((), cost_of(account, asked)) >= before.repetitions((), cost_of(before, asked))


def test_begun_plan_keeps_its_orders_under_another_limit() -> None:
    account = planning(make_account(HIGH.epsilon, HIGH.delta), StepEvent(Gaussian(20.0), 6))
    begun = account.charged(cost_of(account, [(Gaussian(20.0), 1)]))
    untouched, after = (weights_of(limited_to(each, Limit(0.3, HIGH.delta))) for each in (account, begun))
    assert after.indices == weights_of(account).indices != untouched.indices
    assert after.deltas == weights_of(account).deltas


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("share", [DECLARED_SHARE, DEFAULT_SHARE])
def test_a_plan_that_was_used_up_lives_again_under_a_larger_limit_and_one_that_was_left_does_not(
    limit: tuple[float, float], share: float
) -> None:
    event = Gaussian(40.0)
    account = planning(make_account(*limit), StepEvent(event, MAX_COUNT), share=share)
    most = plan_of(account).bound.steps
    used_up = record([account], [priced(account, event, most + 1)]).accounts[0]
    left = record([account], [priced(account, event), priced(account, Laplace(500.0))]).accounts[0]
    assert left.plan is None  # nothing was charged before
    left = record([account.charged(cost_of(account, [(event, 1)]))], [priced(account, Laplace(500.0))]).accounts[0]
    raised = Limit(2 * limit[0], limit[1])
    for each, lives in ((used_up, True), (left, False)):
        assert not each.is_planned()
        after = limited_to(each, raised)
        assert plan_of(after).bound.steps > most
        assert after.is_planned() is lives
        lowered = limited_to(after, Limit(*limit))
        assert plan_of(lowered).bound.steps == most
        assert not lowered.is_planned()
