"""What docs/operations/maintenance.md says about backups: each of them restores a ledger that verifies and goes on."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.accounts import list_all
from app.service.backups import compare_backup
from app.service.verification.verify import verify
from tests import postgres
from tests.api.trainer import QUIET
from tests.conftest import Ledger, need_postgresql, new_database, open_ledger
from tests.open_databases import open_database
from tests.persistence.dump import dump
from tests.postgres_binaries import binaries
from tests.reliability.conftest import own_cluster
from tests.service.full_ledger import fill


def _by_the_shell(live: Path, backup: Path) -> None:
    with closing(sqlite3.connect(live)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)  # what `.backup` of the sqlite3 shell calls


def _by_vacuum(live: Path, backup: Path) -> None:
    with closing(sqlite3.connect(live, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(backup),))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A service on a SQLite file with every kind of row, which was not stopped."""
    with new_database("sqlite", tmp_path, furnish=fill) as url, open_ledger(tmp_path, url) as opened:
        yield opened


def _goes_on(folder: Path, url: str) -> None:
    """A restored ledger is sound, and takes a step of its own."""
    with open_ledger(folder, url) as restored:
        assert verify(restored.database).problems == ()
        assert restored.get("/readyz").status_code == 200
        run = restored.run(name="after the restore", event={"type": "gaussian", "noise_multiplier": 90.0})
        assert restored.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
        assert verify(restored.database).problems == ()


def test_file_is_restored_from_backups_made_while_it_was_served(ledger: Ledger, tmp_path: Path) -> None:
    before = dump(ledger.database)
    for backup in (_by_the_shell, _by_vacuum):
        restored = tmp_path / f"{backup.__name__}.db"
        backup(tmp_path / "ledger.db", restored)
        assert ledger.get("/readyz").status_code == 200
        with open_database(f"sqlite:///{restored}") as database:
            assert dump(database) == before
    _goes_on(tmp_path, f"sqlite:///{restored}")


DUMPED = ("--enable-row-security", "--format=custom")


def _tool(cluster: postgres.Cluster, name: str, *arguments: str) -> None:
    environment = os.environ | {"PGPASSWORD": cluster.password, "PGOPTIONS": "-c epsilon_ledger.all_tenants=on"}
    subprocess.run([binaries() / name, *arguments], env=environment, check=True, capture_output=True, timeout=120)


@pytest.mark.postgresql
def test_database_is_restored_from_a_dump_made_while_it_was_served(tmp_path: Path) -> None:
    need_postgresql()
    cluster = postgres.shared()
    server = ["--host=127.0.0.1", f"--port={cluster.port}", f"--username={postgres.SERVICE}"]
    with new_database("postgresql", tmp_path, furnish=fill) as url, open_ledger(tmp_path, url) as opened:
        before = dump(opened.database)
        file = tmp_path / "ledger.dump"
        _tool(cluster, "pg_dump", *server, *DUMPED, f"--file={file}", url.rpartition("/")[2])
        with postgres.database(postgres.EMPTY) as other:
            _tool(cluster, "pg_restore", *server, "--exit-on-error", f"--dbname={other.rpartition('/')[2]}", str(file))
            with open_database(other) as database:
                assert dump(database) == before
            _goes_on(tmp_path, other)
        assert dump(opened.database) == before


@pytest.mark.soak
@pytest.mark.postgresql
def test_server_is_restored_to_a_moment_from_a_base_backup_and_the_log(tmp_path: Path) -> None:
    """It keeps its write-ahead log for ever, as the document configures it."""
    with (
        own_cluster("archive_mode = on\narchive_command = 'cp %p ../%f'") as archiving,
        ExitStack() as stack,
    ):
        taken = archiving.base_backup()
        stack.callback(taken.remove)
        with open_ledger(tmp_path, archiving.url("ledger")) as opened:
            trainer = fill(opened)
            before = dump(opened.database)
            archiving.execute("SELECT pg_create_restore_point('accident')")
            assert trainer.steps(attempt=2).status_code == 200
        archiving.stop()  # the last of the log is archived
        archiving.start()
        restore = f"restore_command = 'cp {archiving.folder}/%f %p'"
        taken.configure(restore, "recovery_target_name = 'accident'", "recovery_target_action = 'promote'")
        wanted = taken.data / "recovery.signal"
        wanted.touch()
        taken.own(wanted)
        taken.start()
        taken.wait_until("SELECT NOT pg_is_in_recovery()")
        with open_database(taken.url("ledger")) as database:
            assert dump(database) == before
        _goes_on(tmp_path, taken.url("ledger"))


def test_forgotten_steps_are_reported_to_a_restored_ledger(ledger: Ledger, tmp_path: Path) -> None:
    run = ledger.run(name="forgotten", event=QUIET)
    steps = f"/v1/runs/{run}/steps"
    assert ledger.post(steps, {"count": 3}, "trainer").status_code == 200
    restored = tmp_path / "restored.db"
    _by_vacuum(tmp_path / "ledger.db", restored)
    for count in (1, 4):  # released after the backup: the trainer's log has them
        assert ledger.post(steps, {"count": count}, "trainer").status_code == 200
    before = _spent(ledger.database)
    with open_database(f"sqlite:///{restored}") as backup:
        report = compare_backup(backup, ledger.database)
    assert (report.problems, report.decisions_since) == ((), 2)
    with open_ledger(tmp_path, f"sqlite:///{restored}") as back:
        assert _spent(back.database) != before
        assert back.post(steps, {"first_step": 8}, "trainer").json()["expected_step"] == 3  # the trainer notices
        missing = {"mode": "report", "first_step": 3, "count": 5}
        assert back.post(steps, missing, "trainer").json()["next_step"] == 8
        assert _spent(back.database) == before
        assert back.post(steps, {"first_step": 8}, "trainer").status_code == 200
        assert verify(back.database).problems == ()


def _spent(database: Database) -> dict[str, bytes]:
    with database.read(ALL_TENANTS) as tx:
        return {kept.account.path: kept.account.spent.to_bytes() for _, kept, _ in list_all(tx)}
