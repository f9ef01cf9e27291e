"""Query decisions, audit events and the state of the audit log."""

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.accounts.account import AccountKind
from app.ledger.audit import AuditEntry, AuditFilter, Checkpoint
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import Permission
from app.ledger.runs.decisions import Decision, DecisionFilter, DecisionWithPath
from app.persistence.repositories import account_metadata, audit, decisions, overview_queries, raw_rows
from app.service.accounts.lookup import find_account
from app.service.auth.request_context import RequestContext
from app.service.queries.outdated_alternatives import ChangedLimit, limits_changed_since
from app.service.queries.runs import find_path


def read_decisions(context: RequestContext, wanted: DecisionFilter, page: PageRequest) -> Page[DecisionWithPath]:
    """List the decisions within the caller's scope; `wanted.within` is the account's id or path.

    Raises:
        InvalidInputError: `until` is before `since`, or the cursor is of another list.
    """
    with context.read() as tx:
        _check_time(wanted.since, wanted.until)
        return decisions.page(tx, context.organisation_id, _reachable(tx, context, wanted), page)


def read_decision(context: RequestContext, run_id: str, position: int) -> DecisionWithPath:
    """Get a decision with its steps."""
    with context.read() as tx:
        run = find_path(tx, context, run_id)[-1].account
        found = decisions.at_positions(tx, context.organisation_id, run.id, [position])
        numbers = account_metadata.numbers_of(tx, context.organisation_id, [run.id])
    if not found:
        raise NotFoundError(f"The run {run_id} has no decision {position}.")
    return DecisionWithPath(found[0], run.path, numbers.get(run.id, 1))


def read_changed_limits(context: RequestContext, decision: Decision) -> tuple[ChangedLimit, ...]:
    """List the limits along a run's path that were changed after a decision."""
    with context.read() as tx:
        path = find_path(tx, context, decision.run_id)
        return limits_changed_since(tx, context.organisation_id, path, decision)


def read_audit_entries(context: RequestContext, wanted: AuditFilter, page: PageRequest) -> Page[AuditEntry]:
    """List the audit events within the caller's scope.

    A scope includes the account, its descendants, and their keys, proposals and experiments. It excludes events of the
    organisation, its receivers and people's tokens.

    Raises:
        InvalidInputError: `until` is before `since`, or the cursor is of another list.
    """
    with context.read(Permission.AUDIT_READ) as tx:
        _check_time(wanted.since, wanted.until)
        reachable = replace(wanted, within=context.principal.scope)
        return audit.list_entries(tx, context.organisation_id, reachable, page)


def _check_time(since: datetime | None, until: datetime | None) -> None:
    """Raise InvalidInputError if `until` is before `since`, because the list would always be empty."""
    if since is not None and until is not None and since > until:
        raise InvalidInputError(
            f"`until` ({until.isoformat()}) lies before `since` ({since.isoformat()}): nothing can lie between them.",
            field="until",
        )


def _reachable(tx: Connection, context: RequestContext, wanted: DecisionFilter) -> DecisionFilter:
    """Restrict a filter to the caller's scope."""
    run = None if wanted.run_id is None else find_path(tx, context, wanted.run_id)[-1].account
    # find_path and find_account check the scope of a named run or account.
    above = wanted.within or (context.principal.scope if run is None else None)
    account = None if above is None else find_account(tx, context, above).account
    if run is None and account is not None and account.kind is AccountKind.RUN:
        run, account = account, None
    return replace(wanted, run_id=None if run is None else run.id, within=None if account is None else account.id)


@dataclass(frozen=True, slots=True)
class ChainHealth:
    """State of an organisation's audit log.

    Args:
        checkpoint: the last one, if any.
        stopped: reason of the quarantine, by account id.
        paths: of these accounts, by id.
    """

    length: int
    head: str
    checkpoint: Checkpoint | None
    stopped: dict[str, str]
    paths: dict[str, str]


def read_health(context: RequestContext) -> ChainHealth:
    """Get the state of the audit log."""
    with context.read(Permission.AUDIT_READ, whole_organisation=True) as tx:
        length, head = audit.head(tx, context.organisation_id)
        stopped = {
            account_id: why for (_, account_id), why in raw_rows.quarantined(tx, context.organisation_id).items()
        }
        found = overview_queries.statuses_of(tx, context.organisation_id, stopped.keys())
        paths = {account_id: each.path for account_id, each in found.items()}
        return ChainHealth(length, head.hex(), audit.latest_checkpoint(tx, context.organisation_id), stopped, paths)
