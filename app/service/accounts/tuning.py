"""Tune the filters of accounts with nothing spent or reserved to the steps of their registered runs (ADR 0053)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import DpEvent
from app.ledger.accounts.account import Account
from app.ledger.governance.registered_steps import is_tunable, tuned_weights
from app.ledger.governance.steps_lost import StepsLost, find_steps_lost, may_lose_steps, priced_groups
from app.ledger.step_events import PricedStep, StepEvent
from app.persistence.repositories import account_writes, dp_events, registered_runs
from app.persistence.repositories.account_values import weights_facts
from app.persistence.repositories.dp_events import CostCache, CostTable
from app.service.auth.request_context import RequestContext
from app.service.costing import price_steps

_CURVES: Final = CostCache(512)
"""Curves of registered events, which registrations and pages read again and again."""


def tune(tx: Connection, context: RequestContext, path: Sequence[Account]) -> dict[str, Any]:
    """Tune the accounts of a new run's locked path, and write those whose weights change.

    Returns:
        Audit payload: the new weights by account, and the version of the first account, which orders them among the
        decisions; empty: nothing has changed.

    Raises:
        CostNotReadyError: handled by `RequestContext.run_with_costs`.
    """
    changed = [after for account in path if (after := tuned(tx, context, account)).weights != account.weights]
    if not changed:
        return {}
    account_writes.set_weights(tx, context.organisation_id, changed)
    version = path[0].version + (changed[0].id == path[0].id)
    weights = {each.id: weights_facts(each.weights) for each in changed}
    return {"tuned": {"population_version": version, "weights": weights}}


def keep_costs(tx: Connection, context: RequestContext, account: Account, events: Iterable[DpEvent]) -> None:
    """Store the costs of the events that a new run declares, by which filters are tuned.

    Raises:
        CostNotReadyError: handled by `RequestContext.run_with_costs`.
    """
    table = CostTable.of(context.organisation_id, account)
    lacking = dp_events.without_curve(tx, table, events)
    if lacking:
        context.costs.require(account, lacking)
        dp_events.add_curves(tx, table, {event: context.costs.curve(account, event) for event in lacking})


def tuned(tx: Connection, context: RequestContext, account: Account, further: Sequence[StepEvent] = ()) -> Account:
    """Copy an account with the weights for its registered runs, and for another one with `further` steps.

    It is unchanged if its filter cannot be tuned any more, or nothing is known of these runs.

    Raises:
        CostNotReadyError: handled by `RequestContext.run_with_costs`.
    """
    if not is_tunable(account):
        return account
    weights = tuned_weights(account, _parts(tx, context, account, further))
    return account if weights is None else replace(account, weights=weights)


def read_steps_lost(tx: Connection, organisation_id: str, found: Iterable[Account]) -> dict[str, StepsLost]:
    """Read which accounts lose steps of their runs because their filters are not tuned to them."""
    suspects = [each for each in found if may_lose_steps(each) and not each.is_untouched]
    if not suspects:
        return {}
    groups = list(registered_runs.list_groups(tx, organisation_id, [each.id for each in suspects]))
    lost: dict[str, StepsLost] = {}
    for account in suspects:
        own = [group for group in groups if group.account_id == account.id]
        events = {step.event for group in own for step in group.steps}
        curves = _CURVES.find_events(tx, CostTable.of(organisation_id, account), events) if events else {}
        steps_lost = find_steps_lost(account, priced_groups(own, curves))
        if steps_lost is not None:
            lost[account.id] = steps_lost
    return lost


def _parts(
    tx: Connection, context: RequestContext, account: Account, further: Sequence[StepEvent]
) -> list[list[PricedStep]]:
    """Price the steps of registered runs; of a parallel account, those in each of its parts.

    The further steps are of a new part.
    """
    owner = context.organisation_id
    by_run = registered_runs.steps_by_run(tx, owner, account.id)
    by_part: dict[str, list[StepEvent]] = {}
    parts = registered_runs.parts_of_runs(tx, owner, account.id) if account.partitions_per_unit is not None else None
    for run_id, steps in by_run.items():
        for part in ("",) if parts is None else parts.get(run_id, ()):
            by_part.setdefault(part, []).extend(steps)
    by_part.setdefault("", []).extend(further)
    kinds = {step.event: step for each in by_part.values() for step in each}
    known = _CURVES.find_events(tx, CostTable.of(owner, account), kinds)
    priced = price_steps(account, list(kinds.values()), known, context.costs)
    curves = {each.step.event: each.curve for each in priced}
    return [[PricedStep(step, curves[step.event]) for step in each] for each in by_part.values()]
