"""Filters and orders of lists of accounts."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.ledger.accounts.account import AccountKind
from app.ledger.runs.run import EndReason, RunStatus

Label = tuple[str, str | None]
"""The key of a label and its value; None: any value."""


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """A filter by metadata; None: any.

    Args:
        text: a part of the path, the display name or the owner, ignoring case, or an id.
        labels: all of them must match.
        archived: whether archived accounts, and those under them, are wanted instead of the others.
    """

    text: str | None = None
    owner: str | None = None
    labels: tuple[Label, ...] = ()
    archived: bool = False


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """A filter of populations or budgets; None: any."""

    kind: AccountKind
    within: str | None = None
    parent_id: str | None = None
    path: str | None = None
    name: str | None = None
    metadata: MetadataFilter | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter of runs; None: any.

    Args:
        statuses: one of them; empty: any.
        end_reasons: one of them, of runs that have ended; empty: any.
        budget: charged directly; in a request an id or a path, as `within`.
        within: accounts that are charged, at any depth; all of them.
    """

    statuses: tuple[RunStatus, ...] = ()
    end_reasons: tuple[EndReason, ...] = ()
    path: str | None = None
    budget: str | None = None
    within: tuple[str, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    updated_after: datetime | None = None
    metadata: MetadataFilter | None = None

    @property
    def created(self) -> tuple[datetime | None, datetime | None]:
        """The half-open period of creation."""
        return self.created_after, self.created_before


class RunOrder(StrEnum):
    """The order of a list of runs; a minus sign is descending."""

    CREATED_AT = "created_at"
    CREATED_AT_DESCENDING = "-created_at"
    UPDATED_AT = "updated_at"
    UPDATED_AT_DESCENDING = "-updated_at"
    NAME = "name"
    NAME_DESCENDING = "-name"

    @property
    def descending(self) -> bool:
        """Whether the list begins with the greatest."""
        return self.startswith("-")

    @property
    def column(self) -> str:
        """The name without the direction."""
        return self.removeprefix("-")
