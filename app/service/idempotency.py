"""One effect and one outcome for each idempotency key of a request that creates something."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.errors import IdempotencyKeyReusedError
from app.persistence.repositories import decisions, replies
from app.service.call import Call


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a request the same as an earlier one.

    Args:
        key: the header Idempotency-Key; None if it carried none.
        fingerprint: sha256 (hex) of operation and body.
    """

    key: str | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply's body, and whether it was given before."""

    body: str
    replayed: bool


def reused(key: str) -> IdempotencyKeyReusedError:
    """The error for a key that comes with another request than its first."""
    return IdempotencyKeyReusedError(
        f"The idempotency key {key!r} was used before, for another request. Use a new key for a new request."
    )


def answer_once(tx: Connection, call: Call, identity: Identity, create: Callable[[], str]) -> Answer:
    """Give the first answer again, or create and pin it.

    Args:
        tx: the transaction in which the thing is created.
        call: who asks.
        identity: of the request.
        create: makes the thing and returns the reply's body.

    Returns:
        The body, the same bytes each time.

    Raises:
        IdempotencyKeyReusedError: the key was used for another request.
    """
    if identity.key is None:
        return Answer(create(), replayed=False)
    if decisions.find_by_key(tx, call.organisation_id, identity.key) is not None:
        raise reused(identity.key)
    earlier = replies.find(tx, call.organisation_id, identity.key)
    if earlier is not None:
        if earlier.request_fingerprint != identity.fingerprint:
            raise reused(identity.key)
        return Answer(earlier.body, replayed=True)
    body = create()
    replies.add(tx, call.organisation_id, identity.key, replies.Reply(identity.fingerprint, body), call.now)
    return Answer(body, replayed=False)
