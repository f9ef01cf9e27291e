"""Accounts with plans of which the number of steps is cheap to find."""

from collections.abc import Iterable

from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account, with_usage
from app.ledger.governance.filter_weights import DECLARED_SHARE, DEFAULT_SHARE
from app.ledger.step_events import MAX_COUNT, StepEvent, total_cost
from tests.ledger.conftest import make_account, planning, priced

Taken = list[tuple[DpEvent, int]]
PLANS: list[tuple[StepEvent, ...]] = [
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
    *(dp.Gaussian(20.0), dp.Gaussian(35.0), dp.Gaussian(90.0)),
    *(dp.Laplace(5.0), dp.Laplace(7.0), dp.Laplace(20.0), dp.Laplace(90.0)),
    *(dp.EpsilonDelta(0.3), dp.EpsilonDelta(0.1), dp.EpsilonDelta(0.07, 3e-9)),
    dp.Composed((dp.Laplace(12.0), dp.Gaussian(60.0), dp.Gaussian(25.0))),
    *(dp.DiscreteGaussian(20.0, 3), dp.DiscreteGaussian(30.0, 2), dp.DiscreteLaplace(0.04, 3)),
    *(dp.DiscreteLaplace(0.04, 1), dp.PermuteAndFlip(0.1), dp.PermuteAndFlip(0.04)),
]
EVENTS = [
    *(*COVERED_SOMEWHERE, dp.PoissonSampled(0.01, dp.Gaussian(2.0)), dp.DiscreteGaussian(50.0, 1)),
    *(dp.DiscreteGaussian(60.0), dp.DiscreteLaplace(0.03, 3)),
]
plans = st.sampled_from(PLANS)
limits = st.sampled_from(LIMITS)
shares = st.sampled_from([DECLARED_SHARE, DEFAULT_SHARE])
planned_accounts = st.builds(
    lambda limit, items, share: planning(make_account(*limit), *items, share=share), limits, plans, shares
)
charges = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 4) | st.integers(1, 120)), min_size=1, max_size=8)


def cost_of(account: Account, events: Iterable[tuple[DpEvent, int]]) -> RdpCurve:
    """Price events with what they use up of the account's plan."""
    return total_cost(with_usage([account], [priced(account, event, count) for event, count in events]))
