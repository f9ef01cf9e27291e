"""Databases that are opened for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.persistence.database import Database
from app.persistence.schema import upgrade
from app.service.verification.verify import verify


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """A database, whose connections are closed at the end."""
    database = Database(url)
    try:
        yield database
    finally:
        database.dispose()


def migrate(url: str) -> str:
    """Give a database the newest schema; return its URL."""
    with open_database(url) as database:
        upgrade(database)
    return url


def is_sound(url: str) -> None:
    """A ledger agrees with its charges."""
    with open_database(url) as database:
        assert verify(database).problems == ()
