"""Compare a restored backup with the ledger that it was made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, func, select

from app.ledger.errors import InvalidInputError, NotFoundError
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.schema import has_ledger
from app.persistence.tables import audit_entries, decision_events, decisions, metadata, organisations, runs
from app.service.verification.report import CHECKED, VerificationReport
from app.service.verification.verify import UNREADABLE, damage_of_file, require_damage, verify

APPEND_ONLY: Final = (decisions, decision_events, audit_entries)
"""Tables whose rows are never changed or deleted: a backup has the first rows of the ledger."""

Head = tuple[int, bytes]
"""Length of a chain, and the hash of its last entry."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a restored backup is worth.

    Args:
        found: verification of the backup by itself.
        discrepancies: contradictions between the backup and the ledger, as sentences.
        rows: rows of each table in the backup and in the ledger.
        newest_at: time of the backup's newest decision or audit event.
    """

    found: VerificationReport
    discrepancies: tuple[str, ...]
    rows: Mapping[str, tuple[int, int]]
    newest_at: datetime | None

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for everything that is wrong."""
        return self.found.problems + self.discrepancies

    @property
    def decisions_since(self) -> int:
        """Decisions of the ledger that the backup lacks."""
        kept, live = self.rows[decisions.name]
        return live - kept


def compare_backup(backup: Database, live: Database) -> BackupReport:
    """Verify a restored backup, and compare every chain with the ledger's; change neither.

    Each chain of the backup must be the beginning of the ledger's, which may go on meanwhile.

    Raises:
        NotFoundError: the backup has no ledger of this version.
        InvalidInputError: the backup is empty, or is the ledger itself.
    """
    if backup.engine.url == live.engine.url:
        raise InvalidInputError("The backup is the ledger itself; restore it into another database.")
    damage = damage_of_file(backup)
    try:
        return _compared(backup, live)
    except UNREADABLE as error:
        require_damage(error)
        with live.read(ALL_TENANTS, patient=True) as new:
            rows = {name: (0, count) for name, count in _counts(new).items()}
        nothing = VerificationReport(dict.fromkeys(CHECKED, 0), (), {})
        unread = f"The rest of the backup cannot be read: {error_summary(error)}."
        return BackupReport(nothing, (*damage, unread), rows, None)


def _compared(backup: Database, live: Database) -> BackupReport:
    if not has_ledger(backup):
        raise NotFoundError("The backup has no ledger of this version; verify it with the version that made it.")
    found = verify(backup)
    with backup.read(ALL_TENANTS, patient=True) as old, live.read(ALL_TENANTS, patient=True) as new:
        now = _counts(new)
        rows = {name: (count, now[name]) for name, count in _counts(old).items()}
        if not rows[organisations.name][0]:
            raise InvalidInputError("The backup has no organisation: nothing was restored.")
        discrepancies = (*_shrunk(rows), *_other_runs(old, new), *_other_logs(old, new))
        return BackupReport(found, discrepancies, rows, _newest(old))


def _counts(tx: Connection) -> dict[str, int]:
    return {table.name: tx.scalar(select(func.count()).select_from(table)) or 0 for table in metadata.sorted_tables}


def _shrunk(rows: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    for table in APPEND_ONLY:
        kept, live = rows[table.name]
        if live < kept:
            yield f"{table.name}: the backup has {kept} rows, and the ledger only {live}: it was cut or restored."


def _other_runs(old: Connection, new: Connection) -> Iterator[str]:
    """Compare the chain of each run."""
    now = _heads_of_runs(new)
    for key, (length, head) in _heads_of_runs(old).items():
        owner, run = key
        if key not in now:
            yield f"{run}: the ledger has no such run."
        elif now[key] != (length, head) and length:
            same = (decisions.c.organisation_id == owner, decisions.c.run_id == run, decisions.c.position == length - 1)
            if new.scalar(select(decisions.c.entry_hash).where(*same)) != head:
                yield f"{run}: its first {length} decisions are others in the ledger."


def _heads_of_runs(tx: Connection) -> dict[tuple[str, str], Head]:
    chains = select(runs.c.organisation_id, runs.c.account_id, runs.c.decision_count, runs.c.chain_head)
    return {(row.organisation_id, row.account_id): (row.decision_count, row.chain_head) for row in tx.execute(chains)}


def _other_logs(old: Connection, new: Connection) -> Iterator[str]:
    columns = audit_entries.c
    lasts = select(columns.organisation_id, func.max(columns.position)).group_by(columns.organisation_id)
    for owner, last in old.execute(lasts).all():
        entry = select(columns.entry_hash).where(columns.organisation_id == owner, columns.position == last)
        if old.scalar(entry) != new.scalar(entry):
            yield f"{owner}: its first {last + 1} audit events are others in the ledger, or missing."


def _newest(tx: Connection) -> datetime | None:
    times = [tx.scalar(select(func.max(table.c.created_at))) for table in (decisions, audit_entries)]
    return max((each for each in times if each is not None), default=None)
