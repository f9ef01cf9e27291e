"""Are an organisation's acts those that were done, all of them, and are its accounts what they made of them?"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from app.ledger.accounts import Account, AccountKind
from app.ledger.audit_actions import AuditAction
from app.ledger.filters import FilterWeights, Limit
from app.ledger.hash_chain import AuditEntry, audit_entry_hash, audit_genesis, canonical
from app.ledger.lookalikes import name_skeleton
from app.ledger.policies import Policy, facts_of
from app.ledger.runs import RunStatus
from app.persistence.repositories import audit_entries
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.alert_settings import DEFAULT_ALERT_SETTINGS
from app.persistence.tolerant import DAMAGED
from app.service.verification import records
from app.service.verification.records import Records

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
"""Facts of an account that later acts change."""

_QUARANTINES: Final = {
    (False, True): "its quarantine is gone from its row, and no act of its organisation has lifted it.",
    (True, False): "its row says that it is quarantined, and no act of its organisation does.",
    (True, True): "its row gives another reason for its quarantine than its organisation's acts.",
}
"""What is wrong with a quarantine, by whether row and acts say that there is one."""


@dataclass(frozen=True, slots=True)
class LimitPeriod:
    """A limit that was in force, and the weights of its filter.

    Args:
        limit: None only for a run that relies on its ancestors' limits.
        weights: as they were when the limit came into force; None: not frozen yet, or not said.
    """

    limit: Limit | None
    weights: FilterWeights | None = None


@dataclass
class Terms:
    """What acts say of an account.

    Args:
        facts: canonical JSON of those that never change.
        stages: the limits in the order in which they were in force; at least one.
        status: of a run, by the acts alone.
        created_at: when it was opened.
        policy: that was set last, as canonical JSON; None: none was.
        policy_revision: how often one was set.
        tells: of what it tells, as canonical JSON.
        quarantine: why writes to it are stopped; None: they are not.
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
    """What an organisation's chain says.

    Args:
        acts: how many there are.
        fault: the first thing that is wrong with it; then nothing else of it is believed.
        terms: by the account's id.
        anchors: by the run's id, the hash (hex) of its chain after so many decisions.
        heads: the hash of the chain after so many acts, where somebody wants to know it.
        house_policy: that was set for the organisation itself last, as canonical JSON; None: none was.
        founded: whether the chain begins with the organisation itself, so that everything has an act.
        withdrawn: repetitions that lowered limits have withdrawn, by reservation and event.
        records: rows beside the accounts, as the acts have made and changed them.
        head: the hash of the last act.
    """

    acts: int = 0
    fault: str | None = None
    terms: dict[str, Terms] = field(default_factory=dict)
    anchors: dict[str, dict[int, str]] = field(default_factory=dict)
    heads: dict[int, bytes] = field(default_factory=dict)
    house_policy: str | None = None
    founded: bool = False
    withdrawn: dict[str, Counter[str]] = field(default_factory=dict)
    records: Records = field(default_factory=dict)
    head: bytes = b""


def read_acts(
    kept: Iterator[audit_entries.StoredAuditEntry], signed: Collection[tuple[str, int]] = ()
) -> dict[str, AuditState]:
    """Walk the chains of organisations.

    Args:
        kept: every act, in the order of the chains.
        signed: organisations and numbers of acts after which the hash is wanted.

    Returns:
        What each says, by the organisation's id.
    """
    found: dict[str, AuditState] = {}
    for act in kept:
        owner = act.entry.organisation_id
        told = found.setdefault(owner, AuditState(head=audit_genesis(owner)))
        if told.fault is None:
            told.fault = _fault(told, act)
        if told.fault is None:
            told.fault = _noted(told, act.entry)
        told.head = act.entry_hash
        told.acts = act.entry.position + 1
        if (owner, told.acts) in signed:
            told.heads[told.acts] = told.head
    return found


def fixed_facts(facts: Mapping[str, Any]) -> str:
    """Those of an account's facts that never change, as canonical JSON."""
    return canonical({name: value for name, value in facts.items() if name not in APART})


