"""A thread-safe LRU cache."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A thread-safe cache of the most recently used values, at most `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Get a cached value, if any."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Get the cached ones of some values."""
        found = {}
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
        return found

    def put(self, key: K, value: V) -> None:
        """Cache a value, evicting the least recently used one if needed."""
        self.put_many([(key, value)])

    def put_many(self, items: Iterable[tuple[K, V]]) -> None:
        """Cache values, evicting the least recently used ones if needed."""
        with self._lock:
            for key, value in items:
                self._values[key] = value
                self._values.move_to_end(key)
                if len(self._values) > self._size:
                    self._values.popitem(last=False)

    def forget_many(self, keys: Iterable[K]) -> None:
        """Remove values."""
        with self._lock:
            for key in keys:
                self._values.pop(key, None)
