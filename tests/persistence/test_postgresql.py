"""A PostgreSQL server: migrations that wait, databases that are refused, and statistics of new tables."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import insert

from app.ledger.errors import LedgerUnavailableError
from app.persistence import postgresql
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import is_current, upgrade
from app.persistence.tables import organisations
from app.persistence.write_probe import Fault, rehearse
from tests import postgres
from tests.conftest import need_postgresql
from tests.postgres import Cluster

pytestmark = pytest.mark.postgresql


@pytest.fixture
def cluster() -> Cluster:
    need_postgresql()
    return postgres.shared()


@pytest.mark.usefixtures("cluster")
def test_migrations_wait_for_each_other() -> None:
    with postgres.database(postgres.EMPTY) as url:
        both = threading.Barrier(4, timeout=30)

        def migrate(_: int) -> None:
            database = Database(url)
            both.wait()
            upgrade(database)
            with database.read(ALL_TENANTS) as tx:
                assert is_current(tx)
            database.dispose()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(migrate, range(4)))


def test_database_is_refused_in_a_sentence_when_it_is_not_in_utf8(cluster: Cluster) -> None:
    cluster.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
    database = Database(cluster.url("latin"))
    with pytest.raises(LedgerUnavailableError, match=r"LATIN1.*UTF8"), database.read(ALL_TENANTS):
        raise AssertionError("it was opened")
    assert rehearse(database) is Fault.SILENT
    database.dispose()
    cluster.drop_database("latin")


def test_grown_table_gets_statistics(cluster: Cluster) -> None:
    database = Database(cluster.create_database("young"))
    upgrade(database)
    size = "SELECT reltuples FROM pg_class WHERE relname = 'organisations'"
    for rows in (10, 5000):
        with database.write(ALL_TENANTS) as tx:
            ids = [f"org_{rows:07x}{number:08x}" for number in range(rows)]
            tx.execute(
                insert(organisations), [{"id": each, "name": each, "created_at": datetime.now(UTC)} for each in ids]
            )
        database.analyze()
        with database.read(ALL_TENANTS) as tx:
            assert (tx.exec_driver_sql(size).scalar_one() > 0) == (rows == 5000)
    database.dispose()


def test_error_of_the_connection_is_known() -> None:
    assert all(map(postgresql.is_gone, ["08006", "08P01", "0A000", "25006", "57P01"]))
    assert not any(map(postgresql.is_gone, [None, "40001", "23505", "57014"]))
