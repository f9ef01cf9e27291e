"""Preview the arrival of a reservation: whether it is held at once, or what it waits for. Nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from app.ledger.accounts.account_records import AccountRecord
from app.ledger.admission.composition import exposed, require_charged_directly, trial_account
from app.ledger.governance.policy_checks import require_bounded_on_removal, require_open, require_steps, sources_of
from app.ledger.governance.unit_checks import require_priced
from app.ledger.scheduling.queue import Ledgers, never_fits
from app.ledger.scheduling.waiting import LONGEST_WAIT
from app.ledger.step_events import StepEvent
from app.persistence.repositories import accounts
from app.service.accounts.lookup import find_parent, find_path_of
from app.service.auth.request_context import RequestContext
from app.service.costing import cost_steps
from app.service.scheduling.arrivals import NEWCOMER, is_granted, newcomer_in, opens_later
from app.service.scheduling.explanations import WaitingDetail, explain
from app.service.scheduling.queue_snapshots import waiting_reservations
from app.service.scheduling.withholdings import read_withholdings


@dataclass(frozen=True, slots=True)
class WaitPreview:
    """What would become of a reservation of a new run.

    Args:
        fits: whether it would be held at once.
        detail: its place and what it would wait for; None: it fits, or could never fit and would be refused.
    """

    fits: bool
    detail: WaitingDetail | None


def preview_wait(context: RequestContext, account: str, steps: Sequence[StepEvent]) -> WaitPreview:
    """Preview the arrival of a reservation of a new run under a population or budget.

    Raises:
        AccountClosedError: an account of the path is closed, and does not open later.
        InvalidInputError: the account is composed in parallel, so runs do not charge it.
        PolicyViolationError: a policy forbids an event of the reservation.
        UnsupportedEventError: an event has no sound bound under the population's relation.
    """
    with context.read() as tx:
        path = find_path_of(tx, context, find_parent(tx, context, account).account.id)
        return context.run_with_costs(lambda: preview_in(tx, context, path, steps))


def preview_in(
    tx: Connection, context: RequestContext, records: Sequence[AccountRecord], steps: Sequence[StepEvent]
) -> WaitPreview:
    """Preview a reservation under the last account of a path, in a transaction; see `preview_wait`.

    Raises:
        CostNotReadyError: handled by `RequestContext.run_with_costs`.
    """
    owner, above = context.organisation_id, [each.account for each in records]
    require_charged_directly(above[-1], above[-1].path)
    if not opens_later(above, context.now):
        require_open(above, context.now)
    events = [step.event for step in steps]
    require_bounded_on_removal(above, events)
    require_priced(above, events)
    require_steps(sources_of(above), above[0].relation, events)
    priced = cost_steps(tx, owner, above[0], steps, context.costs)
    path = [*above, trial_account(above, NEWCOMER)]
    parallel = [each.id for each in above if each.partitions_per_unit is not None]
    parts = [each.account for each in accounts.children(tx, owner, parallel)] if parallel else []
    withholdings = read_withholdings(tx, owner, above, context.lapsed_by, asking=NEWCOMER)
    if never_fits(exposed(path, parts), priced, withholdings):
        return WaitPreview(fits=False, detail=None)
    closed = {each.account.id for each in records if each.quarantine is not None}
    closed |= {each.id for each in above if not each.window.holds(context.now)}
    queue = waiting_reservations(context.db, owner)
    with queue.lock:
        snapshot = queue.snapshot(tx, context.now, context.lapsed_by)
        known, is_known_open = snapshot.ledgers, snapshot.ledgers.is_open
        ledgers = Ledgers(
            known.accounts, known.withholdings, lambda each: each.id not in closed and is_known_open(each)
        )
        snapshot = replace(snapshot, ledgers=ledgers)
        with newcomer_in(snapshot, path, priced, [*path, *parts], withholdings) as seen:
            if is_granted(tx, owner, seen):
                return WaitPreview(fits=True, detail=None)
        with newcomer_in(snapshot, path, priced, [*path, *parts], withholdings) as seen:
            reservation = seen.line_of(NEWCOMER).reservations[NEWCOMER]
            [detail] = explain(tx, owner, seen, [reservation], context.now + LONGEST_WAIT)
    return WaitPreview(fits=False, detail=detail)
