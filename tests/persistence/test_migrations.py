"""Migrations: from nothing to the newest schema and back, always in step with the tables."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, event, insert, inspect, select, update
from sqlalchemy.exc import OperationalError

from app.ledger.hash_chain import entry_hash, genesis
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.accounts import list_all
from app.persistence.repositories.raw_rows import entries, kept_runs
from app.persistence.schema import alembic_config, is_current, upgrade
from app.persistence.tables import (
    accounts,
    api_keys,
    attempts,
    balances,
    blocks,
    decisions,
    event_curves,
    metadata,
    reservations,
    run_budgets,
    runs,
)
from app.service.auth.authentication import authenticate, create_organisation
from app.service.governance.api_keys import create_key
from app.service.verification import verify
from tests.conftest import SAMPLED, Ledger, command_line
from tests.persistence.dump import changed, dump

NOISE = {"type": "gaussian", "noise_multiplier": 60.0}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database without a table."""
    found = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield found
    found.dispose()


def _config(tx: Connection) -> Config:
    config = alembic_config()
    config.attributes["connection"] = tx
    return config


def _tables(database: Database) -> set[str]:
    with database.read(ALL_TENANTS) as tx:
        return set(inspect(tx).get_table_names())


def _shape(tx: Connection) -> dict[str, object]:
    """Columns and constraints of every table, CHECKs included, which `alembic check` does not compare."""
    found = inspect(tx)
    shape: dict[str, object] = {}
    for table in sorted(metadata.tables):
        checks = {
            str(check["name"]): re.sub(r"[\s()]+", "", str(check["sqltext"]))
            for check in found.get_check_constraints(table)
        }
        shape[table] = (
            sorted((column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(table)),
            sorted(found.get_pk_constraint(table)["constrained_columns"]),
            sorted(
                (
                    str(key["name"]),
                    tuple(key["constrained_columns"]),
                    key["referred_table"],
                    tuple(key["referred_columns"]),
                )
                for key in found.get_foreign_keys(table)
            ),
            sorted((str(key["name"]), tuple(key["column_names"])) for key in found.get_unique_constraints(table)),
            sorted(
                (str(key["name"]), tuple(map(str, key["column_names"])), key["unique"])
                for key in found.get_indexes(table)
            ),
            checks,
        )
    return shape


def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    upgrade(database)
    with database.write(ALL_TENANTS) as tx:
        command.check(_config(tx))


def test_the_migrations_make_every_constraint_of_the_tables(database: Database, tmp_path: Path) -> None:
    upgrade(database)
    direct = Database(f"sqlite:///{tmp_path / 'direct.db'}")
    with direct.write(ALL_TENANTS) as tx:
        metadata.create_all(tx)
        wanted = _shape(tx)
    with database.read(ALL_TENANTS) as tx:
        assert _shape(tx) == wanted
    direct.dispose()
    assert {table: bool(shape) for table, shape in wanted.items()} == dict.fromkeys(metadata.tables, True)


def test_partial_indexes_stay_partial(database: Database) -> None:
    upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        indexes = set(tx.exec_driver_sql("SELECT name FROM sqlite_master WHERE sql LIKE '%WHERE%'").scalars())
    assert indexes == {
        "ix_decisions_not_admitted",
        "ix_deliveries_pending",
        "uq_accounts_budget_skeleton",
        "uq_accounts_path",
        "uq_accounts_population_skeleton",
        "uq_decisions_first_step",
        "uq_proposals_open",
        "uq_reservations_active",
    }


def test_every_constraint_has_a_name(database: Database) -> None:
    upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        for table, sql in tx.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            for kind in ("CHECK", "FOREIGN KEY", "UNIQUE ("):
                assert sql.count(kind) == len(re.findall(rf"CONSTRAINT \S+ {re.escape(kind)}", sql)), table


def test_a_database_goes_up_down_and_up_again(database: Database) -> None:
    assert _tables(database) == set()
    upgrade(database)
    assert _tables(database) == {*metadata.tables, "alembic_version"}
    with database.migration() as tx:
        command.downgrade(_config(tx), "base")
    assert _tables(database) == {"alembic_version"}
    upgrade(database)
    create_organisation(database, "hospital", datetime.now(UTC))
    with database.write(ALL_TENANTS) as tx:
        command.check(_config(tx))


def test_upgrading_the_newest_schema_changes_nothing(database: Database) -> None:
    upgrade(database)
    now = datetime.now(UTC)
    create_organisation(database, "hospital", now)
    key = create_key(database, "hospital", Role.VIEWER, now)
    before = dump(database)
    upgrade(database)
    assert dump(database) == before
    assert authenticate(database, f"Bearer {key.key}", now).role is Role.VIEWER


@pytest.fixture
def charged(ledger: Ledger) -> Ledger:
    """A run with steps of two kinds, a refusal, and another run without any."""
    ledger.population(planned=[{"event": SAMPLED, "count": 5}])
    ledger.budget()
    run = ledger.run()
    for number, body in enumerate(({"count": 3}, {"count": 10**6}, {"events": [{"event": NOISE}, {"event": SAMPLED}]})):
        assert ledger.post(f"/v1/runs/{run}/steps", body, Idempotency_Key=f"k{number}").status_code in {200, 403}
    ledger.run(name="idle")
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(event_curves).values(formula_version=1))  # the only one that version 0001 knows
        _forget_who(tx)
    return ledger