def disagreements(
    record: AccountRecord, facts: Mapping[str, Any], terms: Terms | None, house_policy: str | None
) -> Iterator[str]:
    """What is wrong with an account, held against what acts say of it.

    Args:
        record: as it is kept.
        facts: of it, as its opening would note them now.
        terms: what acts say; None: nothing.
        house_policy: of its organisation, as acts have set it.
    """
    account = record.account
    if terms is None:
        yield "no act of its organisation says that it was opened."
        return
    said = json.loads(terms.facts)
    names = (said.keys() | facts.keys()) - set(APART)
    now = json.loads(fixed_facts(facts))
    other = sorted(name for name in names if name not in now.keys() & said.keys() or said[name] != now[name])
    if record.created_at != terms.created_at:
        other.append("created_at")
    if other:
        yield f"it is not as it was opened: {', '.join(other)}."
    if canonical(asdict(record.tells)) != terms.tells:
        yield "its alert settings are not those that its organisation's acts gave it."
    house = house_policy if account.kind is AccountKind.POPULATION else None
    kept = (_policy_text(account.policy), account.policy_revision, _policy_text(account.house_policy))
    if kept != (terms.policy, terms.policy_revision, house):
        yield "its policy is not the one that its organisation's acts gave it."
    if terms.stages[-1].limit != account.limit or account.limit_revision != len(terms.stages) - 1:
        yield "its limit is not the one that its organisation's acts gave it."
    if record.quarantine != terms.quarantine:
        yield _QUARANTINES[record.quarantine is not None, terms.quarantine is not None]


def skeleton_of(account: Account) -> str | None:
    """What has to be kept of an account's name for comparing it with others; None: names of runs are not compared."""
    return None if account.kind is AccountKind.RUN else name_skeleton(account.name)


def status_disagreement(status: str, terms: Terms | None, *, overdrawn: bool) -> str | None:
    """What is wrong with a run's status, held against acts and reports; None: nothing."""
    if terms is None:
        return None  # it is said of the account
    if status == RunStatus.OVERDRAWN:
        return None if overdrawn else "it is overdrawn, and yet it has reported nothing over its limit."
    if status != terms.status:
        return f"it is {status}, but its organisation's acts leave it {terms.status}."
    return None


def _fault(told: AuditState, act: audit_entries.StoredAuditEntry) -> str | None:
    if act.entry.position != told.acts:
        return f"act {told.acts} is missing from the organisation's chain."
    if audit_entry_hash(told.head, act.entry) != act.entry_hash:
        return (
            f"act {act.entry.position} ({act.entry.action}) is not the one that was done: its hash is that of another."
        )
    return None


def _noted(told: AuditState, entry: AuditEntry) -> str | None:
    """Note what an act says; what is wrong with it, if it means nothing."""
    try:
        after = json.loads(entry.after) if entry.after else {}
        _note(told, entry, after)
        records.note(told.records, entry, after)
    except DAMAGED as fault:
        return f"act {entry.position} ({entry.action}) means nothing: {type(fault).__name__} {fault}."
    return None


def _note(told: AuditState, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    known = told.terms.get(entry.subject)
    if entry.action == AuditAction.ORGANISATION_CREATED:
        told.founded = True
    elif entry.action == AuditAction.POLICY_REPLACED and entry.subject == entry.organisation_id:
        told.house_policy = canonical(after["policy"])
    elif entry.action in OPENING_ACTS:
        status = after.get("status", RunStatus.ACTIVE)
        periods = [LimitPeriod(_limit(after["limit"]))]
        told.terms[entry.subject] = Terms(fixed_facts(after), periods, status, entry.created_at)
    elif entry.action == AuditAction.RUNS_ANCHORED:
        for run_id, (decisions, head) in after["runs"].items():
            told.anchors.setdefault(run_id, {})[int(decisions)] = head
    elif entry.action == AuditAction.QUARANTINE_LIFTED:
        _lift(told, entry)
    elif known is not None:
        _change(known, entry, after)
        if entry.action.endswith(".limit_changed"):
            _withdraw(told, after)


def _lift(told: AuditState, entry: AuditEntry) -> None:
    for account_id in json.loads(entry.before or "{}")["quarantined"]:
        if account_id in told.terms:
            told.terms[account_id].quarantine = None


def _withdraw(told: AuditState, after: Mapping[str, Any]) -> None:
    for plan in after.get("withdrawn", ()):
        told.withdrawn.setdefault(plan["reservation"], Counter()).update(plan["steps"])


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
    return (
        None
        if facts is None
        else FilterWeights(tuple(facts["indices"]), tuple(facts["deltas"]), facts["createReservation"])
    )
