"""Read, change, propose and approve settings: one way for all that `app.ledger.governance.settings` declares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from app.ledger.accounts.account import Account
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.errors import PreconditionFailedError, PreconditionRequiredError
from app.ledger.governance.proposals import Proposal, ProposalKind
from app.ledger.governance.settings import Setting
from app.ledger.settings.policies import ORGANISATION
from app.persistence.repositories import account_writes, accounts
from app.service.accounts.lookup import find_parent, find_path_of, require_every_budget
from app.service.auth.request_context import RequestContext
from app.service.change_control import one_person_suffices, propose_once, require_none_open
from app.service.idempotency import Effect

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SettingRecord(Generic[V]):
    """A setting as it stands.

    Args:
        subject: id of the account or the organisation.
        accounts: the account after those above it; empty: the setting is the organisation's.
        revision: number of changes; 0 if they are not counted.
        tag: entity tag.
        further: other members of the payload of an audit event.
    """

    subject: str
    accounts: Sequence[AccountRecord]
    value: V
    revision: int
    tag: str
    further: Mapping[str, Any] = field(default_factory=dict)

    @property
    def account_id(self) -> str | None:
        """Id of its account; None: it is the organisation's."""
        return self.subject if self.accounts else None

    @property
    def account(self) -> Account:
        """Its account; not for a setting of the organisation."""
        return self.accounts[-1].account

    @property
    def path(self) -> str:
        """Path of its account, or "organisation"."""
        return self.account.path if self.accounts else ORGANISATION


R = TypeVar("R", bound=SettingRecord[Any])


def _one_person_raises(_: Connection, context: RequestContext, before: SettingRecord[Any], __: object) -> bool:
    return one_person_suffices(context, [record.account for record in before.accounts])


@dataclass(frozen=True, slots=True, eq=False)
class SettingHandler(Generic[V, R]):
    """How a setting is found, checked and written, in a transaction that has locked the organisation.

    Args:
        find: describes the setting of the last account of a path or, for an empty one, the organisation.
        write: replaces its value; None: as `write_in_account`.
        check: refuses a value that may not be set, when it is sent and when it is approved.
        alone: whether the caller may make it looser without another person.
        follow: does what follows from a recorded change.
    """

    setting: Setting[V]
    find: Callable[[Connection, RequestContext, Sequence[AccountRecord]], R]
    write: Callable[[Connection, RequestContext, R, V], R] | None = None
    check: Callable[[Connection, RequestContext, R, V], None] = lambda *_: None
    alone: Callable[[Connection, RequestContext, R, V], bool] = _one_person_raises
    follow: Callable[[Connection, RequestContext, R, R], None] = lambda *_: None


def read_setting(context: RequestContext, handler: SettingHandler[V, R], account: str | None) -> R:
    """Get a setting of an account, given by id or path, or, for None, the organisation."""
    with context.read() as tx:
        return handler.find(tx, context, _path(tx, context, handler.setting, account))


def change_setting(
    context: RequestContext,
    handler: SettingHandler[V, R],
    account: str | None,
    build: Callable[[Connection, R], V],
    reason: str,
    tag: str | None,
) -> Effect[R | Proposal]:
    """Replace a setting of an account or, for None, the organisation, or propose the new value if it is looser.

    `build` makes the new value from the present state. An equal one is neither written nor recorded. A repeated request
    of the caller returns the same proposal.

    Raises:
        InvalidInputError: another proposal about it is open.
        Also those of `find_matching`, `build` and the handler's `check`.
    """
    setting, is_looser = handler.setting, handler.setting.is_looser
    context.require_permission(setting.proposing or setting.permission, whole_organisation=account is None)

    def change(tx: Connection) -> R | Proposal:
        before = find_matching(tx, context, handler, account, tag)
        value = build(tx, before)
        if value == before.value:
            return before
        handler.check(tx, context, before, value)
        looser = is_looser is not None and is_looser(before.value, value, not before.accounts)
        if looser and not handler.alone(tx, context, before, value):
            return propose_setting(tx, context, setting, before, value, reason)
        context.require_permission(setting.permission, whole_organisation=account is None)
        if looser and before.accounts:
            require_every_budget(tx, context, before.subject)
        return apply_setting(tx, context, handler, before, value, reason)

    return change