def _forget_who(tx: Connection) -> None:
    """Let keys, decisions and runs be those of a version that did not keep who asked, and what was declared."""
    tx.execute(delete(api_keys).where(api_keys.c.role.not_in(["admin", "trainer", "viewer"])))
    tx.execute(update(api_keys).values(created_by=None))
    tx.execute(update(decisions).values(actor=None, request_id=None))
    tx.execute(update(runs).values(declared_steps=None, deviations=None))
    for run in kept_runs(tx):
        head = genesis(run.organisation_id, run.id)
        here = (decisions.c.organisation_id == run.organisation_id) & (decisions.c.run_id == run.id)
        for kept in list(entries(tx, run.organisation_id, run.id)):
            head = entry_hash(head, kept.entry)
            at = decisions.c.position == kept.entry.position
            tx.execute(update(decisions).where(here, at).values(entry_hash=head))
        tx.execute(update(runs).where(runs.c.account_id == run.id).values(chain_head=head))


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_a_filled_ledger_goes_down_and_up_unchanged(charged: Ledger, revision: str) -> None:
    before, spent = dump(charged.database), _balances(charged.database)
    with charged.database.migration() as tx:
        command.downgrade(_config(tx), revision)
        columns = {column["name"] for column in inspect(tx).get_columns("accounts")}
        assert ("spent_delta" in columns, "quarantine" in columns) == (revision == "0002", False)
        assert {"attempts", "reservations", "reservation_items"} & set(inspect(tx).get_table_names()) == set()
        lengths = "SELECT length(held), length(spent) FROM accounts"
        assert all(held == spent > 0 for held, spent in tx.exec_driver_sql(lengths).all())
    upgrade(charged.database)
    after = dump(charged.database)
    # Curves are whole now, the chain of acts begins anew, and what was told is left behind; every hash and head of a
    # run is the same.
    assert changed(before, after) == {"accounts", "alerts", "balances", "audit_entries"}
    assert _balances(charged.database) == spent
    assert verify(charged.database).sound


def _balances(database: Database) -> dict[str, tuple[bytes, bytes]]:
    with database.read(ALL_TENANTS) as tx:
        read = [kept.account for kept in list_all(tx)]
    return {account.id: (account.spent.to_bytes(), account.held.to_bytes()) for account in read}


def test_a_ledger_that_went_up_goes_on(charged: Ledger) -> None:
    with charged.database.migration() as tx:
        command.downgrade(_config(tx), "0002")
    upgrade(charged.database)
    run = charged.get("/v1/runs").json()["items"][0]["id"]
    again = charged.post(f"/v1/runs/{run}/steps", {"count": 3}, Idempotency_Key="k0")
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert charged.post(f"/v1/runs/{run}/steps", {"first_step": 5}).json()["next_step"] == 6
    assert verify(charged.database).sound


