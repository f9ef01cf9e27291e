"""Cost of reservations that wait: `python -m benchmarks.waiting_reservations [--postgresql]`.

Fills a ledger with reservations that wait for ten blocks each, by copies of one that the service has written. Then the
limit of one block is raised again and again, and a snapshot decides what is granted: what it reads from the
database included. Meanwhile another organisation takes steps, interleaved with snapshots and without: do they delay it?
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from statistics import median
from threading import Event, Thread
from typing import Any, Final

from sqlalchemy import Connection, Table, insert, select, update

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import metadata
from app.service.ids import new_id
from app.service.scheduling.grants import grant_in_organisation
from benchmarks.databases import databases
from benchmarks.servers import Server, ledger_of_two, steps_path

BLOCKS_OF_A_PLAN: Final = 10
EVENT: Final = {"type": "gaussian", "noise_multiplier": 20.0}
LIMIT: Final = {"epsilon": 1.0, "delta": 1e-6}
FILLED, WANTED = 18, (5, 8, 12)
"""Steps that are reserved of each block, of which 19 fit, and that a reservation asks for."""

TURNS: Final = 40

Row = dict[str, Any]


def _rows(tx: Connection, table: str, column: str, value: str) -> list[Row]:
    """Read the rows of an account or reservation."""
    found = metadata.tables[table]
    return [dict(row._mapping) for row in tx.execute(select(found).where(found.c[column] == value))]  # noqa: SLF001 - public, despite its name


def _add(tx: Connection, table: str, rows: Sequence[Row]) -> None:
    target: Table = metadata.tables[table]
    for place in range(0, len(rows), 1000):
        tx.execute(insert(target), rows[place : place + 1000])


def template(server: Server) -> tuple[str, str]:
    """Let the service write a filled block and a run that waits for it; return their ids."""

    def post(path: str, body: object) -> Row:
        reply = server.client.post(path, json=body)
        reply.raise_for_status()
        answer: Row = reply.json()
        return answer

    unit = {"privacy_unit": "user", "neighboring_relation": "add_or_remove_one"}
    block = post("/v1/populations", {"name": "block", "limit": LIMIT} | unit)["id"]
    plan = [{"event": EVENT, "count": FILLED}]
    post("/v1/runs", {"name": "fill", "budget": "block", "reserve": plan, "lease_seconds": 604_800})
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 20 * 86_400))
    plan = [{"event": EVENT, "count": WANTED[0]}]
    return block, post("/v1/runs", {"name": "waits", "budget": "block", "reserve": plan, "wait_until": until})["id"]


def copy_blocks(tx: Connection, block: str, now: datetime, number: int) -> list[str]:
    """Copy a block with what is reserved of it."""
    ids = [new_id("pop", now + timedelta(milliseconds=place)) for place in range(number)]
    for table, key in (("accounts", "id"), ("balances", "account_id"), ("populations", "account_id")):
        [row] = _rows(tx, table, key, block)
        changes = [{"population_id": each, "name": each, "path": each, "name_skeleton": each} for each in ids]
        _add(
            tx,
            table,
            [
                row | ({key: each} if table != "accounts" else {key: each, **change})
                for each, change in zip(ids, changes, strict=True)
            ],
        )
    for table in ("account_metadata", "account_ancestors"):
        [row] = _rows(tx, table, "account_id", block)
        ancestor = {"ancestor_id"} & row.keys()
        _add(tx, table, [row | {"account_id": each} | dict.fromkeys(ancestor, each) for each in ids])
    return ids


def copy_runs(tx: Connection, run: str, now: datetime, blocks: Sequence[str], number: int) -> None:
    """Copy a run that waits, each for other blocks."""
    chosen = random.Random(1)  # noqa: S311 - a workload
    found = {
        table: _rows(tx, table, key, run)
        for table, key in (
            *(("accounts", "id"), ("balances", "account_id"), ("account_metadata", "account_id")),
            *(("runs", "account_id"), ("attempts", "run_id"), ("reservations", "run_id")),
        )
    }
    [item] = _rows(tx, "reservation_items", "reservation_id", found["reservations"][0]["id"])
    copies: dict[str, list[Row]] = {table: [] for table in (*found, "account_ancestors", "run_budgets")}
    items: list[Row] = []
    for place in range(number):
        at = now + timedelta(milliseconds=place)
        own, waits = new_id("run", at), new_id("res", at)
        wanted = chosen.sample(blocks, BLOCKS_OF_A_PLAN)
        root = {"parent_id": wanted[0], "population_id": wanted[0], "path": f"{wanted[0]}/{own}", "name": own}
        for table, [row] in found.items():
            key = "id" if table == "accounts" else "account_id" if "account_id" in row else "run_id"
            copy = row | {key: own} | (root if table == "accounts" else {})
            copies[table].append(copy | ({"id": waits, "created_at": at} if table == "reservations" else {}))
        base = {"organisation_id": item["organisation_id"]}
        above = [{"account_id": own, "ancestor_id": each, "depth": 0} for each in wanted]
        copies["account_ancestors"] += [base | each for each in above]
        copies["account_ancestors"].append(base | {"account_id": own, "ancestor_id": own, "depth": 1})
        copies["run_budgets"] += [
            base | {"run_id": own, "position": position, "budget_id": each} for position, each in enumerate(wanted)
        ]
        items.append(item | {"reservation_id": waits, "count": chosen.choice(WANTED)})
    for table, rows in copies.items():
        _add(tx, table, rows)
    _add(tx, "reservation_items", items)


def raise_limit(db: Database, organisation_id: str, block: str) -> None:
    """Raise the limit of a block by as much as one reservation needs, as its row shows it."""
    accounts = metadata.tables["accounts"]
    with db.write(organisation_id) as tx:
        here = (accounts.c.organisation_id == organisation_id) & (accounts.c.id == block)
        changed = {"limit_value": accounts.c.limit_value + 0.3, "version": accounts.c.version + 1}
        tx.execute(update(accounts).where(here).values(changed))


def decisions(db: Database, organisation_id: str, blocks: Sequence[str]) -> Iterator[float]:
    """Raise one limit after the other, and yield the milliseconds of each decision."""
    for block in blocks:
        raise_limit(db, organisation_id, block)
        start = time.perf_counter()
        grant_in_organisation(db, organisation_id)
        yield (time.perf_counter() - start) * 1e3


@contextmanager
def repeated(work: Callable[[], object], seconds: float) -> Iterator[None]:
    """Repeat work in a thread meanwhile."""
    stopped = Event()

    def run() -> None:
        while not stopped.wait(seconds):
            work()

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def main(plans: int = 10_000, blocks: int = 1_000, *, on_postgresql: bool = False) -> None:
    """Print the figures."""
    with databases("waiting", on_postgresql=on_postgresql) as [url], ledger_of_two(url, "admin") as (server, others):
        steps = steps_path(server)
        before = [server.timed("POST", steps, {"count": 1}) for _ in range(TURNS * 5)]
        block, run = template(others)
        db = Database(url)
        now = db.clock.now()
        with db.read(ALL_TENANTS) as tx:
            accounts = metadata.tables["accounts"]
            organisation_id = tx.execute(select(accounts.c.organisation_id).where(accounts.c.id == block)).scalar_one()
        with db.write(ALL_TENANTS) as tx:
            ids = copy_blocks(tx, block, now, blocks)
            copy_runs(tx, run, now, ids, plans)
            if on_postgresql:
                tx.exec_driver_sql("ANALYZE")  # as it does by itself after a minute
        start = time.perf_counter()
        grant_in_organisation(db, organisation_id)
        print(f"{plans:,} plans wait for {BLOCKS_OF_A_PLAN} of {blocks:,} blocks each, {url.partition(':')[0]}")
        print(f"first snapshot of a process: {time.perf_counter() - start:.2f} s")
        taken = sorted(decisions(db, organisation_id, ids[:TURNS]))
        print(f"decision after one change: median {median(taken):.0f} ms, slowest {taken[-1]:.0f} ms")
        changes = iter(ids[TURNS:] * 2)
        again = Server(server.process, server.port, server.client)  # its connection has been idle for too long
        with_looks = []
        with repeated(lambda: raise_limit(db, organisation_id, next(changes)), 0.2):
            for _ in range(TURNS * 25):
                with_looks.append(again.timed("POST", steps, {"count": 1}))
                time.sleep(0.002)
        for name, found in (("nothing waits", before), ("the other's plans are decided", with_looks)):
            ordered = sorted(found)
            print(
                f"step of another organisation, {name}: {median(found):.2f} ms, p99 {ordered[-len(ordered) // 100]:.2f}"
            )
        db.engine.dispose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reservations", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=1_000)
    parser.add_argument("--postgresql", action="store_true")
    given = parser.parse_args()
    main(given.reservations, given.blocks, on_postgresql=given.postgresql)
