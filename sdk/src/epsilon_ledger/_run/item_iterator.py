"""Iterators over lists of the ledger, which request a page when it is needed."""

import typing
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Generic, Protocol, Self, TypeVar

from epsilon_ledger._wire.frames import data_frame
from epsilon_ledger._wire.requests import Listing, RequestFlow

if typing.TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class Executor(Protocol):
    """Executor of request flows."""

    def _execute(self, flow: RequestFlow[T]) -> T: ...


class AsyncExecutor(Protocol):
    """Asynchronous executor of request flows."""

    def _execute(self, flow: RequestFlow[T]) -> Awaitable[T]: ...


class _Pages(Generic[T]):
    """Place in a list: the items that were received and not yet returned, and the next page."""

    def __init__(self, listing: Listing[T]) -> None:
        self._listing = listing
        self._cursor: str | None = None
        self._items: deque[T] = deque()
        self._ended = False

    def __repr__(self) -> str:
        """Show the list and its filters."""
        filters = {name: value for name, value in self._listing.query.items() if value not in (None, ())}
        return f"<{type(self).__name__} {self._listing.path} {filters}>"

    def _fetch(self) -> RequestFlow[None]:
        """Request the next page; after a failure it can be requested again."""
        self._listing = yield from self._listing.resolve()
        page = yield from self._listing.page(self._cursor)
        self._items.extend(page.items)
        self._cursor = page.next_cursor
        self._ended = page.next_cursor is None


class ItemIterator(_Pages[T], Iterator[T]):
    """Iterator over the items of a list; an iteration that failed may go on with `next`.

    Args:
        executor: client.
        listing: the list.
    """

    def __init__(self, executor: Executor, listing: Listing[T]) -> None:
        super().__init__(listing)
        self._executor = executor

    def __iter__(self) -> Self:
        """Return the iterator."""
        return self

    def __next__(self) -> T:
        """Return the next item.

        Raises:
            LedgerError: its page did not arrive; the next call requests it again.
            StopIteration: there are no more.
        """
        while not self._items and not self._ended:
            self._executor._execute(self._fetch())  # noqa: SLF001 - the client's own part
        if not self._items:
            raise StopIteration
        return self._items.popleft()

    def to_pandas(self) -> "pd.DataFrame":
        """Build a data frame of the items that are left, a row each.

        Returns:
            The frame; members of members are columns such as `limit.epsilon`.

        Raises:
            ImportError: pandas is not installed.
            LedgerError: a page did not arrive.
        """
        return data_frame(list(self), self._listing.shape)


class AsyncItemIterator(_Pages[T], AsyncIterator[T]):
    """`ItemIterator` for `async for`.

    Args:
        executor: client.
        listing: the list.
    """

    def __init__(self, executor: AsyncExecutor, listing: Listing[T]) -> None:
        super().__init__(listing)
        self._executor = executor

    def __aiter__(self) -> Self:
        """Return the iterator."""
        return self

    async def __anext__(self) -> T:
        """As `ItemIterator.__next__`.

        Raises:
            LedgerError: as there.
            StopAsyncIteration: there are no more items.
        """
        while not self._items and not self._ended:
            await self._executor._execute(self._fetch())  # noqa: SLF001 - the client's own part
        if not self._items:
            raise StopAsyncIteration
        return self._items.popleft()

    async def to_pandas(self) -> "pd.DataFrame":
        """As `ItemIterator.to_pandas`."""
        return data_frame([item async for item in self], self._listing.shape)
