"""Check that filters were chosen by the rule: for plans, registered runs, a first event or the weights before."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from sqlalchemy import Row

from app.accounting.curves import RdpCurve
from app.accounting.errors import AccountingError
from app.accounting.events import DpEvent, fingerprint
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import FilterWeights, filter_weights
from app.ledger.governance.filter_weights import DECLARED_SHARE, DEFAULT_SHARE, planned_weights, rescale_weights
from app.ledger.governance.registered_steps import registered_steps, tuned_weights
from app.ledger.step_events import PricedStep, StepEvent
from app.persistence.repositories import dp_events
from app.persistence.repositories.dp_events import CostTable
from app.persistence.repositories.raw_rows import Key
from app.service.verification.audit_replay import AuditState
from app.service.verification.registrations import Tuning
from app.service.verification.report import Balance, VerificationContext


def runs_of_tunings(states: Mapping[str, AuditState]) -> set[Key]:
    """List the runs to which a filter was tuned."""
    return {
        (owner, run_id)
        for owner, state in states.items()
        for account in state.accounts.values()
        for period in account.limits
        if period.tuning is not None
        for run_id, _ in period.tuning.runs
    }


def keep_registered_steps(audit: VerificationContext, account: Account, run: Row[Any]) -> None:
    """Keep the steps that a run declared when it was registered."""
    key, event = (run.organisation_id, run.account_id), run.event_fingerprint
    found = {} if event is None else dp_events.find_events(audit.tx, key[0], [event])
    audit.registered[key] = registered_steps(account.planned, found.get(event), run.expected_steps)


def filter_problems(audit: VerificationContext, key: Key) -> Iterator[str]:
    """Check that its filter was chosen by the rule, and before the first charge."""
    try:
        if not _chosen_by_the_rule(audit, key):
            yield (
                "its filter weights are not those of its planned workload, of its registered runs, or of an event "
                "charged to it."
            )
    except AccountingError as error:
        yield f"what its filter was tuned to cannot be priced: {error}"
    charged = audit.balances[key].first_versions
    if any(each is not None and charged.get(each.population, inf) <= each.version for each in audit.tunings(key)):
        yield "its filter was tuned to registered runs after it was charged."


def _chosen_by_the_rule(audit: VerificationContext, key: Key) -> bool:
    """Whether each limit's frozen weights follow from a workload or from the weights before."""
    stages = audit.stages(key)
    terms = zip(stages, [None, *stages], audit.tunings(key), strict=False)
    return all(_are_due(audit, key, stage, before, tuning) for stage, before, tuning in terms)


def _are_due(
    audit: VerificationContext, key: Key, account: Account, before: Account | None, tuning: Tuning | None
) -> bool:
    """Whether the weights under one limit follow from planned events, registered runs, an event or those before."""
    weights = account.weights
    if weights is None:
        return True
    assert account.limit is not None, "only a limit has weights"
    if before is not None and before.weights is not None:
        assert before.limit is not None, "only a limit has weights"
        if _same_parts(rescale_weights(before.weights, before.limit, account.limit), weights):
            return True
    if weights.plan is not None:
        terms = (account.limit, account.planned, account.relation, account.grid_version, weights.plan.share)
        # The search is left out first. The parts of delta may depend on the number that it finds before they are known.
        return any(planned_weights(*terms, bound) == weights for bound in (weights.plan, None))
    if tuning is not None and not account.planned:
        if not _is_readable(audit, key, tuning):
            return tuning.weights in {None, weights}
        due = _due_weights(audit, key, account, tuning)
        if due is not None:
            return due == weights
    return any(
        filter_weights(account.limit, price, account.grid_version) == weights
        for price in _workloads(audit, key, audit.balances[key])
    ) or _is_without_plan(account, weights)


def _is_without_plan(account: Account, weights: FilterWeights) -> bool:
    """Check whether the weights are those of a plan that the orders alone admit more of."""
    assert account.limit is not None, "only a limit has weights"
    rule = (account.relation, account.grid_version)
    return bool(account.planned) and any(
        planned_weights(account.limit, account.planned, *rule, share) == weights
        for share in (DECLARED_SHARE, DEFAULT_SHARE)
    )


def _same_parts(one: FilterWeights, other: FilterWeights) -> bool:
    """Whether weights divide delta alike; what a limit allows of a plan is checked by itself."""
    if one.plan is None or other.plan is None:
        return one == other
    return one == replace(other, plan=replace(one.plan, delta=other.plan.delta, share=other.plan.share))


def _workloads(audit: VerificationContext, key: Key, balance: Balance) -> Iterator[RdpCurve]:
    """Iterate over the costs of events for which the weights may have been chosen."""
    prices = CostTable.of(key[0], balance.account)
    for _, price in audit.prices(prices, balance.workloads):
        if not price.is_zero:
            yield price


def _is_readable(audit: VerificationContext, key: Key, tuning: Tuning) -> bool:
    """Check whether all runs of a tuning could be read; others are reported by themselves."""
    return all((key[0], run_id) in audit.registered for run_id, _ in tuning.runs)


def _due_weights(audit: VerificationContext, key: Key, account: Account, tuning: Tuning) -> FilterWeights | None:
    """Compute the weights of a tuning; None: it could not choose any."""
    parts: dict[str, list[StepEvent]] = {}
    for run_id, children in tuning.runs:
        for part in ("",) if account.partitions_per_unit is None else children:
            parts.setdefault(part, []).extend(audit.registered[key[0], run_id])
    curves = _curves(audit, key, account, {step.event for steps in parts.values() for step in steps})
    priced = [[PricedStep(step, curves[step.event]) for step in steps] for steps in parts.values()]
    return tuned_weights(account, priced)


def _curves(
    audit: VerificationContext, key: Key, account: Account, events: Iterable[DpEvent]
) -> dict[DpEvent, RdpCurve]:
    """Get the stored curves of events that are sound, and compute the others."""
    by_key = {fingerprint(event): event for event in events}
    found = {by_key[each]: curve for each, curve in audit.prices(CostTable.of(key[0], account), by_key)}
    rule = (account.relation, account.grid_version)
    return {event: found.get(event) or event_curve(event, *rule) for event in by_key.values()}
