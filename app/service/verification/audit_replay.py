"""Replay the audit log of an organisation, and compare its accounts with it."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row

from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.accounts.alerts import DEFAULT_ALERT_SETTINGS
from app.ledger.audit import AuditAction, AuditEntry, audit_entry_hash, audit_genesis, canonical
from app.ledger.filter.filters import FilterWeights
from app.ledger.filter.limits import Limit
from app.ledger.governance.settings import ALERT_SETTINGS, ALLOCATION, LIMIT, POLICY, Setting
from app.ledger.names import name_skeleton
from app.ledger.runs.reservations import ReservationStatus
from app.ledger.runs.run import RunStatus
from app.persistence.repositories.account_values import weights_of
from app.persistence.tolerant_rows import DAMAGED
from app.service.verification import record_replay
from app.service.verification.record_replay import Records
from app.service.verification.registrations import Registrations, Tuning

STATUS_ACTIONS: Final = frozenset(
    {
        AuditAction.RUN_ACTIVATED,
        AuditAction.RUN_PAUSED,
        AuditAction.RUN_RESUMED,
        AuditAction.RUN_COMPLETED,
        AuditAction.RUN_ABORTED,
    }
)
CREATIONS: Final = frozenset({AuditAction.POPULATION_CREATED, AuditAction.BUDGET_CREATED, AuditAction.RUN_CREATED})
WAIT_ENDS: Final = frozenset(
    {AuditAction.RESERVATION_GRANTED, AuditAction.RESERVATION_EXPIRED, AuditAction.RESERVATION_CANCELLED}
)
MUTABLE_FIELDS: Final = ("limit", "status", "metadata", "number", "tuned")
"""Fields of an account that later audit events change, or that a row of its own has."""

_UNSET: Final[Mapping[Setting[Any], tuple[str | None, int]]] = {
    ALERT_SETTINGS: (ALERT_SETTINGS.text(DEFAULT_ALERT_SETTINGS), 0),
    POLICY: (None, 0),
    ALLOCATION: (None, 0),
}
"""Settings of accounts whose values are compared as text, with what accounts have that never changed them."""

_SETTINGS: Final[Mapping[str, Setting[Any]]] = {setting.action: setting for setting in _UNSET}

_QUARANTINES: Final = {
    (False, True): "its quarantine is gone from its row, and no audit event of its organisation has lifted it.",
    (True, False): "its row says that it is quarantined, and no audit event of its organisation does.",
    (True, True): "its row gives another reason for its quarantine than its organisation's audit events.",
}
"""Discrepancy of a quarantine, by whether the row and the audit log have one."""


@dataclass(frozen=True, slots=True)
class LimitPeriod:
    """A limit with the filter weights at its start; None: not chosen yet, or not recorded, or a run without a limit.

    `tuning` is the last one to registered runs.
    """

    limit: Limit | None
    weights: FilterWeights | None = None
    tuning: Tuning | None = None


@dataclass
class RecordedAccount:
    """An account by the audit log.

    Args:
        fixed_fields: as canonical JSON.
        limits: in order; at least one.
        status: of a run, without its reports; `end_reason` and `ended_at` if it has ended.
        settings: as canonical JSON with their revisions, by name; those that were changed.
        quarantine: reason of its quarantine.
    """

    fixed_fields: str
    limits: list[LimitPeriod]
    status: str | None
    created_at: datetime
    settings: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    quarantine: str | None = None
    end_reason: str | None = None
    ended_at: datetime | None = None


@dataclass
class RecordedWait:
    """A reservation that has waited, by the audit log; `status` is "active" once it was granted."""

    status: str
    wait_until: datetime
    priority: int = 0
    granted_at: datetime | None = None


@dataclass
class AuditState:
    """The state of an organisation by its audit log.

    Args:
        length: number of audit events.
        error: the first one; later entries are ignored.
        accounts: by id.
        anchors: by run id, the hash (hex) of its chain by number of decisions.
        heads: hash of the log at the requested lengths.
        organisation_policy: last policy of the organisation as canonical JSON; None: never set.
        complete: whether the log begins with the organisation, so that it covers everything.
        revoked: repetitions that lowered limits have cancelled, by reservation and event.
        registrations: of its runs.
        waits: reservations that wait or have waited, by reservation; `waits_of` has their reservations by run.
        records: the other rows.
    """

    length: int = 0
    error: str | None = None
    accounts: dict[str, RecordedAccount] = field(default_factory=dict)
    anchors: dict[str, dict[int, str]] = field(default_factory=dict)
    heads: dict[int, bytes] = field(default_factory=dict)
    organisation_policy: str | None = None
    complete: bool = False
    revoked: dict[str, Counter[str]] = field(default_factory=dict)
    registrations: Registrations = field(default_factory=Registrations)
    waits: dict[str, RecordedWait] = field(default_factory=dict)
    waits_of: dict[str, list[str]] = field(default_factory=dict)
    records: Records = field(default_factory=dict)
    head: bytes = b""


def replay_audit_log(entries: Iterator[AuditEntry], signed: Collection[tuple[str, int]] = ()) -> dict[str, AuditState]:
    """Replay audit logs; return the state of each organisation, by id.

    `signed` has the organisations and lengths whose hash to keep.
    """
    found: dict[str, AuditState] = {}
    for entry in entries:
        owner = entry.organisation_id
        state = found.setdefault(owner, AuditState(head=audit_genesis(owner)))
        if state.error is None:
            state.error = _link_error(state, entry) or _apply(state, entry)
        state.head = entry.entry_hash
        state.length = entry.position + 1
        if (owner, state.length) in signed:
            state.heads[state.length] = state.head
    return found


def account_discrepancies(
    record: AccountRecord, facts: Mapping[str, Any], recorded: RecordedAccount | None, organisation_policy: str | None
) -> Iterator[str]:
    """Compare an account with the audit log; yield the discrepancies.

    `facts` are its fields as its creation would record them now.
    """
    account = record.account
    if recorded is None:
        yield "no audit event of its organisation says that it was opened."
        return
    before, now = json.loads(recorded.fixed_fields), json.loads(_fixed_fields(facts))
    names = before.keys() | now.keys()
    changed = sorted(name for name in names if name not in before or name not in now or before[name] != now[name])
    if record.created_at != recorded.created_at:
        changed.append("created_at")
    if changed:
        yield f"it is not as it was opened: {', '.join(changed)}."
    wrong = [each for each, unset in _UNSET.items() if each.stored(record) != recorded.settings.get(each.name, unset)]
    inherited = organisation_policy if account.kind is AccountKind.POPULATION else None
    if POLICY.text(account.organisation_policy) != inherited and POLICY not in wrong:
        wrong.append(POLICY)
    if (account.limit, account.limit_revision) != (recorded.limits[-1].limit, len(recorded.limits) - 1):
        wrong.append(LIMIT)
    for setting in wrong:
        is_other = "are not those" if setting.title.endswith("s") else "is not the one"
        yield f"its {setting.title} {is_other} that its organisation's audit events gave it."
    if record.quarantine != recorded.quarantine:
        yield _QUARANTINES[record.quarantine is not None, recorded.quarantine is not None]


def skeleton_of(account: Account) -> str | None:
    """Compute the skeleton of an account's name, to detect similar names; None: a run."""
    return None if account.kind is AccountKind.RUN else name_skeleton(account.name)


