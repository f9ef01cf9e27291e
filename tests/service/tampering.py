"""What somebody could do who may write to the database and cares about no constraint."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, select, update

from app.persistence.engine import Database
from app.persistence.tables import (
    accounts,
    attempts,
    decisions,
    dp_events,
    event_curves,
    reservation_items,
    reservations,
    runs,
    step_events,
)

MODEL, TEAM, ALL = "mimic/icu-team/model", "mimic/icu-team", "mimic"

_EVERY_CHECK = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'c' AND conname LIKE 'ck_%'"


@contextmanager
def tampering(database: Database) -> Iterator[Connection]:
    """A connection that heeds neither foreign keys nor checks."""
    with database.engine.connect() as tx:
        if database.dialect == "sqlite":
            for pragma in ("foreign_keys = OFF", "ignore_check_constraints = ON"):
                tx.connection.cursor().execute(f"PRAGMA {pragma}")  # no pragma works inside a transaction
        else:
            tx.exec_driver_sql("SET session_replication_role = replica")
            for table, name in tx.exec_driver_sql(_EVERY_CHECK.replace("%", "%%")).all():
                tx.exec_driver_sql(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        yield tx
        tx.commit()
        tx.invalidate()


def account(tx: Connection, path: str) -> Any:  # noqa: ANN401 - a row
    return tx.execute(select(accounts).where(accounts.c.path == path)).one()


def set_account(tx: Connection, path: str, **values: object) -> None:
    assert tx.execute(update(accounts).where(accounts.c.path == path).values(values)).rowcount == 1


def shift_curve(tx: Connection, path: str, units: int, column: str = "spent") -> None:
    curve = np.frombuffer(getattr(account(tx, path), column), dtype="<i8").copy()
    curve[3] += units
    set_account(tx, path, **{column: curve.tobytes()})


def shift_weights(tx: Connection, path: str) -> None:
    weights = json.loads(account(tx, path).weights)
    weights["indices"] = [index + 1 for index in weights["indices"]]
    set_account(tx, path, weights=json.dumps(weights))


def swell_weights(tx: Connection, path: str) -> None:
    weights = json.loads(account(tx, path).weights)
    weights["deltas"] = [delta * 1.1 for delta in weights["deltas"]]
    set_account(tx, path, weights=json.dumps(weights))


def renoise(tx: Connection, old: str, new: str) -> None:
    for row in tx.execute(select(dp_events)).all():
        if f":{old}" in row.canonical:
            text = row.canonical.replace(f":{old}", f":{new}")
            tx.execute(update(dp_events).where(dp_events.c.fingerprint == row.fingerprint).values(canonical=text))
            return
    raise AssertionError(old)


def reprice(tx: Connection, factor: float) -> None:
    for row in tx.execute(select(event_curves)).all():
        curve = (np.frombuffer(row.curve, dtype="<i8") / factor).astype("<i8")
        where = event_curves.c.event_fingerprint == row.event_fingerprint
        tx.execute(update(event_curves).where(where).values(curve=curve.tobytes()))


def run_of(tx: Connection, path: str = MODEL) -> str:
    return str(account(tx, path).id)


def set_run(tx: Connection, path: str = MODEL, **values: object) -> None:
    tx.execute(update(runs).where(runs.c.account_id == run_of(tx, path)).values(values))


def set_attempt(tx: Connection, **values: object) -> None:
    tx.execute(update(attempts).where(attempts.c.run_id == run_of(tx)).values(values))


def set_decision(tx: Connection, position: int, **values: object) -> None:
    where = (decisions.c.run_id == run_of(tx)) & (decisions.c.position == position)
    assert tx.execute(update(decisions).where(where).values(values)).rowcount == 1


def set_item(tx: Connection, position: int = 1, **values: object) -> None:
    where = (step_events.c.run_id == run_of(tx)) & (step_events.c.position == position)
    assert tx.execute(update(step_events).where(where).values(values)).rowcount == 1


def forget(tx: Connection, position: int) -> None:
    """Remove a decision, with its items."""
    for table in (step_events, decisions):
        assert tx.execute(delete(table).where(table.c.run_id == run_of(tx), table.c.position == position)).rowcount > 0


def set_reservation(tx: Connection, **values: object) -> None:
    assert tx.execute(update(reservations).values(values)).rowcount == 1


def set_plan(tx: Connection, **values: object) -> None:
    where = reservation_items.c.item == 0
    assert tx.execute(update(reservation_items).where(where).values(values)).rowcount == 1


def sampled_fingerprint(tx: Connection) -> str:
    found = select(dp_events.c.fingerprint).where(dp_events.c.canonical.contains("poisson"))
    return str(tx.execute(found).scalars().first())
