"""The part of a server's state that a file can describe, in comparable form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from app.accounting.events import event_to_dict
from app.api.schemas.events import planned_events_of
from app.ledger.accounts.metadata import METADATA_FIELDS
from app.ledger.step_events import MAX_COUNT
from app.provisioning.document import BudgetDocument, PopulationDocument

Facts: TypeAlias = Mapping[str, Any]
"""Members of JSON."""

TERMS: Final = (
    *("privacy_unit", "neighboring_relation", "size"),
    *("composition", "attestation", "max_partitions_per_unit", "replacement_assumption"),
    *("planned", "opens_at", "closes_at", "block"),
)
"""Fields of an account that are fixed when it is created, in the order of a file."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value of the server with its entity tag; None: it has none."""

    value: Facts
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """A population or budget of the server.

    `policy` and `alert_settings` are None where they were not read: the file does not state them.
    """

    id: str
    path: str
    terms: Facts
    limit: Versioned
    policy: Versioned | None = None
    alert_settings: Facts | None = None
    metadata: Facts = field(default_factory=dict)
    is_archived: bool = False


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key of the server; `scope` is a path, or the id of a run."""

    id: str
    name: str | None
    role: str
    scope: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """An open proposal; `account` is an id, None for the organisation."""

    id: str
    kind: str
    account: str | None
    proposed: Facts


@dataclass(frozen=True, slots=True)
class State:
    """The state of an organisation on a server.

    Args:
        policy: of the organisation.
        accounts: by path.
        proposals: that are open.
        api_keys: those that are valid; None: they were not read.
        caller: id of the key that reads it; None: not known.
        now: the time of reading.
    """

    policy: Versioned
    accounts: Mapping[str, Account]
    now: datetime
    proposals: tuple[Proposal, ...] = ()
    api_keys: tuple[ApiKey, ...] | None = None
    caller: str | None = None


def desired_terms(document: PopulationDocument | BudgetDocument) -> dict[str, Any]:
    """Convert the fixed terms of an entry of a file to comparable form, without missing ones."""
    parallel = document.parallel()
    found: dict[str, Any] = {
        "composition": document.composition,
        "planned": [
            {"event": event_to_dict(step.event), "count": None if step.count == MAX_COUNT else step.count}
            for step in planned_events_of(document.planned)
        ],
    }
    if parallel is not None:
        found["attestation"] = parallel.attestation
        found["max_partitions_per_unit"] = parallel.partitions_per_unit
        found["replacement_assumption"] = parallel.replacement_assumption
    if isinstance(document, PopulationDocument):
        found["privacy_unit"] = document.privacy_unit
        found["neighboring_relation"] = str(document.neighboring_relation)
        found["size"] = document.size
    else:
        found["opens_at"] = format_time(document.opens_at)
        found["closes_at"] = format_time(document.closes_at)
        if document.block is not None:
            block = document.block
            found["block"] = _block(format_time(block.data_from), format_time(block.data_to), block.label)
    return _present(found)


def server_terms(account: Facts) -> dict[str, Any]:
    """Convert the fixed terms of an account of the API to comparable form, without missing ones."""
    found: dict[str, Any] = {"composition": account["composition"], "planned": account["planned"]}
    if account["composition"] == "parallel":
        said = account["attestation"] or {}
        found["attestation"] = said.get("text")
        found["max_partitions_per_unit"] = account["max_partitions_per_unit"]
        found["replacement_assumption"] = said.get("replacement_assumption")
    if "privacy_unit" in account:
        found |= {name: account[name] for name in ("privacy_unit", "neighboring_relation", "size")}
    else:
        found |= {name: format_time(parse_time(account[name])) for name in ("opens_at", "closes_at")}
        if (block := account["block"]) is not None:
            data_from, data_to = (format_time(parse_time(block[name])) for name in ("data_from", "data_to"))
            found["block"] = _block(data_from, data_to, block["label"])
    return _present(found)


def desired_metadata(document: PopulationDocument | BudgetDocument) -> dict[str, Any]:
    """Return the metadata that an entry of a file states, missing values included."""
    stated = document.model_dump(mode="json", include=set(METADATA_FIELDS), exclude_unset=True)
    return {name: stated[name] or None for name in METADATA_FIELDS if name in stated}


def server_metadata(account: Facts) -> dict[str, Any]:
    """Convert the metadata of an account of the API to comparable form, without missing values."""
    return {name: account[name] for name in METADATA_FIELDS if account[name]}


def format_time(moment: datetime | None) -> str | None:
    """Format a moment of UTC as the API does."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def parse_time(text: str | None) -> datetime | None:
    """Parse a moment of the API."""
    return None if text is None else datetime.fromisoformat(text)


def _block(data_from: str | None, data_to: str | None, label: str | None) -> dict[str, Any]:
    return {"data_from": data_from, "data_to": data_to} | ({"label": label} if label else {})


def _present(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is missing, and what is the default."""
    return {name: found[name] for name in TERMS if found.get(name) not in (None, [], "sequential")}