def test_many_decisions_are_chained_page_by_page(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    ledger.run()
    with ledger.database.read(ALL_TENANTS) as tx:
        run = tx.execute(select(runs)).mappings().one()
    links = [_link(dict(run), position) for position in range(2001)]
    with ledger.database.write(ALL_TENANTS) as tx:
        _forget_who(tx)
        tx.execute(insert(decisions), links)
        tx.execute(update(runs).values(decisions=len(links)))
    with ledger.database.migration() as tx:
        command.downgrade(_config(tx), "0002")
    upgrade(ledger.database)
    found = verify(ledger.database)
    assert (found.decisions, found.problems) == (2001, ())


def _link(run: dict[str, Any], position: int) -> dict[str, object]:
    """A refusal, which is no matter of curves."""
    return {
        "organisation_id": run["organisation_id"],
        "run_id": run["account_id"],
        "position": position,
        "attempt": 1,
        "outcome": "refused",
        "request_fingerprint": "0" * 64,
        "first_step": 0,
        "step_count": 1,
        "requested_count": 1,
        "epsilon": 0.0,
        "delta": 1e-5,
        "epsilon_limit": 1.0,
        "binding_account_id": run["account_id"],
        "refusal": f"{{{position}}}",
        "entry_hash": bytes(32),
        "created_at": datetime(2026, 12, 1, microsecond=position, tzinfo=UTC),
    }


def _open_attempt(tx: Connection) -> None:
    for run in tx.execute(select(attempts)).mappings().all():
        tx.execute(insert(attempts).values(dict(run) | {"attempt": 2}))


def _reserve(tx: Connection) -> None:
    for run in tx.execute(select(runs)).mappings().all():
        values = {"organisation_id": run["organisation_id"], "run_id": run["account_id"], "id": run["account_id"]}
        values |= {"attempt": 1, "status": "active", "reserved": bytes(8), "reserved_delta": 0, "lease_seconds": 60}
        moment = datetime.now(UTC)
        tx.execute(insert(reservations).values(values | {"expires_at": moment, "created_at": moment}))


def _make_a_block(tx: Connection) -> None:
    budget = tx.execute(select(accounts).where(accounts.c.kind == "budget")).mappings().one()
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    made = {"account_id": budget["id"], "data_from": begin, "data_to": datetime.now(UTC)}
    tx.execute(insert(blocks).values(organisation_id=budget["organisation_id"], **made))


def _charge_another(tx: Connection) -> None:
    population = tx.execute(select(accounts.c.id).where(accounts.c.kind == "population")).scalar_one()
    for row in tx.execute(select(run_budgets)).mappings().all():
        tx.execute(insert(run_budgets).values(dict(row) | {"place": 1, "budget_id": population}))


HELD_BACK: dict[str, tuple[Callable[[Connection], object], str, str]] = {
    "a delta that was spent": (
        lambda tx: tx.execute(update(balances).values(spent_delta=1)),
        "0001",
        "4 rows of accounts have a spent_delta",
    ),
    "a quarantine": (
        lambda tx: tx.execute(update(accounts).values(quarantine="why")),
        "0002",
        "4 accounts that are quarantined",
    ),
    "an overdrawn run": (lambda tx: tx.execute(update(runs).values(status="overdrawn")), "0002", "2 runs that are"),
    "a second attempt": (_open_attempt, "0002", "2 attempts after a run's first"),
    "a reservation": (_reserve, "0002", "There are 2 reservations"),
    "a report": (
        lambda tx: tx.execute(update(decisions).where(decisions.c.position == 0).values(outcome="reported")),
        "0002",
        "1 decisions that are neither",
    ),
    "disjoint parts": (
        lambda tx: tx.execute(update(accounts).where(accounts.c.kind == "population").values(partitions_per_unit=1)),
        "0005",
        "1 accounts that are composed in parallel",
    ),
    "a window": (
        lambda tx: tx.execute(update(accounts).values(closes_at=datetime.now(UTC))),
        "0005",
        "4 accounts that have a window",
    ),
    "a block": (_make_a_block, "0005", "There are 1 blocks"),
    "a second budget": (_charge_another, "0005", "2 further budgets"),
    "a truncated request": (
        lambda tx: tx.execute(update(decisions).values(requested_count=decisions.c.step_count + 1)),
        "0002",
        "3 decisions that are neither",
    ),
}


def test_every_run_keeps_the_budget_that_it_charges(charged: Ledger) -> None:
    with charged.database.migration() as tx:
        command.downgrade(_config(tx), "0005")
        assert "run_budgets" not in inspect(tx).get_table_names()
    upgrade(charged.database)
    with charged.database.read(ALL_TENANTS) as tx:
        charging = tx.execute(select(run_budgets.c.run_id, run_budgets.c.budget_id, run_budgets.c.place)).all()
        lying = tx.execute(select(accounts.c.id, accounts.c.parent_id).where(accounts.c.kind == "run")).all()
    assert sorted(charging) == sorted((run, budget, 0) for run, budget in lying)
    assert len(charging) == 2


@pytest.mark.parametrize("what", HELD_BACK)
def test_a_ledger_that_holds_what_the_version_before_cannot_does_not_go_down(charged: Ledger, what: str) -> None:
    change, revision, words = HELD_BACK[what]
    with charged.database.write(ALL_TENANTS) as tx:
        change(tx)
    before = dump(charged.database)
    with pytest.raises(RuntimeError, match=words), charged.database.migration() as tx:
        command.downgrade(_config(tx), revision)
    assert dump(charged.database) == before


def test_a_database_is_current_after_the_upgrade_only(database: Database) -> None:
    with database.read(ALL_TENANTS) as tx:
        assert not is_current(tx)
    upgrade(database)
    with database.read(ALL_TENANTS) as tx:
        assert is_current(tx)


@pytest.mark.parametrize("table", ["api_keys", "decisions", "step_events", "alembic_version"])
def test_an_upgrade_that_fails_leaves_nothing(database: Database, table: str) -> None:
    def fail(_: Connection, __: object, statement: str, *___: object) -> None:
        if re.search(rf"(CREATE TABLE|INSERT INTO) {table}\b", statement):
            raise OperationalError(statement, {}, Exception("disk full"))

    event.listen(database.engine, "before_cursor_execute", fail)
    with pytest.raises(OperationalError):
        upgrade(database)
    event.remove(database.engine, "before_cursor_execute", fail)
    assert _tables(database) == set()
    upgrade(database)
    assert _tables(database) == {*metadata.tables, "alembic_version"}


def test_revisions_are_one_line_from_the_first_to_the_newest() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert len(scripts.get_heads()) == len(scripts.get_bases()) == 1
    for revision in scripts.walk_revisions():
        assert revision.doc, revision.revision


def test_the_command_line_migrates(tmp_path: Path, database: Database) -> None:
    file = tmp_path / "ledger.db"
    told = [command_line("migrate", database=file) for _ in range(2)]
    assert [(done.returncode, done.stderr) for done in told] == [(0, f"Created a new ledger at {file}.\n"), (0, "")]
    with database.read(ALL_TENANTS) as tx:
        assert is_current(tx)
