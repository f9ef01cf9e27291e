"""Accounts for tests of the rules."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import GRID_VERSION, orders
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.admission import admission
from app.ledger.admission.admission import Admission, Refusal
from app.ledger.admission.composition import counting_plans
from app.ledger.filter.filters import FilterWeights
from app.ledger.filter.limits import Limit, Unit
from app.ledger.governance.filter_weights import DECLARED_SHARE, planned_weights
from app.ledger.plan.plans import Plan
from app.ledger.step_events import PricedStep, StepEvent


def priced(account: Account, event: DpEvent, count: int = 1) -> PricedStep:
    """Price a step event now."""
    return account.price(StepEvent(event, count))


def admit(path: Sequence[Account], event: DpEvent, count: int = 1) -> Admission | Refusal:
    """Admit a step event at the price that is computed now."""
    return admission.admit(path, [priced(path[0], event, count)])


def admitted(path: Sequence[Account], event: DpEvent, count: int = 1) -> Admission:
    """Admit a step event, which fits."""
    outcome = admit(path, event, count)
    assert isinstance(outcome, Admission)
    return outcome


def refused(path: Sequence[Account], event: DpEvent, count: int = 1) -> Refusal:
    """Refuse a step event, which does not fit."""
    outcome = admit(path, event, count)
    assert isinstance(outcome, Refusal)
    return outcome


def repetitions_left(path: Sequence[Account], event: DpEvent) -> tuple[int, Account]:
    """Count repetitions at the price that is computed now."""
    return admission.repetitions_left(path, priced(path[0], event))


def thresholds(limit: Limit, weights: FilterWeights | None) -> NDArray[np.int64]:
    """What may be spent at each order of the grid, -1 where an order counts not."""
    gate = replace(make_account(limit.epsilon, limit.delta), weights=weights).bounds()
    found = np.full(orders(GRID_VERSION).shape, -1, dtype=np.int64)
    found[gate.places] = gate.bounds
    return found


_weights = cache(planned_weights)


def planning(account: Account, *items: StepEvent, share: float = DECLARED_SHARE) -> Account:
    """Give an account a plan, as it is created with."""
    assert account.limit is not None, "a plan is of a limit"
    weights = _weights(account.limit, items, account.relation, account.grid_version, share)
    return counting_plans(replace(account, planned=items, weights=weights), [])


def plan_of(account: Account) -> Plan:
    """Get an account's plan."""
    assert account.plan is not None
    return account.plan


def chained(*accounts: Account) -> tuple[Account, ...]:
    """Accounts as a path: each under the one before it."""
    found: list[Account] = []
    for depth, account in enumerate(accounts):
        under = replace(account, parent_id=found[-1].id if found else None, depth=depth)
        found.append(counting_plans(under, found))
    return tuple(found)


def make_account(
    value: float = 1.0, delta: float = 1e-5, unit: Unit = Unit.EPSILON, *, name: str = "p", limited: bool = True
) -> Account:
    """Make an account with a limit and nothing spent."""
    return Account(
        id=f"bud_{name}",
        kind=AccountKind.BUDGET if limited else AccountKind.RUN,
        parent_id=None,
        population_id="pop_p",
        name=name,
        path=name,
        depth=1,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        limit=Limit(value, delta, unit) if limited else None,
        planned=(),
        weights=None,
        spent=zero_curve(),
        held=zero_curve(),
    )
