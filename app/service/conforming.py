"""Does a new run conform to the policies above it, and does it need another person's word?"""

from collections.abc import Sequence

from app.accounting.conversion import epsilon_of_curve
from app.accounting.events import DpEvent
from app.accounting.orders import orders
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost
from app.ledger.conformity import Size, require_run, require_steps, sources_of
from app.ledger.policies import effective
from app.persistence.repositories.accounts import Population
from app.service.budgets import require_opening
from app.service.pricing import Prepared


def conforming(
    path: Sequence[Account],
    population: Population,
    event: DpEvent | None,
    plan: Sequence[StepEvent],
    ready: Prepared,
) -> Size:
    """Let a run be registered that every policy above it allows.

    Args:
        path: its ancestors, root first, and its own account.
        population: at the root.
        event: what a step costs unless the request says otherwise.
        plan: what is to be set aside for it.
        ready: has the curves of what is planned.

    Returns:
        How much the run may spend, as far as it says.

    Raises:
        PolicyViolationError: it is not allowed.
        UnpreparedError: a planned event was not computed yet; caught by `prepared`.
    """
    sources, own = sources_of(path), path[-1]
    size = size_of(path, plan or own.planned, ready)
    require_opening(path, population)
    declared = [step.event for step in plan] if event is None else [event, *(step.event for step in plan)]
    require_steps(sources, population.relation, declared)
    require_run(sources, size, limited=own.limit is not None, planned=bool(plan or own.planned))
    return size


def size_of(path: Sequence[Account], planned: Sequence[StepEvent], ready: Prepared) -> Size:
    """How much a run may spend: by its own limit, else by its plan, else by the nearest limit above it.

    A plan's epsilon is the one of a plan that was fixed beforehand, at the delta of the limit that governs the run.
    """
    own = path[-1]
    if own.limit is not None:
        return Size(own.limit.epsilon, own.limit.delta)
    governing = next(account.limit for account in reversed(path) if account.limit is not None)
    if not planned:
        return Size(governing.epsilon, governing.delta)
    ready.require(own, [step.event for step in planned])
    curve = total_cost([PricedStep(step, ready.prices[step.event]) for step in planned])
    return Size(epsilon_of_curve(orders(own.grid_version), curve, governing.delta).epsilon, governing.delta)


def needs_approval(path: Sequence[Account], size: Size) -> bool:
    """Whether a run of this size takes no steps before another person approves it."""
    most = effective(sources_of(path)).approval_above_epsilon
    return most is not None and size.epsilon > most
