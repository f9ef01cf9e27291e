"""Random sequences of charges, holds, ends, reports and limits on trees of accounts, against the one model."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.admission.admission import Admission, Refusal, admit, hold, record, repetitions_left
from app.ledger.errors import AccountStateConflictError
from app.ledger.filter.filters import UNLIMITED
from app.ledger.filter.limits import Limit, Unit
from app.ledger.governance.unit_checks import require_unit_changeable
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent
from tests.ledger.ledger_model import Entry, LedgerModel, Terms, limited_to, most_that
from tests.ledger.plan.plan_models import LIMITS

PLANS: list[tuple[StepEvent, ...]] = [
    (),
    (StepEvent(dp.Gaussian(40.0), MAX_COUNT),),
    (StepEvent(dp.Laplace(10.0), 5), StepEvent(dp.Laplace(5.0), 3), StepEvent(dp.Laplace(20.0), MAX_COUNT)),
    (StepEvent(dp.EpsilonDelta(0.1, 1e-9), MAX_COUNT),),
]
EVENTS: list[DpEvent] = [
    *(dp.Gaussian(40.0), dp.Gaussian(90.0), dp.Laplace(5.0), dp.Laplace(20.0), dp.Laplace(90.0)),
    *(dp.EpsilonDelta(0.07, 3e-9), dp.Zcdp(0.0005)),
]
EXACT: list[Terms] = [(1.0, 0.0), (0.05, 0.0, Unit.RHO), (0.05, 1e-8, Unit.RHO), (0.3, 0.0, Unit.MU)]
plans = st.sampled_from(PLANS)
limits: st.SearchStrategy[Terms] = st.sampled_from([*LIMITS, *LIMITS, *EXACT])
units = st.sampled_from([1, 7, 2**41, 2**44, EXHAUSTED // 3, EXHAUSTED])
counts = st.integers(1, 4) | st.integers(1, 120)
some_events = st.lists(st.sampled_from(EVENTS), min_size=1, max_size=2, unique=True)
Outcome = Admission | Refusal | tuple[Account, ...]
ASK: dict[str, Callable[[Sequence[Account], Sequence[PricedStep]], Outcome]]
ASK = {"charge": admit, "hold": hold, "report": record}


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerModel:
    """A population with a team of two parts, which are disjoint or not, another team, and runs of one or of both."""
    model = LedgerModel(draw(st.sampled_from(list(NeighboringRelation))))
    model.open("p", None, draw(limits), draw(plans), draw(st.sampled_from([None, None, 1])))
    model.open("team", "p", draw(st.none() | limits), (), draw(st.sampled_from([None, 1, 2])))
    for name, parent in (("a", "team"), ("b", "team"), ("c", "team"), ("other", "p"), ("ward", "b")):
        limit = draw(st.none() | limits)
        model.open(name, parent, limit, draw(plans) if limit else ())
    for run, budgets in (("ra", "a"), ("rb", "b"), ("rw", "ward"), ("ro", "other"), ("both", "a c")):
        assert model.register(run, *budgets.split())
    for event in EVENTS:
        model.curves[event] = event_curve(event, model.relation)
    return model


patterns = st.lists(st.lists(units, min_size=1, max_size=7), min_size=2, max_size=2)


@given(ledgers(), st.none() | patterns, st.data())
def test_accounts_decide_and_balance_as_the_model(
    model: LedgerModel, costs: list[list[int]] | None, data: st.DataObject
) -> None:
    if costs is not None:  # other costs than real ones, and exhausted orders
        size = zero_curve().values.size
        model.curves |= {
            event: RdpCurve(np.resize(np.array(pattern, dtype=np.int64), size), event.curve_count())
            for event, pattern in zip((dp.Laplace(90.0), EVENTS[-1]), costs, strict=True)
        }
    kinds = st.sampled_from(["charge", "charge", "charge", "hold", "report", "limit", "end"])
    for kind in data.draw(st.lists(kinds, min_size=1, max_size=9)):
        if kind == "limit":
            _change_limit(model, data)
        elif kind == "end":
            if model.holds and costs is None:
                entry = data.draw(st.sampled_from(model.holds))
                model.settle(entry, data.draw(st.integers(0, entry[2])))
        else:
            _ask(model, kind, _steps(model, data))
        model.require_balances()


def _steps(model: LedgerModel, data: st.DataObject) -> list[Entry]:
    """Draw steps of a run, of which the last may be as many as just fit, or one more."""
    run, events = data.draw(st.sampled_from(sorted(model.budgets))), data.draw(some_events)
    left, _ = repetitions_left(model.path(run), model.step(events[-1]))
    edge = st.sampled_from([max(1, min(left, MAX_COUNT)), min(left + 1, MAX_COUNT)])
    return [(run, event, data.draw(counts | edge if event == events[-1] else counts)) for event in events]


def _change_limit(model: LedgerModel, data: st.DataObject) -> None:
    limited = [name for name, account in model.accounts.items() if account.limit is not None]
    name, limit = data.draw(st.sampled_from(sorted(limited))), Limit(*data.draw(limits))
    before = model.accounts[name]
    if not _may_get(before, limit):
        with pytest.raises(AccountStateConflictError, match="only while nothing is spent or reserved"):
            require_unit_changeable(before, limit)
        return
    require_unit_changeable(before, limit)
    after = limited_to(before, limit)
    assert (after.spent, after.held, after.limit) == (before.spent, before.held, limit)
    assert after.weights is None or after.weights.within(limit.delta)
    model.put([after])


def _may_get(account: Account, limit: Limit) -> bool:
    """Whether the limit is in the account's unit, or that may change."""
    assert account.limit is not None
    kinds = {(each.unit, each.unit is Unit.EPSILON and not each.delta) for each in (account.limit, limit)}
    return len(kinds) == 1 or (account.spent.is_zero and account.held.is_zero)


