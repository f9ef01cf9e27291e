"""Check that the filters of accounts without a plan were tuned to their registered runs (ADR 0053)."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, fingerprint
from app.accounting.rdp import event_curve
from app.ledger.accounts.account import Account
from app.ledger.filter.filters import FilterWeights
from app.ledger.governance.registered_steps import registered_steps, tuned_weights
from app.ledger.step_events import PricedStep, StepEvent
from app.persistence.repositories import dp_events
from app.persistence.repositories.dp_events import CostTable
from app.persistence.repositories.raw_rows import Key
from app.service.verification.audit_replay import AuditState
from app.service.verification.registrations import Tuning
from app.service.verification.report import VerificationContext


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


def is_readable_tuning(audit: VerificationContext, key: Key, tuning: Tuning) -> bool:
    """Check whether all runs of a tuning could be read; others are reported by themselves."""
    return all((key[0], run_id) in audit.registered for run_id, _ in tuning.runs)


def due_weights(audit: VerificationContext, key: Key, account: Account, tuning: Tuning) -> FilterWeights | None:
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
