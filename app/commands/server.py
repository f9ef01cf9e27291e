"""Commands that serve the API or prepare the service."""

from typing import Annotated

import typer

from app.bootstrap import (
    Json,
    display_urls,
    has_organisations,
    is_schema_current,
    open_databases,
    prepare_to_serve,
    print_result,
)
from app.bootstrap import migrate as upgrade_schema
from app.commands.demo import serve_demo
from app.commands.first_admin import browser_origin, greet, http_url, no_organisation_hint
from app.server import PortError, check_port
from app.server import serve as serve_http
from app.settings import Settings


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Number of worker processes.")] = 1,
    *,
    no_init: Annotated[
        bool,
        typer.Option("--no-init", metavar="", help="Create no organisation and no sign-in link on an empty database."),
    ] = False,
    demo: Annotated[
        bool,
        typer.Option("--demo", metavar="", help="Serve a sample organisation from a throw-away database."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve the API; SQLite databases are migrated first.

    On an empty database this creates the organisation `default`, and prints a one-time sign-in link.
    """
    try:
        taken = check_port(host, port)
    except PortError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if demo:
        serve_demo(host, taken, workers, as_json=as_json)
        return
    with open_databases() as placements:
        prepare_to_serve(placements)
        databases = display_urls(placements)
        settings = Settings()
        origin = browser_origin(host, taken, settings.public_url)
        hint, link = ("", {}) if no_init else greet(placements, origin, settings)
        if not hint and not has_organisations(placements):
            hint = no_organisation_hint(settings)
    url = http_url(host, taken)
    shared = f", with {workers} workers" if workers > 1 else ""
    print_result(
        as_json=as_json,
        text=f"Epsilon Ledger on {url}, on {databases}{shared}{hint}",
        facts={"host": host, "port": taken, "workers": workers, "databases": databases, **link},
    )
    serve_http(host, taken, workers)


def migrate(
    *,
    check: Annotated[
        bool,
        typer.Option("--check", metavar="", help="Change nothing; exit 1 if the schema of a database is not current."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Migrate the databases of all placements; concurrent migrations wait for each other."""
    with open_databases() as placements:
        if check:
            behind = [placement.name for placement in placements if not is_schema_current(placements, placement)]
            named = f"{', '.join(behind)}: to be migrated by `epsilon-ledger migrate`."
            text = named if behind else "The database has the newest schema."
            print_result(as_json=as_json, text=text, facts={"migrated": not behind, "behind": behind})
            raise typer.Exit(1 if behind else 0)
        for placement in placements:
            with placements.naming(placement) as db:
                upgrade_schema(db)
        print_result(as_json=as_json, text="The database has the newest schema.", facts={"migrated": True})


def openapi() -> None:
    """Print the OpenAPI description."""
    # Importing the application at module level would slow the start of every command by a third.
    from app.api.openapi import openapi_text  # noqa: PLC0415 - as said
    from app.main import application  # noqa: PLC0415 - as said

    print(openapi_text(application()), end="")  # noqa: T201 - this command's whole purpose
