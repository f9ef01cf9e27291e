"""Settings of accounts and of the organisation, each declared once; stricter takes one person, looser two (ADR 0028).

`app.service.setting_changes` changes them, and verification replays them, as they are declared here.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, TypeVar

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.alerts import AlertSettings
from app.ledger.accounts.calendar import BlockSchedule
from app.ledger.audit import AuditAction, canonical
from app.ledger.filter.limits import Limit
from app.ledger.governance.limit_changes import is_raised
from app.ledger.permissions import Permission
from app.ledger.settings import allocation, policies
from app.ledger.settings.allocation import Allocation
from app.ledger.settings.policy_rules import Policy

V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Generic[V]):
    """A setting that is replaced as a whole; a value of None: it is not set.

    Args:
        name: of its proposals, its member in payloads, its column and its field of an account; with `_revision`, of
            what counts its changes.
        permission: needed to change it at once; to propose it, `proposing`, by default the same.
        action: records a change; `{kind}` is replaced by that of the account.
        to_json: converts a value for audit events, proposals and rows; `from_json` is the inverse, for proposals.
        is_looser: whether the second value is looser than the first, or not comparable, at an account or, with True,
            the organisation; None: one person changes it.
        records_before: whether the audit event of a proposal has the value that it would replace.
        has_revision: whether its changes are counted.
        of_runs: whether runs have it, too.
    """

    name: str
    permission: Permission
    action: str
    to_json: Callable[[Any], dict[str, Any]]
    from_json: Callable[[Any], V] | None = None
    is_looser: Callable[[V, V, bool], bool] | None = None
    proposing: Permission | None = None
    records_before: bool = True
    has_revision: bool = True
    of_runs: bool = False

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return self.name.replace("_", " ")

    @property
    def revision_name(self) -> str:
        """The name of what counts its changes."""
        return f"{self.name}_revision"

    def text(self, value: V | None) -> str | None:
        """Serialize a value as rows have it."""
        return None if value is None else canonical(self.to_json(value))

    def payload(self, value: V, revision: int) -> dict[str, Any] | None:
        """Build what audit events and proposals have of a value."""
        written = None if value is None else self.to_json(value)
        return {self.name: written, "revision": revision} if self.has_revision else written

    def recorded(self, after: Mapping[str, Any]) -> tuple[str | None, int]:
        """Read the serialized value and the revision from the audit event of a change."""
        value, revision = (after[self.name], after["revision"]) if self.has_revision else (after, 0)
        return None if value is None else canonical(value), revision

    def stored(self, record: AccountRecord) -> tuple[str | None, int]:
        """Serialize the value of an account, with its revision, as `recorded` has it."""
        holder = record.account if hasattr(record.account, self.name) else record
        return self.text(getattr(holder, self.name)), getattr(holder, self.revision_name) if self.has_revision else 0

    def action_at(self, kind: AccountKind | None) -> AuditAction:
        """Name the audit action of a change at an account of a kind; None: at the organisation."""
        return AuditAction(self.action.format(kind=kind))


LIMIT: Final[Setting[Limit]] = Setting(
    name="limit",
    permission=Permission.ACCOUNT_MANAGE,
    proposing=Permission.LIMIT_PROPOSE,
    action="{kind}.limit_changed",
    to_json=Limit.facts,
    from_json=Limit.of,
    is_looser=lambda before, after, _: is_raised(before, after),
    of_runs=True,
)

POLICY: Final[Setting[Policy]] = Setting(
    name="policy",
    permission=Permission.POLICY_MANAGE,
    action=AuditAction.POLICY_REPLACED,
    to_json=policies.facts_of,
    from_json=policies.policy_of,
    is_looser=lambda before, after, whole: bool(policies.loosened(before, after, of_organisation=whole)),
)

ALLOCATION: Final[Setting[Allocation | None]] = Setting(
    name="allocation",
    permission=Permission.ACCOUNT_MANAGE,
    action=AuditAction.ALLOCATION_REPLACED,
    to_json=allocation.facts_of,
    from_json=lambda facts: facts and allocation.allocation_of(facts),
    is_looser=lambda before, after, _: allocation.unlocks_earlier(before, after),
    records_before=False,
)

ALERT_SETTINGS: Final[Setting[AlertSettings]] = Setting(
    name="alert_settings",
    permission=Permission.ALERT_MANAGE,
    action=AuditAction.ALERT_SETTINGS_REPLACED,
    to_json=asdict,
    has_revision=False,
    of_runs=True,
)

BLOCK_SCHEDULE: Final[Setting[BlockSchedule | None]] = Setting(
    name="block_schedule",
    permission=Permission.ACCOUNT_MANAGE,
    action=AuditAction.BLOCK_SCHEDULE_REPLACED,
    to_json=BlockSchedule.to_json,
    has_revision=False,
)
