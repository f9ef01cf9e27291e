"""Accounts with few small limits, reservations that wait, and what the definitions make of both, in Python ints."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache
from math import floor

import numpy as np

from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.events import Gaussian
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.filter.filters import FilterBounds, FilterWeights
from app.ledger.scheduling.queue import Grant, Ledgers, Standing, WaitingReservation, schedule
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.scheduling.withholding import Withholding
from app.ledger.settings.allocation import ALL, Allocation, SchedulingRule
from app.ledger.step_events import PricedStep, StepEvent
from tests.ledger.conftest import make_account

ORDERS = 3
Units = tuple[int, ...]
"""A number for each of a few orders, and one for own deltas behind them."""

NOW = datetime(2026, 12, 1, tzinfo=UTC)
WEIGHTS = FilterWeights((0,), (1e-6,))


@cache
def bounds_of(limits: Units) -> FilterBounds:
    return FilterBounds(np.arange(ORDERS), np.array(limits[:ORDERS]), np.zeros(ORDERS), limits[ORDERS], 0)


@dataclass(frozen=True)
class Block(Account):
    """An account with limits of its own choice at a few orders."""

    limits: Units = ()

    def bounds(self) -> FilterBounds:
        return bounds_of(self.limits)


def curve_of(units: Units) -> RdpCurve:
    values = np.zeros(orders(GRID_VERSION).size, dtype=np.int64)
    values[:ORDERS] = units[:ORDERS]
    return RdpCurve(values, units[ORDERS])


def units_of(curve: RdpCurve) -> Units:
    return (*map(int, curve.values[:ORDERS]), curve.delta)


def flat(number: int, delta: int = 0) -> Units:
    """The same at every order."""
    return (*(number,) * ORDERS, delta)


NOTHING = flat(0)


def plus(*several: Units) -> Units:
    return tuple(map(sum, zip(*several, strict=True)))


def block(name: str, limits: Units | None, parent: str | None = None, partitions: int | None = None) -> Account:
    """Make an account; without limits it admits everything."""
    limited = limits is not None
    changes = {"id": name, "parent_id": parent, "partitions_per_unit": partitions, "kind": AccountKind.BUDGET}
    frozen = {"weights": WEIGHTS if limited else None, "limits": limits or ()}
    return Block(**vars(make_account(name=name, limited=limited)) | changes | frozen)


def with_loss(account: Account, spent: Units, held: Units = NOTHING) -> Account:
    return replace(account, spent=curve_of(spent), held=curve_of(held))


def waiting(
    name: str, path: Iterable[str], cost: Units, minute: int = 0, priority: int = 0, weight: float = 1.0
) -> WaitingReservation:
    """A reservation of one step that began to wait at a minute; its run is the last account of its path."""
    steps = (PricedStep(StepEvent(Gaussian(1.0), 1), curve_of(cost)),)
    return WaitingReservation(name, (*path, f"run_{name}"), steps, NOW + timedelta(minutes=minute), priority, weight)


def open_ledgers(
    accounts: Iterable[Account],
    plans: Iterable[WaitingReservation],
    withholdings: Mapping[str, Withholding] | None = None,
) -> Ledgers:
    """Accounts, and a run for each reservation under the last budget of its path."""
    runs = [block(plan.path[-1], None, plan.path[-2] if len(plan.path) > 1 else None) for plan in plans]
    return Ledgers({each.id: each for each in (*accounts, *runs)}, withholdings)


def unlocked(fraction: Fraction) -> Withholding:
    return Withholding(Allocation(), unlocked=fraction)


def line_of(rule: SchedulingRule, plans: Iterable[WaitingReservation], aging: timedelta | None = None) -> Line:
    line = Line(rule, aging)
    for plan in plans:
        line.add(plan)
    return line


def run_pass(line: Line, ledgers: Ledgers, now: datetime = NOW, changed: Collection[str] | None = None) -> list[Grant]:
    """Grant what fits, and let it wait no longer; only through some accounts, if these are given."""
    aged = line.aged(now)
    plans = list(line.reservations.values()) if changed is None else line.candidates(ledgers, changed, aged)
    grants = list(schedule(line.order(plans, ledgers, now), aged, ledgers))
    for each in grants:
        line.remove(each.standing.reservation.id)
    return grants


def names(grants: Iterable[Grant]) -> list[str]:
    return [each.standing.reservation.id for each in grants]


def tried(standings: Iterable[Standing]) -> list[str]:
    return [each.reservation.id for each in standings]


def room(limits: Units, total: Units, part: Fraction = ALL) -> Units:
    """What is left of the unlocked part of limits; negative at an order where it is exceeded.

    Of own deltas nothing is locked that is not left.
    """
    rows = zip(limits, total, locked(part, limits), strict=True)
    left = [most - taken - each for most, taken, each in rows]
    return (*left[:ORDERS], max(left[ORDERS], min(limits[ORDERS] - total[ORDERS], 0)))


def fits(left: Units, cost: Units) -> bool:
    """The rule: own deltas fit, and so does the loss at some order."""
    return cost[ORDERS] <= left[ORDERS] and any(new <= each for new, each in zip(cost[:ORDERS], left, strict=False))


def part_of(part: Fraction, limits: Units, rounded: Callable[[Fraction], int] = floor) -> Units:
    return tuple(rounded(part * max(0, most)) for most in limits)


def locked(part: Fraction, limits: Units) -> Units:
    """What of limits is not in their unlocked part."""
    return tuple(map(int.__sub__, part_of(ALL, limits), part_of(part, limits)))


def total_of(ledgers: Ledgers, name: str) -> Units:
    return units_of(ledgers.accounts[name].spent + ledgers.accounts[name].held)
