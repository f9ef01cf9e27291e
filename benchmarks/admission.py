"""Time of deciding a charge, without SQL: `python -m benchmarks.admission` (about five seconds).

Four accounts on the path, one step of DP-SGD, curves over the service's whole grid and over every eleventh order (127);
with plans of such steps, and without. The full rule decides, or counting, as on repeated steps (ADR 0033).
The floor is the minimum that any rule must do with numpy: add the charge to four curves, and compare with the
thresholds.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from time import perf_counter
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from app.accounting.curves import GRID_VERSION, orders
from app.accounting.events import Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import cached_event_curve
from app.ledger.accounts.account import Account, AccountKind, zero_curve
from app.ledger.accounts.account_records import AccountRecord, Population, watermark_of
from app.ledger.admission.admission import Admission, admit
from app.ledger.admission.composition import counting_plans
from app.ledger.admission.counted_accounts import CountedAccount, admit_by_counting
from app.ledger.filter.filters import filter_bounds
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import DECLARED_SHARE, planned_weights
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent

DEPTH = 4
STEP = StepEvent(PoissonSampled(0.01, Gaussian(1.1)), 1)
ROUNDS = 200
CALLS = 50
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def path(planned: tuple[StepEvent, ...] = ()) -> tuple[Account, ...]:
    """Create accounts root to leaf, and charge the first step, which freezes their weights without a plan."""
    opened = tuple(
        Account(
            id=f"bud_{depth}",
            kind=AccountKind.BUDGET,
            parent_id=None,
            population_id="pop_0",
            name=f"level-{depth}",
            path=f"level-{depth}",
            depth=depth,
            relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            limit=Limit(8.0 - depth, 1e-5),
            planned=planned,
            weights=None,
            spent=zero_curve(),
            held=zero_curve(),
        )
        for depth in range(DEPTH)
    )
    if planned:
        opened = tuple(with_plan(account) for account in opened)
    first = admit(opened, [price(opened)])
    assert isinstance(first, Admission), "the first step fits"
    return first.accounts


def with_plan(account: Account) -> Account:
    """Freeze an account's plan."""
    assert account.limit is not None, "every account here has one"
    rule = (account.relation, account.grid_version)
    weights = planned_weights(account.limit, account.planned, *rule, DECLARED_SHARE)
    return counting_plans(replace(account, weights=weights), [])


def price(accounts: tuple[Account, ...]) -> PricedStep:
    """Return the step with its cost."""
    return accounts[0].price(STEP)


def decisions() -> dict[str, Callable[[], object]]:
    """Return the benchmarks by name."""
    tuned, planned = path(), path((replace(STEP, count=MAX_COUNT),))
    steps = [price(tuned)]
    places = [account.bounds().places for account in tuned]
    spent = [account.spent.values for account in tuned]
    bounds = [account.bounds().bounds for account in tuned]
    new = steps[0].curve.values

    def floor() -> list[bool]:
        return [
            bool(((value + new)[place] <= bound).any())
            for value, bound, place in zip(spent, bounds, places, strict=True)
        ]

    return {
        "without plans": lambda: admit(tuned, steps),
        "with plans": lambda: admit(planned, steps),
        "counted": counting(tuned),
        "counted, plans": counting(planned),
        "numpy's floor": floor,
    }


def counting(accounts: tuple[Account, ...]) -> Callable[[], object]:
    """Return the decision on a repeated step, which counts it on every account."""
    population, step = Population("patient", accounts[0].relation, None), price(accounts)
    records = [
        AccountRecord(account, population, NOW, NOW, watermark=watermark_of(account, (1.0,))) for account in accounts
    ]
    counted: list[CountedAccount] = []

    def decide() -> object:
        admitted = admit_by_counting(counted, step) if counted else None
        if admitted is None:  # a threshold may be reached: begin anew
            counted[:] = map(CountedAccount, records)
            admitted = admit_by_counting(counted, step)
        for account in counted:
            account.charge(1, NOW)
        return admitted

    return decide


def thinned(grid_version: int) -> NDArray[np.float64]:
    """Return every eleventh order of the grid, as a replacement of `orders`."""
    return orders(grid_version)[::11]


def forget_orders() -> None:
    """Clear caches for other grids."""
    for cached in (filter_bounds, cached_event_curve, zero_curve):
        cached.cache_clear()


def report() -> None:
    """Print interleaved medians of a decision, and ratios to the floor."""
    timed = decisions()
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, decide in timed.items():
            start = perf_counter()
            for _ in range(CALLS):
                decide()
            taken[name].append((perf_counter() - start) / CALLS)
    floor = median(taken["numpy's floor"])
    for name, seconds in taken.items():
        print(f"{name:<16}{median(seconds) * 1e6:>8.1f} us{median(seconds) / floor:>8.1f} x")


def main() -> None:
    """Print both tables."""
    print(f"a decision about {DEPTH} accounts, curves of {orders(GRID_VERSION).size} orders")
    report()
    names = ["ledger.accounts.account.orders", "ledger.filter.filters.orders"]
    names += ["accounting.conversion.orders_of_grid", "accounting.rdp.orders_of_grid"]
    with ExitStack() as patches:
        forget_orders()
        patches.callback(forget_orders)
        for name in names:
            patches.enter_context(patch(f"app.{name}", thinned))
        print(f"a decision about {DEPTH} accounts, curves of {thinned(GRID_VERSION).size} orders")
        report()


if __name__ == "__main__":
    main()
