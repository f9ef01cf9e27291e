"""Idempotency keys: an effect and its response are stored in one transaction, once for each key.

The API renders the effect's result inside the transaction. So the response is stored with the effect or not at all, and
only the API knows its form.
"""

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.errors import IdempotencyKeyReusedError
from app.persistence.repositories import decisions, idempotent_responses
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import Effect, run_effect


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as the API wrote it, and whether it is a replay."""

    body: str
    status: int
    replayed: bool = False


def key_reused_error(key: str) -> IdempotencyKeyReusedError:
    """Build the error for a key that was used for another request."""
    return IdempotencyKeyReusedError(
        f"The idempotency key {key!r} was used before, for another request. Use a new key for a new request."
    )


def run_idempotent(
    context: RequestContext, effect: Effect[StoredResponse], key: str | None, fingerprint: str, *, private: bool
) -> StoredResponse:
    """Run an effect and store its response in the same transaction, or replay the stored one.

    Args:
        context: of the request.
        effect: builds the response.
        key: the Idempotency-Key header, or None.
        fingerprint: sha256 (hex) of operation and body.
        private: whether no other caller may get the response with the key.

    Raises:
        IdempotencyKeyReusedError: the key was used for another request, or by a caller of another scope.
    """
    if key is None:
        return run_effect(context, effect)
    caller = context.principal
    # The scope of a single-use key changes with its first answer, which it may ask for again.
    own = private or caller.single_use
    for bound in (caller.actor if own else None, None if caller.single_use else caller.scope):
        if bound is not None:
            fingerprint = hashlib.sha256(f"{fingerprint} {bound}".encode()).hexdigest()

    def once(tx: Connection) -> StoredResponse:
        idempotent_responses.lock_keys(tx, context.organisation_id, (key,))
        if decisions.find_by_key(tx, context.organisation_id, key) is not None:
            raise key_reused_error(key)
        earlier = idempotent_responses.find(tx, context.organisation_id, key)
        if earlier is None:
            response = effect(tx)
            reply = idempotent_responses.Reply(fingerprint, response.body, response.status)
            idempotent_responses.add(tx, context.organisation_id, key, reply, context.now)
            return response
        if earlier.request_fingerprint != fingerprint:
            raise key_reused_error(key)
        return StoredResponse(earlier.body, earlier.status, replayed=True)

    return run_effect(context, once)
