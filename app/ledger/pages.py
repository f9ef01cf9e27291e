"""Pages of lists.

Every list is newest first, so that what is created during a walk through its pages is not in them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from app.ledger.errors import InvalidInputError
from app.ledger.ids import is_id

T = TypeVar("T")
U = TypeVar("U")

MAX_DIGITS: Final = 18
"""Maximum number of digits of a position: beyond that, no database counts."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A page of at most `limit` items behind the place `after` of a list; None: the first page."""

    limit: int
    after: str | None = None

    def position(self) -> int | None:
        """Return the place in a numbered list.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        return None if self.after is None else int(_checked(self.after, is_position))

    def account_id(self) -> str | None:
        """Return the place in a list of accounts.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        return None if self.after is None else _checked(self.after, is_id)

    def keyset(self, name: str, *checks: Callable[[str], bool]) -> list[str]:
        """Return the place in a list that is sorted by several values, as `keyset_text` wrote it.

        Raises:
            InvalidInputError: the cursor is of another list or order.
        """
        try:
            order, *values = json.loads(self.after or "")
        except (TypeError, ValueError):
            raise foreign_cursor_error() from None
        if order != name or len(values) != len(checks):
            raise foreign_cursor_error()
        return [_checked(value, check) for value, check in zip(values, checks, strict=True)]


def _checked(value: object, check: Callable[[str], bool]) -> str:
    if not isinstance(value, str) or not check(value):
        raise foreign_cursor_error()
    return value


def keyset_text(name: str, *values: str) -> str:
    """Write the place in a list or an order that is sorted by several values."""
    return json.dumps([name, *values], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items of a list, and the place behind which the next page begins; None: there is none."""

    items: Sequence[T]
    next: str | None

    def map(self, convert: Callable[[Sequence[T]], Sequence[U]]) -> "Page[U]":
        """Convert the items all at once."""
        return Page(convert(self.items), self.next)


def read_pages(read: Callable[[PageRequest], Page[T]], limit: int) -> Iterator[Sequence[T]]:
    """Read a list to its end, `limit` items at once, each page when it is needed."""
    after: str | None = None
    while True:
        page = read(PageRequest(limit, after))
        yield page.items
        if page.next is None:
            return
        after = page.next


def is_position(text: str) -> bool:
    """Check whether a text is a place in a numbered list."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def is_moment(text: str) -> bool:
    """Check whether a text is an aware time in ISO 8601 that can be converted to UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.tzinfo is not None and moment.astimezone(UTC) is not None
    except (ValueError, OverflowError):
        return False


def foreign_cursor_error() -> InvalidInputError:
    """Build the error for a cursor of another list."""
    return InvalidInputError("The cursor is not one of this list; send the `next` of an earlier page as `after`.")
