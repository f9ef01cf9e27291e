"""Commands that found organisations, and issue their first keys."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from app.commands.saying import Json, say
from app.ledger.roles import Role
from app.opening import ledger
from app.service.asking import access
from app.service.asking.access import DEFAULT_PLACEMENT
from app.service.governance import keys as key_service


def create_organisation(
    name: Annotated[str, typer.Argument(help="Unique, up to 100 characters.")],
    placement: Annotated[str, typer.Option(help="On which database it will live.")] = DEFAULT_PLACEMENT,
    *,
    as_json: Json = False,
) -> None:
    """Found an organisation and print its id."""
    with ledger() as placements:
        home = placements.named(placement).database
        organisation_id = access.create_organisation(home, name, datetime.now(UTC), placements.databases.values())
    say(as_json=as_json, text=organisation_id, facts={"id": organisation_id, "name": name})


def create_key(
    organisation: Annotated[str, typer.Option("--org", help="The organisation's id or name.")],
    role: Annotated[Role, typer.Option(help="What the key may do.")],
    *,
    as_json: Json = False,
) -> None:
    """Issue an API key and print it; it is shown this once."""
    del as_json  # a key is printed as JSON either way, so that it can be piped
    with ledger() as placements:
        home = placements.holding(organisation).database
        issued = key_service.create_key(home, organisation, role, datetime.now(UTC), placements.databases.values())
    facts = {"id": issued.id, "key": issued.key, "role": str(issued.role)}
    say(as_json=True, text="", facts=facts)
