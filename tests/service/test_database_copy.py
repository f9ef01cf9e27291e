"""A ledger copied from one database to another is the same ledger, whichever databases they are."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, select, text

from app.ledger.errors import InvalidInputError, LedgerUnavailableError, NotFoundError
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import row_copies
from app.persistence.schema import upgrade
from app.persistence.tables import decisions, organisations, reservations, runs
from app.service.auth.authentication import create_organisation
from app.service.database_copy import copy_database
from app.service.verification.verify import verify
from tests.api.trainer import LOUD
from tests.conftest import Ledger, command_line, need_postgresql, new_database, open_ledger
from tests.persistence.dump import dump
from tests.service.full_ledger import fill
from tests.service.tampering import TEAM, shift_curve, tampering

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@dataclass
class Copying:
    """A ledger with every kind of row, and a database without a row."""

    source: Ledger
    target: Database
    url: str


MOVED = [("sqlite", "postgresql"), ("postgresql", "sqlite")]
KINDS = [("sqlite", "sqlite"), *(pytest.param(each, marks=pytest.mark.postgresql) for each in MOVED)]


@pytest.fixture(params=KINDS, ids="-to-".join)
def copying(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copying]:
    first, second = request.param
    if "postgresql" in request.param:
        need_postgresql()
    (tmp_path / "to").mkdir()
    with (
        new_database(first, tmp_path, furnish=fill) as old,
        new_database(second, tmp_path / "to") as new,
        open_ledger(tmp_path, old) as source,
    ):
        target = Database(new)
        upgrade(target)
        yield Copying(source, target, new)
        target.dispose()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Database, Database]]:
    """Two empty ledgers in SQLite files."""
    made = [Database(f"sqlite:///{tmp_path / name}.db") for name in ("old", "new")]
    for database in made:
        upgrade(database)
    yield made[0], made[1]
    for database in made:
        database.dispose()


def test_database_is_not_copied_to_itself(files: tuple[Database, Database]) -> None:
    with pytest.raises(InvalidInputError, match="one database"):
        copy_database(files[0], files[0])


def test_copy_has_every_row_and_goes_on(copying: Copying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_copies, "BATCH", 2)  # the example is small
    source, target = copying.source, copying.target
    before = dump(source.database)
    assert [name for name, of_table in before.items() if not of_table] == []
    with source.database.read(ALL_TENANTS) as tx:
        assert set(tx.scalars(select(decisions.c.outcome))) == {"admitted", "refused", "reported", "forfeited"}
        assert set(tx.scalars(select(reservations.c.status))) == {"active", "committed", "voided", "forfeited"}
        assert {"active", "overdrawn", "aborted"} <= set(tx.scalars(select(runs.c.status)))
        run = tx.execute(select(runs).where(runs.c.reservation_id.is_not(None))).one()
    copied = copy_database(source.database, target)
    assert copied.found.problems == ()
    assert dump(target) == before == dump(source.database)
    assert copied.rows == {name: len(rows) for name, rows in before.items()}
    assert copied.found.checked["decisions"] == len(before["decisions"])
    with open_ledger(tmp_path, copying.url) as there:
        steps, asked = f"/v1/runs/{run.account_id}/steps", {"attempt": run.attempt}
        again = there.post(steps, asked, "trainer", Idempotency_Key="planned")
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        assert there.post(steps, asked | {"first_step": run.next_step}, "trainer").status_code == 200
        ended = there.post(f"/v1/reservations/{run.reservation_id}/commit", {"steps_executed": 2}, "trainer")
        assert (ended.status_code, ended.json()["status"]) == (200, "committed")
        there.run(name="next", event=LOUD)
        assert verify(there.database).problems == ()


def test_target_with_rows_or_without_the_newest_schema_is_left_alone(files: tuple[Database, Database]) -> None:
    old, new = files
    create_organisation(new, "hospital", NOW)
    before = dump(new)
    with pytest.raises(InvalidInputError, match="has rows already, the first of them in organisations"):
        copy_database(old, new)
    for database, option in ((new, "--to"), (old, "--from")):
        with database.write(ALL_TENANTS) as tx:
            tx.execute(text("UPDATE alembic_version SET version_num = '0002'"))
        with pytest.raises(NotFoundError, match=f"^{option} names no ledger of this version"):
            copy_database(old, new)
    assert dump(new) == before


def test_copy_is_undone_when_the_source_changes(
    files: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = files
    create_organisation(old, "hospital", NOW)
    add = row_copies.add

    def and_somebody_writes(tx: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
        add(tx, table, rows)
        if table is organisations:
            create_organisation(old, "clinic", NOW)

    monkeypatch.setattr(row_copies, "add", and_somebody_writes)
    with pytest.raises(LedgerUnavailableError, match="Stop the service first"):
        copy_database(old, new)
    assert not any(dump(new).values())


def test_command_prints_what_it_copied_and_an_unsound_ledger_is_called_unsound(tmp_path: Path) -> None:
    old, new = (f"sqlite:///{tmp_path / name}.db" for name in ("ledger", "new"))
    with new_database("sqlite", tmp_path, furnish=fill):
        with tampering(source := Database(old)) as tx:
            shift_curve(tx, TEAM, -1)
        upgrade(target := Database(new))
        rows = dump(source)
        for database in (source, target):
            database.dispose()
        said = command_line("copy", "--from", old, "--to", new, "--json", database=tmp_path / "neither.db")
    facts = json.loads(said.stdout)
    assert (said.returncode, facts["sound"]) == (1, False)
    assert [TEAM in problem for problem in facts["discrepancies"]] == [True]
    assert facts["rows"] == {name: len(of_table) for name, of_table in rows.items()}
    assert dump(target) == rows
    target.dispose()
    wrong = command_line("copy", "--from", "nonsense", "--to", new, database=tmp_path / "neither.db")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    assert wrong.stderr.startswith("--from is not a database URL")
    assert not (tmp_path / "neither.db").exists()


@pytest.mark.both_databases
def test_source_with_an_idle_connection_is_not_copied(empty_database_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'copy.db'}"
    used, made = Database(empty_database_url), Database(target)
    upgrade(used)
    upgrade(made)
    made.dispose()
    with used.read(ALL_TENANTS) as tx:
        tx.execute(select(1))
    arguments = ("copy", "--from", empty_database_url, "--to", target)
    refused = command_line(*arguments, database=target)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith("--from is in use: a service, or another command, is connected to it")
    assert "Stop every replica and command" in refused.stderr
    used.dispose()
    copied = command_line(*arguments, database=target)
    assert copied.returncode == 0, copied.stderr
    assert "every curve agrees byte for byte" in copied.stdout
