"""Filters and orders of lists of accounts."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.metadata import MAX_LABELS, MAX_OWNER
from app.ledger.errors import InvalidInputError
from app.ledger.query_parameters import parameter
from app.ledger.runs.run import EndReason, RunStatus


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """A filter by metadata; None: any."""

    text: str | None = parameter(
        "Only accounts with this text in path, display name or owner, ignoring case, or with this id.",
        name="q",
        label="Search",
        hint="name, path, owner or id",
    )
    path: str | None = parameter("Only accounts at this path, which several runs may have.")
    owner: str | None = parameter("Only of this owner.", label="Owner", hint="as it was written", most=MAX_OWNER)
    labels: tuple[str, ...] = parameter(
        "Only accounts with this label: `key:value`, or `key` with any value. Repeated: with all of them.",
        name="label",
        label="Label",
        hint="team:icu, or team",
        most=MAX_LABELS,
        default=(),
    )
    archived: bool = parameter("True: only what is archived, and what is under it.", label="Archived", default=False)


def read_label(text: str) -> tuple[str, str | None]:
    """Read a label of a filter: a key and a value; None: any value.

    Raises:
        InvalidInputError: it has no key.
    """
    key, colon, value = text.partition(":")
    if not key:
        raise InvalidInputError(f"`label`: {text!a} has no key; send key:value or key, as team:icu.", field="label")
    return key, value if colon else None


@dataclass(frozen=True, slots=True)
class AccountFilter(MetadataFilter):
    """A filter of populations or budgets; None: any."""

    kind: ClassVar[AccountKind]

    parent: str | None = None
    name: str | None = parameter("Only accounts of this name.")


@dataclass(frozen=True, slots=True)
class PopulationFilter(AccountFilter):
    """A filter of populations, whose path is their name."""

    kind = AccountKind.POPULATION


@dataclass(frozen=True, slots=True)
class BudgetFilter(AccountFilter):
    """A filter of budgets; `parent` is an id or a path in a request."""

    kind = AccountKind.BUDGET

    parent: str | None = parameter("Only budgets directly under this account (id or path).", is_reference=True)


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


@dataclass(frozen=True, slots=True)
class RunFilter(MetadataFilter):
    """A filter and an order of runs; None: any. `population`, `budget` and `within` are ids or paths in a request."""

    statuses: tuple[RunStatus, ...] = parameter(
        "Only runs with this status. Repeated: with one of them.", name="status", label="Status", default=()
    )
    end_reasons: tuple[EndReason, ...] = parameter(
        "Only runs that ended for this reason. Repeated: for one of them.", name="end_reason", label="Ended", default=()
    )
    population: str | None = parameter("Only runs that charge this population (id or path).", is_reference=True)
    budget: str | None = parameter("Only runs that charge this budget (id or path) directly.", is_reference=True)
    within: str | None = parameter(
        "Only runs that charge this account (id or path), at any depth.",
        label="Population or budget",
        hint="path or id",
        is_reference=True,
    )
    created_after: datetime | None = parameter(
        "Created from this time on.", label="Registered since (UTC)", hint="2026-11-21T09:00"
    )
    created_before: datetime | None = parameter(
        "Created before this time.", label="Registered before (UTC)", hint="2026-11-22"
    )
    updated_after: datetime | None = parameter("Changed from this time on.")
    sort: RunOrder = parameter(
        "The order; a minus sign begins with the greatest.", label="", default=RunOrder.CREATED_AT_DESCENDING
    )
