"""Commands that serve the API or prepare the service."""

from typing import Annotated

import typer

from app.commands.console import (
    Json,
    display_url,
    has_organisations,
    open_database,
    prepare_to_serve,
    print_result,
)
from app.commands.console import migrate as upgrade_schema
from app.commands.first_admin import browser_origin, greet, http_url, no_organisation_hint
from app.commands.sample import serve_sample
from app.configuration.settings import Settings
from app.http.server import PortError, check_port
from app.http.server import serve as serve_http
from app.persistence.schema import has_ledger
from app.service.signing.signatures import signer_of


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Number of worker processes.")] = 1,
    *,
    no_init: Annotated[
        bool,
        typer.Option("--no-init", metavar="", help="Create no organisation and no sign-in link on an empty database."),
    ] = False,
    sample: Annotated[
        bool,
        typer.Option("--sample", metavar="", help="Serve a sample organisation from a throw-away database."),
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
    if sample:
        serve_sample(host, taken, workers, as_json=as_json)
        return
    settings = Settings()
    _require_secrets(settings)
    with open_database() as db:
        prepare_to_serve(db)
        database = display_url(db)
        origin = browser_origin(host, taken, settings.public_url)
        hint, link = ("", {}) if no_init else greet(db, origin, settings)
        if not hint and not has_organisations(db):
            hint = no_organisation_hint(settings)
    url = http_url(host, taken)
    shared = f", with {workers} workers" if workers > 1 else ""
    print_result(
        as_json=as_json,
        text=f"Epsilon Ledger on {url}, on {database}{shared}{hint}",
        facts={"host": host, "port": taken, "workers": workers, "database": database, **link},
    )
    serve_http(host, taken, workers)


def _require_secrets(settings: Settings) -> None:
    """Read the files that the application needs, before anything is created or a sign-in link printed.

    Raises:
        InvalidInputError: a file cannot be read, or holds something else.
    """
    signer_of(settings.signing_key_file)
    settings.oidc_client()


def migrate(
    *,
    check: Annotated[
        bool,
        typer.Option("--check", metavar="", help="Change nothing; exit 1 if the schema is not current."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Migrate the database; concurrent migrations wait for each other."""
    with open_database() as db:
        if not check:
            upgrade_schema(db)
        is_current = has_ledger(db)
    found = "The database has the newest schema."
    text = found if is_current else "The database is to be migrated by `epsilon-ledger migrate`."
    print_result(as_json=as_json, text=text, facts={"migrated": is_current})
    raise typer.Exit(0 if is_current else 1)


def openapi() -> None:
    """Print the OpenAPI description."""
    # Importing the application at module level would slow the start of every command by a third.
    from app.api.openapi import openapi_text  # noqa: PLC0415 - as said
    from app.main import create_app  # noqa: PLC0415 - as said

    print(openapi_text(create_app(Settings())), end="")  # noqa: T201 - this command's whole purpose
