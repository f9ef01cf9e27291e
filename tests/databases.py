"""New databases of both kinds, each for a test or a module."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests import postgres
from tests.ledgers import Furnish, furnished, known_keys
from tests.postgres_binaries import NoServerError


class _Statements(dict[tuple[Any, ...], Any]):
    """What SQLAlchemy made of statements, known by all of a key but its first part, the engine's own dialect."""

    def get(self, key: tuple[Any, ...], default: object = None) -> Any:  # noqa: ANN401 - as SQLAlchemy made it
        return super().get(key[1:], default)

    def __setitem__(self, key: tuple[Any, ...], compiled: object) -> None:
        super().__setitem__(key[1:], compiled)


_statements: dict[str, _Statements] = defaultdict(_Statements)
"""By kind of database: a test has an engine of its own, which would make every statement's text anew."""


@event.listens_for(Engine, "engine_connect")
def _share(connection: Connection) -> None:
    """Let each connection take the text of a statement from whichever engine made it first."""
    connection.execution_options(compiled_cache=_statements[connection.dialect.name])


NO_SERVER = "needs a PostgreSQL server"


def need_postgresql() -> None:
    """Skip a test that needs a server where none can be had; in CI it fails."""
    try:
        postgres.shared()
    except NoServerError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{NO_SERVER}: {error}", pytrace=False)
        pytest.skip(f"{NO_SERVER}: {error}")


@contextmanager
def new_database(kind: str, folder: Path, *, migrated: bool = True, furnish: Furnish | None = None) -> Iterator[str]:
    """The URL of a database of this kind, for a while; on PostgreSQL, where serving does not do it, migrated."""
    source = furnished(kind, furnish)[1] if furnish else None
    with ExitStack() as stack:
        if kind == "postgresql":
            url = stack.enter_context(postgres.database(source or (postgres.TEMPLATE if migrated else postgres.EMPTY)))
        else:
            url = f"sqlite:///{folder / 'ledger.db'}"
            if source:
                shutil.copy(source, folder / "ledger.db")
        if source:
            known_keys[url] = known_keys[source]
        yield url
