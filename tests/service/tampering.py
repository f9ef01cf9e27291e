"""What somebody could do who may write to the database and cares about no constraint."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, delete, select, update

from app.accounting.curves import RdpCurve
from app.ledger.accounts.account import Account
from app.ledger.accounts.account_records import AccountRecord
from app.ledger.runs.decisions import entry_hash, genesis
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories.accounts import list_all
from app.persistence.repositories.raw_rows import entries, list_runs
from app.persistence.tables import accounts, balances, decision_events, decisions, runs
from tests import postgres
from tests.api.trainer import approve
from tests.conftest import Ledger

REASON = {"reason": "The rows were restored from the backup of the night."}
MODEL, TEAM, ALL = "mimic/icu-team/model", "mimic/icu-team", "mimic"


@contextmanager
def tampering(database: Database) -> Iterator[Connection]:
    """A connection that heeds neither foreign keys nor checks, nor whose rows they are."""
    on_postgresql = database.dialect == "postgresql"
    free = Database(postgres.shared().url(str(database.engine.url.database), "ledger")) if on_postgresql else database
    with free.engine.connect() as tx:
        if not on_postgresql:
            for pragma in ("foreign_keys = OFF", "ignore_check_constraints = ON"):
                tx.connection.cursor().execute(f"PRAGMA {pragma}")  # no pragma works inside a transaction
        else:
            tx.exec_driver_sql("SET session_replication_role = replica")
            checks = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE conname LIKE 'ck_%%'"
            for table, name in tx.exec_driver_sql(checks).all():
                tx.exec_driver_sql(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        yield tx
        tx.commit()
        tx.invalidate()
    if on_postgresql:
        free.dispose()


def account(tx: Connection, path: str) -> Any:  # noqa: ANN401 - a row
    return tx.execute(select(accounts).where(accounts.c.path == path)).one()


def set_account(tx: Connection, path: str, **values: object) -> None:
    assert tx.execute(update(accounts).where(accounts.c.path == path).values(values)).rowcount == 1


def write_account(database: Database, path: str, **values: object) -> None:
    with tampering(database) as tx:
        set_account(tx, path, **values)


def balance(tx: Connection, path: str) -> Account:
    """An account as it is read, with all that it has spent and holds."""
    return _record(tx, path).account


def _record(tx: Connection, path: str) -> AccountRecord:
    [found] = [kept for _, kept, _ in list_all(tx) if kept.account.path == path]
    return found


def shift(ledger: Ledger, units: int, *paths: str) -> None:
    """Change what a budget has spent, or other accounts."""
    with tampering(ledger.database) as tx:
        for path in paths or (TEAM,):
            shift_curve(tx, path, units)


def lift(ledger: Ledger, path: str) -> None:
    """Lift a quarantine: an auditor proposes, an admin approves."""
    with ledger.database.read(ALL_TENANTS) as tx:
        stopped = account(tx, path).id
    approve(ledger, ledger.post(f"/v1/accounts/{stopped}/quarantine/lift", REASON, "auditor"), "admin")


def set_balance(tx: Connection, path: str, **values: object) -> None:
    """Write an account's curves whole, and some of them as they are not."""
    record = _record(tx, path)
    found, counts = record.account, record.counts
    whole: dict[str, object] = {"spent_curve": found.spent.to_bytes(), "held_curve": found.held.to_bytes()}
    whole |= {"spent_delta": found.spent.delta, "held_delta": found.held.delta}
    whole |= {"charges": None if counts is None else json.dumps(counts)}
    set_account(tx, path, uncompacted_charges="{}")
    tx.execute(update(balances).where(balances.c.account_id == found.id).values(whole | values))


def shift_curve(tx: Connection, path: str, units: int, column: str = "spent") -> None:
    curve: RdpCurve = getattr(balance(tx, path), column)
    values = curve.values.copy()
    values[3] += units
    set_balance(tx, path, **{f"{column}_curve": replace(curve, values=values).to_bytes()})


def reweigh(tx: Connection, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change parts of an account's filter weights."""
    weights = json.loads(account(tx, path).filter_weights)
    set_account(tx, path, filter_weights=json.dumps(weights | change(weights)))


def run_of(tx: Connection, path: str = MODEL) -> str:
    return str(account(tx, path).id)


def set_run(tx: Connection, path: str = MODEL, **values: object) -> None:
    tx.execute(update(runs).where(runs.c.account_id == run_of(tx, path)).values(values))


def set_decision(tx: Connection, position: int, **values: object) -> None:
    where = (decisions.c.run_id == run_of(tx)) & (decisions.c.position == position)
    assert tx.execute(update(decisions).where(where).values(values)).rowcount == 1


def forget(tx: Connection, position: int) -> None:
    """Remove a decision, with its items."""
    for table in (decision_events, decisions):
        gone = tx.execute(delete(table).where(table.c.run_id == run_of(tx), table.c.position == position))
    assert gone.rowcount == 1


def reseal(tx: Connection) -> None:
    """Make every hash of the runs' chains fit their decisions."""
    for organisation_id, run_id in list_runs(tx):
        head = genesis(organisation_id, run_id)
        for kept in list(entries(tx, organisation_id, run_id)):
            head = entry_hash(head, kept.entry)
            where = (decisions.c.run_id == run_id) & (decisions.c.position == kept.entry.position)
            tx.execute(update(decisions).where(where).values(entry_hash=head))
        tx.execute(update(runs).where(runs.c.account_id == run_id).values(chain_head=head))
