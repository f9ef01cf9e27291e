"""Replay the audit log of an organisation, and compare its accounts with it."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from app.ledger.account_records import AccountRecord
from app.ledger.accounts import Account, AccountKind
from app.ledger.alerts import DEFAULT_ALERT_SETTINGS
from app.ledger.audit import AuditAction
from app.ledger.filters import FilterWeights, Limit
from app.ledger.hash_chain import AuditEntry, audit_entry_hash, audit_genesis, canonical
from app.ledger.lookalikes import name_skeleton
from app.ledger.policies import Policy, facts_of
from app.ledger.runs import RunStatus
from app.persistence.tolerant import DAMAGED
from app.service.verification import record_replay
from app.service.verification.record_replay import Records

STATUS_ACTS: Final = frozenset(
    {
        AuditAction.RUN_ACTIVATED,
        AuditAction.RUN_PAUSED,
        AuditAction.RUN_RESUMED,
        AuditAction.RUN_COMPLETED,
        AuditAction.RUN_ABORTED,
    }
)
OPENING_ACTS: Final = frozenset({AuditAction.POPULATION_CREATED, AuditAction.BUDGET_CREATED, AuditAction.RUN_CREATED})
APART: Final = ("limit", "status")
"""Fields of an account that later audit events change."""

_QUARANTINES: Final = {
    (False, True): "its quarantine is gone from its row, and no audit event of its organisation has lifted it.",
    (True, False): "its row says that it is quarantined, and no audit event of its organisation does.",
    (True, True): "its row gives another reason for its quarantine than its organisation's audit events.",
}
"""Discrepancy of a quarantine, by whether the row and the audit log have one."""


@dataclass(frozen=True, slots=True)
class LimitPeriod:
    """A limit with the filter weights at its start; None: not frozen yet, or not recorded, or a run without a limit."""

    limit: Limit | None
    weights: FilterWeights | None = None


@dataclass
class Terms:
    """An account by the audit log.

    Args:
        facts: its fixed fields as canonical JSON; likewise `policy` and the alert settings in `tells`.
        stages: its limits in order; at least one.
        status: of a run, without its reports.
        policy_revision: number of policies set.
        quarantine: reason of its quarantine.
    """

    facts: str
    stages: list[LimitPeriod]
    status: str | None
    created_at: datetime
    policy: str | None = None
    policy_revision: int = 0
    tells: str = canonical(asdict(DEFAULT_ALERT_SETTINGS))
    quarantine: str | None = None


@dataclass
class AuditState:
    """The state of an organisation by its audit log.

    Args:
        audit_events: length of the log.
        fault: the first error; later entries are ignored.
        terms: by account id.
        anchors: by run id, the hash (hex) of its chain by number of decisions.
        heads: hash of the log at the requested lengths.
        organisation_policy: last policy of the organisation as canonical JSON; None: never set.
        founded: whether the log begins with the organisation, so that it covers everything.
        revoked: repetitions that lowered limits have cancelled, by reservation and event.
        records: the other rows.
    """

    audit_events: int = 0
    fault: str | None = None
    terms: dict[str, Terms] = field(default_factory=dict)
    anchors: dict[str, dict[int, str]] = field(default_factory=dict)
    heads: dict[int, bytes] = field(default_factory=dict)
    organisation_policy: str | None = None
    founded: bool = False
    revoked: dict[str, Counter[str]] = field(default_factory=dict)
    records: Records = field(default_factory=dict)
    head: bytes = b""


def replay_audit_log(kept: Iterator[AuditEntry], signed: Collection[tuple[str, int]] = ()) -> dict[str, AuditState]:
    """Replay audit logs; return the state of each organisation, by id.

    `signed` has the organisations and lengths whose hash to keep.
    """
    found: dict[str, AuditState] = {}
    for act in kept:
        owner = act.organisation_id
        told = found.setdefault(owner, AuditState(head=audit_genesis(owner)))
        if told.fault is None:
            told.fault = _fault(told, act)
        if told.fault is None:
            told.fault = _apply(told, act)
        told.head = act.entry_hash
        told.audit_events = act.position + 1
        if (owner, told.audit_events) in signed:
            told.heads[told.audit_events] = told.head
    return found


def immutable_payload(facts: Mapping[str, Any]) -> str:
    """Select the fields of an account that never change, as canonical JSON."""
    return canonical({name: value for name, value in facts.items() if name not in APART})


def disagreements(
    record: AccountRecord, facts: Mapping[str, Any], terms: Terms | None, organisation_policy: str | None
) -> Iterator[str]:
    """Compare an account with the audit log; yield the discrepancies.

    `facts` are its fields as its creation would record them now.
    """
    account = record.account
    if terms is None:
        yield "no audit event of its organisation says that it was opened."
        return
    said = json.loads(terms.facts)
    names = (said.keys() | facts.keys()) - set(APART)
    now = json.loads(immutable_payload(facts))
    other = sorted(name for name in names if name not in now.keys() & said.keys() or said[name] != now[name])
    if record.created_at != terms.created_at:
        other.append("created_at")
    if other:
        yield f"it is not as it was opened: {', '.join(other)}."
    if canonical(asdict(record.alert_settings)) != terms.tells:
        yield "its alert settings are not those that its organisation's audit events gave it."
    house = organisation_policy if account.kind is AccountKind.POPULATION else None
    kept = (_policy_text(account.policy), account.policy_revision, _policy_text(account.organisation_policy))
    if kept != (terms.policy, terms.policy_revision, house):
        yield "its policy is not the one that its organisation's audit events gave it."
    if terms.stages[-1].limit != account.limit or account.limit_revision != len(terms.stages) - 1:
        yield "its limit is not the one that its organisation's audit events gave it."
    if record.quarantine != terms.quarantine:
        yield _QUARANTINES[record.quarantine is not None, terms.quarantine is not None]


def skeleton_of(account: Account) -> str | None:
    """Compute the skeleton of an account's name, to detect similar names; None: a run."""
    return None if account.kind is AccountKind.RUN else name_skeleton(account.name)


