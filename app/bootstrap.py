"""Open and prepare the configured databases for a command; options and output that commands share."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerUnavailableError, NotFoundError
from app.persistence.database import ALL_TENANTS, URL_SETTING, Database
from app.persistence.repositories import organisations
from app.persistence.schema import has_ledger, upgrade
from app.service.auth.authentication import DEFAULT_PLACEMENT
from app.service.auth.request_context import RequestContext, cli_context
from app.service.placements import Placement, Placements
from app.settings import Settings, known_variables, unknown_variables

Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")]
Organisation = Annotated[str, typer.Option("--org", help="The organisation's id or name.")]
MetricsFile = Annotated[
    Path | None,
    typer.Option("--metrics-file", help="Write the result as metrics for the node exporter's textfile collector."),
]
Reason = Annotated[str, typer.Option(help="Reason, recorded in the audit log.")]


@contextmanager
def open_databases(*, read_only: bool = False) -> Iterator[Placements]:
    """Open the configured databases as they are; warn about unknown settings."""
    for name in unknown_variables(os.environ):
        close = get_close_matches(name.upper(), known_variables(), 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known_variables())}."
        typer.echo(f"{name} is no setting and has no effect; {hint}", err=True)
    settings = Settings()
    placements = Placements(
        settings.database_urls,
        settings.database_pool_size,
        settings.database_password_file,
        read_only=read_only,
        pooled=settings.pooled,
    )
    try:
        yield placements
    finally:
        placements.dispose()


@contextmanager
def open_ledger(*, migrated: bool = True, read_only: bool = False) -> Iterator[Placements]:
    """Open the configured databases and require the newest schema.

    Args:
        migrated: create and migrate a SQLite file; otherwise it must exist and be current.
        read_only: write nothing, not even next to a SQLite file; requires `migrated=False`.

    Raises:
        NotFoundError: a database has no ledger of this version.
    """
    with open_databases(read_only=read_only) as placements:
        for placement in placements:
            _prepare(placements, placement, migrated=migrated)
        yield placements


@contextmanager
def open_organisation(organisation: str) -> Iterator[RequestContext]:
    """Open the current ledger; yield the command line's context for an organisation by id or name."""
    with open_ledger(migrated=False) as placements:
        db = placements.find_organisation(organisation).database
        with db.read(ALL_TENANTS) as tx:
            organisation_id = organisations.find_organisation(tx, organisation)
        assert organisation_id is not None, "it was found above"
        yield cli_context(db, organisation_id, db.clock.now())


def prepare_to_serve(placements: Placements) -> None:
    """Migrate SQLite files and check every placement.

    A placement that does not answer is reported; only its organisations are unavailable.

    Raises:
        LedgerUnavailableError: no placement answers.
        NotFoundError: a database has no ledger of this version.
        InvalidInputError: an organisation is on two placements.
    """
    down = []
    for placement in placements:
        try:
            _prepare(placements, placement)
        except LedgerUnavailableError as error:
            down.append(error.detail)
            continue
        if placement.database.bypasses_rls():
            typer.echo(
                f"The role that the placement {placement.name!r} connects as is a superuser or has BYPASSRLS, so "
                "PostgreSQL does not keep organisations apart as a second wall; see docs/operations/databases.md.",
                err=True,
            )
    if len(down) == len(placements):
        raise LedgerUnavailableError(" ".join(down))
    for why in down:
        typer.echo(f"{why} Its organisations get 503 until it does.", err=True)
    placements.require_distinct()


def has_organisations(placements: Placements) -> bool:
    """Return whether a placement has an organisation, or does not answer."""
    for placement in placements:
        try:
            with placement.database.read(ALL_TENANTS) as tx:
                if organisations.organisation_ids(tx):
                    return True
        except SQLAlchemyError:
            return True
    return False


def migrate(db: Database) -> None:
    """Migrate a database to the newest schema; report a newly created file."""
    new = not db.exists()
    upgrade(db)
    if new:
        typer.echo(f"Created a new ledger at {_file(db)}.", err=True)


def is_schema_current(placements: Placements, placement: Placement) -> bool:
    """Return whether a placement has the newest schema, without creating anything.

    Raises:
        LedgerUnavailableError: the database does not answer.
    """
    with placements.naming(placement) as db:
        return has_ledger(db)


def require_database(db: Database, called: str) -> None:
    """Require that a SQLite file exists; servers are checked on connection.

    Raises:
        NotFoundError: the file named by the setting or option `called` does not exist.
    """
    if not db.exists():
        named = called != URL_SETTING or URL_SETTING in os.environ
        remedy = f", which {called} names" if named else f"; go to its folder or set {URL_SETTING}"
        raise NotFoundError(f"There is no ledger at {_file(db)}{remedy}.")


def display_urls(placements: Placements) -> str:
    """Format the database URLs for display: no passwords, absolute file paths."""
    return ", ".join(
        _shown(placement.database)
        if placement.name == DEFAULT_PLACEMENT
        else f"{placement.name} on {_shown(placement.database)}"
        for placement in placements
    )


def _prepare(placements: Placements, placement: Placement, *, migrated: bool = True) -> None:
    with placements.naming(placement) as db:
        if migrated and db.dialect == "sqlite":
            migrate(db)
            return
        called = URL_SETTING if placement.name == DEFAULT_PLACEMENT else f"the placement {placement.name!r}"
        require_database(db, called)
        if not has_ledger(db):
            called = f"{called[0].upper()}{called[1:]}"
            raise NotFoundError(f"{called} names no ledger of this version; `epsilon-ledger migrate` makes one.")


def _shown(db: Database) -> str:
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
    """Refuse a reason of white space."""
    if not reason.strip():
        raise typer.BadParameter("give a reason", param_hint="--reason")
