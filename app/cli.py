"""The command line."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app.api.openapi import openapi_text
from app.demo.story import run_demo
from app.ledger.errors import LedgerError, LedgerUnavailableError, NotFoundError
from app.main import create_app
from app.persistence.engine import URL_SETTING, Database
from app.persistence.schema import has_ledger, upgrade
from app.service import access
from app.service.access import DEFAULT_PLACEMENT, Role
from app.service.copying import copy
from app.service.export import export_from
from app.service.placements import Placement, Placements
from app.service.verification import enforce, together
from app.service.verification import verify as verify_ledger
from app.settings import Settings

cli = typer.Typer(
    name="epsilon-ledger",
    help="Keep differential-privacy budgets the way a bank keeps accounts.",
    epilog="The database is EPSILON_LEDGER_DATABASE_URL; by default the SQLite file epsilon-ledger.db here.",
    no_args_is_help=True,
    add_completion=False,
)
org = typer.Typer(help="Organisations.", no_args_is_help=True)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
cli.add_typer(org, name="org")
cli.add_typer(keys, name="keys")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@cli.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="How many processes share the port.")] = 1,
    *,
    as_json: Json = False,
) -> None:
    """Serve the API; an embedded SQLite database is migrated first."""
    with _opened() as placements:
        _prepare_to_serve(placements)
    _say(
        as_json=as_json,
        text=f"Epsilon Ledger on http://{host}:{port}/docs",
        facts={"host": host, "port": port, "workers": workers},
    )
    # uvloop and httptools are named, not left to chance: without uvloop every kept-alive request to one of
    # several workers takes 44 ms longer, and a missing one is an error at start.
    uvicorn.run(
        "app.cli:application",
        factory=True,
        workers=workers,
        host=host,
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,  # at this level it says nothing, yet each line of it would be put together
    )


def application() -> FastAPI:
    """The application by the environment's settings; each worker process makes its own."""
    return create_app(Settings())


@cli.command()
def migrate(*, as_json: Json = False) -> None:
    """Bring the database, and that of every placement, to the newest schema; concurrent calls wait for each other."""
    with _opened() as placements:
        for placement in placements:
            with placements.naming(placement) as db:
                upgrade(db)
        _say(as_json=as_json, text="The database has the newest schema.", facts={"migrated": True})


@cli.command()
def demo(*, as_json: Json = False) -> None:
    """Watch a real DP-SGD training being stopped at its budget."""
    raise typer.Exit(run_demo(as_json=as_json))


@cli.command()
def openapi(*, as_json: Json = True) -> None:
    """Print the OpenAPI description."""
    del as_json  # it is JSON either way
    print(openapi_text(create_app(Settings())), end="")  # noqa: T201 - this command's whole purpose


@cli.command("copy")
def copy_ledger(
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The database that has the ledger.")],
    target: Annotated[str, typer.Option("--to", metavar="URL", help="An empty one, with the newest schema.")],
    *,
    as_json: Json = False,
) -> None:
    """Copy a whole ledger to another database, and verify the copy; stop the service first. Exit 1 on a mismatch.

    Passwords belong into PGPASSWORD or a password file: what stands on a command line can be seen by others.
    """
    old, new = Database(source, called="--from"), Database(target, called="--to")
    try:
        copied = copy(old, new)
    finally:
        old.dispose()
        new.dispose()
    facts = {"sound": copied.found.sound, "rows": dict(copied.rows), "problems": list(copied.found.problems)}
    verdict = "every curve agrees byte for byte" if copied.found.sound else f"{len(copied.found.problems)} problems"
    summary = f"{sum(copied.rows.values())} rows of {len(copied.rows)} tables copied, and the copy verified: {verdict}."
    _say(as_json=as_json, text="\n".join([summary, *copied.found.problems]), facts=facts)
    raise typer.Exit(0 if copied.found.sound else 1)


