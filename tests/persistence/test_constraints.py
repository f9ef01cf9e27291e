"""The constraints restate the invariants: SQL itself refuses every row that breaks one, made of a ledger's own rows."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import metadata
from app.persistence.tables.base import NumberedId, Sha256Hex
from tests.conftest import new_database, open_ledger
from tests.persistence.dump import dump
from tests.service.full_ledger import fill
from tests.waiting_reservations import ask, later

pytestmark = pytest.mark.both_databases

Row = dict[str, Any]
TABLES = metadata.sorted_tables
UNNAMED = "FOREIGN KEY constraint failed"  # SQLite does not say which

SIMPLE: dict[str, object] = {
    r"(\w+) >= 0": -1,
    r"(\w+) (?:>= 1|> 0)": 0,
    r"(\w+) <> ''": "",
    r"(\w+) IN \('[^)]*\)": "unknown",
    r"length\((\w+)\) = 32": b"x" * 31,
}
"""Conditions on one column, and a value that breaks each."""

PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
BUDGET, POPULATION, RUN = "kind = 'budget'", "kind = 'population'", "kind = 'run'"
ADMITTED, REFUSED, FORFEITED = "outcome = 'admitted'", "outcome = 'refused'", "outcome = 'forfeited'"
ENDED, WAITING, OPEN = "status = 'forfeited'", "status = 'waiting'", "status = 'open'"
WEIGHTED = "filter_weights IS NOT NULL"
UNUSED, ANY = "authorized_count = 0 AND revoked_count = 0", "1 = 1"
SECRETS: Row = {"secret": None, "previous_secret": None, "previous_secret_expires_at": None}
HUGE: Row = {"step_count": 10**10, "requested_count": 10**10, "event_count": 10**10}
NOT_LIMITED: Row = {"limit_unit": None, "limit_value": None, "limit_delta": None, "filter_weights": None}
OUT_OF_RANGE: list[Row] = [
    *({"limit_value": value} for value in (0.0, -1.0, 10001.0, float("inf"))),
    *({"limit_delta": value} for value in (-1e-9, 0.5)),
]
MU: Row = {"limit_unit": "mu", "filter_weights": None}
ODD_LENGTHS = [(7, 0), (0, 7)]
MISSING, FRESH = "run_eeeeeeeeeeeeeee", "run_ddddddddddddddd"  # of nothing, and of a new account

BROKEN: list[tuple[str, str, str, list[Row]]] = [
    ("api_keys", "single_use_complete", "scope_id IS NULL", [{"single_use": True}]),
    ("accounts", "name_skeleton_unless_run", BUDGET, [{"name_skeleton": None}]),
    ("accounts", "name_skeleton_unless_run", RUN, [{"name_skeleton": "x"}]),
    ("accounts", "population_is_root", BUDGET, [{"parent_id": None}, {"depth": 0}, {"depth": -1}]),
    ("accounts", "population_is_root", POPULATION, [{"depth": 1}, {"parent_id": MISSING}]),
    ("accounts", "population_refers_to_itself", POPULATION, [{"population_id": MISSING}]),
    ("accounts", "limit_required_unless_run", BUDGET, [NOT_LIMITED]),
    (
        "accounts",
        "limit_complete",
        "kind = 'run' AND limit_value IS NULL",
        [{"limit_delta": 1e-5}, {"limit_unit": "mu"}],
    ),
    ("accounts", "limit_complete", BUDGET, [{"limit_delta": None}]),
    (
        "accounts",
        "limit_in_range",
        BUDGET,
        [
            row | {"filter_weights": None}
            for row in (*OUT_OF_RANGE, MU, {**MU, "limit_value": 101.0, "limit_delta": 0.0})
        ],
    ),
    ("accounts", "filter_weights_only_with_orders", "limit_value IS NULL", [{"filter_weights": "{}"}]),
    ("accounts", "filter_weights_only_with_orders", WEIGHTED, [{"limit_unit": "rho"}, {"limit_delta": 0.0}]),
    ("accounts", "policy_not_on_runs", RUN, [{"policy": "{}"}]),
    ("accounts", "organisation_policy_only_on_populations", BUDGET, [{"organisation_policy": "{}"}]),
    ("accounts", "allocation_not_on_runs", RUN, [{"allocation": "{}"}]),
    ("accounts", "partitions_not_on_runs", RUN, [{"max_partitions_per_unit": 1}]),
    ("accounts", "window_order", BUDGET, [{"opens_at": FUTURE, "closes_at": PAST}]),
    ("balances", "curve_lengths", ANY, [{"spent_curve": b"x" * n, "held_curve": b"x" * m} for n, m in ODD_LENGTHS]),
    ("data_blocks", "data_range_order", ANY, [{"data_from": FUTURE, "data_to": PAST}]),
    ("block_schedules", "limit_in_range", ANY, OUT_OF_RANGE),
    ("event_costs", "curve_length", ANY, [{"curve": b"x" * 7}, {"curve": b""}]),
    ("runs", "pending_not_started", "status = 'active'", [{"status": "pending", "attempt": 2}]),
    ("runs", "end_reason_if_ended", "status = 'active'", [{"status": "aborted"}]),
    ("runs", "ended_at_if_ended", "status = 'aborted'", [{"ended_at": None}]),
    ("reservations", "closed_at_unless_waiting_or_active", ENDED, [{"closed_at": None}]),
    ("reservations", "closed_at_unless_waiting_or_active", WAITING, [{"closed_at": FUTURE}]),
    ("reservations", "wait_until_if_not_granted", ENDED, [{"status": "expired"}, {"status": "cancelled"}]),
    ("reservations", "wait_until_if_not_granted", WAITING, [{"granted_at": FUTURE}]),
    ("reservations", "granted_at_if_waited", ENDED, [{"granted_at": FUTURE}]),
    ("reservations", "claimed_at_if_granted", ENDED, [{"wait_until": FUTURE, "claimed_at": FUTURE}]),
    ("reservations", "priority_in_range", ENDED, [{"priority": 101}, {"priority": -101}]),
    ("reservations", "steps_executed_if_committed", ENDED, [{"steps_executed": 1}, {"status": "committed"}]),
    ("reservations", "curve_length", ENDED, [{"reserved_curve": b"x" * 7}, {"reserved_curve": b""}]),
    ("reservation_items", "count_in_range", UNUSED, [{"count": 0}, {"count": 1_000_000_001}]),
    ("reservation_items", "authorized_count_in_range", ANY, [{"authorized_count": -1}, {"authorized_count": 10**9}]),
    ("reservation_items", "revoked_count_in_range", ANY, [{"revoked_count": -1}, {"revoked_count": 10**9}]),
    ("decisions", "counters_in_range", ADMITTED, [{name: -1} for name in ("position", "first_step")]),
    ("decisions", "counters_in_range", ADMITTED, [{name: 0} for name in ("attempt", "step_count")]),
    ("decisions", "requested_count_at_least_step_count", "step_count > 1", [{"requested_count": 1}]),
    ("decisions", "event_count_in_range", ADMITTED, [{"event_count": 0}, {"event_count": 10**6}, HUGE]),
    ("decisions", "outcome_consistent", ADMITTED, [{"outcome": "refused"}, {"outcome": "forfeited"}, {"outcome": "x"}]),
    ("decisions", "outcome_consistent", ADMITTED, [{"refusal_details": "{}"}, {"steps_remaining": None}]),
    ("decisions", "outcome_consistent", ADMITTED, [{"outcome": "reported", "refusal_details": "{}"}]),
    ("decisions", "outcome_consistent", REFUSED, [{"refusal_details": None}, {"outcome": "admitted"}]),
    ("decisions", "outcome_consistent", REFUSED, [{"steps_remaining": 0}]),
    ("decisions", "outcome_consistent", FORFEITED, [{"reservation_id": None}, {"idempotency_key": "k"}]),
    ("decisions", "outcome_consistent", FORFEITED, [{"refusal_details": "{}"}, {"steps_remaining": 1}]),
    ("decisions", "ended_plans_unless_refused", REFUSED, [{"ended_plans": "[]"}]),
    ("decisions", "warnings_unless_refused", REFUSED, [{"warnings": "[]"}]),
    ("decisions", "reading_in_range", ADMITTED, [{"epsilon": -0.1}, {"used": -0.1}]),
    ("decisions", "reading_in_range", ADMITTED, [{"limit_value": 0.0}, {"limit_delta": -0.1}]),
    ("decision_events", "count_in_range", ANY, [{"count": 0}, {"count": 1_000_000_000_001}]),
    ("proposals", "account_required", OPEN, [{"kind": "run", "account_id": None}]),
    ("proposals", "decided_by_unless_open", OPEN, [{"status": "approved"}]),
    ("proposals", "decision_complete", OPEN, [{"decided_at": FUTURE}]),
    ("sessions", "oidc_session_complete", "role IS NULL", [{"role": "admin"}, {"oidc_key_thumbprint": "t"}]),
    ("sessions", "scope_only_for_oidc", "role IS NULL", [{"scope_id": MISSING}]),
    ("sessions", "expires_after_creation", ANY, [{"expires_at": PAST}]),
    ("sign_in_links", "expires_after_creation", ANY, [{"expires_at": PAST}]),
    ("receivers", "url_unless_email", ANY, [{"url": None}]),
    ("receivers", "addresses_if_email", ANY, [{"addresses": '["a@b.example"]'}]),
    ("receivers", "secret_if_webhook", ANY, [SECRETS]),
    ("receivers", "previous_secret_complete", ANY, [{"previous_secret_expires_at": None}]),
    ("receivers", "disabled_complete", ANY, [{"disabled_reason": "why"}]),
    ("receivers", "consecutive_failures_consistent", ANY, [{"consecutive_failures": 1}]),
    ("receivers", "consecutive_failures_consistent", ANY, [{"consecutive_failures": -1, "failing_since": FUTURE}]),
    ("alerts", "account_unless_of_organisation", "account_id IS NOT NULL", [{"account_id": None}]),
    ("alerts", "test_without_account", "type = 'receiver.test'", [{"account_id": MISSING}]),
    ("deliveries", "delivered_at_if_delivered", "delivered_at IS NULL", [{"status": "delivered"}]),
    ("idempotent_responses", "status_known", ANY, [{"status": 500}]),
]
"""A table, one of its conditions, the rows that it is tried with, and changes that break it and no other one."""


@pytest.fixture(scope="module")
def database(database_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A ledger of every kind of row, also a waiting plan, a decided proposal, and a key and a session with a scope."""
    folder = tmp_path_factory.mktemp("constraints")
    with new_database(database_kind, folder, furnish=fill) as url, open_ledger(folder, url) as ledger:
        made = ledger.budget("later", opens_at=later(24))
        assert ask(ledger, "waits", 2, budget="mimic/later").json()["status"] == "waiting"
        raised = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "Another study."}
        proposed = ledger.post(f"/v1/accounts/{made['id']}/limit", raised, If_Match="*").json()
        assert ledger.post(f"/v1/proposals/{proposed['id']}/reject", {}, "privacy_officer").json()["decided_by"]
        ledger.budget("idle")  # without runs, so that it has no weights yet
        ledger.cookie()
        keys, sessions, accounts = (metadata.tables[name] for name in ("api_keys", "sessions", "accounts"))
        with ledger.database.write(ALL_TENANTS) as tx:
            found = sa.select(accounts.c.organisation_id, accounts.c.id).where(accounts.c.path == "mimic")
            owner, population = tx.execute(found).one()
            token, person = {"token_hash": b"t" * 32}, {"role": "admin", "oidc_key_thumbprint": "t"}
            for table, given in ((keys, token), (sessions, person)):
                one = sa.select(table.c.id).where(table.c.organisation_id == owner).limit(1).scalar_subquery()
                tx.execute(sa.update(table).where(table.c.id == one).values(given | {"scope_id": population}))
        before = dump(ledger.database)
        yield ledger.database
        assert dump(ledger.database) == before, "what was refused has changed something"


