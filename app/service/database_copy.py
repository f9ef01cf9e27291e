"""Copy a ledger to another database, such as from SQLite to PostgreSQL."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import organisations, row_copies
from app.persistence.schema import has_ledger
from app.persistence.tables import accounts, metadata
from app.service.verification.report import VerificationReport
from app.service.verification.verify import verify


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Row counts by table, and the verification of the copy."""

    rows: Mapping[str, int]
    found: VerificationReport


def require_unused(source: Database) -> None:
    """Require that no service or command is connected to the source, before anything is read from it.

    Raises:
        InvalidInputError: another process, or another connection of this one, uses the source.
    """
    if source.is_used_by_others():
        raise InvalidInputError(
            "--from is in use: a service, or another command, is connected to it, and what it charges meanwhile would "
            "be missing in the copy. Stop every replica and command that uses it, and copy again."
        )


def copy_database(source: Database, target: Database) -> CopyResult:
    """Copy every row in one transaction, and verify the target.

    Args:
        source: with the newest schema; it must not be written to meanwhile.
        target: with the newest schema and no rows.

    Raises:
        NotFoundError: a database has no ledger of this version.
        InvalidInputError: the target has rows, or both are one database.
        LedgerUnavailableError: the source changed meanwhile, or the counts differ; nothing was copied.
    """
    if source.engine.url == target.engine.url:
        raise InvalidInputError("--from and --to name one database; a copy needs two.")
    for option, db in (("--from", source), ("--to", target)):
        if not has_ledger(db):
            raise NotFoundError(
                f"{option} names no ledger of this version; make one, or bring one to it, by "
                "EPSILON_LEDGER_DATABASE_URL=… epsilon-ledger migrate."
            )
    # Without the timeout of requests, which counting a large table exceeds.
    with source.read(ALL_TENANTS, patient=True) as old, target.migration() as new:
        organisations.lock_names(new)
        _require_empty(new)
        before = _state(old)
        rows = {table.name: 0 for table in metadata.sorted_tables}
        for table, batch in row_copies.batches(old):
            row_copies.add(new, table, batch)
            rows[table.name] += len(batch)
        for ties in row_copies.reservation_ties(old):
            row_copies.tie_reservations(new, ties)
        if _counts(new) != rows:
            raise LedgerUnavailableError("The copy does not have as many rows as were read; nothing was copied.")
        with source.read(ALL_TENANTS, patient=True) as later:
            if _state(later) != before:
                raise LedgerUnavailableError(
                    "The source was written to while it was copied; nothing was copied. Stop the service first."
                )
    return CopyResult(rows, verify(target))


def _require_empty(new: Connection) -> None:
    filled = [name for name, rows in _counts(new).items() if rows]
    if filled:
        raise InvalidInputError(
            f"--to names a ledger that has rows already, the first of them in {filled[0]}; a copy needs an empty one."
        )


def _counts(tx: Connection) -> dict[str, int]:
    return {table.name: tx.scalar(select(func.count()).select_from(table)) or 0 for table in metadata.sorted_tables}


def _state(tx: Connection) -> tuple[object, ...]:
    """Return counts and versions that every charge or creation changes."""
    moved = tx.execute(select(func.sum(accounts.c.version), func.max(accounts.c.updated_at))).one()
    return (_counts(tx), *moved)
