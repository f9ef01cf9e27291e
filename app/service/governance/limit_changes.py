"""Limit changes: lowered at once, raised with a second approver.

A lowered limit cancels the planned steps beyond it (ADR 0026).
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection

from app.accounting.events import fingerprint
from app.accounting.work import MAX_PLAN_WORK
from app.ledger.account_records import AccountRecord, Population, reached
from app.ledger.accounts import Account, AccountKind
from app.ledger.audit import AuditAction
from app.ledger.decisions import DecisionFilter, DecisionOutcome
from app.ledger.errors import (
    InvalidInputError,
    NotFoundError,
    PreconditionFailedError,
)
from app.ledger.filters import Limit
from app.ledger.limit_changes import ActivePlan, is_lowered, is_raised, revoked_plans, with_limit
from app.ledger.pages import PageRequest
from app.ledger.permissions import PERMISSIONS, Permission
from app.ledger.policies import effective
from app.ledger.policy_checks import Size, require_limit_allowed, require_run, sources_of
from app.ledger.proposals import Proposal, ProposalKind
from app.ledger.reservations import Reservation, has_lapsed
from app.ledger.step_events import StepEvent
from app.ledger.tuning import Tuning, weights_under
from app.persistence.repositories import account_writes, accounts, alerts, decisions, locks, reservations
from app.persistence.repositories.account_values import weights_facts
from app.service.accounts.lookup import find_account, find_path_of, missing_account_error, require_every_budget
from app.service.accounts.spec import check_account_limit
from app.service.alerts.alert_factory import threshold_alerts
from app.service.auth.request_context import RequestContext
from app.service.change_control import propose, require_if_match, require_none_open
from app.service.costing import PrecomputedCosts, cost_steps
from app.service.governance.run_approvals import find_excess, needs_approval
from app.service.idempotency import use_case
from app.service.worker_pool import Job


def read_limit(context: RequestContext, account: str) -> AccountRecord:
    """Get an account with its own limit."""
    with context.read() as tx:
        return _with_limit(find_account(tx, context, account))


def limit_etag(account_id: str, revision: int) -> str:
    """Get the entity tag of a limit; spending does not change it."""
    return f'"{account_id}-{revision}"'


@use_case(Permission.LIMIT_PROPOSE)
def change_limit(
    tx: Connection, context: RequestContext, account: str, limit: Limit, reason: str, tag: str | None
) -> AccountRecord | Proposal:
    """Lower a limit, or propose to raise it; `tag` is the value of If-Match.

    Needs LIMIT_PROPOSE; to change the limit at once, also ACCOUNT_MANAGE.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the limit has changed.
        InvalidInputError: the account has this limit already, or an open proposal.
        PolicyViolationError: a policy forbids the limit.
        PlanTooExpensiveError: to compute what the limit allows of the plan would take more than a request may take.
        Also those of `check_account_limit`.
    """
    path = find_path_of(tx, context, account)
    record = _with_limit(path[-1])
    require_if_match(
        "limit",
        limit_etag(record.account.id, record.account.limit_revision),
        tag,
        limit_revision=record.account.limit_revision,
    )
    present = record.account.limit
    assert present is not None, "it was looked for"
    if present == limit:
        raise InvalidInputError("The account has this limit already.")
    _limited(path, limit, context.costs)
    _require_allowed(path, limit)
    raised, places = is_raised(present, limit), [each.account for each in path]
    if raised and not single_approver_allowed(tx, context, places, limit):
        return _propose(tx, context, record, limit, reason)
    context.require_permission(Permission.ACCOUNT_MANAGE)
    if raised:
        require_every_budget(tx, context, record.account.id)
    return apply_limit(tx, context, path, limit, reason)


@use_case(Permission.RUN_MANAGE)
def request_limit(
    tx: Connection, context: RequestContext, run_id: str, account: str | None, limit: Limit, reason: str
) -> Proposal:
    """Propose to raise a limit that a run is charged to, for another person to decide.

    The account, by id or path, is on the run's path; None: the one that refused last. The run is in the caller's scope,
    but the account may lie above it: to ask changes nothing.

    Raises:
        InvalidInputError: the account is not charged by the run, none has refused it, the limit is not raised, or it
            waits for an approval already.
        PolicyViolationError: a policy forbids the limit.
        PlanTooExpensiveError: to compute what the limit allows of the plan would take more than a request may take.
        Also those of `check_account_limit`.
    """
    charged = accounts.path_of(tx, context.organisation_id, run_id)
    if not charged or charged[-1].account.kind is not AccountKind.RUN:
        raise missing_account_error(AccountKind.RUN, run_id)
    context.require_scope([record.account.id for record in charged])
    found = _charged_account(tx, context, charged, account)
    path = accounts.path_of(tx, context.organisation_id, found.account.id)
    record = _with_limit(path[-1])
    present = record.account.limit
    assert present is not None, "it was looked for"
    if is_lowered(present, limit) or not is_raised(present, limit):
        raise InvalidInputError(
            f"`limit` is epsilon {limit.epsilon:g} (delta {limit.delta:g}), and {record.account.path} has epsilon "
            f"{present.epsilon:g} (delta {present.delta:g}). Request a higher one."
        )
    _limited(path, limit, context.costs)
    _require_allowed(path, limit)
    return _propose(tx, context, record, limit, reason)


def _charged_account(
    tx: Connection, context: RequestContext, charged: Sequence[AccountRecord], account: str | None
) -> AccountRecord:
    """Find an account among those that a run charges; None: the one that refused last."""
    wanted = account
    if wanted is None:
        refused = DecisionFilter(run_id=charged[-1].account.id, outcome=DecisionOutcome.REFUSED)
        last = next(iter(decisions.page(tx, context.organisation_id, refused, PageRequest(1)).items), None)
        if last is None:
            raise InvalidInputError("Nothing was refused to this run. Send `account`: whose limit is to be raised.")
        wanted = last.decision.binding_account_id
    for record in charged:
        if wanted in {record.account.id, record.account.path} and record.account.limit is not None:
            return record
    limited = ", ".join(record.account.path for record in charged if record.account.limit is not None)
    raise InvalidInputError(f"`account` is {wanted!a}, which limits no step of this run. Send one of {limited}.")


def approve_limit(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Apply a proposed limit; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the limit has changed since the proposal.
        PolicyViolationError: a policy forbids the limit.
    """
    path = accounts.path_of(tx, context.organisation_id, proposal.subject)
    account = path[-1].account
    facts = proposal.proposed
    if account.limit_revision != facts["revision"]:
        raise PreconditionFailedError(
            "The limit was changed since this was proposed; reject the proposal, and let it be proposed anew.",
            limit_revision=account.limit_revision,
        )
    limit = Limit(**facts["limit"])
    _require_allowed(path, limit)
    apply_limit(tx, context, path, limit, proposal.reason)


