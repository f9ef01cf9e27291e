"""Metadata of accounts: what people see, search and filter by. Nothing that is charged or decided depends on it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Final

from app.ledger.accounts.account import AccountKind
from app.ledger.audit import AuditAction
from app.ledger.errors import InvalidInputError
from app.ledger.names import MAX_NAME_LENGTH

MAX_DESCRIPTION: Final = 2000
MAX_OWNER: Final = 200
MAX_LABELS: Final = 32
MAX_LABEL_KEY: Final = 63
MAX_LABEL_VALUE: Final = 200
MAX_LINKS: Final = 16
MAX_LINK_TITLE: Final = 200
MAX_LINK_URL: Final = 2000
MAX_DISPLAY_NAME: Final = MAX_NAME_LENGTH


METADATA_CHANGES: Final = {kind: AuditAction(f"{kind}.metadata_changed") for kind in AccountKind}
ARCHIVALS: Final = {kind: AuditAction(f"{kind}.archived") for kind in AccountKind}
UNARCHIVALS: Final = {kind: AuditAction(f"{kind}.unarchived") for kind in AccountKind}


@dataclass(frozen=True, slots=True)
class Link:
    """A link of an account to another system."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """What people wrote about an account; None: nothing.

    A text is a column of `account_metadata`, and each field a member of the API's requests and answers. The audit log,
    verification, the CSV, the page and the files of `apply` derive from the fields.

    Args:
        owner: a person or a team, as text.
        labels: values by key.
        deployment: values of `DEPLOYMENT_FIELDS`, for the public registry of deployments.
    """

    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    deployment: Mapping[str, str] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """Return what is set, as the audit log records it."""
        facts = asdict(self) | {"links": [asdict(link) for link in self.links]}
        return {name: value for name, value in facts.items() if value}

    def patched(self, changes: Mapping[str, Any]) -> "Metadata":
        """Apply a JSON merge patch: None removes; labels and deployment are merged by key.

        Raises:
            InvalidInputError: there would be too many labels.
        """
        values = dict(changes)
        for name in METADATA_MAPPINGS & values.keys():
            merged = {} if values[name] is None else {**getattr(self, name), **values[name]}
            values[name] = {key: merged[key] for key in sorted(merged) if merged[key] is not None}
        if len(values.get("labels", ())) > MAX_LABELS:
            raise InvalidInputError(
                f"`labels` would have {len(values['labels'])} entries; the most is {MAX_LABELS}. Remove some with null."
            )
        if "links" in values:
            values["links"] = tuple(values["links"] or ())
        return replace(self, **values)


METADATA_MAPPINGS: Final = frozenset({"labels", "deployment"})
"""Fields whose values are merged by key."""

NO_METADATA: Final = Metadata()
METADATA_FIELDS: Final = tuple(each.name for each in fields(Metadata))
METADATA_TEXTS: Final = tuple(each.name for each in fields(Metadata) if each.default is None)


@dataclass(frozen=True, slots=True)
class AccountMetadata:
    """The metadata of an account as stored.

    Args:
        number: tells apart the runs at one path, from 1 in the order of their creation; 1 for other accounts.
        archived_at: None: it is not archived.
    """

    number: int = 1
    metadata: Metadata = NO_METADATA
    archived_at: datetime | None = None


def metadata_of(facts: Mapping[str, Any]) -> Metadata:
    """Read metadata from the payload of an audit event."""
    links = tuple(Link(**link) for link in facts.get("links", ()))
    return Metadata(**{**facts, "links": links})


def search_text(path: str, metadata: Metadata) -> str:
    """Build the text that a search looks at, ignoring case."""
    return "\n".join(part.casefold() for part in (path, metadata.display_name, metadata.owner) if part)


def title_of(name: str, number: int, display_name: str | None = None) -> str:
    """Build the title of an account, which tells apart runs of one path."""
    shown = display_name or name
    return shown if number == 1 else f"{shown} #{number}"
