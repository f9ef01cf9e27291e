"""Charges decided by counting are those of the rule, to the last bit of every row, by orders and by plans."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, Gaussian, Laplace, NeighboringRelation, PoissonSampled
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.accounts.account_records import AccountRecord, Population, watermark_of
from app.ledger.accounts.alerts import AlertSettings
from app.ledger.admission import admission
from app.ledger.admission.admission import Admission
from app.ledger.admission.counted_accounts import CountedAccount, admit_by_counting
from app.ledger.governance.filter_weights import DEFAULT_SHARE
from app.ledger.step_events import PricedStep, StepEvent
from tests.ledger.conftest import chained, make_account, planning, priced
from tests.ledger.plan.plan_models import COVERED_SOMEWHERE, EVENTS, Taken, cost_of, limits, plans, shares
from tests.soak import few

NOW = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
POPULATION = Population("patient", NeighboringRelation.ADD_OR_REMOVE_ONE, None)
SOME_EVENTS: list[DpEvent] = [
    *(Gaussian(2.0), Gaussian(40.0), Laplace(3.0), PoissonSampled(0.004, Gaussian(1.1))),
    PoissonSampled(0.2, Gaussian(3.0)),
]
numbers = st.one_of(st.integers(1, 3), st.integers(1, 3), st.integers(1, 10**9))
few_units = st.lists(st.integers(0, 2**40), min_size=1, max_size=7)
units = st.sampled_from([0, 1, 2**41, 2**53, EXHAUSTED // 3, EXHAUSTED - 1, EXHAUSTED])
thresholds = st.sampled_from([(), (0.5, 0.8, 1.0), (0.1, 0.2, 0.9)])
several = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(1, 3) | st.integers(1, 10**4)), min_size=8, max_size=24
)


def recorded(account: Account, reached: Sequence[float] = ()) -> AccountRecord:
    """An account as it is kept after a charge."""
    kept, watermark = AlertSettings(tuple(reached), 30), watermark_of(account, tuple(reached))
    return AccountRecord(account, POPULATION, NOW, NOW, alert_settings=kept, watermark=watermark)


def charged_once(path: Sequence[Account], step: PricedStep, reached: Sequence[float]) -> list[AccountRecord] | None:
    """The path after its first charge, which freezes the weights; None if that does not fit."""
    outcome = admission.admit(path, [step])
    if not isinstance(outcome, Admission):
        return None
    records = []
    for account, after in zip(path, outcome.accounts, strict=True):
        charged = recorded(account, reached).charged_to(after, [step], NOW)
        records.append(replace(charged, watermark=watermark_of(after, reached)))
    return records


def settled_by_the_rule(record: AccountRecord) -> AccountRecord:
    """The record after its rows were written: its curves, and the next threshold."""
    assert record.watermark is not None
    if not record.watermark.holds(record.account.spent):
        record = replace(record, watermark=watermark_of(record.account, record.alert_settings.thresholds))
    return replace(record, uncompacted=record.uncompacted or {})


def compare_with_the_rule(records: list[AccountRecord], steps: Sequence[PricedStep], data: st.DataObject) -> None:
    """Charge steps, or as many repetitions as just fit or do not, by counting and by the rule."""
    counted = [CountedAccount(record) for record in records]
    for step in steps:
        left, _ = admission.repetitions_left([record.account for record in records], step)
        beside = [max(1, left - 1), max(1, left), left + 1]  # the boundary, and one on either side
        number = min(10**9, data.draw(st.sampled_from([*[step.step.count] * 9, *beside])))
        asked = PricedStep(StepEvent(step.step.event, number), step.curve)
        ruled = admission.admit([record.account for record in records], [asked])
        by_count = admit_by_counting(counted, asked)
        if by_count is not None:
            assert isinstance(ruled, Admission)
            assert (by_count.used, by_count.steps_remaining) == (ruled.used, ruled.steps_remaining)
            assert by_count.binding.id == ruled.binding.id
            assert not by_count.overdrawn
            kept = [after.is_planned() for after in ruled.accounts]
            assert kept == [record.account.is_planned() for record in records]  # leaving a plan is for the rule
        if not isinstance(ruled, Admission):
            continue
        records = [each.charged_to(after, [asked], NOW) for each, after in zip(records, ruled.accounts, strict=True)]
        if by_count is None:
            records = [settled_by_the_rule(record) for record in records]
            counted = [CountedAccount(record) for record in records]
            continue
        for each, record in zip(counted, records, strict=True):
            each.charge(number, NOW)
            assert (each.version, each.uncompacted) == (record.account.version, record.uncompacted)
            assert each.usage[0] == record.account.spent.used
            assert record.watermark is not None
            assert record.watermark.holds(record.account.spent)
            assert each.copy().settled() == record


@settings(few(15), phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking so many decisions takes minutes
@given(
    st.lists(st.tuples(st.sampled_from([8.0, 10_000.0]), st.just(1e-5)), min_size=1, max_size=3),
    st.tuples(st.sampled_from(SOME_EVENTS), thresholds),
    st.lists(st.one_of(few_units, few_units, st.lists(units, min_size=1, max_size=7)), min_size=2, max_size=8),
    st.lists(st.tuples(st.integers(0, 9), numbers), min_size=10, max_size=30),
    st.data(),
)
def test_counting_decides_as_the_rule_at_any_cost(
    limits: list[tuple[float, float]],
    begun: tuple[DpEvent, tuple[float, ...]],
    patterns: list[list[int]],
    asked: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    nodes = [make_account(*limit, name=f"n{depth}") for depth, limit in enumerate(limits)]
    run = data.draw(st.sampled_from([[make_account(name="run", limited=False)], []]))  # without a limit, or with one
    path = chained(*nodes, *run)
    records = charged_once(path, priced(path[0], begun[0]), begun[1])
    costs = [RdpCurve(np.resize(np.array(pattern, dtype=np.int64), zero_curve().values.size)) for pattern in patterns]
    costs += [zero_curve(), zero_curve()]  # one object, but not one event
    if records is not None:
        if data.draw(st.booleans()):
            records = [replace(each, account=each.account.with_hold(costs[0])) for each in records]
        kinds = [(Gaussian(1.0 + kind), costs[kind % len(costs)]) for kind in range(10)]
        steps = [PricedStep(StepEvent(kinds[kind][0], number), kinds[kind][1]) for kind, number in asked]
        compare_with_the_rule(records, steps, data)


@st.composite
def paths(draw: st.DrawFn) -> tuple[Account, ...]:
    """A run under accounts with plans or without, with a plan of its own, only a limit, or none."""
    nodes = []
    for depth in range(draw(st.integers(1, 3))):
        node = make_account(*draw(limits), name=f"n{depth}")
        nodes.append(planning(node, *draw(plans), share=draw(shares)) if draw(st.sampled_from([1, 1, 0])) else node)
    kind = draw(st.sampled_from(["unlimited", "unlimited", "limited", "planned"]))
    run = make_account(*draw(limits), name="run", limited=kind != "unlimited")
    return chained(*nodes, planning(run, *draw(plans), share=DEFAULT_SHARE) if kind == "planned" else run)


@few(15)
@given(paths(), thresholds, st.sampled_from(COVERED_SOMEWHERE), several, st.data())
def test_counting_decides_as_the_rule_under_plans(
    path: tuple[Account, ...], reached: tuple[float, ...], first: DpEvent, asked: Taken, data: st.DataObject
) -> None:
    planned = [account.planned[0].event for account in path if account.planned]
    first = data.draw(st.sampled_from([first, *planned * 3]))
    records = charged_once(path, priced(path[0], first), reached)
    if records is None:
        return
    if data.draw(st.booleans()):
        held = [each.account.with_hold(cost_of(each.account, [(Gaussian(90.0), 2)])) for each in records]
        records = [replace(each, account=account) for each, account in zip(records, held, strict=True)]
    asked += [(each, count) for each in planned for count in (1, 2, 3, 1)]
    order = data.draw(st.permutations(asked))
    compare_with_the_rule(records, [priced(path[0], event, count) for event, count in order], data)
