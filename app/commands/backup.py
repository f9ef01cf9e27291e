"""Command that restores a backup into a throw-away database and verifies it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import typer
from sqlalchemy import inspect, make_url

from app.commands.console import Json, MetricsFile, open_ledger, print_result
from app.ledger.errors import InvalidInputError
from app.persistence.database import Database
from app.service.backups import BackupReport, compare_backup
from app.service.monitoring.textfile import write_backup_verification

SQLITE_MAGIC: Final = b"SQLite format 3\0"
DUMP_MAGIC: Final = b"PGDMP"
"""First bytes of a SQLite file, and of a file of pg_dump in its custom format."""


def verify_backup(
    backup: Annotated[
        str,
        typer.Argument(metavar="BACKUP", help="A SQLite file, a dump of pg_dump, or the URL of a restored database."),
    ],
    *,
    scratch: Annotated[
        str | None,
        typer.Option(metavar="URL", help="URL of an empty database: a dump is restored into it, and deleted again."),
    ] = None,
    metrics_file: MetricsFile = None,
    as_json: Json = False,
) -> None:
    """Restore a backup, verify it, and compare it with the ledger; exit 1 on a mismatch.

    Every chain of the backup must be the beginning of the ledger's, which may be served meanwhile.
    """
    began_at = monotonic()
    with open_ledger(migrated=False) as live, _restored(backup, scratch) as restored:
        report = compare_backup(restored, live)
    if metrics_file is not None:
        write_backup_verification(metrics_file, report, monotonic() - began_at, datetime.now(UTC))
    print_result(as_json=as_json, text="\n".join([_summary(report), *report.problems]), facts=_facts(report))
    raise typer.Exit(1 if report.problems else 0)


def _summary(report: BackupReport) -> str:
    newest = "" if report.newest_at is None else f" until {report.newest_at:%Y-%m-%d %H:%M:%S} UTC"
    verdict = f"{len(report.problems)} discrepancies" if report.problems else "every curve and every chain agrees"
    return (
        f"{sum(kept for kept, _ in report.rows.values())} rows{newest}, {report.found.checked['decisions']} chained "
        f"decisions: {verdict}. The ledger has {report.decisions_since} more decisions."
    )


def _facts(report: BackupReport) -> dict[str, object]:
    return {
        "sound": not report.problems,
        "discrepancies": list(report.problems),
        "newest_at": None if report.newest_at is None else report.newest_at.isoformat(),
        "decisions_since": report.decisions_since,
        "rows": {table: {"backup": kept, "ledger": live} for table, (kept, live) in report.rows.items()},
    }


@contextmanager
def _restored(backup: str, scratch: str | None) -> Iterator[Database]:
    if backup.startswith("postgresql"):
        with _opened(backup, "BACKUP") as database:
            yield database
        return
    file = Path(backup)
    try:
        magic = DUMP_MAGIC if (file / "toc.dat").is_file() else _first_bytes(file)
    except OSError as error:
        raise InvalidInputError(f"The backup cannot be read: {error}") from error
    if magic == SQLITE_MAGIC:
        with tempfile.TemporaryDirectory(prefix="epsilon-ledger-") as folder:
            copied = shutil.copy(file, folder)
            with _opened(f"sqlite:///{copied}", "BACKUP") as database:
                yield database
    elif magic.startswith(DUMP_MAGIC):
        if scratch is None:
            raise InvalidInputError("A dump is restored before it is verified: name an empty database with --scratch.")
        with _opened(scratch, "--scratch") as database, _filled(database, scratch, file):
            yield database
    else:
        raise InvalidInputError(
            f"{backup} is neither a SQLite file nor a dump in the custom format. Start a server with a base backup, "
            "and give its URL."
        )


def _first_bytes(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(len(SQLITE_MAGIC))


@contextmanager
def _opened(url: str, called: str) -> Iterator[Database]:
    database = Database(url, called=called)
    try:
        yield database
    finally:
        database.dispose()


@contextmanager
def _filled(database: Database, url: str, dump: Path) -> Iterator[None]:
    """Restore a dump into an empty database for the block."""
    if database.dialect != "postgresql":
        raise InvalidInputError("--scratch must name a PostgreSQL database: the backup is a dump of one.")
    with database.migration() as tx:
        if inspect(tx).get_table_names():
            raise InvalidInputError("--scratch names a database with tables, which would be deleted.")
    try:
        _restore(url, dump)
        yield
    finally:
        with database.migration() as tx:
            quote = tx.dialect.identifier_preparer.quote
            for table in inspect(tx).get_table_names():
                tx.exec_driver_sql(f"DROP TABLE {quote(table)} CASCADE")


def _restore(url: str, dump: Path) -> None:
    program = shutil.which("pg_restore")
    if program is None:
        raise InvalidInputError("pg_restore is not on the PATH; install PostgreSQL's client programs.")
    parsed = make_url(url).set(drivername="postgresql")
    secret = {} if parsed.password is None else {"PGPASSWORD": str(parsed.password)}
    target = parsed._replace(password=None).render_as_string()
    done = subprocess.run(  # noqa: S603 - the operator's own URL and file
        [program, "--exit-on-error", "--no-owner", f"--dbname={target}", str(dump)],
        env=os.environ | secret,  # not on the command line, which other users can read
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InvalidInputError(f"The dump cannot be restored: {done.stderr.strip().splitlines()[0]}.")
