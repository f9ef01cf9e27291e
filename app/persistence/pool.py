"""A pool of connections that knows who waits for one."""

from dataclasses import dataclass
from threading import Lock, get_ident

from sqlalchemy import Pool
from sqlalchemy.exc import TimeoutError  # noqa: A004 - of the pool
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Connections of one process to one database.

    Args:
        used: in use by a transaction.
        idle: open and not in use.
        limit: the maximum of both together.
        pending: threads that wait for a connection because all are in use.
        timeouts: requests that got none in time, since the start.
    """

    used: int = 0
    idle: int = 0
    limit: int = 0
    pending: int = 0
    timeouts: int = 0


class WatchedPool(QueuePool):
    """A pool without overflow that counts waiting threads, and those that waited in vain."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type] # those of QueuePool
        self._pending: set[int] = set()
        self._timeouts = 0
        self._lock = Lock()

    def _do_get(self) -> ConnectionPoolEntry:
        if self.checkedout() < self.size():  # one is idle, or another one may be opened
            return super()._do_get()
        thread = get_ident()
        self._pending.add(thread)
        try:
            return super()._do_get()
        except TimeoutError:
            with self._lock:
                self._timeouts += 1
            raise
        finally:
            self._pending.discard(thread)

    def usage(self) -> PoolUsage:
        """Count the connections and who waits for one."""
        return PoolUsage(self.checkedout(), self.checkedin(), self.size(), len(self._pending), self._timeouts)


def pool_usage(pool: Pool, *, kept: bool) -> PoolUsage:
    """Count a pool's connections; one that is `kept` for the next transaction is idle. Other pools have no limit."""
    if not isinstance(pool, WatchedPool):
        return PoolUsage()
    found = pool.usage()
    return PoolUsage(found.used - kept, found.idle + kept, found.limit, found.pending, found.timeouts)