def _rows(database: Database, table: sa.Table, condition: str = ANY) -> list[Row]:
    with database.read(ALL_TENANTS) as tx:
        rows = tx.execute(sa.select(table).where(sa.text(condition)).order_by(*table.primary_key).limit(20)).mappings()
        found = [dict(row) for row in rows]
    assert found, f"no row of {table} has {condition}"
    return found


def _refusal(database: Database, statement: sa.Executable) -> str:
    """The name of the constraint that refuses a statement, or its columns, where the database names these."""
    with pytest.raises(IntegrityError) as refused, database.write(ALL_TENANTS) as tx:
        tx.execute(statement)
    error: Any = refused.value.orig
    if database.dialect == "postgresql":
        return str(error.diag.constraint_name or f"{error.diag.table_name}.{error.diag.column_name}")
    return str(error).partition(" failed: ")[2] or str(error)


def _update(table: sa.Table, row: Row, changes: Row) -> sa.Executable:
    return sa.update(table).where(*(column == row[column.name] for column in table.primary_key)).values(changes)


def _breaking(column: sa.Column[Any], value: object) -> object:
    """A value as the column's type takes it."""
    if isinstance(column.type, NumberedId):
        return "a word that is no id"
    return value.hex() if isinstance(column.type, Sha256Hex) and isinstance(value, bytes) else value


