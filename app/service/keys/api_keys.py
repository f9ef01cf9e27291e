"""Generation, creation, rotation and revocation of API keys."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from app.ledger.audit import AuditAction, AuditFilter, digest
from app.ledger.errors import (
    InvalidInputError,
    PermissionDeniedError,
    require_found,
)
from app.ledger.names import check_name
from app.ledger.pages import Page, PageRequest
from app.ledger.permissions import ISSUES, SINGLE_USE_ROLE, KeyRecord, Permission, Role, is_for_new_run
from app.persistence.database import Database
from app.persistence.repositories import api_keys, audit
from app.service.accounts.lookup import find_account, require_every_budget, require_reach
from app.service.auth.authentication import WORKLOAD_PREFIX, secret_hash
from app.service.auth.request_context import RequestContext, find_cli_context
from app.service.auth.use_cases import use_case
from app.service.ids import new_id
from app.service.keys.key_expiry import bounded_expiry, successor_expiry
from app.service.keys.key_names import require_key_name_free

SECRET_BYTES: Final = 32

SHOWN_AFTER_EXPIRY: Final = timedelta(days=7)
"""For so long the keys page shows an expired key of a workload; there may be thousands a day."""

MOST_OVERLAP_SECONDS = 30 * 86_400
"""Maximum time for which a rotated key stays valid."""

NO_FACTS: Final[Mapping[str, object]] = {}

MOST_ROTATIONS: Final = 1_000_000
"""Bound of the query for one key's rotations."""


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key and its plain text, which is never stored."""

    record: KeyRecord
    key: str

    @property
    def id(self) -> str:
        """Public id of the key."""
        return self.record.id

    @property
    def role(self) -> Role:
        """Role of the key."""
        return Role(self.record.role)


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The terms of a new key.

    It applies at or under the account `scope`, an id or path; None: in the whole organisation. A `single_use` key is
    for one run: of its scope, or the one that it registers under it.
    """

    role: Role
    name: str | None = None
    scope: str | None = None
    expires_at: datetime | None = None
    single_use: bool = False


def key_audit_payload(key: KeyRecord) -> dict[str, object]:
    """Build the audit payload of a key, without its secret."""
    ends = {"expires_at": key.expires_at, "revoked_at": key.revoked_at}
    return {
        "name": key.name,
        "role": key.role,
        "scope": key.scope,
        "single_use": key.single_use,
        "secret_sha256": digest(key.secret_hash),
        "token_sha256": key.token_hash and digest(key.token_hash),
        **{name: moment and moment.isoformat() for name, moment in ends.items()},
    }


def create_key(db: Database, organisation: str, asked: Role | KeyTerms, now: datetime) -> IssuedKey:
    """Issue a key from the command line; `organisation` is an id or a name."""
    return issue_key(find_cli_context(db, organisation, now), asked if isinstance(asked, KeyTerms) else KeyTerms(asked))


@use_case(Permission.KEY_MANAGE)
def issue_key(tx: Connection, context: RequestContext, terms: KeyTerms) -> IssuedKey:
    """Issue a key, storing only its secret's hash.

    The caller's role must be allowed to issue the key's, and its expiry is bounded by `bounded_expiry`.
    """
    _check_terms(terms, context.now)
    if terms.name is not None:
        check_name(terms.name)
    terms = _with_scope_id(tx, context, terms)
    _require_lendable(tx, context, terms.role, terms.scope)
    require_key_name_free(tx, context, terms.name)
    return add_key(tx, context, replace(terms, expires_at=bounded_expiry(tx, context, terms.expires_at)))


