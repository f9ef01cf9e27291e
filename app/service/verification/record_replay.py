"""Rows other than accounts, as the audit log has created and changed them."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row

from app.ledger.accounts.metadata import (
    ARCHIVALS,
    METADATA_CHANGES,
    METADATA_TEXTS,
    UNARCHIVALS,
    metadata_of,
    search_text,
)
from app.ledger.audit import AuditAction, AuditEntry, canonical, digest
from app.ledger.filter.limits import Limit
from app.ledger.governance.proposals import ProposalKind, ProposalStatus
from app.persistence.repositories.account_values import limit_values
from app.persistence.repositories.audit import StoredRecord

Records = dict[str, dict[str, dict[str, Any]]]
"""Columns of a row that the audit log knows, by table and key."""

ENDING: Final = frozenset({"sessions", "sign_in_links"})
"""Tables whose rows are deleted when they expire or are used."""

_READ: Final[Mapping[tuple[str, str], Callable[[Any], Any]]] = {
    ("api_keys", "secret_hash"): digest,
    ("api_keys", "token_hash"): digest,
    ("sessions", "secret_hash"): digest,
    ("sign_in_links", "secret_hash"): digest,
    ("receivers", "url"): digest,
    ("receivers", "addresses"): digest,
    ("receivers", "secret"): digest,
    ("receivers", "previous_secret"): digest,
    ("receivers", "types"): json.loads,
    ("account_metadata", "links"): json.loads,
    ("account_metadata", "deployment"): json.loads,
}
"""Columns that the audit log has in another form, for it contains no secrets."""


def apply(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    """Apply an audit entry to the rows."""
    handler = _HANDLERS.get(entry.action)
    if handler is not None:
        handler(records, entry, after)
    elif entry.subject in records.get("proposals", {}):
        _decision(records, entry, after)


def compare(columns: Mapping[str, Any], record: StoredRecord) -> str | None:
    """Compare a row with its columns by the audit log; return the discrepancy, or None."""
    changed = [name for name, value in columns.items() if _cell(record.table, name, record.row) != value]
    if not changed:
        return None
    return f"the row {record.key} of {record.table} is not as the audit log has it: {', '.join(changed)}."


def missing(records: Records) -> Iterator[str]:
    """Report the remaining rows of the audit log, which were found in no table."""
    for table, rows in records.items():
        if table not in ENDING:
            yield from (f"the row {key} of {table} is missing." for key in rows)


def _cell(table: str, name: str, row: Row[Any]) -> Any:  # noqa: ANN401 - a cell
    value, read = getattr(row, name), _READ.get((table, name))
    return value if read is None or value is None else read(value)


def _row(records: Records, table: str, key: str, **columns: object) -> None:
    records.setdefault(table, {}).setdefault(key, {}).update(columns)


def _drop(records: Records, table: str, entry: AuditEntry) -> None:
    records.get(table, {}).pop(entry.subject, None)


def _creation(entry: AuditEntry) -> dict[str, object]:
    return {"created_by": entry.actor, "created_at": entry.created_at}


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _organisation(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    columns = {"name": after["name"], "policy": None, "policy_revision": 0, "created_at": entry.created_at}
    _row(records, "organisations", entry.subject, **columns)


def _policy(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    if entry.subject == entry.organisation_id:
        policy, revision = canonical(after["policy"]), after["revision"]
        _row(records, "organisations", entry.subject, policy=policy, policy_revision=revision)


def _key(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"name": after["name"], "role": after["role"], "scope_id": after["scope"]}
    given |= {"single_use": after["single_use"], "token_hash": after["token_sha256"]}
    times = {name: _moment(after[name]) for name in ("expires_at", "revoked_at")}
    made = _creation(entry) if entry.action == AuditAction.API_KEY_CREATED else {}
    _row(records, "api_keys", entry.subject, **given, secret_hash=after["secret_sha256"], **times, **made)


def _proposal(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    what = {
        "kind": entry.action.partition(".")[0],
        "account_id": after["account"],
        "payload": canonical({name: value for name, value in after.items() if name != "account"}),
    }
    why = {"reason": entry.reason, "proposed_by": entry.actor, "proposed_at": entry.created_at}
    decision = dict.fromkeys(("decided_by", "decided_at", "decision_reason"))
    _row(records, "proposals", entry.subject, **what, **why, status=str(ProposalStatus.OPEN), **decision)


def _decision(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    decision = {"decided_by": entry.actor, "decided_at": entry.created_at, "decision_reason": entry.reason}
    _row(records, "proposals", entry.subject, status=after["status"], **decision)


def _experiment(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"account_id": after["account"], "charging_mode": after["charging_mode"]}
    _row(records, "experiments", entry.subject, **given, **_creation(entry))


def _receiver(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"kind": after["kind"], "url": after["url_sha256"], "addresses": after["addresses_sha256"]}
    wanted = {"types": after["types"], "account_id": after["account"]}
    unset = dict.fromkeys(("previous_secret", "previous_secret_expires_at", "disabled_at", "disabled_reason"))
    secret, created_at = after["secret_sha256"], entry.created_at
    _row(records, "receivers", entry.subject, **given, **wanted, secret=secret, created_at=created_at, **unset)


def _receiver_secret(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    previous = {
        "previous_secret": records["receivers"][entry.subject]["secret"],
        "previous_secret_expires_at": entry.created_at + timedelta(seconds=after["overlap_seconds"]),
    }
    _row(records, "receivers", entry.subject, **previous, secret=after["secret_sha256"])


def _session(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    given = {"role": after["role"], "scope_id": after["scope"], "oidc_key_thumbprint": after["thumbprint"]}
    times = {"created_at": entry.created_at, "expires_at": _moment(after["expires_at"])}
    _row(records, "sessions", entry.subject, actor=entry.actor, secret_hash=after["secret_sha256"], **given, **times)


def _sign_in_link(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    times = {"created_at": entry.created_at, "expires_at": _moment(after["expires_at"])}
    _row(records, "sign_in_links", entry.subject, key_id=after["key"], secret_hash=after["secret_sha256"], **times)


def _anchors(records: Records, _: AuditEntry, after: Mapping[str, Any]) -> None:
    for run_id, (decisions, _head) in after["runs"].items():
        _row(records, "run_anchors", run_id, decision_count=decisions)


def _account(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    _row(records, "account_metadata", entry.subject, number=after.get("number", 1), archived_at=None)
    _metadata(records, entry, after)


def _metadata(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    before = json.loads(entry.before or "{}").get("metadata", {})
    for key in before.get("labels", ()):
        records["account_labels"].pop(f"{entry.subject}/{key}")
    facts = after.get("metadata", {})
    for key, value in facts.get("labels", {}).items():
        _row(records, "account_labels", f"{entry.subject}/{key}", value=value)
    own = {name: facts.get(name) for name in METADATA_TEXTS}
    found = search_text(after["path"], metadata_of(facts))
    own |= {"links": facts.get("links", []), "deployment": facts.get("deployment", {})}
    _row(records, "account_metadata", entry.subject, **own, search_text=found)


def _archive(records: Records, entry: AuditEntry, _: Mapping[str, Any]) -> None:
    archived_at = entry.created_at if entry.action.endswith(".archived") else None
    _row(records, "account_metadata", entry.subject, archived_at=archived_at)


def _schedule(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    template = {name: after[name] for name in ("period", "start", "prefix")}
    limits = limit_values(Limit.of(after["limit"]))
    _row(records, "block_schedules", entry.subject, **template, **limits)


def _run(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    _account(records, entry, after)
    _row(records, "attempts", f"{entry.subject}/1", first_step=0, created_at=entry.created_at)


def _attempt(records: Records, entry: AuditEntry, after: Mapping[str, Any]) -> None:
    key = f"{entry.subject}/{after['attempt']}"
    _row(records, "attempts", key, first_step=after["first_step"], created_at=entry.created_at)


_HANDLERS: Final[Mapping[str, Callable[[Records, AuditEntry, Mapping[str, Any]], None]]] = {
    AuditAction.ORGANISATION_CREATED: _organisation,
    AuditAction.POLICY_REPLACED: _policy,
    AuditAction.API_KEY_BOUND: _key,
    AuditAction.API_KEY_CREATED: _key,
    AuditAction.API_KEY_ROTATED: _key,
    AuditAction.API_KEY_REVOKED: _key,
    **{f"{kind}.proposed": _proposal for kind in ProposalKind},
    AuditAction.EXPERIMENT_CREATED: _experiment,
    AuditAction.RECEIVER_CREATED: _receiver,
    AuditAction.RECEIVER_SECRET_ROTATED: _receiver_secret,
    AuditAction.RECEIVER_DISABLED: lambda records, entry, _: _row(
        records, "receivers", entry.subject, disabled_at=entry.created_at, disabled_reason=entry.reason
    ),
    AuditAction.RECEIVER_ENABLED: lambda records, entry, _: _row(
        records, "receivers", entry.subject, disabled_at=None, disabled_reason=None
    ),
    AuditAction.RECEIVER_DELETED: lambda records, entry, _: _drop(records, "receivers", entry),
    AuditAction.SESSION_CREATED: _session,
    AuditAction.SESSION_ENDED: lambda records, entry, _: _drop(records, "sessions", entry),
    AuditAction.SIGN_IN_LINK_CREATED: _sign_in_link,
    AuditAction.CHAINS_ANCHORED: _anchors,
    **dict.fromkeys((AuditAction.POPULATION_CREATED, AuditAction.BUDGET_CREATED), _account),
    **dict.fromkeys(METADATA_CHANGES.values(), _metadata),
    **dict.fromkeys((*ARCHIVALS.values(), *UNARCHIVALS.values()), _archive),
    AuditAction.BLOCK_SCHEDULE_REPLACED: _schedule,
    AuditAction.BLOCK_SCHEDULE_REMOVED: lambda records, entry, _: _drop(records, "block_schedules", entry),
    AuditAction.RUN_CREATED: _run,
    AuditAction.RUN_ATTEMPT_CREATED: _attempt,
}