@cache
def _checks(table: sa.Table) -> dict[str, Row | None]:
    """The conditions by name, and a change that breaks each; None: it is one on several columns."""
    found: dict[str, Row | None] = {}
    for check in (each for each in table.constraints if isinstance(each, sa.CheckConstraint)):
        matches = [(re.fullmatch(pattern, str(check.sqltext)), value) for pattern, value in SIMPLE.items()]
        breaking = {match[1]: _breaking(table.c[match[1]], value) for match, value in matches if match}
        found[str(check.name)] = breaking or None
    return found


def test_condition_on_one_column_refuses_a_row_that_breaks_it(database: Database) -> None:
    for table in TABLES:
        rows = _rows(database, table)
        for name, changes in _checks(table).items():
            assert changes is None or any(_refusal(database, _update(table, row, changes)) == name for row in rows), (
                name
            )


@pytest.mark.parametrize("name", sorted({name for name, *_ in BROKEN}))
def test_condition_on_several_columns_refuses_a_row_that_breaks_it(database: Database, name: str) -> None:
    table = metadata.tables[name]
    for _, check, condition, tries in (each for each in BROKEN if each[0] == name):
        row = _rows(database, table, condition)[0]
        for changes in tries:
            assert _refusal(database, _update(table, row, changes)) == f"ck_{name}_{check}", changes


