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
from app.service.auth.use_cases import use_case
from app.service.change_control import one_person_suffices, propose

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

Build = Callable[[Connection, R], V]
"""Makes the new value of a setting from its present state."""


def _one_person_raises(_: Connection, context: RequestContext, before: SettingRecord[Any], __: object) -> bool:
    return one_person_suffices(context, [record.account for record in before.accounts])


@dataclass(frozen=True, slots=True, eq=False)
class SettingHandler(Generic[V, R]):
    """How a declared setting is found, checked and written; all but `read` is done with the organisation locked.

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

    def read(self, context: RequestContext, account: str | None) -> R:
        """Get the setting of an account, given by id or path, or, for None, the organisation."""
        with context.read() as tx:
            return self.find(tx, context, self._path(tx, context, account))

    def permit(self, context: RequestContext, account: str | None) -> None:
        """Raise PermissionDeniedError unless the caller may at least propose to change the setting."""
        needed = self.setting.proposing or self.setting.permission
        context.require_permission(needed, whole_organisation=account is None)

    def change(
        self,
        tx: Connection,
        context: RequestContext,
        account: str | None,
        build: Build[R, V],
        *,
        reason: str,
        tag: str | None,
    ) -> R | Proposal:
        """Replace the setting of an account or, for None, the organisation, or propose the new value if it is looser.

        `build` makes the new value from the present state. An equal one is neither written nor recorded. A repeated
        request of the caller returns the same proposal.

        Raises:
            InvalidInputError: another proposal about it is open.
            Also those of `find_matching`, `build` and `check`.
        """
        setting, whole = self.setting, account is None
        before = self.find_matching(tx, context, account, tag)
        value = build(tx, before)
        if value == before.value:
            return before
        self.check(tx, context, before, value)
        looser = setting.is_looser is not None and setting.is_looser(before.value, value, whole)
        if looser and not self.alone(tx, context, before, value):
            return self.propose(tx, context, before, value, reason)
        context.require_permission(setting.permission, whole_organisation=whole)
        if looser and not whole:
            require_every_budget(tx, context, before.subject)
        return self.apply(tx, context, before, value, reason)

    def find_matching(self, tx: Connection, context: RequestContext, account: str | None, tag: str | None) -> R:
        """Get the setting that the caller has read; `tag` is the value of If-Match.

        Raises:
            PreconditionRequiredError: If-Match is missing.
            PreconditionFailedError: the setting has changed.
        """
        found = self.find(tx, context, self._path(tx, context, account))
        if tag is None:
            raise PreconditionRequiredError(
                f"Send the ETag of the {self.setting.title} that you have read as If-Match, so that no other change is "
                "overwritten."
            )
        tags = {each.strip().removeprefix("W/") for each in tag.split(",")}
        if found.tag not in tags and "*" not in tags:
            raise self._changed(found, "you have seen it; read it again, and look whether your change is still right.")
        return found

    def propose(
        self, tx: Connection, context: RequestContext, before: R, value: V, reason: str, **further: object
    ) -> Proposal:
        """Propose a value that was checked, or return the caller's open proposal of it; `further` adds to its payload.

        Raises:
            InvalidInputError: another proposal about the setting is open.
        """
        kind = ProposalKind(self.setting.name)
        facts = {**(self.setting.payload(value, before.revision) or {}), **further}
        replaced = self._payload(before) if self.setting.records_before else None
        return propose(tx, context, kind, before.account_id, facts, reason, before=replaced)

    def approve(self, tx: Connection, context: RequestContext, proposal: Proposal) -> None:
        """Apply a proposed value.

        Raises:
            PreconditionFailedError: the setting has changed since the proposal.
            Also those of `check`.
        """
        account_id, proposed = proposal.account_id, proposal.proposed
        path = [] if account_id is None else accounts.path_of(tx, context.organisation_id, account_id)
        before = self.find(tx, context, path)
        if before.revision != proposed["revision"]:
            raise self._changed(before, "this was proposed; reject the proposal, and let it be proposed anew.")
        assert self.setting.from_json is not None, f"one person changes the {self.setting.title}"
        value = self.setting.from_json(proposed[self.setting.name])
        self.check(tx, context, before, value)
        self.apply(tx, context, before, value, proposal.reason)

    def apply(self, tx: Connection, context: RequestContext, before: R, value: V, reason: str) -> R:
        """Write a value and its audit event."""
        if self.write is None:
            after = self.find(tx, context, write_in_account(tx, context, self.setting, before, value))
        else:
            after = self.write(tx, context, before, value)
        action = self.setting.action_at(before.account.kind if before.accounts else None)
        context.record(tx, action, before.subject, self._payload(before), self._payload(after), reason)
        self.follow(tx, context, before, after)
        return after

    def _path(self, tx: Connection, context: RequestContext, account: str | None) -> list[AccountRecord]:
        if account is None:
            return []
        if self.setting.of_runs:
            return find_path_of(tx, context, account)
        return accounts.path_of(tx, context.organisation_id, find_parent(tx, context, account).account.id)

    def _payload(self, record: R) -> dict[str, Any] | None:
        written = self.setting.payload(record.value, record.revision)
        return None if written is None else {**written, **record.further}

    def _changed(self, found: R, since: str) -> PreconditionFailedError:
        revision = {self.setting.revision_name: found.revision} if self.setting.has_revision else {}
        return PreconditionFailedError(f"The {self.setting.title} was changed since {since}", **revision)


@use_case(permit=lambda context, handler, account, *_, **__: handler.permit(context, account))
def change_setting(
    tx: Connection,
    context: RequestContext,
    handler: SettingHandler[Any, Any],
    account: str | None,
    build: Build[Any, Any],
    *,
    reason: str,
    tag: str | None,
) -> Any:  # noqa: ANN401 - the handler's record, or a proposal
    """Replace a setting or propose its new value; see `SettingHandler.change`."""
    return handler.change(tx, context, account, build, reason=reason, tag=tag)


def write_in_account(
    tx: Connection, context: RequestContext, setting: Setting[V], before: SettingRecord[V], value: V
) -> list[AccountRecord]:
    """Write a setting that its account's row has in columns of its names; return the changed path."""
    changed: dict[str, Any] = {setting.name: value, setting.revision_name: before.revision + 1}
    account = replace(before.account, version=before.account.version + 1, **changed)
    account_writes.set_setting(tx, context.organisation_id, setting, account, context.now)
    return [*before.accounts[:-1], replace(before.accounts[-1], account=account, updated_at=context.now)]
