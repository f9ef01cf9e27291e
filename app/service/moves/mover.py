"""The steps of an organisation's move, each in small transactions that require its state."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.exc import IntegrityError

from app.ledger.audit import AuditAction, AuditEvent
from app.ledger.errors import LedgerUnavailableError
from app.ledger.moves import Move, MoveState
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import audit, moves, row_copies
from app.persistence.tables import accounts, organisations
from app.service.auth.authentication import CLI_ACTOR
from app.service.placements import Placement
from app.service.verification import verify

T = TypeVar("T")

MAX_TRIES: Final = 5

SQLITE_PAUSE_SECONDS: Final = 0.025
"""Between two transactions on a file. SQLite's waiting writers do not queue: they try again after 1, 2, 5, 10, 15, 20
and 25 ms, and so on (`sqliteDefaultBusyCallback`), and would miss shorter pauses again and again."""

TableRows = tuple[Table, list[Mapping[str, Any]]]

Progress = Callable[[str], None]
"""Reports what was done."""


@dataclass
class Mover:
    """One command that moves an organisation.

    Args:
        token: is written into both rows.
        began_at: of the monotonic clock.
    """

    owner: str
    source: Placement
    target: Placement
    token: str
    progress: Progress
    began_at: float = field(default_factory=time.monotonic)

    @property
    def leaving(self) -> Move:
        """The source's part until the copy is verified."""
        return Move(MoveState.LEAVING, self.target.name, self.token)

    @property
    def left(self) -> Move:
        """The source's part from then on."""
        return Move(MoveState.LEFT, self.target.name, self.token)

    @property
    def arriving(self) -> Move:
        """The target's part."""
        return Move(MoveState.ARRIVING, self.source.name, self.token)

    def step(self, db: Database, move: Move | None, work: Callable[[Connection], T]) -> T:
        """Do something in a small transaction, if this is still the database's part, and let others write."""

        def write(tx: Connection) -> T:
            moves.require(tx, self.owner, move)
            return work(tx)

        done = db.transact(self.owner, write)
        if db.dialect == "sqlite":
            time.sleep(SQLITE_PAUSE_SECONDS)
        return done

    def put(self, db: Database, before: Move | None, after: Move | None) -> None:
        """Change a database's part."""
        self.step(db, before, partial(moves.put, organisation_id=self.owner, move=after))

    def set_moving(self, db: Database, move: Move, *, moving: bool) -> None:
        """Stop all accounts, roots first, or let them go on."""
        while self.step(db, move, lambda tx: moves.set_moving(tx, self.owner, db.clock.now(), moving=moving)):
            pass

    def delete(self, db: Database, move: Move) -> None:
        """Delete all rows of the organisation, and its own at last.

        A background task may add a row that refers to one that is being deleted: then both are tried again.
        """
        for tries in range(1, MAX_TRIES + 1):
            try:
                for delete in (row_copies.untie_reservations, row_copies.delete_batch):
                    while self.step(db, move, partial(delete, organisation_id=self.owner)):
                        pass
                self.step(db, move, partial(row_copies.delete_organisation, organisation_id=self.owner))
            except IntegrityError:
                if tries == MAX_TRIES:
                    raise
            else:
                return


def copy(mover: Mover, arrival: Move | None) -> Mapping[str, int]:
    """Stop the organisation, copy its rows, and verify both sides; return how many rows each table has."""
    source, target, owner = mover.source.database, mover.target.database, mover.owner
    mover.set_moving(source, mover.leaving, moving=True)
    mover.progress("The organisation is stopped.")
    if arrival is not None:  # of an earlier command
        mover.put(target, arrival, mover.arriving)
        mover.delete(target, mover.arriving)
    with source.read(owner, patient=True) as old:
        before = _state(old, owner)
        read = _copy_rows(mover, old)
    mover.progress(f"{sum(read.rows.values())} rows are copied.")
    written = _Digests()
    with target.read(owner, patient=True) as new:
        for table, batch in row_copies.batches(new, owner):
            written.add(table, batch)
    if written.sums() != read.sums():
        raise LedgerUnavailableError("The copy differs from what was read.")
    for placement in (mover.source, mover.target):
        if problems := verify(placement.database, owner).problems:
            raise LedgerUnavailableError(
                f"{placement.name} does not verify, so nothing was moved: {problems[0]} "
                f"There are {len(problems)} discrepancies; `epsilon-ledger verify` lists them."
            )
    with source.read(owner) as later:
        if _state(later, owner) != before:
            raise LedgerUnavailableError("The organisation was changed while it was copied.")
    mover.progress("Both sides are verified.")
    return read.rows


