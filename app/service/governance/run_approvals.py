"""Policy checks of runs, bounds on the joint spend of runs without approval, and approvals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from functools import reduce
from math import ceil, inf
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.conversion import epsilon_of_curve
from app.accounting.curves import orders
from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account
from app.ledger.accounts.account_records import Population
from app.ledger.admission.composition import budgets_of
from app.ledger.audit import AuditAction
from app.ledger.errors import PreconditionFailedError
from app.ledger.governance.policy_checks import (
    Size,
    require_bounded_on_removal,
    require_origins,
    require_run,
    require_steps,
    sources_of,
)
from app.ledger.governance.proposals import Proposal, ProposalKind, Unapproved
from app.ledger.governance.unit_checks import require_priced
from app.ledger.runs.run import EndReason, RunStatus, status_payload
from app.ledger.settings.policies import effective
from app.ledger.settings.policy_rules import Policy
from app.ledger.step_events import PricedStep, StepEvent, is_endless, total_cost
from app.persistence.repositories import accounts
from app.persistence.repositories.proposals import find_unapproved
from app.service.accounts.spec import require_dates
from app.service.auth.request_context import RequestContext
from app.service.change_control import propose
from app.service.charging.loading import load_for
from app.service.charging.saving import save_transition
from app.service.costing import PrecomputedCosts

_SUM: Final = Context(prec=60, rounding=ROUND_CEILING)


@dataclass(frozen=True, slots=True)
class Excess:
    """A bound that a run would exceed.

    Args:
        path: account of the bound.
        bound: maximum epsilon of all runs without approval under it.
        others: epsilon of the other runs; infinity if one has reported an unbounded event.
        promised: most that the run may spend; may be infinity.
    """

    path: str
    bound: float
    others: float
    promised: float

    def facts(self) -> dict[str, object]:
        """Serialize for a proposal; infinity becomes null."""
        amounts = {"others": self.others, "promised": self.promised}
        finite = {name: None if amount == inf else amount for name, amount in amounts.items()}
        return {"account": self.path, "bound": self.bound, **finite}


def find_excess(
    tx: Connection, context: RequestContext, path: Sequence[Account], promised: float, *, raised: str | None = None
) -> Excess | None:
    """Find the first bound from the root that a run would exceed.

    A policy bounds the runs under its own account; the organisation's policy, those under each population. `raised` is
    the id of a registered run whose limit is raised: if it was approved before, no bound includes it, so any bound
    counts as exceeded. The organisation must be locked, so that no run is registered meanwhile.
    """
    for account in path:
        bound = _bound_at(account)
        if bound is None:
            continue
        counted = find_unapproved(tx, context.organisation_id, account.id)
        found = [each for each in counted if each.id != raised]
        # In decimal, rounded up: three limits of 0.1 make 0.3.
        others = reduce(_SUM.add, map(_exact, _counted(tx, context, found)), Decimal(0))
        approved = raised is not None and len(found) == len(counted)
        if approved or _SUM.add(others, _exact(promised)) > _exact(bound):
            return Excess(account.path, bound, float(others), promised)
    return None


def _bound_at(account: Account) -> float | None:
    policies: Iterable[Policy | None] = (account.policy, account.organisation_policy)
    bounds = [each.max_unapproved_epsilon_per_budget for each in policies if each is not None]
    return min((bound for bound in bounds if bound is not None), default=None)


def _counted(tx: Connection, context: RequestContext, found: Sequence[Unapproved]) -> list[float]:
    """Get the epsilon of runs, from balances only where decisions lack it."""
    counted = [each.counted(each.spent) for each in found if each.spent is not None]
    unsure = [each for each in found if each.spent is None]
    records = accounts.read_many(tx, context.organisation_id, [each.id for each in unsure]) if unsure else []
    own = {record.account.id: record.account for record in records}
    for each in unsure:
        account = own[each.id]
        counted.append(each.counted(account.rdp_epsilon(each.delta)))
    return counted


def _exact(epsilon: float) -> Decimal:
    return Decimal(repr(epsilon))


def require_policy_compliance(
    path: Sequence[Account], population: Population, event: DpEvent | None, reserve: Sequence[StepEvent]
) -> None:
    """Require that every policy above a run allows its limit and its events.

    Raises:
        PolicyViolationError: a policy forbids it.
        UnsupportedEventError: an event has no bound where units may leave their partitions, or no value in the unit of
            a limit.
    """
    require_dates(path, population)
    declared = [step.event for step in reserve] if event is None else [event, *(step.event for step in reserve)]
    require_steps(sources_of(path), population.relation, declared)
    require_bounded_on_removal(path, declared)
    require_priced(path, declared)


def largest(sizes: Sequence[Size]) -> Size:
    """Get the size at the budget that lets the run spend most."""
    return max(sizes, key=lambda size: (size.epsilon, size.delta))


def size_of(path: Sequence[Account], planned: Sequence[StepEvent], costs: PrecomputedCosts) -> Size:
    """Get a run's maximum spend by its limit, its plan or its parents.

    A plan's epsilon is that of the composed plan at the governing limit's delta.
    """
    own = path[-1]
    if own.limit is not None:
        return Size.of(own.limit)
    governing = next(account.limit for account in reversed(path) if account.limit is not None)
    if not planned or is_endless(planned):
        return Size.of(governing)
    costs.require(own, [step.event for step in planned])
    curve = total_cost([PricedStep(step, costs.curve(own, step.event)) for step in planned])
    delta = governing.shown_delta
    return Size(epsilon_of_curve(orders(own.grid_version), curve, delta).epsilon, delta)


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
        summary = f"{own.path} {does} spend {_epsilon(size.epsilon)}; above {most:g} another person has to approve it."
    else:
        facts["unapproved"] = excess.facts()
        summary = (
            f"{own.path} may spend {_epsilon(excess.promised)}; other runs under {excess.path} without "
            f"approval have {_epsilon(excess.others)}, and all of them may have {excess.bound:g} without an approval."
        )
    propose(tx, context, ProposalKind.RUN, own.id, facts, summary)


def _epsilon(number: float) -> str:
    return "an unbounded epsilon" if number == inf else f"epsilon {_rounded_up(number)}"


def _rounded_up(number: float) -> str:
    """Format an epsilon, rounded up to a thousandth unless six digits are exact."""
    return f"{number:g}" if float(f"{number:g}") == number else f"{ceil(round(number * 1000, 6)) / 1000:.3f}"


def require_still_allowed(path: Sequence[Account], proposal: Proposal) -> None:
    """Require that a pending run's limits and policies still match its proposal.

    Raises:
        PreconditionFailedError: a limit was raised since, and the run may spend more than was proposed.
        PolicyViolationError: a policy forbids it by now.
    """
    facts = proposal.proposed
    size = _proposed_size(path, facts)
    limits = [account.limit for account in (path[-1:] if facts["limited"] else budgets_of(path))]
    epsilon = max(limit.epsilon for limit in limits if limit is not None)
    measured_by_limit = facts["limited"] or not facts["planned"]
    if measured_by_limit and epsilon > size.epsilon:
        raise PreconditionFailedError(
            f"The run was proposed with epsilon {_rounded_up(size.epsilon)}, and a limit was raised since: "
            f"it may spend {_rounded_up(epsilon)}. Reject the proposal, and let the run be registered anew.",
            epsilon=epsilon,
        )
    require_run(sources_of(path), size, limited=facts["limited"], planned=facts["planned"])


def _proposed_size(path: Sequence[Account], facts: Mapping[str, Any]) -> Size:
    limit = path[-1].limit if facts["limited"] else None
    return Size(inf if facts["epsilon"] is None else facts["epsilon"], facts["delta"], limit)


def approve_run(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Activate a pending run; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the run is not pending, or may spend more than was proposed.
        PolicyViolationError: a policy forbids it by now.
    """
    _end_waiting(tx, context, proposal, RunStatus.ACTIVE, AuditAction.RUN_ACTIVATED)


def reject_run(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Abort a pending run; one that a report has overdrawn meanwhile stays overdrawn."""
    _end_waiting(tx, context, proposal, RunStatus.ABORTED, AuditAction.RUN_ABORTED)


def _end_waiting(
    tx: Connection, context: RequestContext, proposal: Proposal, reached: RunStatus, action: AuditAction
) -> None:
    work = load_for(tx, context, proposal.subject)
    run = work.run(proposal.subject)
    if run.status is not RunStatus.PENDING:
        if reached is RunStatus.ABORTED:
            return
        raise PreconditionFailedError(
            f"The run is {run.status}; it does not wait any more.", run_status=str(run.status)
        )
    if reached is RunStatus.ACTIVE:
        require_still_allowed(work.path(proposal.subject), proposal)
        require_origins(sources_of(work.path(proposal.subject)), run.declaration.starts_from)
    ends = reached is RunStatus.ABORTED
    after = run.ended(reached, EndReason.ABORTED, context.now) if ends else run._replace(status=reached)
    save_transition(tx, work, context.now, after)
    context.record(tx, action, run.account_id, status_payload(run), status_payload(after))