def apply_limit(
    tx: Connection,
    context: RequestContext,
    path: Sequence[AccountRecord],
    limit: Limit,
    reason: str,
) -> AccountRecord:
    """Write a limit, cancel plans over it, and raise threshold alerts.

    The transaction has locked the organisation, then the path, which ends with the account before the change.
    """
    record, after = path[-1], _limited(path, limit, context.costs)
    account_writes.set_limit(tx, context.organisation_id, after, context.now)
    now = replace(record, account=after, updated_at=context.now)
    assert record.account.limit is not None, "only a limit can be changed"
    revoked = revoke_plans(tx, context, after) if is_lowered(record.account.limit, limit) else []
    facts = limit_payload(now) | ({"revoked": revoked} if revoked else {})
    context.record(tx, AuditAction(f"{after.kind}.limit_changed"), after.id, limit_payload(record), facts, reason)
    thresholds = record.alert_settings.thresholds
    crossed = thresholds[reached(record.account, thresholds) : reached(after, thresholds)]
    alerts.add(tx, context.organisation_id, threshold_alerts(after, crossed, context.now))
    return now


def limit_payload(record: AccountRecord) -> dict[str, object]:
    """Build the audit payload of a limit: all that decides about admission."""
    account = record.account
    assert account.limit is not None, "only a limit can be changed"
    return {
        "limit": asdict(account.limit),
        "revision": account.limit_revision,
        "weights": weights_facts(account.weights),
    }


