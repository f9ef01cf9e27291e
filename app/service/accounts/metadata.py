"""Metadata and archive of accounts: they change no admission.

An archived account is read-only: a run must have ended before, and no run, budget or experiment is created under it. So
no step has to ask whether it is charged to an archived account.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.metadata import ARCHIVALS, METADATA_CHANGES, UNARCHIVALS
from app.ledger.errors import AccountArchivedError, AccountStateConflictError, PreconditionFailedError
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.permissions import Permission
from app.persistence.repositories import account_metadata, accounts, overview_queries
from app.service.accounts.lookup import find_account, find_of_kind, require_every_budget
from app.service.accounts.names import require_display_name_free
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.change_control import one_person_suffices, propose

_NEEDED: Final = {
    AccountKind.POPULATION: Permission.ACCOUNT_MANAGE,
    AccountKind.BUDGET: Permission.ACCOUNT_MANAGE,
    AccountKind.RUN: Permission.RUN_MANAGE,
}


@use_case(permit=lambda context, kind, *_: context.require_permission(_NEEDED[kind]))
def change_metadata(
    tx: Connection, context: RequestContext, kind: AccountKind, account: str, changes: Mapping[str, Any]
) -> None:
    """Apply a JSON merge patch to the metadata of an account, given by id, or of a population by its name.

    Needs RUN_MANAGE for a run, else ACCOUNT_MANAGE. Without a difference, nothing is recorded.

    Raises:
        InvalidInputError: there would be too many labels.
        NameTakenError: a sibling has the display name, or a lookalike.
    """
    changed = find_of_kind(tx, context, kind, account).account
    require_every_budget(tx, context, changed.id)
    before = account_metadata.find_many(tx, context.organisation_id, [changed.id])[changed.id].metadata
    after = before.patched(changes)
    if after.display_name is not None and after.display_name != before.display_name:
        require_display_name_free(tx, context, changed, after.display_name)
    if after != before:
        account_metadata.save(tx, context.organisation_id, changed, after)
        facts = {"path": changed.path, "metadata": after.payload()}
        context.record(tx, METADATA_CHANGES[kind], changed.id, {"metadata": before.payload()}, facts)


@use_case()
def archive_account(
    tx: Connection, context: RequestContext, account: str, reason: str | None = None
) -> tuple[Account, datetime | None]:
    """Archive an account, given by id or path, and with it everything under it; it frees nothing.

    Raises:
        AccountStateConflictError: a run that has not ended is charged to it.
    """
    found, archived_at = _changeable(tx, context, account)
    own = found.account
    if archived_at is not None:
        return own, archived_at
    _require_ended_runs(tx, context, own)
    account_metadata.set_archived(tx, context.organisation_id, own.id, context.now)
    before, after = {"archived": False}, {"path": own.path, "archived": True}
    context.record(tx, ARCHIVALS[own.kind], own.id, before, after, reason)
    return own, context.now


def _require_ended_runs(tx: Connection, context: RequestContext, account: Account) -> None:
    unfinished, counts = overview_queries.unfinished_runs(tx, context.organisation_id, account.id, 1)
    if unfinished:
        number, first = sum(counts.values()), unfinished[0]
        others = f", one of {number}," if number > 1 else ""
        raise AccountStateConflictError(
            f"The run {first.path} ({first.id}){others} has not ended, and what is archived takes no steps. "
            "Complete or abort it first.",
            runs=number,
        )


@use_case()
def unarchive_account(
    tx: Connection, context: RequestContext, account: str, reason: str | None = None
) -> tuple[Account, datetime | None] | Proposal:
    """Make an archived account usable again, or propose it; repeated, it changes nothing.

    What a population or budget has left may be spent again, so this takes two persons where raising its limit does. A
    run that is archived has ended.
    """
    found, archived_at = _changeable(tx, context, account)
    own = found.account
    if archived_at is None:
        return own, None
    path = [record.account for record in accounts.path_of(tx, context.organisation_id, own.id)]
    if own.kind is AccountKind.RUN or one_person_suffices(context, path):
        _unarchive(tx, context, own, reason)
        return own, None
    why = reason or f"{own.path} is needed again."
    return propose(tx, context, ProposalKind.UNARCHIVAL, own.id, {"path": own.path}, why)


def approve_unarchival(tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Unarchive the account of a proposal; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: it is not archived any more.
    """
    found, archived_at = _changeable(tx, context, proposal.subject)
    if archived_at is None:
        raise PreconditionFailedError(f"{found.account.path} is not archived any more. Reject this proposal.")
    _unarchive(tx, context, found.account, proposal.reason)


def _unarchive(tx: Connection, context: RequestContext, account: Account, reason: str | None) -> None:
    account_metadata.set_archived(tx, context.organisation_id, account.id, None)
    before, after = {"archived": True}, {"path": account.path, "archived": False}
    context.record(tx, UNARCHIVALS[account.kind], account.id, before, after, reason)


def require_unarchived(tx: Connection, context: RequestContext, account_id: str) -> None:
    """Raise AccountArchivedError if an account or one above it is archived."""
    archived = account_metadata.archived_above(tx, context.organisation_id, account_id)
    if archived:
        raise AccountArchivedError(
            f"{archived[0]} is archived: nothing is created under it, and no limit is raised. Unarchive it, or choose "
            "another account.",
            archived=archived[0],
        )


def _changeable(tx: Connection, context: RequestContext, account: str) -> tuple[AccountRecord, datetime | None]:
    """Find an account that the caller may archive and unarchive, and since when it is archived."""
    found = find_account(tx, context, account)
    require_every_budget(tx, context, found.account.id)
    context.require_permission(_NEEDED[found.account.kind])
    stored = account_metadata.find_many(tx, context.organisation_id, [found.account.id])[found.account.id]
    return found, stored.archived_at
