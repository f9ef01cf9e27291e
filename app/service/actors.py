"""Names and roles of actors: keys, people and commands, for pages and alerts that show who did something."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from app.persistence.repositories import api_keys, audit
from app.service.auth.authentication import ANONYMOUS, CLI_ACTOR, WORKLOAD_PREFIX
from app.service.auth.oidc.config import ACTOR_PREFIX
from app.service.auth.request_context import RequestContext

COMMAND_LINE: Final = "command line"


@dataclass(frozen=True, slots=True)
class ActorLabel:
    """An actor as people know it; the role is None if it has none, or if it is unknown."""

    id: str
    name: str
    role: str | None = None

    def __str__(self) -> str:
        """Write the name with the role."""
        return self.name if self.role is None else f"{self.name} ({self.role.replace('_', ' ')})"


def label_of(actor_id: str) -> ActorLabel:
    """Label an actor by its id alone."""
    if actor_id == CLI_ACTOR.id:
        return ActorLabel(actor_id, COMMAND_LINE)
    if actor_id == ANONYMOUS:
        return ActorLabel(actor_id, "not signed in")
    if actor_id.startswith("key_"):
        return ActorLabel(actor_id, f"key …{actor_id[-6:]}")
    return ActorLabel(actor_id, actor_id.removeprefix(ACTOR_PREFIX).removeprefix(WORKLOAD_PREFIX))


def read_actors(context: RequestContext, actor_ids: Collection[str]) -> Mapping[str, ActorLabel]:
    """Get the labels of actors by id, in a transaction of its own; see `find_actors`."""
    if not any(each.startswith(("key_", ACTOR_PREFIX)) for each in actor_ids):
        return {each: label_of(each) for each in actor_ids}
    with context.db.read(context.organisation_id) as tx:
        return find_actors(tx, context.organisation_id, actor_ids)


def find_actors(tx: Connection, organisation_id: str, actor_ids: Collection[str]) -> Mapping[str, ActorLabel]:
    """Get the labels of actors by id, with at most two statements.

    Keys keep their name when they expire or are revoked. People have the name and the role of their last sign-in.
    """
    found = {each: label_of(each) for each in actor_ids}
    keys = [each for each in found if each.startswith("key_")]
    people = [each for each in found if each.startswith(ACTOR_PREFIX)]
    for key in (api_keys.find_many(tx, keys) if keys else {}).values():
        if key.organisation_id == organisation_id:
            found[key.id] = ActorLabel(key.id, key.name or found[key.id].name, key.role)
    for actor_id, facts in (audit.last_sign_ins(tx, organisation_id, people) if people else {}).items():
        told, granted = facts.get("name"), facts.get("role")
        name = str(told or found[actor_id].name)
        found[actor_id] = ActorLabel(actor_id, name, None if granted is None else str(granted))
    return found


def name_actor(tx: Connection, organisation_id: str, actor_id: str) -> str:
    """Get the name of an actor with its role, for a text that is stored or sent."""
    return str(find_actors(tx, organisation_id, [actor_id])[actor_id])
