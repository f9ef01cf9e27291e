"""Charges decided by counting are those of the rule, to the last bit of every row."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, Laplace, NeighboringRelation, PoissonSampled
from app.ledger import admission
from app.ledger.account_records import MOST_EVENTS, AccountRecord, Population, watermark_of
from app.ledger.accounts import Account, zero_curve
from app.ledger.admission import Admission
from app.ledger.alerts import AlertSettings
from app.ledger.counting import CountedAccount, admit_by_counting
from app.ledger.policies import Policy
from app.ledger.step_events import PricedStep, StepEvent
from tests.soak import few

from .conftest import AccountMaker, chained

NOW = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
POPULATION = Population("patient", NeighboringRelation.ADD_OR_REMOVE_ONE, None)
EVENTS: list[DpEvent] = [
    Gaussian(2.0),
    Gaussian(40.0),
    Laplace(3.0),
    PoissonSampled(0.004, Gaussian(1.1)),
    PoissonSampled(0.2, Gaussian(3.0)),
    EpsilonDelta(0.01, 1e-9),
]
numbers = st.one_of(st.integers(1, 3), st.integers(1, 3), st.integers(1, 10**9))
few_units = st.lists(st.integers(0, 2**40), min_size=1, max_size=7)
units = st.sampled_from([0, 1, 2**41, 2**53, EXHAUSTED // 3, EXHAUSTED - 1, EXHAUSTED])
thresholds = st.sampled_from([(), (0.5, 0.8, 1.0), (0.1, 0.2, 0.9)])


def recorded(account: Account, reached: Sequence[float] = ()) -> AccountRecord:
    """An account as it is kept after a charge."""
    settings = AlertSettings(tuple(reached), 30)
    return AccountRecord(
        account, POPULATION, NOW, NOW, alert_settings=settings, watermark=watermark_of(account, settings.thresholds)
    )


def charged_once(path: Sequence[Account], priced: PricedStep, reached: Sequence[float]) -> list[AccountRecord] | None:
    """The path after its first charge, which freezes the weights; None if that does not fit."""
    outcome = admission.admit(path, [priced])
    if not isinstance(outcome, Admission):
        return None
    records = []
    for account, after in zip(path, outcome.accounts, strict=True):
        charged = recorded(account, reached).charged_to(after, [priced], NOW)
        records.append(replace(charged, watermark=watermark_of(after, reached)))
    return records


def settled_by_the_rule(record: AccountRecord) -> AccountRecord:
    """The record after its rows were written: its curves, and the next threshold."""
    assert record.watermark is not None
    if not record.watermark.holds(record.account.spent):
        record = replace(record, watermark=watermark_of(record.account, record.alert_settings.thresholds))
    return replace(record, uncompacted=record.uncompacted or {})


def path_of(account: AccountMaker, limits: list[tuple[float, float]]) -> tuple[Account, ...]:
    nodes = [account(*limit, name=f"n{depth}") for depth, limit in enumerate(limits)]
    return chained(*nodes, account(name="run", limited=False))


@settings(few(20), phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking so many decisions takes minutes
@given(
    st.lists(st.tuples(st.sampled_from([8.0, 10_000.0]), st.just(1e-5)), min_size=1),
    st.tuples(st.sampled_from(EVENTS[:-1]), thresholds),
    st.lists(st.one_of(few_units, few_units, st.lists(units, min_size=1, max_size=7)), min_size=2, max_size=8),
    st.lists(st.tuples(st.integers(0, 9), numbers), min_size=10, max_size=30),
    st.data(),
)
def test_counting_decides_as_the_rule_at_any_cost(
    account: AccountMaker,
    limits: list[tuple[float, float]],
    begun: tuple[DpEvent, tuple[float, ...]],
    patterns: list[list[int]],
    asked: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    path = path_of(account, limits)[: data.draw(st.sampled_from([None, -1]))]  # a run without a limit, or with one
    records = charged_once(path, path[0].price(StepEvent(begun[0], 1)), begun[1])
    costs = [RdpCurve(np.resize(np.array(pattern, dtype=np.int64), zero_curve().values.size)) for pattern in patterns]
    costs += [zero_curve(), zero_curve()]  # one object, but not one event
    if records is not None:
        if data.draw(st.booleans()):
            records = [replace(each, account=each.account.with_hold(costs[0])) for each in records]
        kinds = [(Gaussian(1.0 + kind), costs[kind % len(costs)]) for kind in range(10)]
        steps = [PricedStep(StepEvent(kinds[kind][0], number), kinds[kind][1]) for kind, number in asked]
        compare_with_the_rule(records, steps, data)


def compare_with_the_rule(records: list[AccountRecord], steps: Sequence[PricedStep], data: st.DataObject) -> None:
    """Charge steps, or as many repetitions as just fit or do not, by counting and by the rule."""
    counted = [CountedAccount(record) for record in records]
    for step in steps:
        left, _ = admission.repetitions_left([record.account for record in records], step)
        beside = [max(1, left - 1), max(1, left), left + 1]  # the boundary, and one on either side
        number = min(10**9, data.draw(st.sampled_from([*[step.step.count] * 9, *beside])))
        priced = PricedStep(StepEvent(step.step.event, number), step.curve)
        ruled = admission.admit([record.account for record in records], [priced])
        by_count = admit_by_counting(counted, priced)
        if by_count is not None:
            assert isinstance(ruled, Admission)
            assert (by_count.reading, by_count.steps_remaining) == (ruled.reading, ruled.steps_remaining)
            assert by_count.binding.id == ruled.binding.id
            assert not by_count.overdrawn
            kept = [after.is_planned() for after in ruled.accounts]
            assert kept == [record.account.is_planned() for record in records]  # leaving a plan is for the rule
        if not isinstance(ruled, Admission):
            continue
        records = [
            record.charged_to(after, [priced], NOW) for record, after in zip(records, ruled.accounts, strict=True)
        ]
        if by_count is None:
            records = [settled_by_the_rule(record) for record in records]
            counted = [CountedAccount(record) for record in records]
            continue
        for each, record in zip(counted, records, strict=True):
            each.charge(number, NOW)
            assert (each.version, each.uncompacted) == (record.account.version, record.uncompacted)
            assert each.used == record.account.spent.used
            assert record.watermark is not None
            assert record.watermark.holds(record.account.spent)
            assert each.copy().settled() == record


@pytest.fixture
def counted(account: AccountMaker) -> CountedAccount:
    """An account of epsilon 8 that was charged once, with a Gaussian of 40."""
    path = (account(8.0, 1e-5),)
    records = charged_once(path, path[0].price(StepEvent(Gaussian(40.0), 1)), (0.5, 1.0))
    assert records is not None
    return CountedAccount(records[0])


def admitted(counted: CountedAccount, event: DpEvent, number: int = 1) -> Admission | None:
    return admit_by_counting([counted], counted.record.account.price(StepEvent(event, number)))


def test_no_charge_goes_past_a_threshold_uncounted(counted: CountedAccount) -> None:
    event = Gaussian(40.0)
    while admitted(counted, event) is not None:
        counted.charge(1, NOW)
    record = counted.settled()
    assert record.watermark is not None
    assert record.watermark.holds(record.account.spent)
    after = record.account.charged(record.account.price(StepEvent(event, 1)).curve)
    assert not record.watermark.holds(after.spent)


def _exhausted_somewhere(record: AccountRecord) -> AccountRecord:
    values = record.account.spent.values.copy()
    values[:] = 2**53
    return replace(record, account=replace(record.account, spent=RdpCurve(values)))


@pytest.mark.parametrize(
    "changed",
    [
        lambda record: replace(record, quarantine="its balance is unproven"),
        lambda record: replace(record, uncompacted=None),
        lambda record: replace(record, uncompacted={f"event {number}": (1, 0) for number in range(MOST_EVENTS)}),
        lambda record: replace(record, watermark=None),
        lambda record: replace(record, account=replace(record.account, policy=Policy())),
        lambda record: replace(record, account=replace(record.account, organisation_policy=Policy())),
        lambda record: replace(record, account=replace(record.account, partitions_per_unit=2)),
        lambda record: replace(record, account=replace(record.account, weights=None)),
        lambda record: replace(
            record, account=replace(record.account, spent=RdpCurve(record.account.spent.values, EXHAUSTED))
        ),
        _exhausted_somewhere,
    ],
    ids=[
        "in quarantine",
        "its curves are to be written",
        "too many different events",
        "no watermark",
        "a policy",
        "the organisation's policy",
        "parallel",
        "no weights yet",
        "no delta left",
        "more than floats hold",
    ],
)
def test_unusual_account_is_left_to_the_rule(counted: CountedAccount, changed: object) -> None:
    assert admitted(counted.copy(), Gaussian(40.0)) is not None
    assert callable(changed)
    assert admitted(CountedAccount(changed(counted.record)), Gaussian(40.0)) is None


def test_events_with_a_delta_are_for_the_rule(counted: CountedAccount) -> None:
    assert admitted(counted, EpsilonDelta(0.001, 1e-12)) is None


def test_free_step_is_counted_once_something_was_spent(counted: CountedAccount) -> None:
    free = PricedStep(StepEvent(Gaussian(40.0), 5), zero_curve())
    ruled, by_count = admission.admit([counted.record.account], [free]), admit_by_counting([counted], free)
    assert isinstance(ruled, Admission)
    assert by_count is not None
    assert (by_count.reading, by_count.steps_remaining) == (ruled.reading, ruled.steps_remaining)
    unspent = replace(counted.record, account=replace(counted.record.account, spent=zero_curve()))
    assert admit_by_counting([CountedAccount(unspent)], free) is None
