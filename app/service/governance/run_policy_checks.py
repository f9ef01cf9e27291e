"""Policy checks of runs, and their need of approval."""

from collections.abc import Sequence
from math import inf

from sqlalchemy import Connection

from app.accounting.conversion import epsilon_of_curve
from app.accounting.events import DpEvent
from app.accounting.orders import orders
from app.ledger.account_records import Population
from app.ledger.accounts import Account, PricedStep, StepEvent, total_cost
from app.ledger.composition import budgets_of, require_bounded_on_removal
from app.ledger.errors import PreconditionFailedError
from app.ledger.policies import effective
from app.ledger.policy_checks import Size, require_run, require_steps, sources_of
from app.ledger.proposals import Proposal, ProposalKind
from app.service.accounts.spec import require_dates
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts
from app.service.governance.proposing import propose
from app.service.governance.unapproved import Excess


def require_policy_compliance(
    path: Sequence[Account], population: Population, event: DpEvent | None, plan: Sequence[StepEvent]
) -> None:
    """Require that every policy above a run allows its limit and its events.

    Raises:
        PolicyViolationError: a policy forbids it.
        UnsupportedEventError: an event has no bound where units may leave their partitions.
    """
    require_dates(path, population)
    declared = [step.event for step in plan] if event is None else [event, *(step.event for step in plan)]
    require_steps(sources_of(path), population.relation, declared)
    require_bounded_on_removal(path, declared)


def largest(sizes: Sequence[Size]) -> Size:
    """Get the size at the budget that lets the run spend most."""
    return max(sizes, key=lambda size: (size.epsilon, size.delta))


def size_of(path: Sequence[Account], planned: Sequence[StepEvent], ready: PrecomputedCosts) -> Size:
    """Get a run's maximum spend by its limit, its plan or its parents.

    A plan's epsilon is that of the composed plan at the governing limit's delta.
    """
    own = path[-1]
    if own.limit is not None:
        return Size(own.limit.epsilon, own.limit.delta)
    governing = next(account.limit for account in reversed(path) if account.limit is not None)
    if not planned:
        return Size(governing.epsilon, governing.delta)
    ready.require(own, [step.event for step in planned])
    curve = total_cost([PricedStep(step, ready.curve(own, step.event)) for step in planned])
    return Size(epsilon_of_curve(orders(own.grid_version), curve, governing.delta).epsilon, governing.delta)


def needs_approval(path: Sequence[Account], size: Size) -> bool:
    """Check whether a run of this size needs approval."""
    most = effective(sources_of(path)).approval_above_epsilon
    return most is not None and size.epsilon > most


def propose_run(
    tx: Connection,
    context: RequestContext,
    path: Sequence[Account],
    size: Size,
    excess: Excess | None,
    *,
    planned: bool,
) -> None:
    """Propose a pending run; `excess` None: the run alone is too large."""
    own, most = path[-1], effective(sources_of(path)).approval_above_epsilon
    facts: dict[str, object] = {
        "epsilon": None if size.epsilon == inf else size.epsilon,
        "delta": size.delta,
        "limited": own.limit is not None,
        "planned": planned,
        "approval_above_epsilon": most,
    }
    if excess is None:
        does = "plans to" if planned and own.limit is None else "may"
        told = f"{own.path} {does} spend {_epsilon(size.epsilon)}; above {most:g} another person has to approve it."
    else:
        facts["unapproved"] = excess.facts()
        told = (
            f"{own.path} may spend {_epsilon(excess.promised)}; other runs under {excess.path} without "
            f"approval have {_epsilon(excess.others)}, and all of them may have {excess.bound:g} without an approval."
        )
    propose(tx, context, ProposalKind.RUN, own.id, facts, told)


def _epsilon(number: float) -> str:
    return "an unbounded epsilon" if number == inf else f"epsilon {number:.4g}"


def require_still_allowed(path: Sequence[Account], proposal: Proposal) -> None:
    """Require that a pending run's limits and policies still match its proposal.

    Raises:
        PreconditionFailedError: a limit was raised since, and the run may spend more than was proposed.
        PolicyViolationError: a policy forbids it by now.
    """
    facts = proposal.proposed
    size = Size(inf if facts["epsilon"] is None else facts["epsilon"], facts["delta"])
    limits = [account.limit for account in (path[-1:] if facts["limited"] else budgets_of(path))]
    epsilon = max(limit.epsilon for limit in limits if limit is not None)
    measured_by_limit = facts["limited"] or not facts["planned"]
    if measured_by_limit and epsilon > size.epsilon:
        raise PreconditionFailedError(
            f"The run was proposed with epsilon {size.epsilon:.4g}, and a limit was raised since: it may spend "
            f"{epsilon:.4g}. Reject the proposal, and let the run be registered anew.",
            epsilon=epsilon,
        )
    require_run(sources_of(path), size, limited=facts["limited"], planned=facts["planned"])
