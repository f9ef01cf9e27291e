"""One effect and one outcome for each idempotency key of a request that creates something."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.errors import IdempotencyKeyReusedError, InvalidInputError
from app.persistence.repositories import decisions, idempotent_responses, organisations
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts, run_with_costs

CREATED = 201
"""The usual status."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """What makes a request the same as an earlier one.

    Args:
        key: the header Idempotency-Key; None if it carried none.
        fingerprint: sha256 (hex) of operation and body.
    """

    key: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A reply's body and status, and whether it was given before."""

    body: str
    replayed: bool
    status: int = CREATED


@dataclass(frozen=True, slots=True)
class ResponseOverride:
    """A body that is answered, and pinned to the request's key, with another status than that of a creation."""

    body: str
    status: int


def key_reused_error(key: str) -> IdempotencyKeyReusedError:
    """The error for a key that comes with another request than its first."""
    return IdempotencyKeyReusedError(
        f"The idempotency key {key!r} was used before, for another request. Use a new key for a new request."
    )


def require_no_key(identity: IdempotentRequest, if_lost: str) -> None:
    """Refuse an idempotency key for a reply with a secret: whatever a key pins is stored, and a secret must not be.

    Args:
        identity: of the request.
        if_lost: what to do where the reply was lost.

    Raises:
        InvalidInputError: the request carries one.
    """
    if identity.key is not None:
        raise InvalidInputError(
            "This request carries no Idempotency-Key: its reply, with the secret in it, would be stored. If the reply "
            f"was lost, {if_lost}."
        )


def run_idempotent(
    call: RequestContext,
    identity: IdempotentRequest,
    create: Callable[[Connection, PrecomputedCosts], str | ResponseOverride],
) -> StoredResponse:
    """Give the first answer again, or create something and pin the answer, in one transaction.

    An organisation's creations happen one after the other, so that each sees what the one before it did.

    Args:
        call: who asks.
        identity: of the request.
        create: makes the thing and returns the reply's body.

    Returns:
        The body, the same bytes each time.

    Raises:
        IdempotencyKeyReusedError: the key was used for another request.
    """

    def work(ready: PrecomputedCosts) -> StoredResponse:
        with call.db.write(call.organisation_id) as tx:
            if identity.key is not None:
                idempotent_responses.lock_keys(tx, call.organisation_id, [identity.key])
            organisations.lock(tx, call.organisation_id)
            earlier = _earlier(tx, call, identity)
            if earlier is not None:
                return StoredResponse(earlier.body, replayed=True, status=earlier.status)
            made = create(tx, ready)
            answer = made if isinstance(made, ResponseOverride) else ResponseOverride(made, CREATED)
            if identity.key is not None:
                reply = idempotent_responses.Reply(_within_reach(call, identity), answer.body, answer.status)
                idempotent_responses.add(tx, call.organisation_id, identity.key, reply, call.now)
        return StoredResponse(answer.body, replayed=False, status=answer.status)

    return run_with_costs(call.organisation_id, lambda ready: call.db.retried(lambda: work(ready)))


def _earlier(tx: Connection, call: RequestContext, identity: IdempotentRequest) -> idempotent_responses.Reply | None:
    """The reply that the key has pinned for the same request."""
    if identity.key is None:
        return None
    if decisions.find_by_key(tx, call.organisation_id, identity.key) is not None:
        raise key_reused_error(identity.key)
    earlier = idempotent_responses.find(tx, call.organisation_id, identity.key)
    if earlier is None:
        return None
    if earlier.request_fingerprint != _within_reach(call, identity):
        raise key_reused_error(identity.key)
    return earlier


def _within_reach(call: RequestContext, identity: IdempotentRequest) -> str:
    """What makes a request the same: nobody gets a reply again that tells of something outside of their scope."""
    if call.principal.scope is None:
        return identity.fingerprint
    return hashlib.sha256(f"{identity.fingerprint} {call.principal.scope}".encode()).hexdigest()