def _propose(tx: Connection, context: RequestContext, record: AccountRecord, limit: Limit, reason: str) -> Proposal:
    account = record.account
    require_none_open(tx, context, account.id, {ProposalKind.LIMIT, ProposalKind.RUN})
    facts = {"limit": asdict(limit), "revision": account.limit_revision}
    return propose(tx, context, ProposalKind.LIMIT, account.id, facts, reason, before=limit_payload(record))


def _limited(path: Sequence[AccountRecord], limit: Limit, costs: PrecomputedCosts) -> Account:
    """Build the account with another limit, valid for every population above it."""
    account = path[-1].account
    tuning = Tuning.of(account)
    # Without a plan this takes no time, and another try would read the accounts again.
    planned = account.weights is not None and account.weights.plan is not None
    choice = Job(weights_under, (tuning, limit), MAX_PLAN_WORK)
    weights = costs.filter_weights(choice) if planned else choice.result()
    after = with_limit(account, limit, weights)
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
        require_run(sources, Size(limit.epsilon, limit.delta), limited=True, planned=True)


def single_approver_allowed(tx: Connection, context: RequestContext, path: Sequence[Account], limit: Limit) -> bool:
    """Check whether the caller may raise a limit alone.

    The policy must accept a single approver, and the caller must be allowed to approve. A run must also need no
    approval at registration with the new limit.
    """
    *above, own = path
    if (
        effective(sources_of(path)).approvers_to_raise_limit != 1
        or Permission.PROPOSAL_APPROVE not in PERMISSIONS[context.principal.role]
    ):
        return False
    if own.kind is not AccountKind.RUN:
        return True
    if needs_approval(path, Size(limit.epsilon, limit.delta)):
        return False
    return find_excess(tx, context, above, limit.epsilon, raised=own.id) is None


def _with_limit(record: AccountRecord) -> AccountRecord:
    if record.account.limit is None:
        raise NotFoundError(f"The {AccountKind.RUN} {record.account.id} has no limit of its own.")
    return record


def revoke_plans(tx: Connection, context: RequestContext, limited: Account) -> list[dict[str, Any]]:
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
    found = reservations.get_many(tx, context.organisation_id, dict.fromkeys(order))
    plans = _plans(tx, context, limited, sorted(found, key=lambda each: order[each.id]))
    events = {item.event for each in found for item in each.items}
    priced = cost_steps(tx, context.organisation_id, limited, [StepEvent(event, 1) for event in events], context.costs)
    curves = {each.step.event: each.curve for each in priced}
    changed = revoked_plans(limited, _under(tx, context, limited, plans), plans, curves)
    if changed:
        reservations.save_revoked(tx, context.organisation_id, changed)
        account_writes.add_version(tx, context.organisation_id, [each.run_id for each in changed])
    before = {each.id: each for each in found}
    return [_facts(before[each.id], each) for each in changed]


def _plans(tx: Connection, context: RequestContext, limited: Account, found: Sequence[Reservation]) -> list[ActivePlan]:
    """Get each plan with its path from the limited account down."""
    paths = locks.paths(tx, context.organisation_id, [each.run_id for each in found])
    under = {row.account_id for row in tx.execute(locks.descendant_ids(context.organisation_id, limited.id))}
    return [
        ActivePlan(each, tuple(at for at in paths[each.run_id] if at in under), has_lapsed(each, context.lapsed_by))
        for each in found
    ]


def _under(tx: Connection, context: RequestContext, limited: Account, plans: Sequence[ActivePlan]) -> list[Account]:
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
