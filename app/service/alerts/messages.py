"""Messages for people: what an alert says, to whom it matters, and which page shows it."""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from app.ledger.accounts.alerts import Alert, AlertType
from app.ledger.accounts.metadata import title_of
from app.ledger.filter.limits import Unit
from app.ledger.governance.proposals import ProposalKind
from app.ledger.wording import percent

MOST_SUBJECT_CHARACTERS: Final = 150
"""The longest header of a Slack message."""

MOST_TEXT_CHARACTERS: Final = 2000
"""The longest field of a Slack message."""

_NO_EPSILON: Final = "an unbounded epsilon"


@dataclass(frozen=True, slots=True)
class Message:
    """A message in plain text; it may contain anything that people named or wrote.

    Args:
        subject: one line.
        text: what happened, in sentences.
        facts: names and values.
        action: who should do what.
        path: of the page that shows it.
    """

    subject: str
    text: str
    facts: tuple[tuple[str, str], ...]
    action: str
    path: str


class Wording(NamedTuple):
    """What an alert says: the subject, what happened, and who should do what."""

    subject: str
    text: str
    action: str


def message_of(alert: Alert) -> Message:
    """Write the message of an alert."""
    payload = _titled(alert.payload)
    subject, text, action = _WRITERS[alert.type](payload)
    facts = tuple((name, plain(value, MOST_TEXT_CHARACTERS)) for name, value in _facts(payload))
    subject = plain(subject, MOST_SUBJECT_CHARACTERS)
    return Message(subject, plain(text, MOST_TEXT_CHARACTERS), facts, action, _page(alert))


