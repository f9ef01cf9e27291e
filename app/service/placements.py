"""The databases of a service, their clocks and their readiness; each organisation is stored on exactly one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence import database
from app.persistence.clock import Clock
from app.persistence.database import ALL_TENANTS, URL_SETTING, Database, error_summary
from app.persistence.rehearsal import Fault, Rehearsal, rehearse_everywhere
from app.persistence.repositories import organisations
from app.service.alerts.alert_sender import AlertSender
from app.service.alerts.delivery_worker import deliver
from app.service.auth.authentication import DEFAULT_PLACEMENT, Principal
from app.service.auth.request_context import RequestContext
from app.service.background import TaskRegistry, attempt
from app.service.charging.commit_queue import CommitQueue
from app.service.maintenance import run_maintenance, run_wal_checkpoints

CACHE_SECONDS = 1.0
"""Lifetime of a result, so that frequent probes cost no more than one."""

ANSWERED_SECONDS: Final = 1.5
"""Maximum time of a probe; health checks of proxies time out after two seconds."""

LATE: Final = "The database takes longer than {:g} s for a step's statements."

_logger = logging.getLogger(__name__)


@dataclass
class Readiness:
    """Readiness of one database, from rehearsed steps in a separate thread.

    Rehearsals run one at a time; used from one event loop.
    """

    name: str
    database: Database
    _began_at: float = 0.0
    _rehearsal: "asyncio.Future[Rehearsal] | None" = None
    _logged: str | None = None
    _locked_since: float | None = None
    _workers: Mapping[str, str] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "readiness"))

    async def trouble(self) -> str | None:
        """Get the reason why steps cannot be decided, if any."""
        if self._rehearsal is None or (self._rehearsal.done() and monotonic() - self._began_at >= CACHE_SECONDS):
            self._began_at = monotonic()
            loop = asyncio.get_running_loop()
            self._rehearsal = loop.run_in_executor(self._thread, rehearse_everywhere, self.database)
        left = self._began_at + ANSWERED_SECONDS - monotonic()
        await asyncio.wait([self._rehearsal], timeout=max(0.0, left))
        trouble: str | None = LATE.format(ANSWERED_SECONDS)
        if self._rehearsal.done():
            trouble = self._judged(self._rehearsal.result().fault)
            self._note_workers(self._rehearsal.result().workers)
        if trouble != self._logged:
            _logger.warning("The placement %s: %s", self.name, trouble or "steps can be decided again.")
            self._logged = trouble
        return trouble

    @property
    def workers(self) -> Mapping[str, str]:
        """By the worker of a Citus cluster, as HOST:PORT, why its organisations get 503; by the last rehearsal."""
        return self._workers

    def _note_workers(self, found: Mapping[str, str]) -> None:
        for worker in sorted(found.keys() ^ self._workers.keys()):
            why = found.get(worker, "its organisations are served again.")
            _logger.warning("The placement %s, worker %s: %s", self.name, worker, why)
        self._workers = found

    def _judged(self, fault: Fault | None) -> Fault | None:
        """Ignore a lock for as long as a step would wait for it."""
        if fault is not Fault.LOCKED:
            self._locked_since = None
            return fault
        if self._locked_since is None:
            self._locked_since = self._began_at
        return fault if monotonic() - self._locked_since >= database.LOCK_TIMEOUT_SECONDS else None

    def close(self) -> None:
        """Start no further rehearsal."""
        self._thread.shutdown(wait=False, cancel_futures=True)


SAMPLED_SECONDS: Final = 5.0

MOST_APART_SECONDS: Final = 5.0
"""Clock deviation that is reported; it affects logs and tokens, not the ledger."""


async def keep_time(name: str, clock: Clock) -> None:
    """Sample a database's clock until cancelled.

    Failures are logged; the uncertainty of the time grows until the next sample.
    """
    logged = None
    while True:
        await attempt("clock", f"The clock of the placement {name} could not be read", clock.sample)
        found = wrong_clock(clock)
        if (found is None) != (logged is None):
            _logger.warning("The placement %s: %s", name, found or "this machine's clock is right again.")
        logged = found
        await asyncio.sleep(SAMPLED_SECONDS)


def wrong_clock(clock: Clock) -> str | None:
    """Return a warning about this machine's clock, if it is wrong."""
    ahead = clock.own_is_ahead()
    if ahead is None or abs(ahead) <= MOST_APART_SECONDS:
        return None
    how = "ahead of" if ahead > 0 else "behind"
    return (
        f"This machine's clock is {abs(ahead):.0f} s {how} the database's. Steps go by the database's; set this "
        "machine's by NTP."
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """A database with its commit queue and readiness; the mandatory one is named "default"."""

    name: str
    database: Database
    charges: CommitQueue
    readiness: Readiness

    def context(self, caller: Principal, request_id: str | None) -> RequestContext:
        """Build the context of a use case for a caller."""
        moment = self.database.clock.moment(wait=False)
        return RequestContext(self.database, caller, moment.latest, request_id, moment.earliest)


class Placements:
    """All databases of a service by placement name.

    The organisation's row itself determines its placement, so that no second record can disagree.

    Args:
        urls: by name, the default placement's first.
        pool_size: maximum connections of this process to each database.
        password_file: for URLs without a password; empty: libpq finds one.
        read_only: whether writes are refused.
        pooled: whether a pooler gives each transaction another session of the server.

    Raises:
        InvalidInputError: a URL is not supported, or two placements have the same database.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        pool_size: int,
        password_file: str = "",
        *,
        read_only: bool = False,
        pooled: bool = False,
    ) -> None:
        self._all: dict[str, Placement] = {}
        for name, url in urls.items():
            called = (
                URL_SETTING if name == DEFAULT_PLACEMENT else f"The placement {name!r} of EPSILON_LEDGER_PLACEMENTS"
            )
            database = Database(url, pool_size, called, read_only=read_only, pooled=pooled)
            if password_file:
                database.take_password_from(Path(password_file))
            for other in self:
                if other.database.engine.url == database.engine.url:
                    raise InvalidInputError(
                        f"The placements {other.name!r} and {name!r} are one database; name it once."
                    )
            self._all[name] = Placement(name, database, CommitQueue(database), Readiness(name, database))

    def __iter__(self) -> Iterator[Placement]:
        """Iterate over the placements, the default one first."""
        return iter(self._all.values())

    def __len__(self) -> int:
        """Count the placements."""
        return len(self._all)

    @property
    def databases(self) -> dict[str, Database]:
        """The databases by placement name, the default one first."""
        return {placement.name: placement.database for placement in self}

    def named(self, name: str) -> Placement:
        """Return the placement of this name.

        Raises:
            NotFoundError: the placement does not exist.
        """
        if name not in self._all:
            raise NotFoundError(f"There is no placement {name!r}; there are: {', '.join(self._all)}.")
        return self._all[name]

    def find_organisation(self, organisation: str) -> Placement:
        """Find the placement of an organisation by its id or name.

        Raises:
            NotFoundError: the organisation does not exist.
            LedgerUnavailableError: a placement does not answer.
            InvalidInputError: several placements have an organisation of that name.
        """
        found = []
        for placement in self:
            with self.naming(placement) as database, database.read(ALL_TENANTS) as tx:
                if organisations.find_organisation(tx, organisation) is not None:
                    found.append(placement)
        if not found:
            raise NotFoundError(f"There is no organisation {organisation!r}; make it with `epsilon-ledger org create`.")
        if len(found) > 1:
            where = ", ".join(placement.name for placement in found)
            raise InvalidInputError(f"Organisations named {organisation!r} are on the placements {where}; give the id.")
        return found[0]

    def require_distinct(self) -> None:
        """Require that no organisation is on two placements, which would double its budget.

        Raises:
            InvalidInputError: an organisation is on two placements.
        """
        seen: dict[str, str] = {}
        for placement in self:
            try:
                with placement.database.read(ALL_TENANTS) as tx:
                    ids = organisations.organisation_ids(tx)
            except SQLAlchemyError:
                continue
            for organisation_id in sorted(ids & seen.keys()):
                raise InvalidInputError(
                    f"The organisation {organisation_id} is on the placements {seen[organisation_id]!r} and "
                    f"{placement.name!r}, so its budget could be spent twice; take the older copy out of service."
                )
            seen |= dict.fromkeys(ids, placement.name)

    @contextmanager
    def naming(self, placement: Placement) -> Iterator[Database]:
        """Yield a placement's database, and name the placement in its failures.

        Raises:
            LedgerUnavailableError: it failed and is one of several.
            SQLAlchemyError: it failed and is the only one.
        """
        try:
            yield placement.database
        except SQLAlchemyError as error:
            if len(self) == 1:
                raise
            why = error_summary(error)
            raise LedgerUnavailableError(f"The placement {placement.name!r} does not answer: {why}.") from error

    @asynccontextmanager
    async def lifespan(self, background: TaskRegistry, sender: AlertSender) -> AsyncIterator[None]:
        """Run the background tasks; at the end, drain queues and close connections.

        Args:
            background: registry of the tasks, which is stopped at the end.
            sender: sends alerts, and is closed at the end.
        """
        for placement in self:
            background.start(f"clock:{placement.name}", keep_time(placement.name, placement.database.clock))
            background.start(f"maintenance:{placement.name}", run_maintenance(placement.database))
            background.start(f"deliveries:{placement.name}", deliver(placement.database, sender))
            if placement.database.dialect == "sqlite":
                background.start(f"wal:{placement.name}", run_wal_checkpoints(placement.database))
        try:
            yield
        finally:
            await background.stop()
            await sender.close()
            for placement in self:
                await placement.charges.close()
                placement.readiness.close()
            self.dispose()

    def dispose(self) -> None:
        """Close all connections."""
        for placement in self:
            placement.database.dispose()