def test_every_condition_on_several_columns_is_in_the_table_above() -> None:
    conditions = {name for table in TABLES for name, changes in _checks(table).items() if changes is None}
    assert conditions == {f"ck_{table}_{check}" for table, check, *_ in BROKEN}


def test_nan_is_refused_where_there_must_be_a_number(database: Database) -> None:
    for name, column in (("decisions", "epsilon"), ("accounts", "limit_value")):
        if (database.dialect, name) != ("postgresql", "decisions"):  # to PostgreSQL, NaN is above all numbers
            row = _rows(database, metadata.tables[name], f"{column} IS NOT NULL")[0]
            _refusal(database, _update(metadata.tables[name], row, {column: float("nan")}))


def test_null_is_refused_where_there_must_be_a_value(database: Database) -> None:
    for table in TABLES:
        for column in (each for each in table.columns if not each.nullable):
            emptied = sa.update(table).values({column.name: sa.null()})
            assert _refusal(database, emptied) == f"{table.name}.{column.name}"


@cache
def _unique_keys(table: sa.Table) -> list[tuple[str, list[str], str]]:
    """Name, columns and condition of each unique constraint or index."""
    keys = [table.primary_key, *(each for each in table.constraints if isinstance(each, sa.UniqueConstraint))]
    indexes = [index for index in table.indexes if index.unique]
    name = postgresql.dialect().identifier_preparer.format_constraint  # type: ignore[no-untyped-call]  # cuts long ones
    return [(str(name(key)), key.columns.keys(), ANY) for key in keys] + [
        (str(index.name), index.columns.keys(), str(index.dialect_options["sqlite"]["where"])) for index in indexes
    ]


