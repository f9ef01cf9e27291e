"""Metadata and archive of accounts: they change no admission.

An archived account is read-only: a run must have ended before, and no run, budget or experiment is created under it. So
no step has to ask whether it is charged to an archived account.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.account_records import AccountRecord
from app.ledger.accounts import Account, AccountKind
from app.ledger.audit import AuditAction
from app.ledger.errors import AccountArchivedError, AccountStateConflictError
from app.ledger.metadata import ARCHIVALS, METADATA_CHANGES, UNARCHIVALS
from app.ledger.permissions import Permission
from app.persistence.repositories import account_metadata, overview_queries
from app.service.accounts.lookup import find_account, find_of_kind, require_every_budget
from app.service.auth.request_context import RequestContext
from app.service.idempotency import run_effect

_NEEDED: Final = {
    AccountKind.POPULATION: Permission.ACCOUNT_MANAGE,
    AccountKind.BUDGET: Permission.ACCOUNT_MANAGE,
    AccountKind.RUN: Permission.RUN_MANAGE,
}


def change_metadata(context: RequestContext, kind: AccountKind, account: str, changes: Mapping[str, Any]) -> None:
    """Apply a JSON merge patch to the metadata of an account, given by id, or of a population by its name.

    Needs RUN_MANAGE for a run, else ACCOUNT_MANAGE. Without a difference, nothing is recorded.

    Raises:
        InvalidInputError: there would be too many labels.
    """
    context.require_permission(_NEEDED[kind])

    def change(tx: Connection) -> None:
        changed = find_of_kind(tx, context, kind, account).account
        require_every_budget(tx, context, changed.id)
        before = account_metadata.find_many(tx, context.organisation_id, [changed.id])[changed.id].metadata
        after = before.patched(changes)
        if after != before:
            account_metadata.save(tx, context.organisation_id, changed, after)
            facts = {"path": changed.path, "metadata": after.payload()}
            context.record(tx, METADATA_CHANGES[kind], changed.id, {"metadata": before.payload()}, facts)

    run_effect(context, change)


def archive_account(
    context: RequestContext, account: str, reason: str | None = None
) -> tuple[Account, datetime | None]:
    """Archive an account, given by id or path, and with it everything under it; it frees nothing.

    Raises:
        AccountStateConflictError: a run that has not ended is charged to it.
    """

    def archive(tx: Connection, found: AccountRecord) -> None:
        unfinished, counts = overview_queries.unfinished_runs(tx, context.organisation_id, found.account.id, 1)
        if unfinished:
            number, first = sum(counts.values()), unfinished[0]
            others = f", one of {number}," if number > 1 else ""
            raise AccountStateConflictError(
                f"The run {first.path} ({first.id}){others} has not ended, and what is archived takes no steps. "
                "Complete or abort it first.",
                runs=number,
            )
        account_metadata.set_archived(tx, context.organisation_id, found.account.id, context.now)

    return _change_archive(context, account, archive, ARCHIVALS, reason, archived=True)


def unarchive_account(
    context: RequestContext, account: str, reason: str | None = None
) -> tuple[Account, datetime | None]:
    """Make an archived account usable again; repeated, it changes nothing."""

    def unarchive(tx: Connection, found: AccountRecord) -> None:
        account_metadata.set_archived(tx, context.organisation_id, found.account.id, None)

    return _change_archive(context, account, unarchive, UNARCHIVALS, reason, archived=False)


def require_unarchived(tx: Connection, context: RequestContext, account_id: str) -> None:
    """Raise AccountArchivedError if an account or one above it is archived."""
    archived = account_metadata.archived_above(tx, context.organisation_id, account_id)
    if archived:
        raise AccountArchivedError(
            f"{archived[0]} is archived: nothing is created under it, and no limit is raised. Unarchive it, or choose "
            "another account.",
            archived=archived[0],
        )


def _change_archive(
    context: RequestContext,
    account: str,
    change: Callable[[Connection, AccountRecord], None],
    actions: Mapping[AccountKind, AuditAction],
    reason: str | None,
    *,
    archived: bool,
) -> tuple[Account, datetime | None]:
    def effect(tx: Connection) -> tuple[Account, datetime | None]:
        found = find_account(tx, context, account)
        require_every_budget(tx, context, found.account.id)
        kind, account_id = found.account.kind, found.account.id
        context.require_permission(_NEEDED[kind])
        stored = account_metadata.find_many(tx, context.organisation_id, [account_id])[account_id]
        if (stored.archived_at is not None) != archived:
            change(tx, found)
            before, after = {"archived": not archived}, {"path": found.account.path, "archived": archived}
            context.record(tx, actions[kind], account_id, before, after, reason)
            return found.account, context.now if archived else None
        return found.account, stored.archived_at

    return run_effect(context, effect)
