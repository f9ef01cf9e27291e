"""Metrics read from the ledger's database, and periodic checks of its integrity."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.ledger.scheduling.account_status import AccountStatus
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.repositories import overview_queries, periodic_queries
from app.persistence.repositories.periodic_queries import Backlog, Heads, Signing, Waiting
from app.persistence.sqlite import DiskSpace
from app.persistence.write_probe import READABLE, Fault
from app.service.accounts.availability import AvailabilityReader
from app.service.accounts.damaged_rows import read_tolerating_damage
from app.service.background import repeat
from app.service.ledger_store import LedgerStore

CACHE_SECONDS: Final = 10.0
"""Lifetime of the cache, so that frequent scrapes cost no more than one."""

MOST_READ: Final = 500
"""Maximum number of accounts read at once; the others follow in the next rounds."""

PAGE: Final = 50
"""Accounts read in one statement; each has 22 KB."""

CHECK_SECONDS: Final = 60.0
"""Interval of the checks of integrity."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Metrics of the ledger; `unread` counts the accounts that changed since they were read."""

    uses: Sequence[AccountStatus]
    unread: int
    organisations: int
    runs: dict[str, int]
    backlog: Backlog
    waiting: Waiting
    signing: Signing | None


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """State of the ledger.

    Args:
        unavailable_reason: why it can decide no step; None: it can.
        stats: metrics, if the database can be read.
        disk: of a SQLite file.
        unavailable_workers: workers of a Citus cluster whose organisations get 503.
    """

    unavailable_reason: str | None
    stats: LedgerStats | None = None
    disk: DiskSpace | None = None
    unavailable_workers: int = 0


@dataclass(frozen=True, slots=True)
class IntegrityWarnings:
    """Number of quarantined accounts, and broken heads of chains, at the last check."""

    quarantined: int
    heads: Heads

    def messages(self) -> Iterator[str]:
        """Yield a sentence for each warning, without names of organisations."""
        if self.quarantined:
            yield f"Accounts that `verify` has stopped, until two persons lift their quarantine: {self.quarantined}."
        if self.heads.wrong_runs:
            yield f"Runs whose chain does not end with their last decision: {self.heads.wrong_runs}."
        if self.heads.wrong_checkpoints:
            yield f"Organisations whose history is not the one that was signed last: {self.heads.wrong_checkpoints}."


class DatabaseCollector:
    """Cached metrics of the ledger, for which only changed accounts are read.

    Args:
        store: the ledger.
        signs: whether to collect those of checkpoints, too.
        cache_seconds: lifetime of the cache.
    """

    def __init__(self, store: LedgerStore, *, signs: bool, cache_seconds: float = CACHE_SECONDS) -> None:
        self.cache_seconds = cache_seconds
        self._store = store
        self._signs = signs
        self._uses: dict[tuple[str, str], AccountStatus] = {}
        self._available = AvailabilityReader()
        self._looked: LedgerSnapshot | None = None
        self._looked_at = 0.0
        self._turn = asyncio.Lock()

    async def collect(self) -> LedgerSnapshot:
        """Collect the metrics, at most `cache_seconds` old."""
        async with self._turn:
            if self._looked is None or monotonic() - self._looked_at >= self.cache_seconds:
                self._looked = await self._look()
                self._looked_at = monotonic()
            return self._looked

    async def _look(self) -> LedgerSnapshot:
        """Collect the metrics; a database error is logged and makes the snapshot empty."""
        trouble = await self._store.readiness.trouble()
        workers = self._store.readiness.workers
        found = LedgerSnapshot(trouble, disk=self._measure_disk(), unavailable_workers=len(workers))
        if trouble is not None and trouble not in READABLE:
            return found
        try:
            return replace(found, stats=await asyncio.to_thread(self.read_stats))
        except (SQLAlchemyError, LedgerError) as error:
            _logger.warning("The ledger cannot be measured: %s", error_summary(error))
            return found if workers else replace(found, unavailable_reason=trouble or Fault.SILENT)

    def _measure_disk(self) -> DiskSpace | None:
        try:
            return self._store.database.disk_space()
        except OSError as error:
            _logger.warning("The disk of the database cannot be measured: %s", error)
            return None

    def read_stats(self) -> LedgerStats:
        """Collect the metrics in one transaction."""
        with self._store.database.read(ALL_TENANTS) as tx:
            every = overview_queries.list_statuses(tx, None)
            unread = self._read(tx, every)
            return LedgerStats(
                uses=self._with_available(tx, every),
                unread=unread,
                organisations=periodic_queries.organisations_of(tx),
                runs=periodic_queries.runs_by_status(tx),
                backlog=periodic_queries.backlog(tx),
                waiting=periodic_queries.waiting(tx),
                signing=periodic_queries.signing(tx) if self._signs else None,
            )

    def _read(self, tx: Connection, every: Sequence[AccountStatus]) -> int:
        """Read at most `MOST_READ` changed accounts; return the number left."""
        known = self._uses
        self._uses = {each.key: known[each.key] for each in every if each.key in known}
        changed = [each for each in every if each.key not in known or known[each.key].mark != each.mark]
        changed.sort(key=lambda each: (each.key in known, each.organisation_id))
        for organisation_id, group in groupby(changed[:MOST_READ], attrgetter("organisation_id")):
            theirs = list(group)
            for start in range(0, len(theirs), PAGE):
                self._read_page(tx, organisation_id, theirs[start : start + PAGE])
        return max(0, len(changed) - MOST_READ)

    def _with_available(self, tx: Connection, every: Sequence[AccountStatus]) -> list[AccountStatus]:
        """Add what can really be taken; accounts that are unread or damaged limit nothing."""
        known = [use for each in every if (use := self._uses.get(each.key)) is not None and use.limit is not None]
        known.sort(key=attrgetter("organisation_id"))  # a stable sort: ancestors stay first
        now = self._store.database.clock.moment().earliest
        found: list[AccountStatus] = []
        for organisation_id, theirs in groupby(known, attrgetter("organisation_id")):
            found += self._available.with_available(tx, organisation_id, list(theirs), now)
        return found

    def _read_page(self, tx: Connection, organisation_id: str, page: Sequence[AccountStatus]) -> None:
        read = {each.id: each for each in page}
        uses, _ = read_tolerating_damage(
            tx, organisation_id, list(read), lambda record: read[record.account.id].with_balance(record)
        )
        for use in (read | uses).values():
            self._uses[use.key] = use


class IntegrityMonitor:
    """Latest warnings; None until the first check.

    This is no proof; `epsilon-ledger verify` recomputes everything. It reads the last link of each growing chain. That
    detects a changed or removed last decision, partially restored rows, and a history that was forked after a
    checkpoint.
    """

    def __init__(self, database: Database) -> None:
        self.warnings: IntegrityWarnings | None = None
        self._database = database

    def check(self) -> None:
        """Check the ledger."""
        with self._database.read(ALL_TENANTS) as tx:
            self.warnings = IntegrityWarnings(periodic_queries.quarantined(tx), periodic_queries.heads(tx))

    async def run(self) -> None:
        """Check periodically, until cancelled."""
        failure = "The ends of the chains could not be looked at"
        await repeat("integrity", failure, CHECK_SECONDS, self.check, at_once=True)
