"""Open and prepare the configured database for a command; options and output that commands share."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from app.configuration.settings import Settings, known_variables, unknown_variables
from app.ledger.errors import NotFoundError
from app.ledger.names import is_text
from app.persistence.database import ALL_TENANTS, URL_SETTING, Database
from app.persistence.repositories import organisations
from app.persistence.schema import has_ledger, upgrade
from app.service.auth.request_context import RequestContext, find_cli_context

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")]
Organisation = Annotated[str, typer.Option("--org", help="The organisation's id or name.")]
MetricsFile = Annotated[
    Path | None,
    typer.Option("--metrics-file", help="Write the result as metrics for the node exporter's textfile collector."),
]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the audit log.")]


@contextmanager
def open_database(*, read_only: bool = False) -> Iterator[Database]:
    """Open the configured database as it is; warn about unknown settings."""
    for name in unknown_variables(os.environ):
        close = get_close_matches(name.upper(), known_variables(), 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known_variables())}."
        typer.echo(f"{name} is no setting and has no effect; {hint}", err=True)
    settings = Settings()
    db = Database(
        settings.database_url,
        settings.database_pool_size,
        password_file=settings.database_password_file,
        read_only=read_only,
        pooled=settings.pooled,
    )
    try:
        yield db
    finally:
        db.dispose()


@contextmanager
def open_ledger(*, migrated: bool = True, read_only: bool = False) -> Iterator[Database]:
    """Open the configured database and require the newest schema.

    Args:
        migrated: create and migrate a SQLite file; otherwise it must exist and be current.
        read_only: write nothing, not even next to a SQLite file; requires `migrated=False`.

    Raises:
        NotFoundError: the database has no ledger of this version.
    """
    with open_database(read_only=read_only) as db:
        _prepare(db, migrated=migrated)
        yield db


@contextmanager
def open_organisation(organisation: str) -> Iterator[RequestContext]:
    """Open the current ledger; yield the command line's context for an organisation by id or name."""
    with open_ledger(migrated=False) as db:
        yield find_cli_context(db, organisation, db.clock.now())


def prepare_to_serve(db: Database) -> None:
    """Migrate a SQLite file, and check the database.

    Raises:
        SQLAlchemyError, LedgerUnavailableError: the database does not answer.
        NotFoundError: the database has no ledger of this version.
    """
    _prepare(db)
    if db.bypasses_rls():
        typer.echo(
            "The role that the service connects as is a superuser or has BYPASSRLS, so PostgreSQL does not keep "
            "organisations apart as a second wall; see docs/operations/databases.md.",
            err=True,
        )


def has_organisations(db: Database) -> bool:
    """Return whether the ledger has an organisation, or does not answer."""
    try:
        with db.read(ALL_TENANTS) as tx:
            return bool(organisations.organisation_ids(tx))
    except SQLAlchemyError:
        return True


def migrate(db: Database) -> None:
    """Migrate a database to the newest schema; report a newly created file."""
    new = not db.exists()
    upgrade(db)
    if new:
        typer.echo(f"Created a new ledger at {_file(db)}.", err=True)


def require_database(db: Database, called: str) -> None:
    """Require that a SQLite file exists; servers are checked on connection.

    Raises:
        NotFoundError: the file named by the setting or option `called` does not exist.
    """
    if not db.exists():
        named = called != URL_SETTING or URL_SETTING in os.environ
        remedy = f", which {called} names" if named else f"; go to its folder or set {URL_SETTING}"
        raise NotFoundError(f"There is no ledger at {_file(db)}{remedy}.")


def _prepare(db: Database, *, migrated: bool = True) -> None:
    if migrated and db.dialect == "sqlite":
        migrate(db)
        return
    require_database(db, URL_SETTING)
    if not has_ledger(db):
        raise NotFoundError(f"{URL_SETTING} names no ledger of this version; `epsilon-ledger migrate` makes one.")


def display_url(db: Database) -> str:
    """Format the database's URL for display: no password, absolute file path."""
    if db.dialect == "sqlite":
        return f"sqlite:///{_file(db)}"
    # libpq also accepts passwords as query options, so only location options are shown.
    url = db.engine.url
    query = {name: value for name, value in url.query.items() if name in {"host", "port", "dbname", "service"}}
    shown = url.set(drivername="postgresql", query=query)._replace(password=None)
    return shown.render_as_string().replace("%3A", ":")


def _file(db: Database) -> Path:
    return Path(str(db.engine.url.database)).absolute()


def print_result(*, as_json: bool, text: str, facts: Mapping[str, object]) -> None:
    """Print a command's result as text, or as JSON."""
    typer.echo(json.dumps(facts) if as_json else text)


def require_reason(reason: str) -> None:
    """Refuse a reason that cannot be read."""
    if not is_text(reason):
        raise typer.BadParameter(
            "give a reason in words that can be read, without control characters", param_hint="--reason"
        )