@use_case()
def rotate_key(tx: Connection, context: RequestContext, key_id: str, overlap_seconds: int) -> IssuedKey:
    """Issue a key's successor; the old key stays valid for an overlap.

    Needs KEY_MANAGE and a role that may issue the key's, or is the key itself. The successor expires with the key, or
    earlier if the caller issues none that lasts so long.

    Raises:
        InvalidInputError: the key is revoked or expired, or single-use.
    """
    old = _manageable(tx, context, key_id)
    if old.single_use:  # two keys could register two runs
        raise InvalidInputError(f"The key {key_id} is for one run, and has no successor; issue a new one.")
    trouble = old.invalid_reason(context.now)
    if trouble is not None:
        raise InvalidInputError(f"The key {key_id} is {trouble}; issue a new one.")
    until = successor_expiry(tx, context, old.expires_at)
    issued = add_key(tx, context, KeyTerms(Role(old.role), old.name, old.scope, until))
    ends = context.now + timedelta(seconds=overlap_seconds)
    ends = ends if old.expires_at is None else min(ends, old.expires_at)
    api_keys.change(tx, old, expires_at=ends)
    after = key_audit_payload(replace(old, expires_at=ends)) | {"replaced_by": issued.id}
    context.record(tx, AuditAction.API_KEY_ROTATED, old.id, before=key_audit_payload(old), after=after)
    return issued


@use_case()
def revoke_key(
    tx: Connection, context: RequestContext, key_id: str, reason: str | None, *, include_successors: bool = False
) -> KeyRecord:
    """Revoke a key on every replica within a second.

    Needs KEY_MANAGE and a role that may issue the key's, or is the key itself. A revoked key stays as it is.
    `include_successors` also revokes rotated successors, which a thief may have created.
    """
    old = _manageable(tx, context, key_id)
    if include_successors:
        for heir in sorted(rotation_lineage(tx, context.organisation_id, {key_id}) - {key_id}):
            revoke_in(tx, context, _found(tx, context, heir), reason)
    return revoke_in(tx, context, old, reason)


def add_key(
    tx: Connection,
    context: RequestContext,
    terms: KeyTerms,
    token_hash: bytes | None = None,
    facts: Mapping[str, object] = NO_FACTS,
) -> IssuedKey:
    """Store a new key with a random secret, and record it in the audit log with further facts.

    `token_hash` is that of a token that is exchanged for it once only.
    """
    secret, key_id = secrets.token_urlsafe(SECRET_BYTES), new_id("key", context.now)
    record = KeyRecord(
        id=key_id,
        organisation_id=context.organisation_id,
        name=terms.name,
        role=str(terms.role),
        scope=terms.scope,
        secret_hash=secret_hash(secret),
        created_by=context.principal.actor,
        created_at=context.now,
        expires_at=terms.expires_at,
        single_use=terms.single_use,
        token_hash=token_hash,
    )
    api_keys.add(tx, record)
    context.record(tx, AuditAction.API_KEY_CREATED, key_id, after={**key_audit_payload(record), **facts})
    return IssuedKey(record, f"{key_id}.{secret}")


def bind_to_run(tx: Connection, context: RequestContext, run_id: str) -> None:
    """Limit the caller, if it is a single-use key, to the run that it registers; the organisation is locked.

    Raises:
        PermissionDeniedError: the key is for another run.
    """
    if not context.principal.single_use:
        return
    key = _found(tx, context, context.principal.actor)
    if not is_for_new_run(key.scope, single_use=key.single_use):
        raise PermissionDeniedError(f"This key is for the run {key.scope}, and registers no other one.")
    api_keys.set_scope(tx, key, run_id)
    after = key_audit_payload(replace(key, scope=run_id))
    context.record(tx, AuditAction.API_KEY_BOUND, key.id, key_audit_payload(key), after)


def _with_scope_id(tx: Connection, context: RequestContext, terms: KeyTerms) -> KeyTerms:
    """Find the account of a scope that may be a path."""
    if terms.scope is None:
        return terms
    return replace(terms, scope=find_account(tx, context, terms.scope).account.id)


