"""Schemas of the metadata of accounts."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from app.api.schemas.common import Body, Input, Output, Reason, readable
from app.ledger.accounts.account import Account, AccountKind
from app.ledger.accounts.deployments import DEPLOYMENT_FIELDS, MAX_DEPLOYMENT_VALUE
from app.ledger.accounts.metadata import (
    MAX_DESCRIPTION,
    MAX_DISPLAY_NAME,
    MAX_LABEL_KEY,
    MAX_LABEL_VALUE,
    MAX_LABELS,
    MAX_LINK_TITLE,
    MAX_LINK_URL,
    MAX_LINKS,
    MAX_OWNER,
    METADATA_FIELDS,
    METADATA_MAPPINGS,
    AccountMetadata,
    Metadata,
)
from app.ledger.accounts.metadata import Link as DomainLink
from app.ledger.names import is_line

_DEPLOYMENT_KEYS: Final = tuple(DEPLOYMENT_FIELDS)
_KEY: Final = re.compile(rf"[a-z0-9][a-z0-9_.\-/]{{0,{MAX_LABEL_KEY - 1}}}")


def _line(value: str) -> str:
    if not is_line(value):
        raise ValueError("write one line of words that can be read, without control characters")
    return value.strip()


def _value(value: str) -> str:
    if value and not is_line(value):
        raise ValueError("a label's value is empty, or one line of words that can be read, without control characters")
    return value


def _label_key(value: str) -> str:
    if not _KEY.fullmatch(value):
        raise ValueError(
            f"a label's key has 1 to {MAX_LABEL_KEY} characters, of a to z, 0 to 9 and _ . - /, and begins with a "
            "letter or a digit, as git-commit"
        )
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        named = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port  # raises ValueError for no number
    except ValueError:
        named = False
    if not named or not value.isprintable() or any(char.isspace() or char in '"<>\\^`{|}' for char in value):
        raise ValueError("write an http or https address, as https://mlflow.example/runs/1")
    if "@" in parts.netloc:
        raise ValueError("an address is shown to everybody who may read the account: leave out user name and password")
    return value


def _deployment_key(value: str) -> str:
    if value not in DEPLOYMENT_FIELDS:
        raise ValueError(f"the registry has the fields {', '.join(DEPLOYMENT_FIELDS)}")
    return value


def _deployment(values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if value is not None:
            try:
                DEPLOYMENT_FIELDS[name].check(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
    return values


DisplayName = Annotated[str, Field(min_length=1, max_length=MAX_DISPLAY_NAME), AfterValidator(_line)]
Description = Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION), AfterValidator(readable)]
Owner = Annotated[str, Field(min_length=1, max_length=MAX_OWNER), AfterValidator(_line)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelValue = Annotated[str, Field(max_length=MAX_LABEL_VALUE), AfterValidator(_value)]


class LinkInput(Input):
    """A link to another system."""

    title: Annotated[str, Field(min_length=1, max_length=MAX_LINK_TITLE), AfterValidator(_line)]
    url: Annotated[str, Field(min_length=1, max_length=MAX_LINK_URL), AfterValidator(_url)] = Field(
        description="An http or https address, without user name and password."
    )


DeploymentKey = Annotated[
    str, Field(json_schema_extra={"enum": list(_DEPLOYMENT_KEYS)}), AfterValidator(_deployment_key)
]
DeploymentValue = Annotated[str, Field(min_length=1, max_length=MAX_DEPLOYMENT_VALUE), AfterValidator(_line)]
Links = Annotated[list[LinkInput], Field(max_length=MAX_LINKS)]

ABOUT_DISPLAY_NAME: Final = "What people see instead of the name; the name stays the identity."
ABOUT_OWNER: Final = "A person or a team, as a name or an e-mail address."
ABOUT_LABELS: Final = "Values by key, for filters. A key has letters a to z, digits and _ . - /."
ABOUT_LINKS: Final = "Links to other systems."
ABOUT_DEPLOYMENT: Final = (
    "What the public registry of deployments asks for and only people know. Accounts below have it, too, unless they "
    "have a value of their own."
)


class MetadataInput(Body):
    """Metadata of a new account; nothing that is charged depends on it."""

    display_name: DisplayName | None = Field(default=None, description=ABOUT_DISPLAY_NAME)
    description: Description | None = None
    owner: Owner | None = Field(default=None, description=ABOUT_OWNER)
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)] = Field(
        default={}, description=ABOUT_LABELS
    )
    links: Links = Field(default=[], description=ABOUT_LINKS)
    deployment: Annotated[dict[DeploymentKey, DeploymentValue], AfterValidator(_deployment)] = Field(
        default={}, description=ABOUT_DEPLOYMENT
    )

    def metadata(self) -> Metadata:
        """Convert to the domain."""
        sent = {name: getattr(self, name) for name in METADATA_FIELDS}
        mappings = {name: dict(sorted(sent[name].items())) for name in METADATA_MAPPINGS}
        return Metadata(**sent | mappings | {"links": _links(self.links)})


class UpdateMetadata(Body):
    """A JSON merge patch: a missing field stays, null removes it; labels and deployment are merged by key."""

    display_name: DisplayName | None = Field(default=None, description=ABOUT_DISPLAY_NAME)
    description: Description | None = None
    owner: Owner | None = Field(default=None, description=ABOUT_OWNER)
    labels: Annotated[dict[LabelKey, LabelValue | None], Field(max_length=2 * MAX_LABELS)] | None = Field(
        default=None, description=ABOUT_LABELS
    )
    links: Links | None = Field(default=None, description=ABOUT_LINKS)
    deployment: Annotated[dict[DeploymentKey, DeploymentValue | None], AfterValidator(_deployment)] | None = Field(
        default=None, description=ABOUT_DEPLOYMENT
    )

    def changes(self) -> dict[str, Any]:
        """Return the sent fields, as the domain merges them."""
        sent = {name: getattr(self, name) for name in self.model_fields_set}
        if sent.get("links"):
            sent["links"] = _links(sent["links"])
        return sent


class Link(Output):
    """A link to another system."""

    title: str
    url: str


class MetadataMembers(Output):
    """Metadata of an account, and since when it is archived."""

    display_name: str | None = Field(default=None, description=ABOUT_DISPLAY_NAME)
    description: str | None = None
    owner: str | None = Field(default=None, description=ABOUT_OWNER)
    labels: dict[str, str] = Field(default={}, description=ABOUT_LABELS)
    links: list[Link] = Field(default=[], description=ABOUT_LINKS)
    deployment: dict[str, str] = Field(default={}, description=ABOUT_DEPLOYMENT)
    archived_at: datetime | None = Field(
        default=None, description="Since when it is archived: hidden from lists, and read-only. Null: it is not."
    )


class ChangeArchive(Body):
    """Why an account is archived, or no longer."""

    reason: Reason | None = None


class ArchivedAccount(Output):
    """An account, and since when it is archived."""

    id: str
    kind: AccountKind
    path: str
    archived_at: datetime | None = Field(description="Null: it is not archived.")

    @classmethod
    def of(cls, change: tuple[Account, datetime | None]) -> Self:
        """Convert from the domain."""
        account, archived_at = change
        return cls(id=account.id, kind=account.kind, path=account.path, archived_at=archived_at)


def metadata_members(about: AccountMetadata) -> dict[str, Any]:
    """Convert the metadata of an account."""
    return {name: getattr(about.metadata, name) for name in METADATA_FIELDS} | {"archived_at": about.archived_at}


def _links(sent: list[LinkInput]) -> tuple[DomainLink, ...]:
    return tuple(DomainLink(link.title, link.url) for link in sent)