def status_disagreement(status: str, terms: Terms | None, *, overdrawn: bool) -> str | None:
    """Compare a run's status with the audit log; return the discrepancy, or None."""
    if terms is None:
        return None  # already reported for the account
    if status == RunStatus.OVERDRAWN:
        return None if overdrawn else "it is overdrawn, and yet it has reported nothing over its limit."
    if status != terms.status:
        return f"it is {status}, but its organisation's audit events leave it {terms.status}."
    return None


def _fault(told: AuditState, act: AuditEntry) -> str | None:
    if act.position != told.audit_events:
        return f"audit event {told.audit_events} is missing from the organisation's chain."
    if audit_entry_hash(told.head, act) != act.entry_hash:
        return f"audit event {act.position} ({act.action}) is not the recorded one: its hash is another."
    return None


def _apply(told: AuditState, entry: AuditEntry) -> str | None:
    """Apply an entry; return the error of a malformed one."""
    try:
        after = json.loads(entry.after) if entry.after else {}
        _apply_entry(told, entry, after)
        record_replay.note(told.records, entry, after)
    except DAMAGED as fault:
        return f"audit event {entry.position} ({entry.action}) cannot be read: {type(fault).__name__} {fault}."
    return None


def _apply_entry(told: AuditState, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    known = told.terms.get(entry.subject)
    if entry.action == AuditAction.ORGANISATION_CREATED:
        told.founded = True
    elif entry.action == AuditAction.POLICY_REPLACED and entry.subject == entry.organisation_id:
        told.organisation_policy = canonical(after["policy"])
    elif entry.action in OPENING_ACTS:
        status = after.get("status", RunStatus.ACTIVE)
        periods = [LimitPeriod(_limit(after["limit"]))]
        told.terms[entry.subject] = Terms(immutable_payload(after), periods, status, entry.created_at)
    elif entry.action == AuditAction.RUNS_ANCHORED:
        for run_id, (decisions, head) in after["runs"].items():
            told.anchors.setdefault(run_id, {})[int(decisions)] = head
    elif entry.action == AuditAction.QUARANTINE_LIFTED:
        _lift(told, entry)
    elif known is not None:
        _change(known, entry, after)
        if entry.action.endswith(".limit_changed"):
            _revoke(told, after)


def _lift(told: AuditState, entry: AuditEntry) -> None:
    for account_id in json.loads(entry.before or "{}")["quarantined"]:
        if account_id in told.terms:
            told.terms[account_id].quarantine = None


def _revoke(told: AuditState, after: Mapping[str, Any]) -> None:
    for plan in after.get("revoked", ()):
        told.revoked.setdefault(plan["reservation"], Counter()).update(plan["steps"])


def _change(known: Terms, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    if entry.action == AuditAction.POLICY_REPLACED:
        known.policy, known.policy_revision = canonical(after["policy"]), after["revision"]
    elif entry.action == AuditAction.ALERT_SETTINGS_REPLACED:
        known.tells = canonical(after)
    elif entry.action == AuditAction.QUARANTINE_PLACED:
        known.quarantine = after["quarantine"]
    elif entry.action.endswith(".limit_changed"):
        before = json.loads(entry.before or "{}")
        known.stages[-1] = LimitPeriod(known.stages[-1].limit, _weights(before.get("weights")))
        known.stages.append(LimitPeriod(_limit(after["limit"]), _weights(after["weights"])))
    elif entry.action in STATUS_ACTS:
        known.status = after["status"]


def _policy_text(policy: Policy | None) -> str | None:
    return None if policy is None else canonical(facts_of(policy))


def _limit(facts: Mapping[str, float] | None) -> Limit | None:
    return None if facts is None else Limit(**facts)


def _weights(facts: Mapping[str, Any] | None) -> FilterWeights | None:
    return None if facts is None else FilterWeights(tuple(facts["indices"]), tuple(facts["deltas"]), facts["reserve"])
