"""Metadata of accounts: what people see, search and filter by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypedDict, cast

from epsilon_ledger._wire.coercion import items


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another system; `url` is an http or https address without user name and password."""

    title: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountMetadata:
    """Metadata of an account, and since when it is archived: hidden from lists, and read-only."""

    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    deployment: Mapping[str, str] = field(default_factory=dict)
    archived_at: datetime | None = None


class Metadata(TypedDict, total=False):
    """Metadata of a new account, all optional; nothing that is charged depends on it.

    `display_name` is what people see instead of the name, `owner` a person or a team. `labels` are for filters.
    `deployment` is what the public registry of deployments asks for and only people know.
    """

    display_name: str | None
    description: str | None
    owner: str | None
    labels: Mapping[str, str] | None
    links: Sequence[Link] | None
    deployment: Mapping[str, str] | None


class MetadataChanges(TypedDict, total=False):
    """Changes of metadata: what is left out stays, None removes; labels and deployment are merged by key."""

    display_name: str | None
    description: str | None
    owner: str | None
    labels: Mapping[str, str | None] | None
    links: Sequence[Link] | None
    deployment: Mapping[str, str | None] | None


@dataclass(frozen=True, slots=True)
class ArchivedAccount:
    """An account, and since when it is archived; None: it is not."""

    id: str
    kind: str
    path: str
    archived_at: datetime | None


_MEMBERS: Final = tuple(Metadata.__annotations__)
_MAPPINGS: Final = {"labels": "{'team': 'icu'}", "deployment": "{'intended_use': 'triage'}"}
_LINKS: Final = "[Link(title, url)]"


def wire_metadata(given: Mapping[str, object]) -> dict[str, object]:
    """Serialize metadata or changes of it; None members are kept.

    Raises:
        TypeError: a member is unknown or has another type.
    """
    for name in given:
        if name not in _MEMBERS:
            raise TypeError(f"{name!r} is no argument: metadata has {', '.join(_MEMBERS)}.")
    members = dict(given)
    links = members.get("links")
    for name, example in _MAPPINGS.items():
        values = members.get(name)
        if values is not None:
            if not isinstance(values, Mapping):
                raise TypeError(f"{name} must be a mapping, such as {example}, not {values!r}.")
            members[name] = dict(values)
    if links is not None:
        members["links"] = [_wire_link(link) for link in items("links", cast("Sequence[Link]", links), _LINKS)]
    return members


def metadata_filters(
    q: str | None, owner: str | None, labels: Mapping[str, str | None] | None, *, archived: bool
) -> dict[str, object]:
    """Serialize the filters of a list by metadata; a label of None has any value."""
    labels = {} if labels is None else labels
    if not isinstance(labels, Mapping):
        raise TypeError(f"labels must be a mapping, such as {{'team': 'icu'}}, not {labels!r}.")
    pairs = tuple(key if value is None else f"{key}:{value}" for key, value in labels.items())
    return {"q": q, "owner": owner, "label": pairs, "archived": archived or None}


def _wire_link(link: object) -> dict[str, str]:
    if not isinstance(link, Link):
        raise TypeError(f"links must be a list of Link(title, url), not of {link!r}.")
    return {"title": link.title, "url": link.url}
