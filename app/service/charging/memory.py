"""What a process remembers of the ledger between transactions: what never changes, or the database vouches for."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent
from app.persistence.repositories.accounts import AccountRecord
from app.persistence.repositories.events import PriceList

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Key = tuple[str, str]
"""An organisation's id, and the id of something of it."""


class Recent(Generic[K, V]):
    """The values that were used last, so many at most; any thread may ask.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value, if it is still kept."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Keep a value; the one that was not used for longest goes if there are too many."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def forget(self, key: K) -> None:
        """Keep the value no longer."""
        with self._lock:
            self._values.pop(key, None)


@dataclass
class Memory:
    """What need not be read again.

    Args:
        paths: the accounts of a run, root first; a run is never moved.
        accounts: as they were when they were last seen; they hold if the database names the same version and time of
            change (ADR 0009).
        prices: what was committed to the ledger's price list, where nothing is ever changed.
        reserved: runs that had an active reservation when they were last seen: a hint of what to lock.
    """

    paths: Recent[Key, tuple[str, ...]] = field(default_factory=lambda: Recent(16384))
    accounts: Recent[Key, AccountRecord] = field(default_factory=lambda: Recent(2048))
    prices: Recent[tuple[PriceList, DpEvent], RdpCurve] = field(default_factory=lambda: Recent(2048))
    reserved: Recent[Key, bool] = field(default_factory=lambda: Recent(16384))
