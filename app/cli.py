"""The command line."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer
import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from app.api.openapi import openapi_text
from app.demo.story import run_demo
from app.ledger.errors import LedgerError, NotFoundError
from app.main import create_app
from app.persistence.engine import Database
from app.persistence.schema import is_current, upgrade
from app.service import access
from app.service.access import Role
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
    *,
    as_json: Json = False,
) -> None:
    """Serve the API; an embedded SQLite database is migrated first."""
    with _database():
        app = create_app(Settings())
    _say(
        as_json=as_json,
        text=f"Epsilon Ledger on http://{host}:{port}/docs",
        facts={"host": host, "port": port},
    )
    # uvloop and httptools are named, not left to chance: without uvloop every kept-alive request to one of
    # several workers takes 44 ms longer, and a missing one is an error at start.
    uvicorn.run(app, host=host, port=port, loop="uvloop", http="httptools", log_level="warning")


@cli.command()
def migrate(*, as_json: Json = False) -> None:
    """Bring the database to the newest schema."""
    with _database():
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


@cli.command()
def verify(*, as_json: Json = False) -> None:
    """Recompute every account from its charges alone and compare the bytes; exit 1 on a mismatch."""
    with _database(migrated=False) as db:
        found = verify_ledger(db)
    facts = {
        "sound": found.sound,
        "accounts": found.accounts,
        "runs": found.runs,
        "charges": found.charges,
        "steps": found.steps,
        "problems": list(found.problems),
    }
    summary = (
        f"{found.accounts} accounts ({found.runs} of them runs) recomputed from {found.charges} charges that stand "
        f"for {found.steps} steps"
    )
    verdict = "every curve agrees byte for byte" if found.sound else f"{len(found.problems)} problems"
    _say(as_json=as_json, text="\n".join([f"{summary}: {verdict}.", *found.problems]), facts=facts)
    raise typer.Exit(0 if found.sound else 1)


@org.command("create")
def create_organisation(
    name: Annotated[str, typer.Argument(help="Unique, up to 100 characters.")], *, as_json: Json = False
) -> None:
    """Found an organisation and print its id."""
    with _database() as db:
        organisation_id = access.create_organisation(db, name, datetime.now(UTC))
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
    with _database() as db:
        issued = access.create_key(db, organisation, role, datetime.now(UTC))
    facts = {"id": issued.id, "key": issued.key, "role": str(issued.role)}
    _say(as_json=True, text="", facts=facts)


def main() -> None:
    """Run the command line; errors of the ledger become one sentence and exit status 2."""
    try:
        cli()
    except LedgerError as error:
        _fail(error.detail)
    except SQLAlchemyError as error:
        _fail(f"The database did not answer as it should: {str(error).splitlines()[0]}")


@contextmanager
def _database(*, migrated: bool = True) -> Iterator[Database]:
    db = Database(Settings().database_url)
    try:
        if migrated:
            upgrade(db)
        else:
            _require_ledger(db)
        yield db
    finally:
        db.dispose()


def _require_ledger(db: Database) -> None:
    """What only looks at a ledger neither makes nor migrates one."""
    current = False
    if db.exists():
        with db.read() as tx:
            current = is_current(tx)
    if not current:
        raise NotFoundError(
            "EPSILON_LEDGER_DATABASE_URL names no ledger of this version; `epsilon-ledger migrate` makes one."
        )


def _say(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def _fail(message: str) -> None:
    typer.echo(message, err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
