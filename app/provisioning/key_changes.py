"""Compare the API keys of a file with those of a server.

A key's terms cannot be changed. So a key that differs is replaced: the old ones are revoked, and a new one is created.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.ledger.permissions import PERMISSIONS, Role
from app.provisioning.changes import Change, Conflict, Operation, Resource, is_under
from app.provisioning.document import ApiKeyDocument, OrganisationDocument, accounts_of
from app.provisioning.state import ApiKey, State, format_time


def find_key_changes(
    document: OrganisationDocument, state: State, proposed: Mapping[str, str]
) -> Iterator[Change | Conflict]:
    """Find the API keys to create and to replace; those of `proposed` populations wait for the given reason."""
    if document.api_keys is None or state.api_keys is None:
        return
    described = {account.path for account in accounts_of(document)}
    paths = {account.id: account.path for account in state.accounts.values()}
    for desired in document.api_keys:
        scope = None if desired.scope is None else paths.get(desired.scope, desired.scope)
        named = [key for key in state.api_keys if key.name == desired.name]
        if scope is not None and scope not in described | set(state.accounts) | {key.scope for key in named}:
            yield Conflict(
                f"API key {desired.name}", f"the scope {scope!r} is an account neither of the file nor of the server"
            )
            continue
        waits = None if scope is None else proposed.get(scope.split("/", maxsplit=1)[0])
        for change in _changes_of_key(desired, scope, named, state):
            if waits is not None and isinstance(change, Change):
                yield replace(change, operation=Operation.WAIT, reason=waits)
            else:
                yield change


def _changes_of_key(
    desired: ApiKeyDocument, scope: str | None, named: list[ApiKey], state: State
) -> Iterator[Change | Conflict]:
    after = {"role": str(desired.role), "scope": scope, "expires_at": format_time(desired.expires_at)}
    is_there = any(_terms(key) == after for key in named)
    others = [key for key in named if _terms(key) != after and not (is_there and _is_rotated(key, after))]
    if is_there and not others:
        return
    if not is_there and desired.expires_at is not None and desired.expires_at <= state.now:
        yield Conflict(
            f"API key {desired.name}", "`expires_at` is in the past: write a later one, or remove the key from the file"
        )
        return
    if any(key.id == state.caller for key in others):
        yield Conflict(
            f"API key {desired.name}",
            f"it would revoke {state.caller}, the key that you apply with: use another key, or the terms that it has",
        )
        return
    loosens = () if is_there or not others else tuple(_widened(desired, scope, others))
    yield Change(
        Operation.REPLACE if others else Operation.CREATE,
        Resource.API_KEY,
        desired.name,
        after={} if is_there else after,
        before=_terms(others[0]) if others else None,
        loosens=loosens,
        revokes=tuple(key.id for key in others),
        note=f"revokes {', '.join(key.id for key in others)}" if others else None,
    )


def _terms(key: ApiKey) -> dict[str, Any]:
    return {"role": key.role, "scope": key.scope, "expires_at": format_time(key.expires_at)}


def _is_rotated(key: ApiKey, after: dict[str, Any]) -> bool:
    """Check whether a key only ends earlier than described, as after a rotation."""
    same = (key.role, key.scope) == (after["role"], after["scope"])
    ends, latest = format_time(key.expires_at), after["expires_at"]
    return same and ends is not None and (latest is None or ends < latest)


def _widened(desired: ApiKeyDocument, scope: str | None, others: list[ApiKey]) -> list[str]:
    """List in what a new key may do more than an old one; nothing if one of the old ones may do all of it."""
    found = [list(_widened_from(desired, scope, old)) for old in others]
    return [] if [] in found else found[0]


def _widened_from(desired: ApiKeyDocument, scope: str | None, old: ApiKey) -> Iterator[str]:
    if not PERMISSIONS[desired.role] <= PERMISSIONS[Role(old.role)]:
        yield f"widens the role {old.role} to {desired.role}"
    if old.scope is not None and (scope is None or not is_under(scope, old.scope)):
        yield f"widens the scope {old.scope} to {scope or 'the whole organisation'}"
    if old.expires_at is not None and (desired.expires_at is None or desired.expires_at > old.expires_at):
        yield "expires later"