def _fresh(database: Database, column: sa.Column[Any]) -> object:
    """A value that no row has there; of another table's row, if that can be."""
    kind = column.type
    if isinstance(kind, NumberedId):
        source = metadata.tables["organisations" if column.name == "organisation_id" else "accounts"]
        unused = sa.select(source.c.id).where(source.c.id.not_in(sa.select(column)))
        if column.table.name in {"organisations", "accounts"} and column.name != "organisation_id":
            return FRESH
        with database.read(ALL_TENANTS) as tx:
            return tx.execute(unused.limit(1)).scalar() or MISSING
    if isinstance(kind, Sha256Hex | sa.LargeBinary):
        return "e" * 64 if isinstance(kind, Sha256Hex) else b"e" * 32
    return 99_999 if issubclass(kind.python_type, int) else "fresh"


def _copy(database: Database, table: sa.Table, row: Row, keep: Sequence[str], **changes: object) -> Row:
    """A copy of a row that has no unique key of it, but those that consist of columns to keep."""
    copy = row | changes
    foreign = {name for key in table.foreign_key_constraints for name in key.column_keys}
    last = {"organisation_id", *(name for name in row if f"ck_{table}_{name}_known" in _checks(table))}
    for _, columns, _ in _unique_keys(table):
        others = [name for name in columns if name not in keep]
        if others and all(copy[name] == row[name] is not None for name in columns):
            name = min(others, key=lambda name: (name in last, name in foreign))
            copy[name] = _fresh(database, table.c[name])
    if table.name == "accounts" and row["population_id"] == row["id"] and "population_id" not in changes:
        copy["population_id"] = copy["id"]
    return copy


def test_second_row_with_a_unique_key_is_refused(database: Database) -> None:
    for table in TABLES:
        for _, columns, condition in _unique_keys(table):
            known = " AND ".join(f"{column} IS NOT NULL" for column in columns)
            rows = _rows(database, table, f"({condition}) AND {known}")
            keys = [(name, key) for name, key, _ in _unique_keys(table) if set(key) <= set(columns)]
            wanted = {each for name, key in keys for each in (name, ", ".join(f"{table}.{part}" for part in key))}
            copies = (sa.insert(table).values(_copy(database, table, row, columns)) for row in rows)
            assert any(_refusal(database, copy) in wanted for copy in copies), wanted


def test_reference_to_a_row_that_is_not_there_is_refused(database: Database) -> None:
    for table in TABLES:
        keys = {str(key.name): key.column_keys for key in table.foreign_key_constraints}
        for *_, last in keys.values():
            missing = MISSING if isinstance(table.c[last].type, NumberedId) else _fresh(database, table.c[last])
            rows = _rows(database, table)
            copies = (sa.insert(table).values(_copy(database, table, row, [last], **{last: missing})) for row in rows)
            broken = {name for name, others in keys.items() if last in others} | {UNNAMED}
            assert any(_refusal(database, copy) in broken for copy in copies), broken


def test_reference_to_a_row_of_another_organisation_is_refused(database: Database) -> None:
    for table in TABLES:
        keys = {str(key.name): key.column_keys for key in table.foreign_key_constraints if len(key.columns) > 1}
        if keys:
            known = " AND ".join(f"{column} IS NOT NULL" for column in keys[min(keys)])
            row, other = _rows(database, table, known)[0], metadata.tables["accounts"].c.organisation_id
            copy = _copy(database, table, row, ["organisation_id"], organisation_id=_fresh(database, other))
            assert _refusal(database, sa.insert(table).values(copy)) in {*keys, UNNAMED}


def test_row_that_others_refer_to_is_not_removed(database: Database) -> None:
    for table in {key.referred_table for each in TABLES for key in each.foreign_key_constraints}:
        assert _refusal(database, sa.delete(table)).startswith(("fk_", UNNAMED)), table
