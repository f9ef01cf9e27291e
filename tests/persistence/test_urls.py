"""Database URLs: what is taken, and what is refused in a sentence that gives no password away."""

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from app.ledger.errors import InvalidInputError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.write_probe import Fault, rehearse


@pytest.mark.parametrize(
    "url",
    [
        *("mysql://h/d", "bogus://x", "postgres://u@h/d", "postgresql+asyncpg://u:secret@h/d"),
        *("postgresql://h:port/d", "postgresql://u:secret@h:secret/d", "postgresql://u:a@secret:secret@h/d"),
        *("postgresql://u:a@secret@h/d", "postgresql://h", "postgresql://u:secret@h/", "postgresql:///"),
        *("postgresql://u:secret@h/d?nonsense=1", "postgresql://u@h/d?password=secret&sslmod=require"),
        *("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"),
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
        *("nonsense", "", " ", "ledger.db", "/tmp/ledger.db", "://", "http://example.org"),  # noqa: S108 - a URL that is refused
        *("sqlite+aiosqlite:///ledger.db", "sqlite+bogus:///ledger.db"),
    ],
)
def test_url_that_names_no_database_is_refused_in_one_sentence(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError) as refused:
        Database(url)
    assert "EPSILON_LEDGER_DATABASE_URL" in refused.value.detail
    assert refused.value.detail.endswith(".")
    assert "secret" not in refused.value.detail
    assert refused.value.__cause__ is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://u@h/d", "postgresql+psycopg://u:p%40ss@h:5433/d", "postgresql:///d?host=/run/postgresql"),
        *("postgresql://u@h/d?sslmode=verify-full&connect_timeout=9", "postgresql:///?service=ledger"),
        "postgresql://u@/d?host=a:5432&host=b:5433&target_session_attrs=read-write",
    ],
)
def test_url_of_libpq_is_taken(url: str) -> None:
    opened = Database(url)
    assert (opened.dialect, opened.exists()) == ("postgresql", True)
    assert "p@ss" not in repr(opened.engine)
    opened.dispose()


def test_server_that_is_not_there_takes_no_writes(tmp_path: Path) -> None:
    nobody = Database(f"postgresql://u:secret@/d?host={tmp_path}")
    assert rehearse(nobody) is Fault.SILENT
    with pytest.raises(OperationalError) as failed, nobody.read(ALL_TENANTS):
        raise AssertionError("nobody answered")
    assert "secret" not in str(failed.value)
    nobody.dispose()
