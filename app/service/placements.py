"""The databases of a service: each organisation lives wholly on one of them."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import ALL_TENANTS, URL_SETTING, Database, error_summary
from app.persistence.repositories import organisations
from app.service.alerts.delivery_worker import deliver
from app.service.alerts.http_sender import Sender
from app.service.auth.authentication import DEFAULT_PLACEMENT
from app.service.background import TaskRegistry
from app.service.charging.commit_queue import CommitQueue
from app.service.maintenance.loop import run_maintenance
from app.service.readiness import Readiness
from app.service.timekeeping import keep_time


@dataclass(frozen=True, slots=True)
class Placement:
    """A database with its organisations, and the way to charge them.

    Args:
        name: as configured; "default" for the one that every service has.
        database: where its organisations live.
        charges: writes their charges.
        readiness: rehearses charges on it.
    """

    name: str
    database: Database
    charges: CommitQueue
    readiness: Readiness


class Placements:
    """Every database of a service, by the name of its placement.

    Where an organisation lives is found from where its row is: no other table could disagree.

    Args:
        urls: of the databases, the default placement's first.
        pool_size: how many connections to each of them this process keeps at the most.
        password_file: holds the password for those whose URLs have none; empty: libpq looks for it.
        read_only: whether they are only looked at.

    Raises:
        InvalidInputError: a URL is not one that this version supports, or names the database of another placement.
    """

    def __init__(
        self, urls: Mapping[str, str], pool_size: int, password_file: str = "", *, read_only: bool = False
    ) -> None:
        self._all: dict[str, Placement] = {}
        for name, url in urls.items():
            called = (
                URL_SETTING if name == DEFAULT_PLACEMENT else f"The placement {name!r} of EPSILON_LEDGER_PLACEMENTS"
            )
            database = Database(url, pool_size, called, read_only=read_only)
            if password_file:
                database.take_password_from(Path(password_file))
            for other in self:
                if other.database.engine.url == database.engine.url:
                    raise InvalidInputError(
                        f"The placements {other.name!r} and {name!r} are one database; name it once."
                    )
            self._all[name] = Placement(name, database, CommitQueue(database), Readiness(name, database))

    def __iter__(self) -> Iterator[Placement]:
        """The placements, the default one first."""
        return iter(self._all.values())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    @property
    def databases(self) -> dict[str, Database]:
        """The databases by the name of their placement, the default one first."""
        return {placement.name: placement.database for placement in self}

    def named(self, name: str) -> Placement:
        """The placement of this name.

        Raises:
            NotFoundError: there is none such.
        """
        if name not in self._all:
            raise NotFoundError(f"There is no placement {name!r}; there are: {', '.join(self._all)}.")
        return self._all[name]

    def find_organisation(self, organisation: str) -> Placement:
        """The placement on which an organisation lives.

        Args:
            organisation: its id or its name.

        Raises:
            NotFoundError: it is on none of them.
            LedgerUnavailableError: one of them does not answer.
            InvalidInputError: organisations of that name are on several, which were joined later.
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
        """Make sure that no two databases that answer are copies of each other: each would admit the whole budget.

        Raises:
            InvalidInputError: an organisation is on two of them.
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
        """The database of a placement; where there are several, a failure of it names it.

        Raises:
            LedgerUnavailableError: it is one of several, and failed.
            SQLAlchemyError: it is the only one, and failed.
        """
        try:
            yield placement.database
        except SQLAlchemyError as error:
            if len(self) == 1:
                raise
            why = error_summary(error)
            raise LedgerUnavailableError(f"The placement {placement.name!r} does not answer: {why}.") from error

    @asynccontextmanager
    async def lifespan(self, background: TaskRegistry, *, allow_private: bool = False) -> AsyncIterator[None]:
        """Look after the databases meanwhile; write what still waits in the end, and close every connection.

        Args:
            background: has what is done beside the requests, and is ended with it.
            allow_private: whether alerts are sent to addresses that are not public.
        """
        sender = Sender(allow_private=allow_private)
        for placement in self:
            background.start(f"clock:{placement.name}", keep_time(placement.name, placement.database.clock))
            background.start(f"upkeep:{placement.name}", run_maintenance(placement.database))
            background.start(f"deliveries:{placement.name}", deliver(placement.database, sender))
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
        """Close every connection."""
        for placement in self:
            placement.database.dispose()
