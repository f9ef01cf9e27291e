"""The limits with which refused steps would be admitted."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt
from typing import Final

from app.accounting.calibration.monotone_search import decimal, index_at_or_below, smallest_fitting
from app.accounting.curves import RdpCurve
from app.accounting.pricing_effort import MAX_PLAN_WORK, bounded
from app.ledger.accounts.account import Account, with_usage
from app.ledger.admission.alternatives import RaisedLimit
from app.ledger.filter.filters import PlanBound
from app.ledger.filter.limits import MOST, Unit
from app.ledger.fitting.trial_admission import Trial
from app.ledger.governance.filter_weights import Tuning, weights_under
from app.ledger.governance.limit_changes import with_limit
from app.ledger.step_events import PricedStep, total_cost

DIGITS: Final = 4
PLAN_DIGITS: Final = 3
"""Significant digits of a limit's value, rounded up; fewer where each trial computes what a plan may take."""

FURTHER: Final = (0, 1, 2, 4, 8, 16)
"""Last digits above an estimate at which a limit is tried with all that it allows of a plan: each takes up to 0.5 s."""


def raise_limits(trial: Trial, path: Sequence[Account], steps: Sequence[PricedStep]) -> tuple[RaisedLimit, ...]:
    """Find the smallest limits with which steps are admitted; units and deltas stay.

    Returns:
        All limits to raise, root to leaf; empty if no limits are enough.

    Raises:
        PlanTooExpensiveError: to compute what they allow of plans would take more than a request may take.
    """
    raised, after = [], []
    with bounded(MAX_PLAN_WORK):
        for account in path:
            if account.limit is None or trial.admits([account], steps):
                after.append(account)
                continue
            found = _raised(trial, account, steps)
            if found is None:
                return ()
            assert found.limit is not None, "it was raised"
            raised.append(RaisedLimit(account.id, account.path, found.limit))
            after.append(found)
        return tuple(raised) if trial.admits(after, steps) else ()


def _raised(trial: Trial, account: Account, steps: Sequence[PricedStep]) -> Account | None:
    """Raise an account's limit as a change of it would, to the smallest value with which steps fit."""
    present = account.limit
    assert present is not None, "it has one to raise"
    bound, most = None if account.weights is None else account.weights.plan, MOST[present.unit]
    digits = DIGITS if bound is None else PLAN_DIGITS
    tuning = Tuning.of(account)
    if bound is None:
        tuning = replace(tuning, items=())  # a plan that is not taken here is not searched for again at each limit
    last = index_at_or_below(most, digits)

    def raised(index: int, known: PlanBound | None = None) -> Account | None:
        limit = replace(present, value=decimal(index, digits))
        changed = with_limit(account, limit, weights_under(tuning, limit, known))
        return changed if trial.admits([changed], steps) else None

    first = index_at_or_below(present.value, digits) + 1
    near = min(_estimated_value(account, steps), most)
    near_index = index_at_or_below(near, digits) + 1
    found = smallest_fitting(lambda index: raised(index, bound) is not None, near_index, first, last)
    if bound is None:
        return None if found is None else raised(found)
    by_plan = _planned_epsilon(account, steps)
    candidates = [] if found is None else [found]
    if by_plan <= most:
        candidates.append(max(index_at_or_below(by_plan, digits) + 1, first))
    start = min(candidates, default=None)
    if start is None:
        return None
    return next((changed for further in FURTHER if (changed := raised(start + further)) is not None), None)


def _estimated_value(account: Account, steps: Sequence[PricedStep]) -> float:
    """Estimate the limit's value at which an account admits steps, without its plan; infinite if none does."""
    limit, found = account.limit, 0.0
    assert limit is not None, "it has one to raise"
    if limit.is_exact:
        gate = account.bounds()
        share = gate.exact_share(gate.exact_loss(_after(account, steps)))
        return limit.value * (sqrt(share) if limit.unit is Unit.MU else share)
    for held in (False, True):
        prepared = account.prepared_for(steps, held=held)
        found = max(found, prepared.bounds().limit_needed(_after(prepared, steps)))
    return found


def _planned_epsilon(account: Account, steps: Sequence[PricedStep]) -> float:
    """Compute an epsilon at which an account's plan covers all charges and steps; infinite if it never does."""
    plan = account.plan
    assert plan is not None, "its filter has a part for a plan"
    after = _after(account, steps)
    needed = plan.workload.steps_for(plan.used_by(after, account.id))
    if needed is None or after.delta > account.bounds().room:
        return inf
    return plan.workload.epsilon(max(needed, 1), plan.bound.delta)


def _after(account: Account, steps: Sequence[PricedStep]) -> RdpCurve:
    """Add up what an account has spent and holds, and what steps would add."""
    cost = account.counting(total_cost(with_usage([account], steps)))
    return account.spent + account.held + account.grown_by(cost)
