"""Plans, and whether an account admits or holds them."""

from dataclasses import replace

from app.accounting.calibration.monotone_search import decimal, index_at_or_below
from app.accounting.calibration.solvers import DIGITS
from app.accounting.curves import GRID_VERSION
from app.accounting.events import EpsilonDelta, Gaussian, PoissonSampled
from app.ledger.accounts import Account, AccountKind, with_usage, zero_curve
from app.ledger.admission import Admission, admit
from app.ledger.filters import Limit
from app.ledger.step_events import StepEvent
from app.ledger.tuning import DECLARED_SHARE, planned_weights
from app.service.planning.assumptions import PlanAssumptions
from app.service.planning.calibration import CalibrationGoal
from app.service.planning.costs import PlanCost

SETTING = PlanAssumptions()


STEP = PoissonSampled(0.01, Gaussian(1.1))


TRAINING = (StepEvent(STEP, 5000),)


QUERIES = (StepEvent(Gaussian(30.0), 7), StepEvent(PoissonSampled(0.02, Gaussian(2.0)), 20))


FAILING = (StepEvent(EpsilonDelta(0.05, 1e-9), 20),)


Plan = tuple[StepEvent, ...]


def goal(epsilon: float, others: Plan = (), delta: float = 1e-5) -> CalibrationGoal:
    return CalibrationGoal(epsilon, delta, others, SETTING)


def admits(plan: Plan, asked: CalibrationGoal, *, declared: bool) -> bool:
    """Whether an account lets all of a plan through, step event by step event."""
    limit, relation = Limit(asked.epsilon, asked.delta), asked.setting.relation
    weights = planned_weights(limit, plan, relation, GRID_VERSION, DECLARED_SHARE) if declared else None
    account = Account(
        id="bud_plan",
        kind=AccountKind.BUDGET,
        parent_id=None,
        population_id="pop_plan",
        name="plan",
        path="plan",
        depth=1,
        relation=relation,
        limit=limit,
        planned=plan if declared else (),
        weights=weights,
        spent=zero_curve(),
        held=zero_curve(),
    )
    if account.plan is not None:
        account = replace(account, spent=zero_curve().using({account.id: (0,) * len(account.plan.capacity)}))
    for step in plan:
        priced = with_usage([account], [account.price(step)])
        outcome = admit([account], priced)
        if not isinstance(outcome, Admission):
            return False
        (account,) = outcome.accounts
    return True


def held(plan: Plan, asked: CalibrationGoal) -> bool:
    """Whether the plan that an account with this limit freezes holds all of a plan, and the reserve its own deltas."""
    limit = Limit(asked.epsilon, asked.delta)
    weights = planned_weights(limit, plan, asked.setting.relation, GRID_VERSION, DECLARED_SHARE)
    assert weights.plan is not None
    whole = weights.plan.steps == sum(step.count for step in plan)
    return whole and asked.setting.curve(plan).delta <= weights.set_aside()


def next_digit(value: float, digits: int) -> float:
    """The neighbour of a number of six digits, so many digits of its last place away."""
    return decimal(index_at_or_below(value, DIGITS) + digits, DIGITS)


def reading(cost: PlanCost, name: str) -> float:
    (found,) = [each.value for each in cost.accountants if each.name == name]
    return found
