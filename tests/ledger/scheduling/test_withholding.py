"""What an account withholds, against the definitions in Python's own integers and fractions."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import floor, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, PoissonSampled
from app.ledger.accounts.account import Account, with_usage, zero_curve
from app.ledger.admission.admission import hold_if_fitting
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, Allocation, Share
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent
from tests.ledger.conftest import chained, make_account, plan_of, planning, priced
from tests.ledger.scheduling.blocks import (
    NOTHING,
    ORDERS,
    Units,
    block,
    fits,
    flat,
    open_ledgers,
    part_of,
    plus,
    unlocked,
    waiting,
    with_loss,
)

from . import blocks

TEAMS = ("a", "b", "c")
HALF, THIRD = Fraction(1, 2), Fraction(1, 3)
some = st.tuples(*[st.integers(0, 12)] * (ORDERS + 1))


def team_books(limit: Units, losses: Mapping[str, Units], spent: Units) -> list[Account]:
    root = with_loss(block("root", limit), spent)
    return [root, *(with_loss(block(team, None, "root"), flat(0), losses.get(team, flat(0))) for team in TEAMS)]


@given(
    st.lists(st.tuples(st.sampled_from(TEAMS), some), max_size=30),
    st.sampled_from([(0.3, 0.3, 0.4), (0.5, 0.5, 0.0), (0.2, 0.0, 0.1)]),
    st.sampled_from([ALL, HALF, THIRD]),
)
def test_team_gets_its_minimum_beside_any_requests_of_others(
    asked: list[tuple[str, Units]], minimums: tuple[float, ...], part: Fraction
) -> None:
    limit = (1000, 1000, 1000, 1000)
    shares = {team: Share(least) for team, least in zip(TEAMS, minimums, strict=True)}
    accounts = team_books(limit, {}, flat(0))
    plans = [waiting(f"x{place}", ["root", team], cost) for place, (team, cost) in enumerate(asked)]
    rest = {team: part_of(Fraction(repr(share.minimum)) * part, limit) for team, share in shares.items()}
    last = {team: waiting(f"last_{team}", ["root", team], flat(0)) for team in TEAMS}
    ledgers = open_ledgers(
        accounts, [*plans, *last.values()], {"root": Withholding(Allocation(shares=shares), part, part)}
    )
    got = dict.fromkeys(TEAMS, flat(0))
    for plan in plans:
        held = ledgers.hold(plan)
        if held is not None:
            ledgers.store(plan, held)
            got[plan.path[1]] = plus(got[plan.path[1]], blocks.units_of(plan.cost))
    for team in TEAMS:
        left = tuple(max(0, least - each - len(TEAMS)) for least, each in zip(rest[team], got[team], strict=True))
        if left == NOTHING:
            continue
        mine = waiting(last[team].id, ["root", team], left)
        held = ledgers.hold(mine)
        assert held is not None, "up to a unit of rounding for each team"
        ledgers.store(mine, held)
    assert fits(blocks.room(limit, blocks.total_of(ledgers, "root"), part), NOTHING)


def parallel(counting: int, losses: Mapping[str, Units]) -> list[Account]:
    """A parallel account with three disjoint teams."""
    composed = tuple(
        sum(sorted((each[place] for each in losses.values()), reverse=True)[:counting]) for place in range(ORDERS + 1)
    )
    root = with_loss(block("root", flat(100, 100), None, counting), flat(0), composed)
    return [root, *(with_loss(block(team, None, "root"), flat(0), losses.get(team, flat(0))) for team in TEAMS)]


MAXIMUM = Withholding(Allocation(shares={"b": Share(maximum=0.5)}))
PROMISE = Withholding(Allocation(shares={"c": Share(0.3)}), HALF, HALF)


@pytest.mark.parametrize(("asked", "granted"), [(50, True), (51, False)])
@pytest.mark.parametrize(("lost", "kept"), [(80, MAXIMUM), (50, PROMISE)])
def test_a_partition_without_loss_has_its_maximum_or_all_that_is_unlocked(
    lost: int, kept: Withholding, asked: int, *, granted: bool
) -> None:
    """Another has lost more than its maximum, or all that is unlocked, while a third is promised a part."""
    plan = waiting("x", ["root", "b"], flat(asked))
    ledgers = open_ledgers(parallel(1, {"a": flat(lost)}), [plan], {"root": kept})
    assert (ledgers.hold(plan) is not None) == granted


def test_no_more_own_delta_is_locked_than_is_left() -> None:
    root = block("root", flat(100, 5))
    for part, spent, withheld in ((ALL, 3, 0), (HALF, 0, 3), (HALF, 3, 2), (Fraction(0), 3, 2), (Fraction(0), 6, 0)):
        assert unlocked(part).unlocked_view(with_loss(root, flat(0, spent))).held.delta == withheld


def test_a_promise_that_is_taken_is_kept_no_longer() -> None:
    kept = Withholding(Allocation(shares={"a": Share(0.5)}))
    asked = (("x", "b", 51), ("y", "a", 30), ("z", "b", 50))
    plans = [waiting(name, ["root", team], flat(cost)) for name, team, cost in asked]
    ledgers = open_ledgers([block("root", flat(100, 10)), block("a", None, "root"), block("b", None, "root")], plans)
    ledgers.withholdings["root"] = kept
    assert ledgers.hold(plans[0]) is None
    held = ledgers.hold(plans[1])
    assert held is not None
    ledgers.store(plans[1], held)
    assert ledgers.hold(plans[2]) is not None, "30 of 50 are taken, 20 are kept"
    assert ledgers.withholdings["root"].taken["a"] == plans[1].cost
    assert kept.taken == {}


def most_steps(account: Account, step: PricedStep, part: Fraction) -> int:
    """Count the steps that a part of an untouched account's limit allows, by its plan or at an order."""
    [counted] = with_usage([account], [step])
    bounds = account.bounds()
    pairs = zip(map(int, bounds.bounds), map(int, step.curve.values[bounds.places]), strict=True)
    found = [floor(part * most) // each for most, each in pairs if most >= 0]
    if account.plan is not None:
        pairs = zip(account.plan.capacity, counted.curve.used[account.id], strict=True)
        found.append(min(floor(part * most) // each for most, each in pairs if each))
    own = floor(part * bounds.room) // step.curve.delta if step.curve.delta else inf
    return int(min(max(found), own))


def holds(account: Account, step: PricedStep, count: int, kept: Withholding) -> bool:
    """Whether so many steps are held by a run directly under an account."""
    path = chained(account, make_account(name="r", limited=False))
    steps = [step._replace(step=StepEvent(step.step.event, count))]
    return hold_if_fitting(path, steps, lambda each: [kept.view(each[0], each), each[1]]) is not None


@pytest.mark.parametrize("part", [ALL, Fraction(1, 7), HALF, Fraction(999, 1000)])
@pytest.mark.parametrize("event", [Gaussian(40.0), EpsilonDelta(0.01, 1e-9), PoissonSampled(0.001, Gaussian(2.0))])
@pytest.mark.parametrize("planned", [None, StepEvent(Gaussian(40.0), MAX_COUNT)])
def test_a_part_of_a_real_limit_allows_a_part_of_its_steps(
    planned: StepEvent | None, event: DpEvent, part: Fraction
) -> None:
    account = make_account(1.0, 1e-5)
    step = priced(account, event)
    tuned = account.prepared_for([step]) if planned is None else planning(account, planned)
    most = most_steps(tuned, step, part)
    for each in (account, tuned) if planned is None else (tuned,):
        assert [holds(each, step, count, unlocked(part)) for count in (most, most + 1)] == [True, False]


def test_a_locked_filter_that_is_not_tuned_is_left_alone_and_admits_what_costs_nothing() -> None:
    account = make_account(1.0)
    assert unlocked(HALF).view(account, [account]) is unlocked(HALF).unlocked_view(account) is account
    step = priced(account, Gaussian(1.0))._replace(curve=zero_curve())
    assert holds(account, step, 1, unlocked(Fraction(0)))


def test_promised_part_of_a_reservation_is_kept_of_each_mechanism() -> None:
    once, many = StepEvent(EpsilonDelta(0.05, 0.0), 4), StepEvent(Gaussian(40.0), MAX_COUNT)
    account = planning(make_account(1.0, 1e-5), once, many)
    query, step = account.price(once), account.price(replace(many, count=1))
    [used] = with_usage([account], [query])
    account = replace(account, spent=account.spent + used.cost)  # all queries of the plan
    plan, weights = plan_of(account), account.weights
    assert weights is not None
    kept = Withholding(Allocation(shares={"bud_a": Share(0.5)}))
    columns = zip(plan.capacity, plan.workload.cost(many.event), strict=True)
    most = min(most // 2 // each for most, each in columns if each)
    assert [holds(account, step, count, kept) for count in (most, most + 1)] == [True, False]
    without_plan = replace(account, planned=(), weights=replace(weights, plan=None))
    assert not holds(without_plan, step, most, kept), "it is the plan that covers them"