def status_discrepancy(run: Row[Any], recorded: RecordedAccount | None, *, overdrawn: bool) -> str | None:
    """Compare a run's status and end with the audit log; return the discrepancy, or None."""
    if recorded is None:
        return None  # already reported for the account
    if run.status == RunStatus.OVERDRAWN:
        return None if overdrawn else "it is overdrawn, and yet it has reported nothing over its limit."
    if run.status != recorded.status:
        return f"it is {run.status}, but its organisation's audit events leave it {recorded.status}."
    if (run.end_reason, run.ended_at) != (recorded.end_reason, recorded.ended_at):
        return "it did not end as its organisation's audit events say."
    return None


def _link_error(state: AuditState, entry: AuditEntry) -> str | None:
    if entry.position != state.length:
        return f"audit event {state.length} is missing from the organisation's chain."
    if audit_entry_hash(state.head, entry) != entry.entry_hash:
        return f"audit event {entry.position} ({entry.action}) is not the recorded one: its hash is another."
    return None


def _apply(state: AuditState, entry: AuditEntry) -> str | None:
    """Apply an entry; return the error of a malformed one."""
    try:
        after = json.loads(entry.after) if entry.after else {}
        _apply_to_organisation(state, entry, after)
        _apply_to_wait(state, entry, after)
        record_replay.apply(state.records, entry, after)
    except DAMAGED as error:
        return f"audit event {entry.position} ({entry.action}) cannot be read: {type(error).__name__} {error}."
    return None


