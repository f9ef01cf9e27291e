"""Audit entries as sentences without their subject."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from app.charts.model import count
from app.dashboard.formatting import END_REASONS, RULES, seconds
from app.ledger.audit import AuditAction, AuditEntry
from app.ledger.runs.run import EndReason
from app.ledger.settings.allocation import SchedulingRule
from app.ledger.wording import format_exact
from app.service.actors import ActorLabel, label_of

SENTENCES: Final[Mapping[str, str]] = {action.value: action.words for action in AuditAction}
"""Sentence templates by action."""


def describe_event(entry: AuditEntry, paths: Mapping[str, str], actors: Callable[[str], ActorLabel] = label_of) -> str:
    """Describe an audit entry; `paths` are those of accounts by id, and `actors` labels keys and people."""
    before, after = _read(entry.before), _read(entry.after)
    subject = "the organisation" if entry.subject.startswith("org_") else actors(entry.subject).name
    name = paths.get(entry.subject) or str(after.get("path") or after.get("name") or subject)
    sentence = SENTENCES.get(entry.action, "did {action} to {name}").format(
        action=entry.action,
        name=name,
        account=_account(after, paths),
        limit=_limit(after),
        limit_before=_limit(before),
        role=str(after.get("role")).replace("_", " "),
        heir=actors(str(after.get("replaced_by"))).name,
        attempt=str(after.get("attempt")),
        host=after.get("host") or "mail addresses",
        host_before=before.get("host") or "mail addresses",
        signing_key=str(after.get("key_id")),
        signing_key_before=str(before.get("key_id")),
        runs=len(after.get("runs") or ()),
        ending=_ending(after),
        allocation=_allocation(after),
        run=paths.get(str(after.get("run")), str(after.get("run"))),
        grant=_grant(after),
        place=_place(after, paths),
        priority=after.get("priority"),
        priority_before=before.get("priority"),
        times=", ".join(f"{number} times ({why})" for why, number in (after.get("times") or {}).items()),
    )
    return sentence + _revoked(after)


def ids_in(found: Iterable[AuditEntry]) -> set[str]:
    """Collect the ids that entries mention, some of which are accounts."""
    facts = [_read(kept.after) for kept in found]
    accounts = {str(each.get(name)) for each in facts for name in ("account", "run")}
    lacking = {each["account"] for fact in facts for each in fact.get("waits_for") or ()}
    return accounts | lacking | {kept.subject for kept in found}


def actors_in(found: Iterable[AuditEntry]) -> set[str]:
    """Collect the actors of entries, and the keys and people that entries are about."""
    named = {str(_read(kept.after).get("replaced_by")) for kept in found}
    return named | {each for kept in found for each in (kept.actor, kept.subject)}


def is_known(action: str) -> bool:
    """Check whether an action, or a kind of actions such as "run.*", is known."""
    kind = action.removesuffix("*")
    return action in SENTENCES or (kind != action and any(each.startswith(kind) for each in SENTENCES))


def _read(text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _account(facts: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Name the account besides the subject, or else the organisation."""
    account = facts.get("account")
    return "the organisation" if account is None else paths.get(account, account)


def _limit(facts: Mapping[str, Any]) -> str:
    found = facts.get("limit")
    if not isinstance(found, Mapping):  # a refusal has a threshold under this name
        return "no limit of its own"
    return f"epsilon {format_exact(found['epsilon'])} at delta {format_exact(found['delta'])}"


def _ending(facts: Mapping[str, Any]) -> str:
    """Describe how a run ended, unless its status says so."""
    reason = facts.get("end_reason")
    return "" if reason is None or reason == facts["status"] else f": {END_REASONS[EndReason(reason)]}"


def _allocation(facts: Mapping[str, Any]) -> str:
    """Describe a new allocation."""
    if "allocation" not in facts:
        return ""
    found = facts["allocation"]
    if found is None:
        return ": it has none any more"
    unlock = "is unlocked in parts" if found["unlock"] else "is usable at once"
    rule = f", {_rule(found['rule'])} first" if found["rule"] else ""
    return f": it admits reservations only{rule}, and its limit {unlock}"


def _rule(name: str) -> str:
    return RULES[SchedulingRule(name)]


def _place(facts: Mapping[str, Any], paths: Mapping[str, str]) -> str:
    """Describe the place of a reservation that waits, and for what."""
    if "position" not in facts:
        return ""
    lacking = [f"{paths.get(each['account'], each['account'])} ({each['reason']})" for each in facts["waits_for"]]
    return f" at place {facts['position']}, for {', '.join(lacking) or 'its turn'}"


def _grant(facts: Mapping[str, Any]) -> str:
    """Describe why a reservation was granted, and not those before it."""
    if "waited_seconds" not in facts:
        return ""
    reasons = [f"first is {_rule(facts['rule'])}"]
    if facts["score"]:
        first = facts["score"][0]
        reasons.append(f"its score is {first if isinstance(first, str) else f'{first:.3g}'}")
    if facts["priority"]:
        reasons.append(f"its priority is {facts['priority']}")
    if facts["aged"]:
        reasons.append("it was aged")
    over = facts["overtaken_count"]
    reasons.append(f"{over} before it could not be granted" if over else "none was before it")
    return f" after {seconds(facts['waited_seconds'])}: {', '.join(reasons)}"


def _revoked(facts: Mapping[str, Any]) -> str:
    """Describe the planned steps that a lowered limit revoked."""
    reservations = facts.get("revoked") or ()
    steps = sum(number for each in reservations for number in each["steps"].values())
    return f", which revoked {count(steps)} planned steps" if steps else ""
