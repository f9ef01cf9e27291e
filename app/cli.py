"""The `epsilon-ledger` command line."""

import sys
from typing import Annotated

import typer
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from app.commands import apply, backup, demo, distribution, first_admin, organisations, server, verification
from app.ledger.errors import LedgerError
from app.version import VERSION

cli = typer.Typer(
    name="epsilon-ledger",
    epilog="The database is EPSILON_LEDGER_DATABASE_URL; by default the SQLite file epsilon-ledger.db here.",
    no_args_is_help=True,
    add_completion=False,
)
org = typer.Typer(help="Organisations.", no_args_is_help=True)
keys = typer.Typer(help="API keys.", no_args_is_help=True)
people = typer.Typer(help="People who sign in with OpenID Connect.", no_args_is_help=True)
backups = typer.Typer(help="Backups.", no_args_is_help=True)
quarantine = typer.Typer(help="Quarantined accounts.", no_args_is_help=True)
cli.add_typer(org, name="org")
cli.add_typer(keys, name="keys")
cli.add_typer(people, name="people")
cli.add_typer(quarantine, name="quarantine")
cli.add_typer(backups, name="backup")


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if asked:
        typer.echo(f"epsilon-ledger {VERSION}")
        raise typer.Exit


@cli.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keep differential-privacy budgets the way a bank keeps accounts."""
    del version  # it was printed already


cli.command()(server.serve)
cli.command()(first_admin.init)
cli.command("sign-in-link")(first_admin.sign_in_link)
cli.command()(server.migrate)
cli.command("demo")(demo.watch_training)
cli.command("distribute")(distribution.distribute_ledger)
cli.command()(server.openapi)
cli.command("copy")(verification.copy_ledger)
cli.command()(verification.verify)
cli.command("verify-statement")(verification.verify_statement)
cli.command()(verification.checkpoint)
cli.command("export")(verification.export_charges)
cli.command()(apply.apply)
cli.command("describe")(apply.export_config)
org.command("create")(organisations.create_organisation)
keys.command("create")(organisations.create_key)
keys.command("list")(organisations.list_keys)
keys.command("revoke")(organisations.revoke_key)
people.command("remove")(organisations.remove_person)
quarantine.command("list")(organisations.list_quarantined)
quarantine.command("lift")(organisations.lift_quarantine)
backups.command("verify")(backup.verify_backup)


def main() -> None:
    """Run the command line; report ledger errors in one sentence, with exit status 2."""
    try:
        cli()
    except LedgerError as error:
        _fail(error.detail)
    except SQLAlchemyError as error:
        _fail(f"The database did not answer as it should: {str(getattr(error, 'orig', error)).splitlines()[0]}")
    except ValidationError as error:
        wrong = error.errors()[0]
        why = wrong["msg"].removeprefix("Value error, ").removesuffix(".")
        # Errors about several settings name them in the message.
        named = f"EPSILON_LEDGER_{str(wrong['loc'][0]).upper()} is invalid: " if wrong["loc"] else ""
        _fail(f"{named}{why}.")


def _fail(message: str) -> None:
    typer.echo(message, err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
