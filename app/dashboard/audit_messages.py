"""Acts in words: who did what to what, as a sentence without its subject."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.dashboard.formatting import count, limit, short
from app.persistence.repositories.audit_entries import StoredAuditEntry

SENTENCES: Final[Mapping[str, str]] = {
    "account.adopted": "took {name} over from an earlier version, with {limit}",
    "account.alerts_set": "set when {name} alerts",
    "budget.created": "opened the budget {name} with {limit}",
    "budget.limit_changed": "changed the limit of {name} from {limit_before} to {limit}",
    "experiment.declared": "declared the experiment {name}",
    "experiment.refused": "asked for an experiment beneath {name} that did not fit",
    "key.created": "issued the key {name} with the role {role}",
    "key.refused": "tried the key {name} in vain, {times}",
    "key.revoked": "withdrew the key {name}",
    "key.rotated": "replaced the key {name} by {heir}",
    "limit.approved": "approved the proposed limit {name}",
    "limit.proposed": "proposed {limit} for {account}, instead of {limit_before}",
    "limit.rejected": "rejected the proposed limit {name}",
    "limit.superseded": "made the proposed limit {name} pointless",
    "limit.withdrawn": "withdrew the proposed limit {name}",
    "organisation.created": "founded the organisation {name}",
    "plan.refused": "asked for a plan of {name} that did not fit",
    "policy.approved": "approved the proposed policy {name}",
    "policy.changed": "changed the policy of {name}",
    "policy.proposed": "proposed to loosen the policy of {account}",
    "policy.rejected": "rejected the proposed policy {name}",
    "policy.superseded": "made the proposed policy {name} pointless",
    "policy.withdrawn": "withdrew the proposed policy {name}",
    "population.approved": "approved the population of the proposal {name}",
    "population.created": "opened the population {name} with {limit}",
    "population.limit_changed": "changed the limit of {name} from {limit_before} to {limit}",
    "population.proposed": "proposed to open the population {name} with {limit}",
    "population.rejected": "rejected the population of the proposal {name}",
    "population.superseded": "made the proposal {name} for a population pointless",
    "population.withdrawn": "withdrew the population of the proposal {name}",
    "quarantine.approved": "approved the proposal {name} to lift a quarantine",
    "quarantine.lifted": "lifted the quarantine of {name}",
    "quarantine.placed": "found a fault in {name}, and quarantined it",
    "quarantine.proposed": "proposed to lift the quarantine of {account}",
    "quarantine.rejected": "rejected the proposal {name} to lift a quarantine",
    "quarantine.superseded": "made the proposal {name} to lift a quarantine pointless",
    "quarantine.withdrawn": "withdrew the proposal {name} to lift a quarantine",
    "run.aborted": "aborted the run {name}",
    "run.activated": "let the run {name} begin",
    "run.approved": "approved the run of the proposal {name}",
    "run.attempt_opened": "began attempt {attempt} of the run {name}",
    "run.completed": "completed the run {name}",
    "run.limit_changed": "changed the limit of {name} from {limit_before} to {limit}",
    "run.paused": "paused the run {name}",
    "run.proposed": "asked for approval of the run {account}",
    "run.refused": "asked for a run beneath {name} whose plan did not fit",
    "run.registered": "registered the run {name}",
    "run.rejected": "rejected the run of the proposal {name}",
    "run.resumed": "resumed the run {name}",
    "run.superseded": "made the proposal {name} for a run pointless",
    "run.withdrawn": "withdrew the run of the proposal {name}",
    "runs.anchored": "tied the chains of {runs} runs to this one",
    "session.ended": "signed out",
    "session.opened": "signed in",
    "signing_key.changed": "signed with the key {signing_key} instead of {signing_key_before}",
    "token.refused": "showed a token of {name} in vain, {times}",
    "webhook.created": "opened a webhook to {host}",
    "webhook.disabled": "closed the webhook {name}",
    "webhook.secret_rotated": "gave the webhook {name} a new secret",
}
"""By action."""

_RUNS: Final = "runs"


@dataclass(frozen=True, slots=True)
class AuditMessage:
    """An act for people.

    Args:
        kept: as it is kept.
        words: what was done.
        before: what was there, as indented JSON; empty: nothing.
        after: what is there now, likewise.
        link: where its subject has a page; empty: it has none.
    """

    kept: StoredAuditEntry
    words: str
    before: str
    after: str
    link: str


class _Facts(dict[str, str]):
    """Facts by name; what an act of another version does not say is told as such."""

    def __missing__(self, name: str) -> str:
        return "what it does not say"


def describe_event(kept: StoredAuditEntry, paths: Mapping[str, str]) -> AuditMessage:
    """An act in words.

    Args:
        kept: of the chain.
        paths: of accounts, by id.
    """
    entry = kept.entry
    before, after = _read(entry.before), _read(entry.after)
    subject = "the organisation" if entry.subject.startswith("org_") else short(entry.subject)
    known = _Facts(
        name=paths.get(entry.subject) or str(after.get("path") or after.get("name") or subject),
        account=_account(after, paths),
        limit=_limit(after),
        limit_before=_limit(before),
        role=str(after.get("role")).replace("_", " "),
        heir=short(str(after.get("replaced_by"))),
        attempt=str(after.get("attempt")),
        host=str(after.get("host")),
        signing_key=str(after.get("key_id")),
        signing_key_before=str(before.get("key_id")),
        runs=str(len(after.get(_RUNS) or ())),
        times=", ".join(f"{number} times ({why})" for why, number in (after.get("times") or {}).items()),
    )
    pattern = SENTENCES.get(entry.action)
    words = pattern.format_map(known) + _withdrawn(after) if pattern else f"did {entry.action} to {known['name']}"
    return AuditMessage(kept, words, _indented(before), _indented(after), _link(entry.subject, paths))


def ids_in(found: Iterable[StoredAuditEntry]) -> set[str]:
    """The ids of what acts are about, some of which are accounts."""
    accounts = {str(_read(kept.entry.after).get("account")) for kept in found}
    return accounts | {kept.entry.subject for kept in found}


def alike(action: str, known: Collection[str] = SENTENCES) -> bool:
    """Whether an action, or a kind of actions such as "run.*", is known."""
    kind = action.removesuffix("*")
    return action in known or (kind != action and any(each.startswith(kind) for each in known))


def _read(text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _indented(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, indent=2, ensure_ascii=False) if facts else ""


def _account(facts: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """The account that an act is about besides its subject; without one, the organisation."""
    account = facts.get("account")
    return "the organisation" if account is None else paths.get(account, account)


def _limit(facts: Mapping[str, Any]) -> str:
    found = facts.get("limit")
    if not isinstance(found, Mapping):  # what was refused has the threshold of one order under this name
        return "no limit of its own"
    return f"epsilon {limit(found['epsilon'])} at delta {limit(found['delta'])}"


def _withdrawn(facts: Mapping[str, Any]) -> str:
    """What a lowered limit took from plans; empty: nothing."""
    plans = facts.get("withdrawn") or ()
    steps = sum(number for plan in plans for number in plan["steps"].values())
    return f", which withdrew {count(steps)} planned steps" if steps else ""


def _link(subject: str, paths: Mapping[str, str]) -> str:
    if subject not in paths:
        return ""
    return f"/runs/{subject}" if subject.startswith("run_") else f"/accounts/{subject}"