def _copy_rows(mover: Mover, old: Connection) -> "_Digests":
    """Copy all rows in small transactions, that of the organisation first."""
    target, owner, read = mover.target.database, mover.owner, _Digests()
    for rows in _joined(row_copies.batches(old, owner)):
        for table, batch in rows:
            read.add(table, batch)
        if rows[0][0] is organisations:
            target.transact(owner, partial(_add, rows=rows, move=mover.arriving))
        else:
            mover.step(target, mover.arriving, partial(_add, rows=rows))
    for ties in row_copies.reservation_ties(old, owner):
        mover.step(target, mover.arriving, partial(row_copies.tie_reservations, ties=ties))
    return read


def _joined(batches: Iterable[TableRows]) -> Iterator[list[TableRows]]:
    """Join the batches of small tables for one transaction."""
    joined: list[TableRows] = []
    for each in batches:
        joined.append(each)
        if sum(len(rows) for _, rows in joined) >= row_copies.BATCH:
            yield joined
            joined = []
    if joined:
        yield joined


def _add(tx: Connection, rows: Iterable[TableRows], move: Move | None = None) -> None:
    """Add rows; that of the organisation with its part of the move."""
    for table, batch in rows:
        if table is organisations and move is not None:
            part = {"move_state": str(move.state), "move_placement": move.placement, "move_token": move.token}
            row_copies.add(tx, table, [{**row, **part} for row in batch])
        else:
            row_copies.add(tx, table, batch)


def arrive(mover: Mover) -> None:
    """Let the organisation go on at the target."""
    target = mover.target.database
    mover.set_moving(target, mover.arriving, moving=False)

    def begin(tx: Connection) -> None:
        moves.put(tx, mover.owner, None)
        before, after = {"placement": mover.source.name}, {"placement": mover.target.name}
        moved = AuditEvent(AuditAction.ORGANISATION_MOVED, mover.owner, before, after)
        audit.record_event(tx, mover.owner, CLI_ACTOR, moved, target.clock.now())

    mover.step(target, mover.arriving, begin)


def go_back(mover: Mover) -> None:
    """Delete the copy, if there is one, and let the organisation go on at the source."""
    source, target = mover.source.database, mover.target.database
    mover.put(source, mover.leaving, mover.leaving)
    with target.read(ALL_TENANTS) as tx:
        there = moves.find(tx, mover.owner)
    if there is not None:
        mover.put(target, there[1], mover.arriving)
        mover.delete(target, mover.arriving)
    mover.set_moving(source, mover.leaving, moving=False)
    mover.put(source, mover.leaving, None)


def _state(tx: Connection, owner: str) -> tuple[object, ...]:
    """Read the head of the audit chain, and what every charge changes."""
    changes = select(func.sum(accounts.c.version), func.max(accounts.c.updated_at), func.count())
    counted = tx.execute(changes.where(accounts.c.organisation_id == owner)).one()
    return (*audit.head(tx, owner), *counted)


class _Digests:
    """Number and hash of the rows of each table, without the organisation's part of the move."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._hashes: dict[str, Any] = {}

    def add(self, table: Table, batch: Sequence[Mapping[str, Any]]) -> None:
        """Add rows in their order."""
        digest = self._hashes.setdefault(table.name, hashlib.sha256())
        names = [column.name for column in table.c if not column.name.startswith("move_")]
        for row in batch:
            digest.update(repr([row[name] for name in names]).encode())
        self.rows[table.name] = self.rows.get(table.name, 0) + len(batch)

    def sums(self) -> dict[str, str]:
        """Get the hash of each table that has rows."""
        return {name: str(digest.hexdigest()) for name, digest in self._hashes.items()}
