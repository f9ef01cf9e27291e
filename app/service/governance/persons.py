"""End the access of a person who was removed at the identity provider."""

from dataclasses import dataclass

from sqlalchemy import Connection

from app.ledger.audit import AuditFilter
from app.ledger.errors import InvalidInputError, NotFoundError
from app.ledger.pages import PageRequest
from app.ledger.permissions import KeyRecord
from app.persistence.repositories import api_keys, audit
from app.service.auth import sessions
from app.service.auth.oidc.config import ACTOR_PREFIX
from app.service.auth.request_context import RequestContext
from app.service.auth.use_cases import use_case
from app.service.keys.api_keys import revoke_in, rotation_lineage


@dataclass(frozen=True, slots=True)
class RemovedPerson:
    """The number of sessions that were ended, and the keys that still work, or were revoked, oldest first."""

    sessions: int
    keys: list[KeyRecord]


@use_case()
def remove_person(
    tx: Connection, context: RequestContext, actor: str, reason: str, *, revoke_keys: bool = False
) -> RemovedPerson:
    """End a person's sessions, and name or revoke the valid keys that come from the person.

    Raises:
        InvalidInputError: the actor is no person.
        NotFoundError: the ledger knows nothing of the person.
    """
    if not actor.startswith(ACTOR_PREFIX):
        raise InvalidInputError(f"{actor!a} is no person; give one as the audit log does, such as {ACTOR_PREFIX}9f3c.")
    ended = sessions.end_all(tx, context, actor, reason)
    keys = [key for key in _keys_from(tx, context.organisation_id, actor) if not key.invalid_reason(context.now)]
    if not ended and not keys and not _is_known(tx, context.organisation_id, actor):
        raise NotFoundError(f"The audit log of this organisation names no {actor!a}; look the person up in it.")
    if revoke_keys:
        keys = [revoke_in(tx, context, key, reason) for key in keys]
    return RemovedPerson(ended, keys)


def _keys_from(tx: Connection, organisation_id: str, actor: str) -> list[KeyRecord]:
    """List the keys that an actor has issued, those that these have issued, and what they were rotated to."""
    found: dict[str, KeyRecord] = {}
    waiting = {actor}
    while waiting:
        new = {key.id: key for key in api_keys.issued_by(tx, organisation_id, waiting)}
        new |= api_keys.find_many(tx, rotation_lineage(tx, organisation_id, set(new)) - new.keys())
        waiting = new.keys() - found.keys()
        found |= new
    return [found[key_id] for key_id in sorted(found)]


def _is_known(tx: Connection, organisation_id: str, actor: str) -> bool:
    wanted = (AuditFilter(actor=actor), AuditFilter(subject=actor))
    return any(audit.list_entries(tx, organisation_id, each, PageRequest(1)).items for each in wanted)
