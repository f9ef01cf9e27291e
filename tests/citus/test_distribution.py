"""A ledger with rows is distributed, and is the same ledger afterwards; what stands in the way is named."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command

from app.ledger.errors import InvalidInputError
from app.persistence import citus
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.schema import alembic_config, upgrade
from app.service.database_copy import copy_database
from app.service.verification.verify import verify
from benchmarks.citus.cluster import CitusCluster
from tests.conftest import new_database
from tests.persistence.dump import dump
from tests.persistence.test_sample_migration import SAMPLE
from tests.service.cli_runner import Run, commands
from tests.service.full_ledger import fill

pytestmark = pytest.mark.citus


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A SQLite file with every kind of row."""
    with new_database("sqlite", tmp_path_factory.mktemp("source"), furnish=fill) as url:
        database = Database(url)
        yield database
        database.dispose()


@pytest.fixture
def run(cluster: CitusCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the cluster."""
    return commands(monkeypatch, capsys, cluster.url)


def distributed_tables(cluster: CitusCluster, database: str = "ledger") -> int:
    """Count the tables that are distributed or copied to every node."""
    [(found,)] = cluster.coordinator.execute("SELECT count(*) FROM pg_dist_partition", database)
    return int(found)


def test_a_database_without_a_ledger_is_refused(run: Run) -> None:
    """The tables are made first."""
    said = run("distribute")
    assert said.status == 2
    assert "`epsilon-ledger migrate` makes one" in said.err


def test_a_ledger_is_copied_to_the_coordinator(cluster: CitusCluster, source: Database) -> None:
    """Before it is distributed, it is a usual database."""
    database = Database(cluster.url)
    upgrade(database)
    assert copy_database(source, database).found.sound
    database.dispose()


def test_a_database_on_a_worker_is_refused(cluster: CitusCluster) -> None:
    """Only the coordinator knows the nodes."""
    worker = Database(cluster.workers[0].url("ledger"))
    with pytest.raises(InvalidInputError, match="on a worker"):
        citus.distribute(worker)
    worker.dispose()


def test_a_table_of_another_role_is_refused(cluster: CitusCluster, run: Run) -> None:
    """The role that the service connects as must own what it distributes."""
    cluster.execute("ALTER TABLE runs OWNER TO ledger")
    said = run("distribute")
    cluster.execute("ALTER TABLE runs OWNER TO service")
    assert said.status == 2
    assert "the table runs is another role's" in said.err
    assert distributed_tables(cluster) == 0


def test_a_database_in_use_is_refused(cluster: CitusCluster, run: Run) -> None:
    """A running service would not know in which form Citus takes its statements."""
    other = Database(cluster.url)
    with other.read(ALL_TENANTS):
        said = run("distribute")
    other.dispose()
    assert said.status == 2
    assert "in use" in said.err
    assert distributed_tables(cluster) == 0


def test_a_dead_worker_is_named(cluster: CitusCluster, run: Run) -> None:
    """Nothing is changed."""
    cluster.workers[1].kill()
    said = run("distribute")
    cluster.workers[1].start()
    assert said.status == 2
    assert f"127.0.0.1:{cluster.workers[1].port}" in said.err
    assert distributed_tables(cluster) == 0


def test_a_ledger_with_rows_is_the_same_afterwards(cluster: CitusCluster, source: Database, run: Run) -> None:
    """Every row is there, every chain and balance is verified, and row-level security holds on the workers."""
    before = dump(source)
    said = run("distribute")
    assert said.status == 0, said.err
    assert said.out.startswith("31 tables are distributed over 2 workers by organisation, and 3 tables")
    database = Database(cluster.url)
    assert dump(database) == before
    assert verify(database).sound
    assert not database.bypasses_rls()
    with database.read(ALL_TENANTS) as tx:
        assert citus.is_distributed(tx)
        assert set(citus.organisations_by_worker(tx)) <= {f"127.0.0.1:{worker.port}" for worker in cluster.workers}
    database.dispose()
    for worker in cluster.workers:
        with worker.connect("ledger") as connection:
            connection.execute("SET citus.override_table_visibility = off")  # shards are hidden otherwise
            found = connection.execute(
                "SELECT count(*), count(*) FILTER (WHERE relrowsecurity AND relforcerowsecurity) FROM pg_class"
                " WHERE relkind = 'r' AND relname ~ '^decisions_[0-9]+$'"
            ).fetchone()
        assert found is not None
        assert found[0] == found[1] > 0


def test_a_second_time_changes_nothing(cluster: CitusCluster, run: Run) -> None:
    """The command may be repeated."""
    tables = distributed_tables(cluster)
    said = run("distribute")
    assert said.status == 0, said.err
    assert "already" in said.out
    assert distributed_tables(cluster) == tables == 34


def test_commands_work_on_a_distributed_ledger(run: Run) -> None:
    """Migrate, verify and export read and write everything."""
    assert run("migrate").out.strip() == "The database has the newest schema."
    assert run("verify").status == 0
    assert run("migrate", "--check").status == 0


def test_ledger_is_copied_from_one_cluster_to_another(cluster: CitusCluster, source: Database, tmp_path: Path) -> None:
    """A copy reads from a distributed ledger, and writes to one."""
    url = cluster.create_database("second")
    for work in (upgrade, citus.distribute):
        second = Database(url)
        work(second)
        second.dispose()
    first, second = Database(cluster.url), Database(url)
    assert copy_database(first, second).found.sound
    with new_database("sqlite", tmp_path) as file:
        back = Database(file)
        upgrade(back)
        assert copy_database(second, back).found.sound
        assert dump(back) == dump(source)
        back.dispose()
    first.dispose()
    second.dispose()


def test_a_later_migration_changes_distributed_tables(cluster: CitusCluster, tmp_path: Path) -> None:
    """Columns, checks, indexes and updates of rows reach the workers."""
    folder = tmp_path / "migrations"
    config = alembic_config()
    shutil.copytree(str(config.get_main_option("script_location")), folder)
    for script in SAMPLE.glob("*.py"):
        shutil.copy(script, folder / "versions")
    config.set_main_option("script_location", str(folder))
    database = Database(cluster.url)

    def migrate(tx: object) -> None:
        config.attributes["connection"] = tx
        command.upgrade(config, "head")

    database.migrate(migrate)
    assert verify(database).sound
    database.dispose()
