"""New databases to measure on."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.postgres import Cluster
from tests.postgres_binaries import NoServerError


@contextmanager
def postgresql() -> Iterator[Cluster | None]:
    """Start a temporary PostgreSQL server, or return None."""
    try:
        cluster = Cluster.create()
    except NoServerError as error:
        print(f"({error})\n")
        yield None
        return
    try:
        yield cluster
    finally:
        cluster.remove()


@contextmanager
def databases(*names: str, on_postgresql: bool) -> Iterator[list[str]]:
    """Return URLs of new databases, SQLite files in a temporary folder or in a temporary PostgreSQL server."""
    if on_postgresql:
        with postgresql() as cluster:
            assert cluster is not None, "no PostgreSQL server can be had"
            yield [cluster.create_database(name) for name in names]
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [f"sqlite:///{Path(folder) / name}.db" for name in names]
