"""Effects of requests: each runs in one transaction, and once for each idempotency key.

A use case checks the caller and returns its effect; the API renders the effect's result inside the transaction. So the
response is stored with the effect or not at all, and only the API knows its form.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from app.ledger.errors import IdempotencyKeyReusedError
from app.persistence.repositories import decisions, idempotent_responses, organisations
from app.service.auth.request_context import RequestContext
from app.service.costing import PrecomputedCosts, run_with_costs

T = TypeVar("T")

Effect = Callable[[Connection, PrecomputedCosts], T]
"""Writes within a transaction that has locked the organisation, and returns the result."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """Identity of a request.

    Args:
        key: the Idempotency-Key header, or None.
        fingerprint: sha256 (hex) of operation and body.
        private: whether no other caller may get the response with the key.
    """

    key: str | None
    fingerprint: str
    private: bool = False


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


def run_effect(context: RequestContext, effect: Effect[T], key: str | None = None) -> T:
    """Run an effect in one transaction; those of an organisation are serialized.

    `key` is locked before the organisation.
    """

    def work(tx: Connection, costs: PrecomputedCosts) -> T:
        idempotent_responses.lock_keys(tx, context.organisation_id, () if key is None else (key,))
        organisations.lock(tx, context.organisation_id)
        return effect(tx, costs)

    return run_with_costs(context.organisation_id, lambda costs: context.transact(lambda tx: work(tx, costs)))


def run_idempotent(
    context: RequestContext, identity: IdempotentRequest, effect: Effect[StoredResponse]
) -> StoredResponse:
    """Run an effect and store its response in the same transaction, or replay the stored one.

    Raises:
        IdempotencyKeyReusedError: the key was used for another request.
    """
    key = identity.key
    if key is None:
        return run_effect(context, effect)
    fingerprint = _bound_fingerprint(context, identity)

    def once(tx: Connection, costs: PrecomputedCosts) -> StoredResponse:
        if decisions.find_by_key(tx, context.organisation_id, key) is not None:
            raise key_reused_error(key)
        earlier = idempotent_responses.find(tx, context.organisation_id, key)
        if earlier is None:
            response = effect(tx, costs)
            reply = idempotent_responses.Reply(fingerprint, response.body, response.status)
            idempotent_responses.add(tx, context.organisation_id, key, reply, context.now)
            return response
        if earlier.request_fingerprint != fingerprint:
            raise key_reused_error(key)
        return StoredResponse(earlier.body, earlier.status, replayed=True)

    return run_effect(context, once, key)


def _bound_fingerprint(context: RequestContext, identity: IdempotentRequest) -> str:
    """Bind the fingerprint to the caller's scope, and to a private request's caller."""
    bounds = (context.principal.actor if identity.private else None, context.principal.scope)
    fingerprint = identity.fingerprint
    for bound in bounds:
        if bound is not None:
            fingerprint = hashlib.sha256(f"{fingerprint} {bound}".encode()).hexdigest()
    return fingerprint