@cli.command()
def verify(
    *,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Stop and release no writes, whatever is found.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recompute every account from its charges alone, compare the bytes, walk every chain; exit 1 on a mismatch.

    Writes to an account whose balance is not proven are stopped, until a later verification finds it sound.
    """
    with _ledger(migrated=False) as placements:
        every = []
        for placement in placements:
            with placements.naming(placement) as db:
                first = verify_ledger(db)
                every.append(first if read_only else enforce(db, first, datetime.now(UTC)))
    found = together(every)
    facts = {
        "sound": found.sound,
        "accounts": found.accounts,
        "runs": found.runs,
        "decisions": found.decisions,
        "reservations": found.reservations,
        "charges": found.charges,
        "steps": found.steps,
        "problems": list(found.problems),
        "unproven": sorted(account for _, account in found.unproven),
    }
    summary = (
        f"{found.accounts} accounts ({found.runs} of them runs) recomputed from {found.charges} charges that stand "
        f"for {found.steps} steps, {found.decisions} chained decisions and {found.reservations} reservations"
    )
    verdict = "every curve agrees byte for byte" if found.sound else f"{len(found.problems)} problems"
    stopped = f"Writes to {len(found.unproven)} accounts are stopped." if found.unproven and not read_only else ""
    told = [f"{summary}: {verdict}.", *found.problems, stopped]
    _say(as_json=as_json, text="\n".join(filter(None, told)), facts=facts)
    raise typer.Exit(0 if found.sound else 1)


@cli.command("export")
def export_charges(
    run: Annotated[str | None, typer.Option(help="A run's id.")] = None,
    population: Annotated[str | None, typer.Option(help="A population's id or name.")] = None,
    organisation: Annotated[
        str | None, typer.Option("--org", help="The organisation's id or name, where several have such a population.")
    ] = None,
    *,
    as_json: Json = True,
) -> None:
    """Write the charges of a run or a population as JSON lines; examples/verify_export.py verifies them."""
    del as_json  # it is JSON lines either way
    with _ledger(migrated=False) as placements:
        databases = list(placements.databases.values())
        if organisation is not None and len(placements) > 1:
            databases = [placements.holding(organisation).database]
        now = datetime.now(UTC)
        for line in export_from(databases, now, run=run, population=population, organisation=organisation):
            typer.echo(line)


@org.command("create")
def create_organisation(
    name: Annotated[str, typer.Argument(help="Unique, up to 100 characters.")],
    placement: Annotated[str, typer.Option(help="On which database it will live.")] = DEFAULT_PLACEMENT,
    *,
    as_json: Json = False,
) -> None:
    """Found an organisation and print its id."""
    with _ledger() as placements:
        home = placements.named(placement).database
        organisation_id = access.create_organisation(home, name, datetime.now(UTC), placements.databases.values())
    _say(as_json=as_json, text=organisation_id, facts={"id": organisation_id, "name": name})


@keys.command("create")
def create_key(
    organisation: Annotated[str, typer.Option("--org", help="The organisation's id or name.")],
    role: Annotated[Role, typer.Option(help="What the key may do.")],
    *,
    as_json: Json = False,
) -> None:
    """Issue an API key and print it; it is shown this once."""
    del as_json  # a key is printed as JSON either way, so that it can be piped
    with _ledger() as placements:
        home = placements.holding(organisation).database
        issued = access.create_key(home, organisation, role, datetime.now(UTC), placements.databases.values())
    facts = {"id": issued.id, "key": issued.key, "role": str(issued.role)}
    _say(as_json=True, text="", facts=facts)


def main() -> None:
    """Run the command line; errors of the ledger become one sentence and exit status 2."""
    try:
        cli()
    except LedgerError as error:
        _fail(error.detail)
    except SQLAlchemyError as error:
        _fail(f"The database did not answer as it should: {str(getattr(error, 'orig', error)).splitlines()[0]}")
    except ValidationError as error:
        wrong = error.errors()[0]
        why = wrong["msg"].removeprefix("Value error, ")
        _fail(f"EPSILON_LEDGER_{str(wrong['loc'][0]).upper()} is not right: {why}.")


@contextmanager
def _ledger(*, migrated: bool = True) -> Iterator[Placements]:
    """Databases with the newest schema; a SQLite file is made and migrated, unless the command only looks at it."""
    with _opened() as placements:
        for placement in placements:
            _prepare(placements, placement, migrated=migrated)
        yield placements


@contextmanager
def _opened() -> Iterator[Placements]:
    settings = Settings()
    placements = Placements(settings.database_urls, settings.database_pool_size)
    try:
        yield placements
    finally:
        placements.dispose()


def _prepare(placements: Placements, placement: Placement, *, migrated: bool = True) -> None:
    with placements.naming(placement) as db:
        if migrated and db.dialect == "sqlite":
            upgrade(db)
        elif not has_ledger(db):
            where = URL_SETTING if placement.name == DEFAULT_PLACEMENT else f"The placement {placement.name!r}"
            raise NotFoundError(f"{where} names no ledger of this version; `epsilon-ledger migrate` makes one.")


def _prepare_to_serve(placements: Placements) -> None:
    """A placement that does not answer keeps its own organisations waiting, and no others."""
    down = []
    for placement in placements:
        try:
            _prepare(placements, placement)
        except LedgerUnavailableError as error:
            down.append(error.detail)
    if len(down) == len(placements):
        raise LedgerUnavailableError(" ".join(down))
    for why in down:
        typer.echo(f"{why} Its organisations get 503 until it does.", err=True)
    placements.require_apart()


def _say(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def _fail(message: str) -> None:
    typer.echo(message, err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
