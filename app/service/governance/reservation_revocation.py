"""Cancellation of planned steps that a lowered limit does not admit (ADR 0026)."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from app.accounting.events import fingerprint
from app.ledger.accounts.account import Account
from app.ledger.governance.limit_changes import ActiveReservation, revoked_reservations
from app.ledger.runs.reservations import Reservation, has_lapsed
from app.ledger.step_events import StepEvent
from app.persistence.repositories import account_writes, accounts, locks, reservations
from app.service.auth.request_context import RequestContext
from app.service.costing import cost_steps


def revoke_reservations(tx: Connection, context: RequestContext, limited: Account) -> list[dict[str, Any]]:
    """Cancel the steps of active plans that no longer fit a lowered limit.

    Their cost stays held: a trainer may have executed them before it learns of the limit (ADR 0026). The account's path
    must be locked, so that no plan under it is created or closed meanwhile.

    Returns:
        Audit payload: reservations with their cancelled steps by event fingerprint.
    """
    active = reservations.active_under(tx, context.organisation_id, limited.id)
    if not active:
        return []
    locks.lock(tx, context.organisation_id, [run_id for run_id, _ in active])
    # Read under the locks: steps may have been taken out of the plans until now.
    order = {reservation_id: place for place, (_, reservation_id) in enumerate(active)}
    found = reservations.get_many(tx, context.organisation_id, list(order))
    plans = _plans(tx, context, limited, sorted(found, key=lambda each: order[each.id]))
    events = {item.event for each in found for item in each.items}
    priced = cost_steps(tx, context.organisation_id, limited, [StepEvent(event, 1) for event in events], context.costs)
    curves = {each.step.event: each.curve for each in priced}
    changed = revoked_reservations(limited, _under(tx, context, limited, plans), plans, curves)
    if changed:
        reservations.save_revoked(tx, context.organisation_id, changed)
        account_writes.add_version(tx, context.organisation_id, [each.run_id for each in changed])
    before = {each.id: each for each in found}
    return [_facts(before[each.id], each) for each in changed]


def _plans(
    tx: Connection, context: RequestContext, limited: Account, found: Sequence[Reservation]
) -> list[ActiveReservation]:
    """Get each plan with its path from the limited account down."""
    paths = locks.paths(tx, context.organisation_id, [each.run_id for each in found])
    under = {row.account_id for row in tx.execute(locks.descendant_ids(context.organisation_id, limited.id))}
    return [
        ActiveReservation(
            each, tuple(at for at in paths[each.run_id] if at in under), has_lapsed(each, context.lapsed_by)
        )
        for each in found
    ]


def _under(
    tx: Connection, context: RequestContext, limited: Account, plans: Sequence[ActiveReservation]
) -> list[Account]:
    """Get the plans' accounts under the limited one, with all parallel siblings."""
    wanted = {at for plan in plans for at in plan.path} - {limited.id}
    found = {each.account.id: each.account for each in accounts.read_many(tx, context.organisation_id, sorted(wanted))}
    parallel = [each.id for each in (limited, *found.values()) if each.partitions_per_unit is not None]
    for part in accounts.children(tx, context.organisation_id, parallel) if parallel else ():
        found.setdefault(part.account.id, part.account)
    return list(found.values())


def _facts(before: Reservation, after: Reservation) -> dict[str, Any]:
    further = {
        fingerprint(now.event): now.revoked - then.revoked
        for then, now in zip(before.items, after.items, strict=True)
        if now.revoked != then.revoked
    }
    return {"reservation": after.id, "run": after.run_id, "steps": further}
