"""Limit changes: lowered at once, raised with a second approver.

A lowered limit cancels the reserved steps beyond it (ADR 0026).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection

from app.accounting.events import fingerprint
from app.accounting.pricing_effort import MAX_PLAN_WORK
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord, Population, reached
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.filter.limits import Limit
from app.ledger.governance.filter_weights import Tuning, weights_under
from app.ledger.governance.limit_changes import (
    ActiveReservation,
    is_lowered,
    is_raised,
    revoked_reservations,
    with_limit,
)
from app.ledger.governance.policy_checks import Size, require_limit_allowed, require_run, sources_of
from app.ledger.governance.proposals import Proposal
from app.ledger.governance.registered_steps import is_tunable
from app.ledger.governance.settings import LIMIT
from app.ledger.governance.unit_checks import require_priced, require_unit_changeable
from app.ledger.permissions import Permission
from app.ledger.runs.reservations import Reservation, has_lapsed
from app.ledger.step_events import StepEvent
from app.persistence.repositories import account_writes, accounts, alerts, locks, reservations
from app.persistence.repositories.account_values import weights_facts
from app.service.accounts.metadata import require_unarchived
from app.service.accounts.spec import check_account_limit
from app.service.accounts.tuning import tuned
from app.service.alerts.alert_factory import threshold_alerts
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.change_control import one_person_suffices
from app.service.costing import cost_steps
from app.service.governance.run_approvals import find_excess, needs_approval
from app.service.setting_changes import SettingHandler, SettingRecord
from app.service.worker_pool import Job

LimitRecord = SettingRecord[Limit]


def limit_etag(account_id: str, revision: int) -> str:
    """Get the entity tag of a limit; spending does not change it."""
    return f'"{account_id}-{revision}"'


@use_case(Permission.LIMIT_PROPOSE)
def change_limit(
    tx: Connection, context: RequestContext, account: str, limit: Limit, reason: str, tag: str | None
) -> LimitRecord | Proposal:
    """Lower a limit, or propose to raise it.

    Needs LIMIT_PROPOSE; to change the limit at once, also ACCOUNT_MANAGE.

    Raises:
        NotFoundError: a run has no limit of its own.
        InvalidInputError: the account has this limit already, or an open proposal.
        Also those of `SettingHandler.change` and `check_limit_change`.
    """

    def build(_: Connection, before: LimitRecord) -> Limit:
        if before.value == limit:
            raise InvalidInputError("The account has this limit already.")
        return limit

    return LIMITS.change(tx, context, account, build, reason=reason, tag=tag)


def find_limit(_: Connection, __: RequestContext, path: Sequence[AccountRecord]) -> LimitRecord:
    """Get the limit of the last account of a path; filter weights decide about admission, too.

    Raises:
        NotFoundError: a run has no limit of its own.
    """
    account = path[-1].account
    if account.limit is None:
        raise NotFoundError(f"The {AccountKind.RUN} {account.id} has no limit of its own.")
    tag, further = limit_etag(account.id, account.limit_revision), {"weights": weights_facts(account.weights)}
    return SettingRecord(account.id, path, account.limit, account.limit_revision, tag, further)


def check_limit_change(tx: Connection, context: RequestContext, before: LimitRecord, limit: Limit) -> None:
    """Check that an account may get a limit.

    Raises:
        AccountArchivedError: the limit of an archived account is raised.
        AccountStateConflictError: it is in another unit, and something is spent or reserved.
        UnsupportedEventError: a planned event has no value in its unit.
        PolicyViolationError: a policy forbids the limit.
        PlanTooExpensiveError: to compute what the limit allows of the plan would take more than a request may take.
        Also those of `check_account_limit`.
    """
    if is_raised(before.value, limit):
        require_unarchived(tx, context, before.subject)
    _limited(tx, context, before.accounts, limit)
    _require_allowed(before.accounts, limit)


def _write(tx: Connection, context: RequestContext, before: LimitRecord, limit: Limit) -> LimitRecord:
    """Write a limit and cancel reservations over it; the path is locked."""
    after = _limited(tx, context, before.accounts, limit)
    account_writes.set_limit(tx, context.organisation_id, after, context.now)
    changed = replace(before.accounts[-1], account=after, updated_at=context.now)
    record = find_limit(tx, context, [*before.accounts[:-1], changed])
    revoked = revoke_reservations(tx, context, after) if is_lowered(before.value, limit) else []
    return replace(record, further={**record.further, "revoked": revoked}) if revoked else record


def _send_alerts(tx: Connection, context: RequestContext, before: LimitRecord, after: LimitRecord) -> None:
    """Raise the alerts of thresholds that a changed limit has crossed."""
    thresholds = after.accounts[-1].alert_settings.thresholds
    crossed = thresholds[reached(before.account, thresholds) : reached(after.account, thresholds)]
    alerts.add(tx, context.organisation_id, threshold_alerts(after.account, crossed, context.now))


def _limited(tx: Connection, context: RequestContext, path: Sequence[AccountRecord], limit: Limit) -> Account:
    """Build the account with another limit, valid for every population above it."""
    account = path[-1].account
    require_unit_changeable(account, limit)
    after = with_limit(account, limit, None)
    require_priced([after], [step.event for step in account.planned])
    if is_tunable(after):
        after = tuned(tx, context, after)
    else:
        # Without a plan this takes no time, and another try would read the accounts again.
        planned = bool(account.planned) and (account.weights is not None or account.is_untouched)
        choice = Job(weights_under, (Tuning.of(account), limit), MAX_PLAN_WORK)
        after = with_limit(account, limit, context.costs.filter_weights(choice) if planned else choice.result())
    for population in _populations(path):
        check_account_limit(after, population)
    return after


def _populations(path: Sequence[AccountRecord]) -> list[Population]:
    """Get the populations above an account; a run may have several."""
    return [record.population for record in path if record.account.kind is AccountKind.POPULATION]


def _require_allowed(path: Sequence[AccountRecord], limit: Limit) -> None:
    """Require that the policies above an account allow a limit."""
    own, sources = path[-1], sources_of([record.account for record in path])
    for population in _populations(path):
        require_limit_allowed(sources, limit, population.size)
    if own.account.kind is AccountKind.RUN:
        require_run(sources, Size.of(limit), limited=True, planned=True)


def single_approver_allowed(tx: Connection, context: RequestContext, before: LimitRecord, limit: Limit) -> bool:
    """Check whether the caller may raise a limit alone.

    The policy must accept a single approver, and the caller must be allowed to approve. A run must also need no
    approval at registration with the new limit.
    """
    *above, own = path = [record.account for record in before.accounts]
    if not one_person_suffices(context, path):
        return False
    if own.kind is not AccountKind.RUN:
        return True
    if needs_approval(path, Size.of(limit)):
        return False
    return find_excess(tx, context, above, limit.epsilon, raised=own.id) is None


LIMITS: Final = SettingHandler(
    LIMIT, find_limit, _write, check=check_limit_change, alone=single_approver_allowed, follow=_send_alerts
)


def revoke_reservations(tx: Connection, context: RequestContext, limited: Account) -> list[dict[str, Any]]:
    """Cancel the steps of active reservations that no longer fit a lowered limit.

    Their cost stays held: a trainer may have executed them before it learns of the limit (ADR 0026). The account's path
    must be locked, so that no reservation under it is created or closed meanwhile.

    Returns:
        Audit payload: reservations with their cancelled steps by event fingerprint.
    """
    active = reservations.active_under(tx, context.organisation_id, limited.id)
    if not active:
        return []
    locks.lock(tx, context.organisation_id, [run_id for run_id, _ in active])
    # Read under the locks: steps may have been taken out of the reservations until now.
    order = {reservation_id: place for place, (_, reservation_id) in enumerate(active)}
    found = reservations.get_many(tx, context.organisation_id, list(order))
    loaded = _with_paths(tx, context, limited, sorted(found, key=lambda each: order[each.id]))
    events = {item.event for each in found for item in each.items}
    priced = cost_steps(tx, context.organisation_id, limited, [StepEvent(event, 1) for event in events], context.costs)
    curves = {each.step.event: each.curve for each in priced}
    changed = revoked_reservations(limited, _under(tx, context, limited, loaded), loaded, curves)
    if changed:
        reservations.save_revoked(tx, context.organisation_id, changed)
        account_writes.add_version(tx, context.organisation_id, [each.run_id for each in changed])
    before = {each.id: each for each in found}
    return [_facts(before[each.id], each) for each in changed]


def _with_paths(
    tx: Connection, context: RequestContext, limited: Account, found: Sequence[Reservation]
) -> list[ActiveReservation]:
    paths = locks.paths(tx, context.organisation_id, [each.run_id for each in found])
    under = {row.account_id for row in tx.execute(locks.descendant_ids(context.organisation_id, limited.id))}
    return [
        ActiveReservation(
            each, tuple(at for at in paths[each.run_id] if at in under), has_lapsed(each, context.lapsed_by)
        )
        for each in found
    ]


def _under(
    tx: Connection, context: RequestContext, limited: Account, reserved: Sequence[ActiveReservation]
) -> list[Account]:
    """Get the reservations' accounts under the limited one, with all parallel siblings."""
    wanted = {at for each in reserved for at in each.path} - {limited.id}
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