def _titled(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write behind the paths of runs the numbers that tell them apart."""
    titles = {
        f"{name}_path": title_of(str(payload[f"{name}_path"]), payload.get(f"{name}_number", 1))
        for name in ("account", "run")
        if payload.get(f"{name}_path")
    }
    over = payload.get("over_limit")
    if over is not None and over["account"] == payload["account"]:
        titles["over_limit"] = over | {"account_path": titles["account_path"]}
    return {**payload, **titles}


def plain(text: str, most: int) -> str:
    """Remove control characters, join lines, and shorten a text.

    Without line breaks nothing can become a header of a mail, and without marks of direction nothing reads backwards.
    """
    kept = "".join(" " if char.isspace() else char for char in text if char.isspace() or _is_visible(char))
    joined = " ".join(kept.split())
    return joined if len(joined) <= most else joined[: most - 1] + "…"


def _is_visible(char: str) -> bool:
    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"}


def _page(alert: Alert) -> str:
    if alert.type in {AlertType.RUN_PENDING, AlertType.PROPOSAL_OPENED}:
        return "/approvals"
    if alert.account_id is None:
        return "/alerts" if alert.type is AlertType.TEST else "/approvals"
    return f"/{'runs' if alert.payload.get('account_kind') == 'run' else 'accounts'}/{alert.account_id}"


def _facts(payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the facts of an alert: the account, its spending, and who proposed, decided and why."""
    found: list[tuple[str, str]] = []
    if payload.get("account_path"):
        found.append((str(payload["account_kind"]).capitalize(), payload["account_path"]))
    if "limit" in payload:
        found.append(("Used", f"{percent(payload['used'])} of {_limit(payload['limit'])}"))
    if payload.get("proposed_by_name"):
        found += [("Proposed by", payload["proposed_by_name"]), ("Reason", payload["reason"])]
    if payload.get("decided_by_name"):
        found.append(("Decided by", payload["decided_by_name"]))
    if payload.get("decision_reason"):
        found.append(("Reason of the decision", payload["decision_reason"]))
    return found


def _moment(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"


def _threshold(payload: Mapping[str, Any]) -> Wording:
    share = f"{payload['threshold'] * 100:g} %"
    return Wording(
        f"{payload['account_path']} has used {share} of its limit",
        f"The {payload['account_kind']} {payload['account_path']} has used {percent(payload['used'])} of its limit, "
        f"{_limit(payload['limit'])}.",
        "Who plans this budget should decide what the rest is for, or propose a higher limit in time.",
    )


def _exhausted(payload: Mapping[str, Any]) -> Wording:
    return Wording(
        f"{payload['account_path']} is used up",
        f"The last charge of the run {payload['run_path']} left no room for another one like it in "
        f"{payload['account_path']}. Steps like this one are refused from now on.",
        "The trainer can go on with more noise, or propose a higher limit.",
    )


def _forecast(payload: Mapping[str, Any]) -> Wording:
    day = f"{datetime.fromisoformat(payload['exhaustion_at']):%Y-%m-%d}"
    return Wording(
        f"{payload['account_path']} will be used up on {day}",
        f"At the pace of the last days, the {payload['account_kind']} {payload['account_path']} reaches its limit on "
        f"{day}. {percent(payload['used'])} of it is used.",
        "Who plans this budget should slow the training down, or propose a higher limit.",
    )


def _schedule_failed(payload: Mapping[str, Any]) -> Wording:
    return Wording(
        f"The data block {payload['block']} of {payload['account_path']} was not opened",
        f"Its period has begun, and the block schedule of {payload['account_path']} did not open it. "
        f"{payload['detail']}",
        "Who administers this budget should remove the cause, or replace the schedule. It is tried again until then.",
    )


def _overdrawn(payload: Mapping[str, Any]) -> Wording:
    over = payload["over_limit"]["account_path"]
    return Wording(
        f"{payload['account_path']} went over a limit",
        f"The run {payload['account_path']} reported steps that it had executed already, and they do not fit "
        f"{over}. They are recorded, and the run is frozen.",
        "The privacy office should find out why the trainer did not ask first.",
    )


def _stale(payload: Mapping[str, Any]) -> Wording:
    return Wording(
        f"The trainer of {payload['account_path']} is silent",
        f"Nothing was heard since {_moment(payload['silent_since'])}. At {_moment(payload['expires_at'])} the "
        "reservation ends, and the rest of it is charged.",
        "Who operates the trainer should check that it is alive.",
    )


def _forfeited(payload: Mapping[str, Any]) -> Wording:
    why = "its lease expired" if payload["lapsed"] else "it ended without its trainer"
    return Wording(
        f"{payload['account_path']} was charged for {payload['steps_forfeited']} unused steps",
        f"A reservation of {payload['steps_reserved']} steps was closed because {why}. The steps that were not "
        f"reported, {payload['steps_forfeited']} of them, were charged: the trainer may have executed them.",
        "Who operates the trainer should check why it stopped.",
    )


def _granted(payload: Mapping[str, Any]) -> Wording:
    return Wording(
        f"The reservation of {payload['account_path']} is granted",
        f"The reservation of {payload['steps_reserved']} steps has waited for {_duration(payload['waited_seconds'])}. "
        f"Now it is granted. Its trainer claims it before {_moment(payload['expires_at'])}; otherwise it is returned.",
        "Who operates the trainer should check that it runs.",
    )


def _expired(payload: Mapping[str, Any]) -> Wording:
    return Wording(
        f"The reservation of {payload['account_path']} has waited in vain",
        f"The reservation of {payload['steps_reserved']} steps waited until {_moment(payload['wait_until'])}, and the "
        "budget for it did not become free. Nothing was charged.",
        "Who owns the training should make it smaller, or ask for a higher limit.",
    )


def _duration(seconds: int) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"


def _pending(payload: Mapping[str, Any]) -> Wording:
    return Wording(
        f"Approval needed: the run {payload['account_path']}",
        f"{payload['proposed_by_name']} registered the run {payload['account_path']} with "
        f"{_limit(payload['proposed'])}. It takes no step before it is approved.",
        "Another person who may approve should decide.",
    )


def _opened(payload: Mapping[str, Any]) -> Wording:
    text = f"{payload['proposed_by_name']} proposes {_subject(payload)}."
    if "limit_before" in payload:
        text += f" The limit is {_limit(payload['limit_before'])} now, of which {percent(payload['used'])} is used."
    return Wording(f"Approval needed: {_subject(payload)}", text, "Another person who may approve should decide.")


def _decided(payload: Mapping[str, Any]) -> Wording:
    status, subject = payload["status"], _subject(payload)
    text = f"{payload['decided_by_name']} {_DECISIONS[status]} what {payload['proposed_by_name']} proposed: {subject}."
    action = "It applies from now on." if status == "approved" else "Nothing has changed."
    return Wording(f"{status.capitalize()}: {subject}", text, action)


_DECISIONS: Final = {
    "approved": "approved",
    "rejected": "rejected",
    "withdrawn": "withdrew",
    "superseded": "ended the run before anyone decided, and so closed",
}


def _subject(payload: Mapping[str, Any]) -> str:
    """Name what a proposal is about."""
    proposed, path = payload["proposed"], payload.get("account_path") or "the organisation"
    kind = ProposalKind(payload["kind"])
    if kind is ProposalKind.POPULATION:
        return f"the population {proposed['name']} with {_limit(proposed['limit'])}"
    return f"{_limit(proposed['limit'])} for {path}" if kind is ProposalKind.LIMIT else _SUBJECTS[kind].format(path)


_SUBJECTS: Final = {
    ProposalKind.RUN: "the run {}",
    ProposalKind.POLICY: "a looser policy for {}",
    ProposalKind.QUARANTINE: "to lift the quarantine of {}",
    ProposalKind.ALLOCATION: "to unlock the limit of {} earlier",
    ProposalKind.UNARCHIVAL: "to unarchive {}",
}


def _limit(limit: Mapping[str, Any]) -> str:
    unit = next(unit for unit in Unit if unit in limit)
    value = _NO_EPSILON if limit[unit] is None else f"{unit} {limit[unit]:g}"
    return f"{value} at delta {limit['delta']:g}" if "delta" in limit else value


def _test(_: Mapping[str, Any]) -> Wording:
    return Wording(
        "Test event of Epsilon Ledger", "This is a test. Alerts of the privacy ledger arrive here.", "Nothing to do."
    )


_WRITERS: Final[Mapping[AlertType, Callable[[Mapping[str, Any]], Wording]]] = {
    AlertType.BLOCK_SCHEDULE_FAILED: _schedule_failed,
    AlertType.THRESHOLD: _threshold,
    AlertType.EXHAUSTED: _exhausted,
    AlertType.FORECAST: _forecast,
    AlertType.OVERDRAWN: _overdrawn,
    AlertType.RESERVATION_EXPIRED: _expired,
    AlertType.RESERVATION_GRANTED: _granted,
    AlertType.RESERVATION_STALE: _stale,
    AlertType.RESERVATION_FORFEITED: _forfeited,
    AlertType.RUN_PENDING: _pending,
    AlertType.PROPOSAL_OPENED: _opened,
    AlertType.PROPOSAL_DECIDED: _decided,
    AlertType.TEST: _test,
}
