"""One effect and one response for each idempotency key."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.errors import IdempotencyKeyReusedError, InvalidInputError
from app.persistence.repositories import decisions, idempotent_responses, organisations
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts, run_with_costs

CREATED = 201
"""Default status."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """Identity of a request.

    Args:
        key: the Idempotency-Key header, or None.
        fingerprint: sha256 (hex) of operation and body.
    """

    key: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response's body and status, and whether it is a replay."""

    body: str
    replayed: bool
    status: int = CREATED


@dataclass(frozen=True, slots=True)
class ResponseOverride:
    """A response, stored for the request's key, with another status than 201."""

    body: str
    status: int


def key_reused_error(key: str) -> IdempotencyKeyReusedError:
    """Build the error for a key that was used for another request."""
    return IdempotencyKeyReusedError(
        f"The idempotency key {key!r} was used before, for another request. Use a new key for a new request."
    )


def require_no_key(identity: IdempotentRequest, if_lost: str) -> None:
    """Refuse an idempotency key: a response with a secret is not stored.

    Args:
        identity: of the request.
        if_lost: advice for a lost response.

    Raises:
        InvalidInputError: the request has a key.
    """
    if identity.key is not None:
        raise InvalidInputError(
            "This request carries no Idempotency-Key: its reply, with the secret in it, would be stored. If the reply "
            f"was lost, {if_lost}."
        )


def run_idempotent(
    context: RequestContext,
    identity: IdempotentRequest,
    create: Callable[[Connection, PrecomputedCosts], str | ResponseOverride],
) -> StoredResponse:
    """Create something and store the response, or replay a stored one.

    Both happen in one transaction; the creations of an organisation are serialized.

    Args:
        context: of the request.
        identity: of the request.
        create: creates it and returns the response body.

    Raises:
        IdempotencyKeyReusedError: the key was used for another request.
    """

    def work(ready: PrecomputedCosts) -> StoredResponse:
        with context.db.write(context.organisation_id) as tx:
            if identity.key is not None:
                idempotent_responses.lock_keys(tx, context.organisation_id, [identity.key])
            organisations.lock(tx, context.organisation_id)
            earlier = _earlier(tx, context, identity)
            if earlier is not None:
                return StoredResponse(earlier.body, replayed=True, status=earlier.status)
            made = create(tx, ready)
            answer = made if isinstance(made, ResponseOverride) else ResponseOverride(made, CREATED)
            if identity.key is not None:
                reply = idempotent_responses.Reply(_within_reach(context, identity), answer.body, answer.status)
                idempotent_responses.add(tx, context.organisation_id, identity.key, reply, context.now)
        return StoredResponse(answer.body, replayed=False, status=answer.status)

    return run_with_costs(context.organisation_id, lambda ready: context.db.retried(lambda: work(ready)))


def _earlier(tx: Connection, context: RequestContext, identity: IdempotentRequest) -> idempotent_responses.Reply | None:
    """Find the response stored for the key and the same request."""
    if identity.key is None:
        return None
    if decisions.find_by_key(tx, context.organisation_id, identity.key) is not None:
        raise key_reused_error(identity.key)
    earlier = idempotent_responses.find(tx, context.organisation_id, identity.key)
    if earlier is None:
        return None
    if earlier.request_fingerprint != _within_reach(context, identity):
        raise key_reused_error(identity.key)
    return earlier


def _within_reach(context: RequestContext, identity: IdempotentRequest) -> str:
    """Bind the fingerprint to the caller's scope, so that no replay crosses scopes."""
    if context.principal.scope is None:
        return identity.fingerprint
    return hashlib.sha256(f"{identity.fingerprint} {context.principal.scope}".encode()).hexdigest()
