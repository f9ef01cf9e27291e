"""Commands that create, list and revoke API keys; audited as the command line."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from app.bootstrap import open_ledger
from app.commands.common import Json, Organisation, Reason, organisation_context, print_result, require_reason
from app.ledger.api_keys import KeyRecord
from app.ledger.errors import NotFoundError
from app.ledger.pages import PageRequest
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import api_keys as stored
from app.service.auth.request_context import RequestContext, cli_context
from app.service.governance import api_keys
from app.service.governance.api_keys import KeyTerms
from app.service.placements import Placements

PAGE: Final = 500


def _timestamp(text: str) -> datetime:
    """Parse a timestamp as the API does."""
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        timestamp = None
    if timestamp is None or timestamp.tzinfo is None:
        raise typer.BadParameter("give a timestamp with its time zone, such as 2027-01-01T00:00:00Z")
    return timestamp.astimezone(UTC)


def create_key(
    organisation: Organisation,
    role: Annotated[Role, typer.Option(help="Role of the key.")],
    name: Annotated[str | None, typer.Option(help="Name for display.")] = None,
    scope: Annotated[
        str | None, typer.Option(help="Restrict the key to this account, by id or path, and everything under it.")
    ] = None,
    expires: Annotated[
        datetime | None,
        typer.Option(parser=_timestamp, metavar="TIMESTAMP", help="Expiry time, such as 2027-01-01T00:00:00Z."),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Create an API key and print it once."""
    del as_json  # a key is printed as JSON either way, so that it can be piped
    terms = KeyTerms(role, name, scope, expires)
    with open_ledger() as placements:
        home = placements.find_organisation(organisation).database
        issued = api_keys.create_key(home, organisation, terms, home.clock.now(), placements.databases.values())
    asked = {"name": name, "scope": issued.record.scope, "expires_at": _format_time(issued.record.expires_at)}
    given = {fact: value for fact, value in asked.items() if value is not None}
    print_result(as_json=True, text="", facts={"id": issued.id, "key": issued.key, "role": str(issued.role), **given})


def list_keys(organisation: Organisation, *, as_json: Json = False) -> None:
    """List an organisation's API keys by creation time, including revoked and expired ones, without secrets."""
    with open_ledger(migrated=False) as placements:
        context = organisation_context(placements, organisation)
        found = list(_all_keys(context))
    states = [_describe_state(key, context.now) for key in found]
    lines = [
        f"{key.id}  {key.role:15}  {state:32}  {key.name or ''}  {key.scope or ''}"
        for key, state in zip(found, states, strict=True)
    ]
    text = "\n".join(line.rstrip() for line in lines) or "No keys."
    print_result(as_json=as_json, text=text, facts={"items": [_key_fields(key) for key in found]})


def revoke_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id: its part before the dot.")],
    reason: Reason,
    *,
    include_successors: Annotated[
        bool,
        typer.Option(
            "--include-successors", help="Revoke also the keys that it was rotated into, for example by a thief."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Revoke an API key; every replica rejects it within a second."""
    require_reason(reason)
    with open_ledger(migrated=False) as placements:
        context = _context_of_key(placements, key_id)
        key = api_keys.revoke_key(context, key_id, reason, include_successors=include_successors)
    print_result(as_json=as_json, text=f"{key.id} was {_describe_state(key, context.now)}.", facts=_key_fields(key))


def _all_keys(context: RequestContext) -> Iterator[KeyRecord]:
    """Iterate over all keys, page by page."""
    page = PageRequest(PAGE)
    while True:
        found = api_keys.list_keys(context, page)
        yield from found.items
        if found.next is None:
            return
        page = PageRequest(PAGE, found.next)


def _context_of_key(placements: Placements, key_id: str) -> RequestContext:
    """Build the command line's context for the organisation that owns a key."""
    for db in placements.databases.values():
        with db.read(ALL_TENANTS) as tx:
            found = stored.find(tx, key_id)
        if found is not None:
            return cli_context(db, found.organisation_id, db.clock.now())
    raise NotFoundError(f"There is no key {key_id.partition('.')[0]!r}; `epsilon-ledger keys list` lists them.")


def _describe_state(key: KeyRecord, now: datetime) -> str:
    defect = key.invalid_reason(now)
    if defect is None:
        return f"expires {_format_time(key.expires_at)}" if key.expires_at else "active"
    return (
        f"revoked {_format_time(key.revoked_at)}" if defect == "revoked" else f"expired {_format_time(key.expires_at)}"
    )


def _key_fields(key: KeyRecord) -> dict[str, object]:
    """Format a key as the API does."""
    return {
        "id": key.id,
        "name": key.name,
        "role": key.role,
        "scope": key.scope,
        "created_by": key.created_by,
        "created_at": _format_time(key.created_at),
        "expires_at": _format_time(key.expires_at),
        "revoked_at": _format_time(key.revoked_at),
        "last_used_at": _format_time(key.last_used_at),
    }


def _format_time(timestamp: datetime | None) -> str | None:
    return None if timestamp is None else timestamp.isoformat().replace("+00:00", "Z")
