"""Rows other than accounts, as the audit log has created and changed them."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row

from app.ledger.audit import AuditAction
from app.ledger.hash_chain import AuditEntry, canonical, digest
from app.ledger.proposals import ProposalKind, ProposalStatus
from app.persistence.repositories.records import StoredRecord

Records = dict[str, dict[str, dict[str, Any]]]
"""Columns of a row that the audit log knows, by table and key."""

ENDING: Final = frozenset({"sessions"})
"""Tables whose rows are deleted when they expire."""

_READ: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("api_keys", "secret_hash"): digest,
    ("sessions", "secret_hash"): digest,
    ("webhooks", "url"): digest,
    ("webhooks", "secret"): digest,
    ("webhooks", "previous_secret"): digest,
    ("webhooks", "types"): json.loads,
}
"""Columns that the audit log has in another form, for it contains no secrets."""


def note(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    """Apply an audit entry to the rows."""
    maker = _MAKERS.get(entry.action)
    if maker is not None:
        maker(said, entry, after)
    elif entry.subject in said.get("proposals", {}):
        _decision(said, entry, after)


def compare(columns: Mapping[str, Any], record: StoredRecord) -> str | None:
    """Compare a row with its columns by the audit log; return the discrepancy, or None."""
    other = [name for name, value in columns.items() if _cell(record.table, name, record.row) != value]
    return (
        f"the row {record.key} of {record.table} is not as the audit log has it: {', '.join(other)}." if other else None
    )


def missing(said: Records) -> Iterator[str]:
    """Report the remaining rows of the audit log, which were found in no table."""
    for table, rows in said.items():
        if table not in ENDING:
            yield from (f"the row {key} of {table} is missing." for key in rows)


def _cell(table: str, name: str, row: Row[Any]) -> Any:  # noqa: ANN401 - a cell
    value, read = getattr(row, name), _READ.get((table, name))
    return value if read is None or value is None else read(value)


def _row(said: Records, table: str, key: str, **columns: object) -> None:
    said.setdefault(table, {}).setdefault(key, {}).update(columns)


def _creation(entry: AuditEntry) -> dict[str, object]:
    return {"created_by": entry.actor, "created_at": entry.created_at}


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _organisation(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    columns = {"name": after["name"], "policy": None, "policy_revision": 0, "created_at": entry.created_at}
    _row(said, "organisations", entry.subject, **columns)


def _policy(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    if entry.subject == entry.organisation_id:
        policy, revision = canonical(after["policy"]), after["revision"]
        _row(said, "organisations", entry.subject, policy=policy, policy_revision=revision)


def _key(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"name": after["name"], "role": after["role"], "scope_id": after["scope"]}
    times = {name: _moment(after[name]) for name in ("expires_at", "revoked_at")}
    made = _creation(entry) if entry.action == AuditAction.API_KEY_CREATED else {}
    _row(said, "api_keys", entry.subject, **given, secret_hash=after["secret_sha256"], **times, **made)


def _proposal(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    what = {
        "kind": entry.action.partition(".")[0],
        "account_id": after["account"],
        "payload": canonical({name: value for name, value in after.items() if name != "account"}),
    }
    why = {"reason": entry.reason, "proposed_by": entry.actor, "proposed_at": entry.created_at}
    decision = dict.fromkeys(("decided_by", "decided_at", "decision_reason"))
    _row(said, "proposals", entry.subject, **what, **why, status=str(ProposalStatus.OPEN), **decision)


def _decision(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    decision = {"decided_by": entry.actor, "decided_at": entry.created_at, "decision_reason": entry.reason}
    _row(said, "proposals", entry.subject, status=after["status"], **decision)


def _experiment(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"account_id": after["account"], "charging_mode": after["charging_mode"]}
    _row(said, "experiments", entry.subject, **given, **_creation(entry))


def _webhook(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"url": after["url_sha256"], "types": after["types"], "account_id": after["account"]}
    unset = dict.fromkeys(("previous_secret", "previous_secret_expires_at", "disabled_at", "disabled_reason"))
    secret, created_at = after["secret_sha256"], entry.created_at
    _row(said, "webhooks", entry.subject, **given, secret=secret, created_at=created_at, **unset)


def _webhook_secret(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    previous = {
        "previous_secret": said["webhooks"][entry.subject]["secret"],
        "previous_secret_expires_at": entry.created_at + timedelta(seconds=after["overlap_seconds"]),
    }
    _row(said, "webhooks", entry.subject, **previous, secret=after["secret_sha256"])


def _webhook_disabled(said: Records, entry: AuditEntry, _: Mapping[str, Any]) -> None:
    _row(said, "webhooks", entry.subject, disabled_at=entry.created_at, disabled_reason=entry.reason)


def _session(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"role": after["role"], "scope_id": after["scope"], "oidc_key_thumbprint": after["thumbprint"]}
    times = {"created_at": entry.created_at, "expires_at": _moment(after["expires_at"])}
    _row(said, "sessions", entry.subject, actor=entry.actor, secret_hash=after["secret_sha256"], **given, **times)


def _session_ended(said: Records, entry: AuditEntry, _: Mapping[str, Any]) -> None:
    said.get("sessions", {}).pop(entry.subject, None)


def _anchors(said: Records, _: AuditEntry, after: Mapping[str, Any]) -> None:
    for run_id, (decisions, _head) in after["runs"].items():
        _row(said, "run_anchors", run_id, decision_count=decisions)


def _run(said: Records, entry: AuditEntry, _: Mapping[str, Any]) -> None:
    _row(said, "attempts", f"{entry.subject}/1", first_step=0, created_at=entry.created_at)


def _attempt(said: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    key = f"{entry.subject}/{after['attempt']}"
    _row(said, "attempts", key, first_step=after["first_step"], created_at=entry.created_at)


_MAKERS: Final[Mapping[str, Callable[[Records, AuditEntry, Mapping[str, Any]], None]]] = {
    AuditAction.ORGANISATION_CREATED: _organisation,
    AuditAction.POLICY_REPLACED: _policy,
    AuditAction.API_KEY_CREATED: _key,
    AuditAction.API_KEY_ROTATED: _key,
    AuditAction.API_KEY_REVOKED: _key,
    **{f"{kind}.proposed": _proposal for kind in ProposalKind},
    AuditAction.EXPERIMENT_CREATED: _experiment,
    AuditAction.WEBHOOK_CREATED: _webhook,
    AuditAction.WEBHOOK_SECRET_ROTATED: _webhook_secret,
    AuditAction.WEBHOOK_DISABLED: _webhook_disabled,
    AuditAction.SESSION_CREATED: _session,
    AuditAction.SESSION_ENDED: _session_ended,
    AuditAction.RUNS_ANCHORED: _anchors,
    AuditAction.RUN_CREATED: _run,
    AuditAction.RUN_ATTEMPT_CREATED: _attempt,
}
