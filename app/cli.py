"""The command line."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app.api.openapi import openapi_text
from app.demo.story import run_demo
from app.ledger.errors import InvalidInputError, LedgerError
from app.ledger.roles import Role
from app.main import create_app
from app.opening import ledger, opened, prepare_to_serve, require_there, where
from app.opening import migrate as make_newest
from app.persistence.engine import EVERYONE, Database
from app.persistence.repositories import tenants
from app.service import access
from app.service import keys as key_service
from app.service.access import COMMAND_LINE, DEFAULT_PLACEMENT
from app.service.checkpoints import sign
from app.service.copying import copy
from app.service.export import export_from
from app.service.signing import required, signer_of
from app.service.verification import enforce, together
from app.service.verification import verify as verify_ledger
from app.service.verification.witnesses import Witness, witness_of
from app.serving import PortError, listen, port_to_take
from app.settings import Settings

cli = typer.Typer(
    name="epsilon-ledger",
    epilog="The database is EPSILON_LEDGER_DATABASE_URL; by default the SQLite file epsilon-ledger.db here.",
    no_args_is_help=True,
    add_completion=False,
)
org = typer.Typer(help="Organisations.", no_args_is_help=True)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
cli.add_typer(org, name="org")
cli.add_typer(keys, name="keys")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if asked:
        typer.echo(f"epsilon-ledger {version('epsilon-ledger')}")
        raise typer.Exit


@cli.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keep differential-privacy budgets the way a bank keeps accounts."""
    del version  # it was printed already


@cli.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="How many processes share the port.")] = 1,
    *,
    as_json: Json = False,
) -> None:
    """Serve the API; an embedded SQLite database is migrated first."""
    try:
        taken = port_to_take(host, port)
    except PortError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    with opened() as placements:
        prepare_to_serve(placements)
        databases = where(placements)
    url = f"http://{f'[{host}]' if ':' in host else host}:{taken}/docs"
    shared = f", with {workers} workers" if workers > 1 else ""
    _say(
        as_json=as_json,
        text=f"Epsilon Ledger on {url}, on {databases}{shared}",
        facts={"host": host, "port": taken, "workers": workers, "databases": databases},
    )
    listen(host, taken, workers)


def application() -> FastAPI:
    """The application by the environment's settings; each worker process makes its own."""
    return create_app(Settings())


@cli.command()
def migrate(*, as_json: Json = False) -> None:
    """Bring the database, and that of every placement, to the newest schema; concurrent calls wait for each other."""
    with opened() as placements:
        for placement in placements:
            with placements.naming(placement) as db:
                make_newest(db)
        _say(as_json=as_json, text="The database has the newest schema.", facts={"migrated": True})


@cli.command()
def demo(*, as_json: Json = False) -> None:
    """Watch a real DP-SGD training being stopped at its budget."""
    raise typer.Exit(run_demo(as_json=as_json))


@cli.command()
def openapi() -> None:
    """Print the OpenAPI description."""
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
        require_there(old, "--from")
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
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", help="A signed checkpoint that was kept elsewhere; may be given several times."),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM; needed to believe a checkpoint.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute every account from its charges alone, compare the bytes, walk every chain; exit 1 on a mismatch.

    Writes to an account whose balance is not proven are stopped, until a later verification finds it sound.
    """
    witnesses = _witnesses(checkpoint or [], public_key)
    with ledger(migrated=False) as placements:
        every = []
        for placement in placements:
            with placements.naming(placement) as db:
                with db.read(EVERYONE) as tx:
                    here = tenants.organisation_ids(tx)
                theirs = [witness for witness in witnesses if witness.organisation_id in here or len(placements) == 1]
                first = verify_ledger(db, witnesses=theirs)
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
        "acts": found.acts,
        "problems": list(found.problems),
        "unproven": sorted(account for _, account in found.unproven),
    }
    summary = (
        f"{found.accounts} accounts ({found.runs} of them runs) recomputed from {found.charges} charges that stand "
        f"for {found.steps} steps, {found.decisions} chained decisions, {found.reservations} reservations "
        f"and {found.acts} acts"
    )
    verdict = "every curve agrees byte for byte" if found.sound else f"{len(found.problems)} problems"
    stopped = f"Writes to {len(found.unproven)} accounts are stopped." if found.unproven and not read_only else ""
    whole = f"{summary}: {verdict}." if found.accounts or not found.sound else "The ledger is empty."
    told = [whole, *found.problems, stopped]
    _say(as_json=as_json, text="\n".join(filter(None, told)), facts=facts)
    raise typer.Exit(0 if found.sound else 1)


def _witnesses(files: list[Path], public_key: Path | None) -> list[Witness]:
    """What checkpoints say that were kept elsewhere."""
    if files and public_key is None:
        raise InvalidInputError("A checkpoint is believed by its signature: name the public key with --public-key.")
    try:
        return [
            witness_of(json.loads(file.read_text()), public_key.read_bytes(), str(file))
            for file in files
            if public_key is not None
        ]
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"A checkpoint, or the public key, cannot be read: {error}") from error


@cli.command()
def checkpoint(
    organisation: Annotated[str, typer.Option("--org", help="The organisation's id or name.")],
) -> None:
    """Sign all that was done and decided so far, and print it as JSON: keep it where nobody can rewrite it."""
    signer = required(signer_of(Settings().signing_key_file))
    with ledger(migrated=False) as placements:
        db = placements.holding(organisation).database
        with db.read(EVERYONE) as tx:
            owner = tenants.find_organisation(tx, organisation)
        assert owner is not None, "it was found a moment ago"

        def work() -> str:
            with db.write(owner) as tx:
                return sign(tx, owner, signer, COMMAND_LINE, datetime.now(UTC)).document

        typer.echo(db.retried(work))


@cli.command("export")
def export_charges(
    run: Annotated[str | None, typer.Option(help="A run's id.")] = None,
    population: Annotated[str | None, typer.Option(help="A population's id or name.")] = None,
    organisation: Annotated[
        str | None, typer.Option("--org", help="The organisation's id or name, where several have such a population.")
    ] = None,
) -> None:
    """Write the charges of a run or a population as JSON lines; examples/verify_export.py verifies them."""
    with ledger(migrated=False) as placements:
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
    with ledger() as placements:
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
    with ledger() as placements:
        home = placements.holding(organisation).database
        issued = key_service.create_key(home, organisation, role, datetime.now(UTC), placements.databases.values())
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
        # What concerns several settings names them itself.
        named = f"EPSILON_LEDGER_{str(wrong['loc'][0]).upper()} is not right: " if wrong["loc"] else ""
        _fail(f"{named}{why}.")


def _say(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def _fail(message: str) -> None:
    typer.echo(message, err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
