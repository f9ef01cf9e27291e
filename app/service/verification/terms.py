"""Are an organisation's acts those that were done, all of them, and are its accounts what they made of them?"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.ledger.accounts import Account, AccountKind
from app.ledger.audit import ActEntry, act_hash, acts_genesis, canonical
from app.ledger.filters import FilterWeights, Limit
from app.ledger.lookalikes import name_skeleton
from app.ledger.policies import facts_of
from app.ledger.runs import RunStatus
from app.persistence.repositories import acts
from app.persistence.repositories.proposals import Kind

STATUS_ACTS: Final = frozenset({"run.activated", "run.paused", "run.resumed", "run.completed", "run.aborted"})
OPENING_ACTS: Final = frozenset({"population.created", "budget.created", "run.registered", "account.adopted"})
KEY_ACTS: Final = frozenset({"key.created", "key.rotated", "key.revoked"})
PROPOSING_ACTS: Final = frozenset(f"{kind}.proposed" for kind in Kind)
APART: Final = ("limit", "status")
"""Facts of an account that later acts change."""


@dataclass(frozen=True, slots=True)
class Stage:
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
    """

    facts: str
    stages: list[Stage]
    status: str | None


@dataclass
class Told:
    """What an organisation's chain says.

    Args:
        acts: how many there are.
        fault: the first thing that is wrong with it; then nothing else of it is believed.
        terms: by the account's id.
        anchors: by the run's id, the hash (hex) of its chain after so many decisions.
        heads: the hash of the chain after so many acts, where somebody wants to know it.
        policies: that were set, as canonical JSON, by the id of the account or of the organisation itself.
        experiments: that were declared, as canonical JSON, by their id.
        founded: whether the chain begins with the organisation itself, so that everything has an act.
        keys: that were issued, each as the last act left it, by its id.
        proposals: that were made, likewise.
        withdrawn: repetitions that lowered limits have withdrawn, by reservation and event.
    """

    acts: int = 0
    fault: str | None = None
    terms: dict[str, Terms] = field(default_factory=dict)
    anchors: dict[str, dict[int, str]] = field(default_factory=dict)
    heads: dict[int, bytes] = field(default_factory=dict)
    policies: dict[str, str] = field(default_factory=dict)
    experiments: dict[str, str] = field(default_factory=dict)
    founded: bool = False
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    proposals: dict[str, dict[str, Any]] = field(default_factory=dict)
    withdrawn: dict[str, Counter[str]] = field(default_factory=dict)
    head: bytes = b""


def read_acts(kept: Iterator[acts.KeptAct], signed: Collection[tuple[str, int]] = ()) -> dict[str, Told]:
    """Walk the chains of organisations.

    Args:
        kept: every act, in the order of the chains.
        signed: organisations and numbers of acts after which the hash is wanted.

    Returns:
        What each says, by the organisation's id.
    """
    found: dict[str, Told] = {}
    for act in kept:
        owner = act.entry.organisation_id
        told = found.setdefault(owner, Told(head=acts_genesis(owner)))
        if told.fault is None:
            told.fault = _fault(told, act)
        if told.fault is None:
            _note(told, act.entry)
        told.head = act.entry_hash
        told.acts = act.entry.position + 1
        if (owner, told.acts) in signed:
            told.heads[told.acts] = told.head
    return found


def fixed_facts(facts: Mapping[str, Any]) -> str:
    """Those of an account's facts that never change, as canonical JSON."""
    return canonical({name: value for name, value in facts.items() if name not in APART})


def disagreements(account: Account, facts: Mapping[str, Any], terms: Terms | None) -> Iterator[str]:
    """What is wrong with an account, held against what acts say of it.

    Args:
        account: as it is kept.
        facts: of it, as its opening would note them now.
        terms: what acts say; None: nothing.
    """
    if terms is None:
        yield "no act of its organisation says that it was opened."
        return
    if fixed_facts(facts) != terms.facts:
        said = json.loads(terms.facts)
        other = sorted(name for name in said.keys() | facts.keys() - set(APART) if said.get(name) != facts.get(name))
        yield f"it is not as it was opened: {', '.join(other)}."
    if terms.stages[-1].limit != account.limit or account.limit_revision != len(terms.stages) - 1:
        yield "its limit is not the one that its organisation's acts gave it."


def policy_disagreement(account: Account, organisation_id: str, policies: Mapping[str, str]) -> str | None:
    """What is wrong with an account's policies, held against what acts have set; None: nothing.

    Args:
        account: as it is kept.
        organisation_id: whose.
        policies: that acts have set, as canonical JSON, by their subject.
    """
    kept = {account.id: account.policy}
    if account.kind is AccountKind.POPULATION:
        kept[organisation_id] = account.house_policy
    if any(
        policies.get(of) != (None if policy is None else canonical(facts_of(policy))) for of, policy in kept.items()
    ):
        return "its policy is not the one that its organisation's acts gave it."
    return None


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


def _fault(told: Told, act: acts.KeptAct) -> str | None:
    if act.entry.position != told.acts:
        return f"act {told.acts} is missing from the organisation's chain."
    if act_hash(told.head, act.entry) != act.entry_hash:
        return (
            f"act {act.entry.position} ({act.entry.action}) is not the one that was done: its hash is that of another."
        )
    return None


def _note(told: Told, entry: ActEntry) -> None:
    after, terms = json.loads(entry.after) if entry.after else {}, told.terms
    _note_office(told, entry, after)
    if entry.action == "policy.changed":
        told.policies[entry.subject] = canonical(after["policy"])
    elif entry.action == "experiment.declared":
        told.experiments[entry.subject] = canonical(after)
    elif entry.action in OPENING_ACTS:
        status = after.get("status", RunStatus.ACTIVE)
        terms[entry.subject] = Terms(fixed_facts(after), [Stage(_limit(after["limit"]))], status)
    elif entry.action.endswith(".limit_changed") and entry.subject in terms:
        before = json.loads(entry.before or "{}")
        stages = terms[entry.subject].stages
        stages[-1] = Stage(stages[-1].limit, _weights(before.get("weights")))
        stages.append(Stage(_limit(after["limit"]), _weights(after["weights"])))
        for plan in after.get("withdrawn", ()):
            told.withdrawn.setdefault(plan["reservation"], Counter()).update(plan["steps"])
    elif entry.action == "runs.anchored":
        for run_id, (decisions, head) in after["runs"].items():
            told.anchors.setdefault(run_id, {})[decisions] = head
    elif entry.action in STATUS_ACTS and entry.subject in terms:
        terms[entry.subject].status = after["status"]


def _note_office(told: Told, entry: ActEntry, after: Mapping[str, Any]) -> None:
    subject = entry.subject
    if entry.action == "organisation.created":
        told.founded = True
    elif entry.action in KEY_ACTS:
        issuer = told.keys[subject]["created_by"] if subject in told.keys else None
        named = {name: after[name] for name in ("role", "scope", "expires_at", "revoked_at")}
        told.keys[subject] = named | {"created_by": entry.actor if entry.action == "key.created" else issuer}
    elif entry.action in PROPOSING_ACTS:
        told.proposals[subject] = {"proposed": after, "proposed_by": entry.actor, "status": "open"}
    elif subject in told.proposals:
        told.proposals[subject]["status"] = after["status"]


def _limit(facts: Mapping[str, float] | None) -> Limit | None:
    return None if facts is None else Limit(facts["epsilon"], facts["delta"])


def _weights(facts: Mapping[str, Any] | None) -> FilterWeights | None:
    return None if facts is None else FilterWeights(tuple(facts["indices"]), tuple(facts["deltas"]), facts["reserve"])