def find_matching(
    tx: Connection, context: RequestContext, handler: SettingHandler[V, R], account: str | None, tag: str | None
) -> R:
    """Get a setting that the caller has read; `tag` is the value of If-Match.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the setting has changed.
    """
    title = handler.setting.title
    found = handler.find(tx, context, _path(tx, context, handler.setting, account))
    if tag is None:
        raise PreconditionRequiredError(
            f"Send the ETag of the {title} that you have read as If-Match, so that no other change is overwritten."
        )
    tags = {each.strip().removeprefix("W/") for each in tag.split(",")}
    if found.tag not in tags and "*" not in tags:
        raise PreconditionFailedError(
            f"The {title} was changed since you have seen it; read it again, and look whether your change is still "
            "right.",
            **_revision(handler.setting, found),
        )
    return found


def propose_setting(
    tx: Connection,
    context: RequestContext,
    setting: Setting[V],
    before: SettingRecord[V],
    value: V,
    reason: str,
    **further: object,
) -> Proposal:
    """Propose a value that was checked, or return the caller's open proposal of it; `further` adds to its payload.

    Raises:
        InvalidInputError: another proposal about the setting is open.
    """
    require_none_open(tx, context, before.account_id, setting.blocked_by)
    facts = {**(setting.payload(value, before.revision) or {}), **further}
    replaced = _payload(setting, before) if setting.records_before else None
    return propose_once(tx, context, ProposalKind(setting.name), before.account_id, facts, reason, before=replaced)


def approve_setting(handler: SettingHandler[V, R], tx: Connection, context: RequestContext, proposal: Proposal) -> None:
    """Apply a proposed value; the transaction has locked the organisation.

    Raises:
        PreconditionFailedError: the setting has changed since the proposal.
        Also those of the handler's `check`.
    """
    setting, account_id, proposed = handler.setting, proposal.account_id, proposal.proposed
    assert setting.from_json is not None, f"one person changes the {setting.title}"
    path = [] if account_id is None else accounts.path_of(tx, context.organisation_id, account_id)
    before, facts = handler.find(tx, context, path), proposed[setting.name]
    if before.revision != proposed["revision"]:
        raise PreconditionFailedError(
            f"The {setting.title} was changed since this was proposed; reject the proposal, and let it be proposed "
            "anew.",
            **_revision(setting, before),
        )
    value = setting.from_json(facts)
    handler.check(tx, context, before, value)
    apply_setting(tx, context, handler, before, value, proposal.reason)


def apply_setting(
    tx: Connection, context: RequestContext, handler: SettingHandler[V, R], before: R, value: V, reason: str
) -> R:
    """Write a value and its audit event; the organisation is locked."""
    setting = handler.setting
    if handler.write is not None:
        after = handler.write(tx, context, before, value)
    else:
        after = handler.find(tx, context, write_in_account(tx, context, setting, before, value))
    action = setting.action_at(before.account.kind if before.accounts else None)
    context.record(tx, action, before.subject, _payload(setting, before), _payload(setting, after), reason)
    handler.follow(tx, context, before, after)
    return after


def write_in_account(
    tx: Connection, context: RequestContext, setting: Setting[V], before: SettingRecord[V], value: V
) -> list[AccountRecord]:
    """Write a setting that its account's row has in columns of its names; return the changed path."""
    changed: dict[str, Any] = {setting.name: value, setting.revision_name: before.revision + 1}
    account = replace(before.account, version=before.account.version + 1, **changed)
    account_writes.set_setting(tx, context.organisation_id, setting, account, context.now)
    return [*before.accounts[:-1], replace(before.accounts[-1], account=account, updated_at=context.now)]


def _path(tx: Connection, context: RequestContext, setting: Setting[Any], account: str | None) -> list[AccountRecord]:
    if account is None:
        return []
    if setting.of_runs:
        return find_path_of(tx, context, account)
    return accounts.path_of(tx, context.organisation_id, find_parent(tx, context, account).account.id)


def _payload(setting: Setting[Any], record: SettingRecord[Any]) -> dict[str, Any] | None:
    written = setting.payload(record.value, record.revision)
    return None if written is None else {**written, **record.further}


def _revision(setting: Setting[Any], record: SettingRecord[Any]) -> dict[str, int]:
    return {setting.revision_name: record.revision} if setting.has_revision else {}
