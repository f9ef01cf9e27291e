"""Acts in words: who did what to what, as a sentence without its subject."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.dashboard.formatting import count, limit, short
from app.ledger.audit_actions import AuditAction
from app.persistence.repositories.audit_entries import StoredAuditEntry

SENTENCES: Final[Mapping[str, str]] = {
    AuditAction.ALERT_SETTINGS_REPLACED: "set when {name} alerts",
    AuditAction.BUDGET_CREATED: "opened the budget {name} with {limit}",
    AuditAction.BUDGET_LIMIT_CHANGED: "changed the limit of {name} from {limit_before} to {limit}",
    AuditAction.EXPERIMENT_CREATED: "declared the experiment {name}",
    AuditAction.EXPERIMENT_REFUSED: "asked for an experiment beneath {name} that did not fit",
    AuditAction.API_KEY_CREATED: "issued the key {name} with the role {role}",
    AuditAction.API_KEY_AUTHENTICATION_FAILED: "tried the key {name} in vain, {times}",
    AuditAction.API_KEY_REVOKED: "withdrew the key {name}",
    AuditAction.API_KEY_ROTATED: "replaced the key {name} by {heir}",
    AuditAction.LIMIT_APPROVED: "approved the proposed limit {name}",
    AuditAction.LIMIT_PROPOSED: "proposed {limit} for {account}, instead of {limit_before}",
    AuditAction.LIMIT_REJECTED: "rejected the proposed limit {name}",
    AuditAction.LIMIT_SUPERSEDED: "made the proposed limit {name} pointless",
    AuditAction.LIMIT_WITHDRAWN: "withdrew the proposed limit {name}",
    AuditAction.ORGANISATION_CREATED: "founded the organisation {name}",
    AuditAction.RESERVATION_REFUSED: "asked for a plan of {name} that did not fit",
    AuditAction.POLICY_APPROVED: "approved the proposed policy {name}",
    AuditAction.POLICY_REPLACED: "changed the policy of {name}",
    AuditAction.POLICY_PROPOSED: "proposed to loosen the policy of {account}",
    AuditAction.POLICY_REJECTED: "rejected the proposed policy {name}",
    AuditAction.POLICY_SUPERSEDED: "made the proposed policy {name} pointless",
    AuditAction.POLICY_WITHDRAWN: "withdrew the proposed policy {name}",
    AuditAction.POPULATION_APPROVED: "approved the population of the proposal {name}",
    AuditAction.POPULATION_CREATED: "opened the population {name} with {limit}",
    AuditAction.POPULATION_LIMIT_CHANGED: "changed the limit of {name} from {limit_before} to {limit}",
    AuditAction.POPULATION_PROPOSED: "proposed to open the population {name} with {limit}",
    AuditAction.POPULATION_REJECTED: "rejected the population of the proposal {name}",
    AuditAction.POPULATION_SUPERSEDED: "made the proposal {name} for a population pointless",
    AuditAction.POPULATION_WITHDRAWN: "withdrew the population of the proposal {name}",
    AuditAction.QUARANTINE_APPROVED: "approved the proposal {name} to lift a quarantine",
    AuditAction.QUARANTINE_LIFTED: "lifted the quarantine of {name}",
    AuditAction.QUARANTINE_PLACED: "found a fault in {name}, and quarantined it",
    AuditAction.QUARANTINE_PROPOSED: "proposed to lift the quarantine of {account}",
    AuditAction.QUARANTINE_REJECTED: "rejected the proposal {name} to lift a quarantine",
    AuditAction.QUARANTINE_SUPERSEDED: "made the proposal {name} to lift a quarantine pointless",
    AuditAction.QUARANTINE_WITHDRAWN: "withdrew the proposal {name} to lift a quarantine",
    AuditAction.RUN_ABORTED: "aborted the run {name}",
    AuditAction.RUN_ACTIVATED: "let the run {name} begin",
    AuditAction.RUN_APPROVED: "approved the run of the proposal {name}",
    AuditAction.RUN_ATTEMPT_CREATED: "began attempt {attempt} of the run {name}",
    AuditAction.RUN_COMPLETED: "completed the run {name}",
    AuditAction.RUN_LIMIT_CHANGED: "changed the limit of {name} from {limit_before} to {limit}",
    AuditAction.RUN_PAUSED: "paused the run {name}",
    AuditAction.RUN_PROPOSED: "asked for approval of the run {account}",
    AuditAction.RUN_REFUSED: "asked for a run beneath {name} whose plan did not fit",
    AuditAction.RUN_CREATED: "registered the run {name}",
    AuditAction.RUN_REJECTED: "rejected the run of the proposal {name}",
    AuditAction.RUN_RESUMED: "resumed the run {name}",
    AuditAction.RUN_SUPERSEDED: "made the proposal {name} for a run pointless",
    AuditAction.RUN_WITHDRAWN: "withdrew the run of the proposal {name}",
    AuditAction.RUNS_ANCHORED: "tied the chains of {runs} runs to this one",
    AuditAction.SESSION_ENDED: "signed out",
    AuditAction.SESSION_CREATED: "signed in",
    AuditAction.SIGNING_KEY_CHANGED: "signed with the key {signing_key} instead of {signing_key_before}",
    AuditAction.OIDC_TOKEN_AUTHENTICATION_FAILED: "showed a token of {name} in vain, {times}",
    AuditAction.WEBHOOK_CREATED: "opened a webhook to {host}",
    AuditAction.WEBHOOK_DISABLED: "closed the webhook {name}",
    AuditAction.WEBHOOK_SECRET_ROTATED: "gave the webhook {name} a new secret",
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
        return "(not recorded)"


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
