"""Limit changes: lowered at once, raised with a second approver.

A lowered limit cancels the planned steps beyond it (ADR 0026).
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from sqlalchemy import Connection

from app.accounting.pricing_effort import MAX_PLAN_WORK
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord, Population, reached
from app.ledger.audit import AuditAction
from app.ledger.errors import (
    InvalidInputError,
    NotFoundError,
    PreconditionFailedError,
)
from app.ledger.filter.filters import Limit
from app.ledger.governance.filter_weights import Tuning, weights_under
from app.ledger.governance.limit_changes import is_lowered, is_raised, with_limit
from app.ledger.governance.policy_checks import Size, require_limit_allowed, require_run, sources_of
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.permissions import Permission
from app.persistence.repositories import account_writes, accounts, alerts
from app.persistence.repositories.account_values import weights_facts
from app.service.accounts.lookup import find_account, find_path_of, require_every_budget
from app.service.accounts.metadata import require_unarchived
from app.service.accounts.spec import check_account_limit
from app.service.alerts.alert_factory import threshold_alerts
from app.service.auth.request_context import RequestContext
from app.service.change_control import one_person_suffices, propose, require_if_match, require_none_open
from app.service.costing import PrecomputedCosts
from app.service.governance.plan_revocation import revoke_plans
from app.service.governance.run_approvals import find_excess, needs_approval
from app.service.idempotency import use_case
from app.service.worker_pool import Job


def read_limit(context: RequestContext, account: str) -> AccountRecord:
    """Get an account with its own limit."""
    with context.read() as tx:
        return require_own_limit(find_account(tx, context, account))


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
        AccountArchivedError: the limit of an archived account is raised.
        PolicyViolationError: a policy forbids the limit.
        PlanTooExpensiveError: to compute what the limit allows of the plan would take more than a request may take.
        Also those of `check_account_limit`.
    """
    path = find_path_of(tx, context, account)
    record = require_own_limit(path[-1])
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
    raised, places = is_raised(present, limit), [each.account for each in path]
    if raised:
        require_unarchived(tx, context, record.account.id)
    check_limit_change(path, limit, context.costs)
    if raised and not single_approver_allowed(tx, context, places, limit):
        return propose_limit(tx, context, record, limit, reason)
    context.require_permission(Permission.ACCOUNT_MANAGE)
    if raised:
        require_every_budget(tx, context, record.account.id)
    return apply_limit(tx, context, path, limit, reason)


def approve_limit(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Apply a proposed limit; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the limit has changed since the proposal.
        PolicyViolationError: a policy forbids the limit.
        AccountArchivedError: the account was archived since.
    """
    path = accounts.path_of(tx, context.organisation_id, proposal.subject)
    account = path[-1].account
    facts = proposal.proposed
    if account.limit_revision != facts["revision"]:
        raise PreconditionFailedError(
            "The limit was changed since this was proposed; reject the proposal, and let it be proposed anew.",
            limit_revision=account.limit_revision,
        )
    require_unarchived(tx, context, account.id)
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


def check_limit_change(path: Sequence[AccountRecord], limit: Limit, costs: PrecomputedCosts) -> None:
    """Check that the last account of a path may get a limit.

    Raises:
        PolicyViolationError: a policy forbids the limit.
        PlanTooExpensiveError: to compute what the limit allows of the plan would take more than a request may take.
        Also those of `check_account_limit`.
    """
    _limited(path, limit, costs)
    _require_allowed(path, limit)


def propose_limit(
    tx: Connection, context: RequestContext, record: AccountRecord, limit: Limit, reason: str
) -> Proposal:
    """Propose a limit that was checked, for another person to decide."""
    require_none_open(tx, context, record.account.id, {ProposalKind.LIMIT, ProposalKind.RUN})
    facts, before = proposal_facts(record, limit), limit_payload(record)
    return propose(tx, context, ProposalKind.LIMIT, record.account.id, facts, reason, before=before)


def proposal_facts(record: AccountRecord, limit: Limit) -> dict[str, object]:
    """Build the payload of a proposed limit."""
    return {"limit": asdict(limit), "revision": record.account.limit_revision}


def _limited(path: Sequence[AccountRecord], limit: Limit, costs: PrecomputedCosts) -> Account:
    """Build the account with another limit, valid for every population above it."""
    account = path[-1].account
    tuning = Tuning.of(account)
    # Without a plan this takes no time, and another try would read the accounts again.
    planned = account.weights is not None and bool(account.planned)
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
    if not one_person_suffices(context, path):
        return False
    if own.kind is not AccountKind.RUN:
        return True
    if needs_approval(path, Size(limit.epsilon, limit.delta)):
        return False
    return find_excess(tx, context, above, limit.epsilon, raised=own.id) is None


def require_own_limit(record: AccountRecord) -> AccountRecord:
    """Raise NotFoundError if a run has no limit of its own."""
    if record.account.limit is None:
        raise NotFoundError(f"The {AccountKind.RUN} {record.account.id} has no limit of its own.")
    return record
