"""Changes that make a server as a file describes it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.provisioning.state import Facts

ORGANISATION: Final = ""
"""The path of the organisation: every account is under it."""


class Resource(StrEnum):
    """The kind of object that changes."""

    POPULATION = "population"
    BUDGET = "budget"
    LIMIT = "limit"
    POLICY = "policy"
    ALERT_SETTINGS = "alert_settings"
    METADATA = "metadata"
    API_KEY = "api_key"


class Operation(StrEnum):
    """The operation of a change."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    """Create an API key and revoke those of its name."""
    WAIT = "wait"
    """Nothing is sent: it is proposed already, or needs an account that is proposed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a set.

    Args:
        path: of the account; the name of an API key; ORGANISATION.
        before: members that change; None: a new object.
        after: their new values.
        loosens: why it lowers protection; empty: it does not.
        etag: of the state that it was found for; None: read it when the change is applied.
        reason: why it waits.
        revokes: ids of the API keys that it replaces.
        note: for the reader.
    """

    operation: Operation
    resource: Resource
    path: str
    after: Facts
    before: Facts | None = None
    loosens: tuple[str, ...] = ()
    etag: str | None = None
    reason: str | None = None
    revokes: tuple[str, ...] = ()
    note: str | None = None

    @property
    def title(self) -> str:
        """Name the changed object."""
        kind = self.resource.replace("_", " ")
        if self.resource is Resource.API_KEY:
            return f"API key {self.path}"
        if self.resource in {Resource.POPULATION, Resource.BUDGET}:
            return f"{kind} {self.path}"
        return f"{kind} of {self.path or 'the organisation'}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A difference that cannot be applied, and what to do about it."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The changes that make a server as a file describes it, in order.

    Args:
        conflicts: nothing can be applied while there is one.
        unmanaged: objects of the server that the file does not name; they stay as they are.
    """

    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...] = ()
    unmanaged: tuple[str, ...] = ()

    @property
    def pending(self) -> tuple[Change, ...]:
        """The changes to be sent."""
        return tuple(change for change in self.changes if change.operation is not Operation.WAIT)

    @property
    def waiting(self) -> tuple[Change, ...]:
        """The changes that wait for an approval."""
        return tuple(change for change in self.changes if change.operation is Operation.WAIT)

    @property
    def loosening(self) -> tuple[Change, ...]:
        """The changes that lower protection."""
        return tuple(change for change in self.pending if change.loosens)


def is_under(path: str, above: str) -> bool:
    """Check whether a path is another one, or under it."""
    return above in {ORGANISATION, path} or path.startswith(f"{above}/")


def any_above(path: str, paths: Iterable[str]) -> bool:
    """Check whether a path is one of others, or under one."""
    return any(is_under(path, above) for above in paths)
