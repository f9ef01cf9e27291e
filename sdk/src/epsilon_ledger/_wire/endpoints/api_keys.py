"""API keys."""

from datetime import datetime

from epsilon_ledger._wire.governance_models import ApiKey, CreatedApiKey, Role
from epsilon_ledger._wire.members import wire_timestamp
from epsilon_ledger._wire.requests import Call, Listing, get, path, post, post_for_secret


def create_api_key(
    role: Role,
    *,
    name: str | None = None,
    scope: str | None = None,
    expires_at: datetime | None = None,
    single_use: bool = False,
) -> Call[CreatedApiKey]:
    """Create an API key.

    Args:
        role: of its permissions.
        name: for display.
        scope: id or path of the account that limits it; None: the whole organisation.
        expires_at: timezone-aware; None: never, or after 90 days if a person issues it.
        single_use: whether the key is for one run of a trainer: of its scope, or the one that it registers under it. It
            needs a scope and an expiry.

    Returns:
        The key, which is not shown again.

    Raises:
        PermissionDeniedError: the caller may not give this role or scope.
        LedgerUnavailableError: no response arrived. If it is `in_doubt`, list the keys and revoke an unknown one: the
            request is not repeated, because the ledger keeps no secret to answer it again.
        LedgerError: any other failure.
    """
    body: dict[str, object] = {"role": role, "name": name, "scope": scope}
    body |= {"expires_at": wire_timestamp("expires_at", expires_at)}
    body |= {"single_use": True} if single_use else {}
    return Call(post_for_secret("v1/api-keys", body), CreatedApiKey)


def list_api_keys(*, page_size: int = 100) -> Listing[ApiKey]:
    """List API keys, newest first.

    Args:
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: no response arrived.
    """
    return Listing("v1/api-keys", {}, ApiKey, page_size)


def get_api_key(key_id: str) -> Call[ApiKey]:
    """Get an API key, without its secret.

    Args:
        key_id: its id, the part before the dot.

    Returns:
        The key.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("api-keys", key_id)), ApiKey)


def rotate_api_key(key_id: str, *, overlap_seconds: int | None = None) -> Call[CreatedApiKey]:
    """Create a successor of an API key, which ends with it, or earlier if the caller issues none that lasts so long.

    Args:
        key_id: its id.
        overlap_seconds: seconds during which the old key remains valid; None: the ledger's default.

    Returns:
        The new key, which is not shown again.

    Raises:
        LedgerError: as in `create_api_key`.
    """
    return Call(
        post_for_secret(f"{path('api-keys', key_id)}/rotate", {"overlap_seconds": overlap_seconds}), CreatedApiKey
    )


def revoke_api_key(key_id: str, *, reason: str | None = None, include_successors: bool = False) -> Call[ApiKey]:
    """Revoke an API key.

    Args:
        key_id: its id.
        reason: for the audit log.
        include_successors: also revoke the keys that it was rotated to, as a thief may have rotated it.

    Returns:
        The revoked key.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    body = {"reason": reason, "include_successors": include_successors}
    return Call(post(f"{path('api-keys', key_id)}/revoke", body), ApiKey)