def _ask(model: LedgerModel, kind: str, entries: list[Entry]) -> None:
    """Charge, hold or report steps, and compare the decision and all of its numbers."""
    run, event, _ = entries[-1]
    path, steps = model.path(run), [model.step(each, count) for _, each, count in entries]
    made = model.charges + model.holds
    prepared = [account.prepared_for(steps, held=kind == "hold") for account in path]

    def fits(*new: Entry) -> bool:
        return all(model.admits(account, [*made, *new]) for account in prepared)

    def first(number: int) -> list[Entry]:
        before = [sum(count for *_, count in entries[:place]) for place in range(len(entries))]
        cut = [(*each[:2], min(each[2], number - passed)) for each, passed in zip(entries, before, strict=True)]
        return [each for each in cut if each[2] > 0]

    outcome = ASK[kind](path, steps)
    if isinstance(outcome, Refusal):
        assert not fits(*entries)
        fitting = outcome.max_steps_that_fit
        assert not fits(*first(fitting + 1))
        assert fitting == 0 or fits(*first(fitting))
        binding = next(each for each in prepared if each.id == outcome.binding.id)
        assert not model.admits(binding, [*made, *first(fitting + 1)])
        return
    assert kind == "report" or fits(*entries)
    if isinstance(outcome, Admission):
        assert outcome.overdrawn is not fits(*entries)
        if not outcome.overdrawn:
            assert outcome.steps_remaining == min(UNLIMITED, most_that(lambda n: fits(*entries, (run, event, n))))
        assert outcome.used <= 1 or outcome.overdrawn
    after = outcome.accounts if isinstance(outcome, Admission) else outcome
    model.put(after)
    (model.charges if isinstance(outcome, Admission) else model.holds).extend(entries)
    again = zip(record(after, steps).accounts, record(model.path(run), steps).accounts, strict=True)
    assert all((carried.spent, carried.held) == (read.spent, read.held) for carried, read in again)
