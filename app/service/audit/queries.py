"""Reading what was done with an organisation's budgets, and what was decided."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from app.ledger.accounts import AccountKind
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.permissions import Permission
from app.persistence.repositories import account_paths, audit_entries, decision_queries, decisions
from app.persistence.repositories.audit_entries import AuditFilter, StoredAuditEntry
from app.persistence.repositories.decision_queries import Decided, Place
from app.persistence.repositories.decisions import DecisionOutcome
from app.service.accounts.lookup import find_account
from app.service.auth.request_context import RequestContext
from app.service.queries.run_history import EVENTS_ROOM
from app.service.queries.runs import find_path


@dataclass(frozen=True, slots=True)
class DecisionQuery:
    """Which decisions are asked for; None: whichever.

    Args:
        run: those about this run, by its id.
        account: those about runs that charge this account (id, or path of names), however deep.
        outcome: what became of the steps.
        actor: who asked.
        since: not before this moment.
        until: before this moment.
    """

    run: str | None = None
    account: str | None = None
    outcome: DecisionOutcome | None = None
    actor: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def read_decisions(call: RequestContext, query: DecisionQuery, *, before: Place | None, limit: int) -> list[Decided]:
    """Read decisions about all runs within the caller's reach, the newest first.

    Args:
        call: needs LEDGER_READ.
        query: which of them.
        before: only those behind this place in the list; None: from the newest.
        limit: how many at the most.

    Returns:
        The decisions.

    Raises:
        NotFoundError: there is no such run, or no such account.
        InsufficientScopeError: it is out of the caller's reach.
        InvalidInputError: the time that is asked for ends before it begins.
    """
    call.require_permission(Permission.LEDGER_READ)
    _check_time(query.since, query.until)
    with call.db.read(call.organisation_id) as tx:
        return decision_queries.page(tx, call.organisation_id, _reachable(tx, call, query), before=before, limit=limit)


def read_decision(call: RequestContext, run_id: str, position: int) -> Decided:
    """Read one decision with its steps.

    Args:
        call: needs LEDGER_READ.
        run_id: whose.
        position: its place among the run's decisions.

    Returns:
        The decision.

    Raises:
        NotFoundError: there is no such run, or it has no such decision.
        InsufficientScopeError: it is out of the caller's reach.
    """
    call.require_permission(Permission.LEDGER_READ)
    with call.db.read(call.organisation_id) as tx:
        run = find_path(tx, call, run_id)[-1].account
        found = decisions.at_positions(tx, call.organisation_id, run.id, [position], EVENTS_ROOM)
    if not found:
        raise NotFoundError(f"The run {run_id} has no decision {position}.")
    return Decided(found[0], run.path)


def read_acts(
    call: RequestContext, wanted: AuditFilter, *, after: int | None, limit: int, newest_first: bool = False
) -> list[StoredAuditEntry]:
    """Read the organisation's chain of acts, as far as it is within the caller's reach.

    A caller who is bound to an account reads of that, of what lies beneath it, and of keys, proposals and experiments
    of these. What concerns the whole organisation, its webhooks, and the tokens of people is left out.

    Args:
        call: needs AUDIT_READ.
        wanted: which of them.
        after: only those behind this position, as they are read; None: from the beginning, or from the end.
        limit: how many at the most.
        newest_first: whether the chain is read from its end.

    Returns:
        The acts in the order of the chain, or against it.

    Raises:
        InvalidInputError: the time that is asked for ends before it begins.
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
    """The paths of those of some ids that are accounts', as acts about them tell.

    Args:
        call: needs AUDIT_READ.
        ids: that stand in acts within the caller's reach.
    """
    call.require_permission(Permission.AUDIT_READ)
    with call.db.read(call.organisation_id) as tx:
        return account_paths.paths_of(tx, call.organisation_id, ids)


def _check_time(since: datetime | None, until: datetime | None) -> None:
    """Say so instead of finding nothing.

    Raises:
        InvalidInputError: the time ends before it begins.
    """
    if since is not None and until is not None and since > until:
        raise InvalidInputError(
            f"`until` ({until.isoformat()}) lies before `since` ({since.isoformat()}): nothing can lie between them."
        )


def _reachable(tx: Connection, call: RequestContext, query: DecisionQuery) -> decision_queries.DecisionFilter:
    """What is asked for, as far as the caller may see it."""
    run = None if query.run is None else find_path(tx, call, query.run)[-1].account
    # Who may see the run, or the account, has a scope that is above it.
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
