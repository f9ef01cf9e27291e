"""Accounts with plans of which the number of steps is cheap to find, and what a plan covers by counting its tokens."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil

from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent
from app.ledger.accounts import Account, with_usage
from app.ledger.filters import Limit
from app.ledger.limit_changes import with_limit
from app.ledger.plan_filter import UNITS
from app.ledger.step_events import MAX_COUNT, PricedStep, StepEvent, first_steps, total_cost
from app.ledger.tuning import DECLARED_SHARE, DEFAULT_SHARE, Tuning, weights_under

from .conftest import make_account, planning

Plan = tuple[StepEvent, ...]
PLANS: list[Plan] = [
    (StepEvent(dp.Gaussian(40.0), MAX_COUNT),),
    (StepEvent(dp.Gaussian(20.0), 6),),
    (StepEvent(dp.Laplace(10.0), 5), StepEvent(dp.Laplace(5.0), 3), StepEvent(dp.Laplace(20.0), MAX_COUNT)),
    (StepEvent(dp.EpsilonDelta(0.3), 4), StepEvent(dp.Gaussian(30.0), 100)),
    (StepEvent(dp.EpsilonDelta(0.1, 1e-9), MAX_COUNT),),
    (StepEvent(dp.Composed((dp.Laplace(10.0), dp.Gaussian(20.0))), MAX_COUNT),),
    (StepEvent(dp.DiscreteGaussian(20.0, 3), 4), StepEvent(dp.DiscreteGaussian(60.0, 1), MAX_COUNT)),
    (StepEvent(dp.DiscreteLaplace(0.04, 3), 4), StepEvent(dp.PermuteAndFlip(0.1), MAX_COUNT)),
    (StepEvent(dp.Laplace(0.5), 3),),  # the smaller limit allows none of it
]
LIMITS = [(1.0, 1e-5), (3.0, 1e-6)]
COVERED_SOMEWHERE: list[DpEvent] = [
    dp.Gaussian(20.0),
    dp.Gaussian(35.0),
    dp.Gaussian(90.0),
    dp.Laplace(5.0),
    dp.Laplace(7.0),
    dp.Laplace(20.0),
    dp.Laplace(90.0),
    dp.EpsilonDelta(0.3),
    dp.EpsilonDelta(0.1),
    dp.EpsilonDelta(0.07, 3e-9),
    dp.Composed((dp.Laplace(12.0), dp.Gaussian(60.0), dp.Gaussian(25.0))),
    dp.DiscreteGaussian(20.0, 3),
    dp.DiscreteGaussian(30.0, 2),
    dp.DiscreteLaplace(0.04, 3),
    dp.DiscreteLaplace(0.04, 1),
    dp.PermuteAndFlip(0.1),
    dp.PermuteAndFlip(0.04),
]
EVENTS = [
    *COVERED_SOMEWHERE,
    dp.PoissonSampled(0.01, dp.Gaussian(2.0)),
    dp.DiscreteGaussian(50.0, 1),
    dp.DiscreteGaussian(60.0),
    dp.DiscreteLaplace(0.03, 3),
]
plans = st.sampled_from(PLANS)
limits = st.sampled_from(LIMITS)
shares = st.sampled_from([DECLARED_SHARE, DEFAULT_SHARE])
planned_accounts = st.builds(
    lambda limit, items, share: planning(make_account(*limit), *items, share=share), limits, plans, shares
)
charges = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 4) | st.integers(1, 120)), min_size=1, max_size=8)


def priced(account: Account, event: DpEvent, count: int = 1) -> PricedStep:
    """Price a step event now."""
    return account.price(StepEvent(event, count))


def cost_of(account: Account, events: Iterable[tuple[DpEvent, int]]) -> RdpCurve:
    """Price events with what they use up of the account's plan."""
    steps = [priced(account, event, count) for event, count in events]
    return total_cost(with_usage([account], steps)) if steps else cost_of(account, [(EVENTS[0], 1)]).times(0)


def limited_to(account: Account, limit: Limit) -> Account:
    """Change an account's limit."""
    return with_limit(account, limit, weights_under(Tuning.of(account), limit))


def tokens(events: Iterable[tuple[DpEvent, int]]) -> Counter[DpEvent]:
    """Take events apart into mechanisms."""
    found = Counter[DpEvent]()
    for event, count in events:
        if isinstance(event, dp.Composed):
            found += Counter({each: n * count for each, n in tokens((part, 1) for part in event.events).items()})
        else:
            found[replace(event, delta=0.0) if isinstance(event, dp.EpsilonDelta) else event] += count
    return found


def _strength(event: DpEvent) -> tuple[str, float] | None:
    """Order the mechanisms of a family."""
    if isinstance(event, dp.EpsilonDelta):
        return "pure", event.epsilon
    if isinstance(event, dp.DiscreteGaussian):
        moves = event.sensitivity or 0
        return (f"discrete noise of {event.noise_multiplier * moves}", float(moves)) if moves else None
    if isinstance(event, dp.DiscreteLaplace):
        return f"discrete Laplace noise of {event.noise_parameter}", float(event.sensitivity)
    if isinstance(event, dp.PermuteAndFlip):
        return "Laplace", -1 / event.epsilon
    return ("Laplace", -event.noise_multiplier) if isinstance(event, dp.Laplace) else None


def _variance(held: Counter[DpEvent]) -> int:
    gaussian = [(each, count) for each, count in held.items() if isinstance(each, dp.Gaussian)]
    return sum(count * ceil(UNITS / Fraction(each.noise_multiplier) ** 2) for each, count in gaussian)


def _as_strong(held: Counter[DpEvent], least: tuple[str, float]) -> int:
    strengths = [(_strength(each), count) for each, count in held.items()]
    return sum(count for found, count in strengths if found and found[0] == least[0] and found[1] >= least[1])


def is_covered(items: Plan, steps: int, events: Sequence[tuple[DpEvent, int]]) -> bool:
    """Check, by counting tokens, that each mechanism finds one of the plan's first steps that dominates it."""
    plan, used = (tokens((each.event, each.count) for each in first_steps(items, steps)), tokens(events))
    strengths = {each: _strength(each) for each in used}
    if any(found is None and not isinstance(each, dp.Gaussian) for each, found in strengths.items()):
        return False
    levels = {found for found in strengths.values() if found}
    enough = all(_as_strong(used, level) <= _as_strong(plan, level) for level in levels)
    return enough and _variance(used) <= _variance(plan)


def steps_needed(items: Plan, steps: int, events: Sequence[tuple[DpEvent, int]]) -> int:
    """Count the fewest first steps that cover events; more than `steps` if those do not."""
    return next((each for each in range(steps + 1) if is_covered(items, each, events)), steps + 1)


def fits(account: Account, events: Sequence[tuple[DpEvent, int]]) -> bool:
    """Apply the rule with Python's own integers to all events that were charged, are held or are new."""
    weights = account.weights
    assert weights is not None, "it has weights"
    curves = [(priced(account, event).curve, count) for event, count in events]
    if sum(curve.delta * count for curve, count in curves) > weights.set_aside():
        return False
    if weights.plan is not None and is_covered(account.planned, weights.plan.steps, events):
        return True
    gate = account.bounds()
    for place, bound in zip(gate.places.tolist(), gate.bounds.tolist(), strict=True):
        values = [(int(curve.values[place]), count) for curve, count in curves]
        if all(each < EXHAUSTED for each, _ in values) and sum(each * count for each, count in values) <= bound:
            return True
    return False