def _apply_to_organisation(state: AuditState, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    account = state.accounts.get(entry.subject)
    if entry.action == AuditAction.ORGANISATION_CREATED:
        state.complete = True
    elif entry.action == AuditAction.POLICY_REPLACED and entry.subject == entry.organisation_id:
        state.organisation_policy = canonical(after["policy"])
    elif entry.action in CREATIONS:
        _apply_creation(state, entry, after)
    elif entry.action == AuditAction.CHAINS_ANCHORED:
        for run_id, (decisions, head) in after["runs"].items():
            state.anchors.setdefault(run_id, {})[int(decisions)] = head
    elif entry.action == AuditAction.QUARANTINE_LIFTED:
        _lift_quarantines(state, entry)
    elif account is not None:
        _apply_to_account(state, account, entry, after)


def _apply_creation(state: AuditState, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    """Apply the creation of an account, and the weights of the filters that the registration of a run has tuned."""
    run_id, status = entry.subject, after.get("status", RunStatus.ACTIVE)
    limits = [LimitPeriod(_limit(after["limit"]))]
    state.accounts[run_id] = RecordedAccount(_fixed_fields(after), limits, status, entry.created_at)
    state.registrations.add(run_id, after)
    facts = after.get("tuned", {"weights": {}})
    for account_id, weights in facts["weights"].items():
        limits, version = state.accounts[account_id].limits, facts["population_version"]
        tuning = state.registrations.tuned_by(run_id, account_id, weights_of(weights), version)
        limits[-1] = replace(limits[-1], tuning=tuning)


def _apply_to_wait(state: AuditState, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    if entry.action == AuditAction.RESERVATION_QUEUED:
        until = datetime.fromisoformat(after["wait_until"])
        state.waits[entry.subject] = RecordedWait(str(ReservationStatus.WAITING), until)
        state.waits_of.setdefault(after["run"], []).append(entry.subject)
    elif entry.action == AuditAction.RESERVATION_PRIORITIZED:
        state.waits[entry.subject].priority = after["priority"]
    elif entry.action in WAIT_ENDS:
        _end_wait(state.waits[entry.subject], entry, after)


def _end_wait(wait: RecordedWait, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    if wait.status != ReservationStatus.WAITING:
        raise ValueError(f"the reservation {entry.subject} had ended to wait before")
    wait.status = after["status"]
    if entry.action == AuditAction.RESERVATION_GRANTED:
        wait.granted_at = entry.created_at


def _lift_quarantines(state: AuditState, entry: AuditEntry) -> None:
    for account_id in json.loads(entry.before or "{}")["quarantined"]:
        if account_id in state.accounts:
            state.accounts[account_id].quarantine = None


def _apply_to_account(state: AuditState, account: RecordedAccount, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    setting = _SETTINGS.get(entry.action)
    if setting is not None:
        account.settings[setting.name] = setting.recorded(after)
    elif entry.action == AuditAction.QUARANTINE_PLACED:
        account.quarantine = after["quarantine"]
    elif entry.action.endswith(".limit_changed"):
        before = json.loads(entry.before or "{}")
        account.limits[-1] = replace(account.limits[-1], weights=_weights(before.get("weights")))
        tuning = Tuning(state.registrations.under(entry.subject))
        account.limits.append(LimitPeriod(_limit(after["limit"]), _weights(after["weights"]), tuning))
        for reservation in after.get("revoked", ()):
            state.revoked.setdefault(reservation["reservation"], Counter()).update(reservation["steps"])
    elif entry.action in STATUS_ACTIONS:
        account.status, account.end_reason = after["status"], after.get("end_reason")
        account.ended_at = None if account.end_reason is None else entry.created_at
        if account.end_reason is not None:
            state.registrations.end(entry.subject)


def _fixed_fields(facts: Mapping[str, Any]) -> str:
    """Select the fields of an account that never change, as canonical JSON."""
    return canonical({name: value for name, value in facts.items() if name not in MUTABLE_FIELDS})


def _limit(facts: Mapping[str, float] | None) -> Limit | None:
    return None if facts is None else Limit.of(facts)


def _weights(facts: Mapping[str, Any] | None) -> FilterWeights | None:
    return None if facts is None else weights_of(facts)
