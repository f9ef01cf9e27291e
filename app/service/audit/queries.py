"""Query decisions and audit events."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.accounts import AccountKind
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.permissions import Permission
from app.persistence.repositories import account_paths, audit_entries, decision_queries, decisions
from app.persistence.repositories.audit_entries import AuditFilter, StoredAuditEntry
from app.persistence.repositories.decision_queries import DecisionCursor, DecisionWithPath
from app.persistence.repositories.decisions import DecisionOutcome
from app.service.accounts.lookup import find_account
from app.service.auth.request_context import RequestContext
from app.service.queries.run_history import EVENTS_ROOM
from app.service.queries.runs import find_path


@dataclass(frozen=True, slots=True)
class DecisionQuery:
    """Filter of decisions; None: no restriction.

    Args:
        account: id or path; decisions of all runs that charge this account.
        actor: who requested the steps.
        since: inclusive; `until` is exclusive.
    """

    run: str | None = None
    account: str | None = None
    outcome: DecisionOutcome | None = None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def read_decisions(
    call: RequestContext, query: DecisionQuery, *, before: DecisionCursor | None, limit: int
) -> list[DecisionWithPath]:
    """List the decisions within the caller's scope, the newest first.

    Raises:
        InvalidInputError: `until` is before `since`.
    """
    call.require_permission(Permission.LEDGER_READ)
    _check_time(query.since, query.until)
    with call.db.read(call.organisation_id) as tx:
        return decision_queries.page(tx, call.organisation_id, _reachable(tx, call, query), before=before, limit=limit)


def read_decision(call: RequestContext, run_id: str, position: int) -> DecisionWithPath:
    """Get a decision with its steps."""
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        run = find_path(tx, call, run_id)[-1].account
        found = decisions.at_positions(tx, call.organisation_id, run.id, [position], EVENTS_ROOM)
    if not found:
        raise NotFoundError(f"The run {run_id} has no decision {position}.")
    return DecisionWithPath(found[0], run.path)


def read_audit_entries(
    call: RequestContext, wanted: AuditFilter, *, after: int | None, limit: int, newest_first: bool = False
) -> list[StoredAuditEntry]:
    """List the audit events within the caller's scope; `after` counts in the list's order.

    A scope includes the account, its descendants, and their keys, proposals and experiments. It excludes events of the
    organisation, its webhooks and people's tokens.

    Raises:
        InvalidInputError: `until` is before `since`.
    """
    call.require_permission(Permission.AUDIT_READ)
    _check_time(wanted.since, wanted.until)
    reachable = replace(wanted, within=call.principal.scope)
    with call.db.read(call.organisation_id) as tx:
        if newest_first:
            return audit_entries.page_backwards(tx, call.organisation_id, reachable, before=after, limit=limit)
        return audit_entries.page(
            tx, call.organisation_id, reachable, after=-1 if after is None else after, limit=limit
        )


def name_accounts(call: RequestContext, ids: Collection[str]) -> dict[str, str]:
    """Get the paths of the accounts among ids from readable audit events."""
    call.require_permission(Permission.AUDIT_READ)
    with call.db.read(call.organisation_id) as tx:
        return account_paths.paths_of(tx, call.organisation_id, ids)


def _check_time(since: datetime | None, until: datetime | None) -> None:
    """Raise InvalidInputError if `until` is before `since`, because the list would always be empty."""
    if since is not None and until is not None and since > until:
        raise InvalidInputError(
            f"`until` ({until.isoformat()}) lies before `since` ({since.isoformat()}): nothing can lie between them."
        )


def _reachable(tx: Connection, call: RequestContext, query: DecisionQuery) -> decision_queries.DecisionFilter:
    """Build the filter of a query, restricted to the caller's scope."""
    run = None if query.run is None else find_path(tx, call, query.run)[-1].account
    # find_path and find_account check the scope of a named run or account.
    above = query.account or (call.principal.scope if run is None else None)
    account = None if above is None else find_account(tx, call, above).account
    if run is None and account is not None and account.kind is AccountKind.RUN:
        run, account = account, None
    return decision_queries.DecisionFilter(
        run_id=None if run is None else run.id,
        beneath=None if account is None else account.id,
        outcome=query.outcome,
        actor=query.actor,
        since=query.since,
        until=query.until,
    )
