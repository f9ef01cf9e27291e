"""One effect and one outcome for each idempotency key of a request that creates something."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.errors import IdempotencyKeyReusedError
from app.persistence.repositories import decisions, replies
from app.service.call import Call
from app.service.pricing import Prepared, prepared


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


def create_once(call: Call, identity: Identity, create: Callable[[Connection, Prepared], str]) -> Answer:
    """Give the first answer again, or create something and pin the answer, in one transaction.

    Args:
        call: who asks.
        identity: of the request.
        create: makes the thing and returns the reply's body.

    Returns:
        The body, the same bytes each time.

    Raises:
        IdempotencyKeyReusedError: the key was used for another request.
    """

    def work(ready: Prepared) -> Answer:
        with call.db.write() as tx:
            earlier = _earlier(tx, call, identity)
            if earlier is not None:
                return Answer(earlier, replayed=True)
            body = create(tx, ready)
            if identity.key is not None:
                reply = replies.Reply(identity.fingerprint, body)
                replies.add(tx, call.organisation_id, identity.key, reply, call.now)
        return Answer(body, replayed=False)

    return prepared(work)


def _earlier(tx: Connection, call: Call, identity: Identity) -> str | None:
    """The body that the key has pinned for the same request."""
    if identity.key is None:
        return None
    if decisions.find_by_key(tx, call.organisation_id, identity.key) is not None:
        raise reused(identity.key)
    earlier = replies.find(tx, call.organisation_id, identity.key)
    if earlier is None:
        return None
    if earlier.request_fingerprint != identity.fingerprint:
        raise reused(identity.key)
    return earlier.body
