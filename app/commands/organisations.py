"""The command that creates organisations."""

from typing import Annotated

import typer

from app.bootstrap import open_ledger
from app.commands.output import Json, print_result
from app.service.auth import authentication
from app.service.auth.authentication import DEFAULT_PLACEMENT


def create_organisation(
    name: Annotated[str, typer.Argument(help="Unique, up to 100 characters.")],
    placement: Annotated[str, typer.Option(help="Placement of its database.")] = DEFAULT_PLACEMENT,
    *,
    as_json: Json = False,
) -> None:
    """Create an organisation and print its id."""
    with open_ledger() as placements:
        home = placements.named(placement).database
        organisation_id = authentication.create_organisation(
            home, name, home.clock.now(), placements.databases.values()
        )
    print_result(as_json=as_json, text=organisation_id, facts={"id": organisation_id, "name": name})
