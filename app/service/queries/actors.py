"""Names and roles of actors: keys, people and commands, for pages that show who did something."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from app.persistence.repositories import api_keys, audit
from app.service.auth.authentication import ANONYMOUS, CLI_ACTOR
from app.service.auth.oidc.tokens import ACTOR_PREFIX
from app.service.auth.request_context import RequestContext

COMMAND_LINE: Final = "command line"


@dataclass(frozen=True, slots=True)
class ActorLabel:
    """An actor as people know it; the role is None if it has none, or if it is unknown."""

    id: str
    name: str
    role: str | None = None


def label_of(actor_id: str) -> ActorLabel:
    """Label an actor by its id alone."""
    if actor_id == CLI_ACTOR.id:
        return ActorLabel(actor_id, COMMAND_LINE)
    if actor_id == ANONYMOUS:
        return ActorLabel(actor_id, "not signed in")
    if actor_id.startswith("key_"):
        return ActorLabel(actor_id, f"key …{actor_id[-6:]}")
    return ActorLabel(actor_id, actor_id.removeprefix(ACTOR_PREFIX))


def read_actors(context: RequestContext, actor_ids: Collection[str]) -> Mapping[str, ActorLabel]:
    """Get the labels of actors by id, with at most two statements.

    Keys keep their name when they expire or are revoked. People have the name and the role of their last sign-in.
    """
    found = {each: label_of(each) for each in actor_ids}
    keys = [each for each in found if each.startswith("key_")]
    people = [each for each in found if each.startswith(ACTOR_PREFIX)]
    if not keys and not people:
        return found
    with context.db.read(context.organisation_id) as tx:
        for key in (api_keys.find_many(tx, keys) if keys else {}).values():
            if key.organisation_id == context.organisation_id:
                name = key.name or found[key.id].name
                found[key.id] = ActorLabel(key.id, name, key.role)
        if people:
            for actor_id, facts in audit.last_sign_ins(tx, context.organisation_id, people).items():
                told, granted = facts.get("name"), facts.get("role")
                label = found[actor_id]
                found[actor_id] = ActorLabel(
                    actor_id, str(told or label.name), None if granted is None else str(granted)
                )
    return found