def revoke_in(tx: Connection, context: RequestContext, old: KeyRecord, reason: str | None) -> KeyRecord:
    """Revoke a key within a transaction; a revoked one stays as it is."""
    if old.revoked_at is not None:
        return old
    api_keys.change(tx, old, revoked_at=context.now)
    now = replace(old, revoked_at=context.now)
    context.record(tx, AuditAction.API_KEY_REVOKED, old.id, key_audit_payload(old), key_audit_payload(now), reason)
    return now


def rotation_lineage(tx: Connection, organisation_id: str, actors: set[str]) -> set[str]:
    """Add to actors all keys into which theirs were rotated, by any actor."""
    found, waiting = set(actors), list(actors)
    while waiting:
        rotated = AuditFilter(action=AuditAction.API_KEY_ROTATED, subject=waiting.pop())
        for kept in audit.list_entries(tx, organisation_id, rotated, PageRequest(MOST_ROTATIONS)).items:
            heir = json.loads(kept.after or "{}").get("replaced_by")
            if heir is not None and heir not in found:
                found.add(heir)
                waiting.append(heir)
    return found


def get_key(context: RequestContext, key_id: str) -> KeyRecord:
    """Get a key; needs KEY_MANAGE, or is the key itself."""
    if context.principal.actor != key_id:
        context.require_permission(Permission.KEY_MANAGE)
    with context.db.read(context.organisation_id) as tx:
        found = _found(tx, context, key_id)
        if context.principal.actor != key_id:
            _require_in_reach(tx, context, found.scope)
        return found


def list_keys(context: RequestContext, page: PageRequest, *, with_past_jobs: bool = True) -> Page[KeyRecord]:
    """List the keys in the caller's scope; those of workloads for `SHOWN_AFTER_EXPIRY` only, or `with_past_jobs`."""
    without = None if with_past_jobs else (WORKLOAD_PREFIX, context.now - SHOWN_AFTER_EXPIRY)
    with context.read(Permission.KEY_MANAGE) as tx:
        return api_keys.page(tx, context.organisation_id, context.principal.scope, page, without)


def _manageable(tx: Connection, context: RequestContext, key_id: str) -> KeyRecord:
    """Find the caller's own key or, with KEY_MANAGE, one of a role that the caller may issue."""
    if context.principal.actor == key_id:
        return _found(tx, context, key_id)
    context.require_permission(Permission.KEY_MANAGE)
    found = _found(tx, context, key_id)
    _require_lendable(tx, context, Role(found.role), found.scope)
    return found


def _found(tx: Connection, context: RequestContext, key_id: str) -> KeyRecord:
    found = api_keys.find(tx, key_id)
    ours = found is not None and found.organisation_id == context.organisation_id
    return require_found(found if ours else None, "key", key_id)


def _check_terms(terms: KeyTerms, now: datetime) -> None:
    """Refuse an expiry in the past, and incomplete terms of a single-use key."""
    if terms.expires_at is not None and terms.expires_at <= now:
        raise InvalidInputError("`expires_at` is in the past.")
    if not terms.single_use:
        return
    if terms.role is not SINGLE_USE_ROLE:
        raise InvalidInputError(
            f"`single_use` is for the role {SINGLE_USE_ROLE}, which registers a run and authorizes its steps.",
            field="single_use",
        )
    for name in ("scope", "expires_at"):
        if getattr(terms, name) is None:
            raise InvalidInputError(f"A key with `single_use` needs `{name}`.", field=name)


def _require_lendable(tx: Connection, context: RequestContext, role: Role, scope: str | None) -> None:
    lendable = ISSUES[context.principal.role]
    if role not in lendable:
        named = ", ".join(sorted(lendable))
        raise PermissionDeniedError(
            f"The role {context.principal.role} issues and revokes keys of {named}; not of {role}.",
            required_permission=str(Permission.KEY_MANAGE),
        )
    _require_in_reach(tx, context, scope)


def _require_in_reach(tx: Connection, context: RequestContext, scope: str | None) -> None:
    if scope is None:
        context.require_scope([])
    else:
        require_reach(tx, context, scope)
        require_every_budget(tx, context, scope)
