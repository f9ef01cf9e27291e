"""Lists of decisions among a million others: `python -m benchmarks.decision_lists [--postgresql]`.

Two keys charge runs of their own, once at the start; one of them once more at the end. Between, the runs of another
budget get copies of a decision, written to the database. Then pages of 50 are asked for over HTTP, in alternation.
"""

import argparse
from datetime import UTC, datetime, timedelta
from statistics import median
from urllib.parse import urlencode

from sqlalchemy import func, insert, select, update

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import decisions, runs
from benchmarks.databases import databases
from benchmarks.servers import Server, budget, ledger, steps_path

TURNS = 15
ROWS_AT_ONCE = 10_000


def key_of(server: Server, name: str) -> tuple[str, dict[str, str]]:
    """Create a trainer's key; return its id and the headers that carry it."""
    made = server.client.post("/v1/api-keys", json={"name": name, "role": "trainer"}).raise_for_status().json()
    return made["id"], {"Authorization": f"Bearer {made['key']}"}


def fill(url: str, steps: list[str], count: int) -> datetime:
    """Copy the first decision of each run until there are so many; return the time of the one in the middle."""
    run_ids = [path.split("/")[3] for path in steps]
    database = Database(url)
    with database.read(ALL_TENANTS) as tx:
        found = select(decisions).where(decisions.c.run_id.in_(run_ids))
        templates = [dict(row) for row in tx.execute(found).mappings()]
    start = datetime.now(UTC) - timedelta(milliseconds=count)
    for first in range(0, count, ROWS_AT_ONCE):
        rows = []
        for number in range(first, min(first + ROWS_AT_ONCE, count)):
            position = 1 + number // len(templates)
            at = start + timedelta(milliseconds=number)
            place = {"position": position, "first_step": position, "created_at": at}
            rows.append(templates[number % len(templates)] | place)
        with database.write(ALL_TENANTS) as tx:
            tx.execute(insert(decisions), rows)
    last = select(func.max(decisions.c.position) + 1).where(decisions.c.run_id == runs.c.account_id).scalar_subquery()
    with database.write(ALL_TENANTS) as tx:
        tx.execute(update(runs).where(runs.c.account_id.in_(run_ids)).values(decision_count=last, next_step=last))
        if tx.dialect.name == "postgresql":
            tx.exec_driver_sql("ANALYZE decisions")
    database.dispose()
    return start + timedelta(milliseconds=count / 2)


def main(count: int, run_count: int, *, on_postgresql: bool) -> None:
    """Print the median milliseconds of each list."""
    with databases("lists", on_postgresql=on_postgresql) as (url,), ledger(url) as server:
        actors, rare = {}, {}
        for name in ("old", "rare"):
            actors[name], headers = key_of(server, name)
            rare[name] = (steps_path(server, budget(server, name)), headers)
            charge(server, *rare[name])
        steps = [steps_path(server) for _ in range(run_count)]
        for path in steps:
            charge(server, path, {})
        middle = fill(url, steps, count)
        charge(server, *rare["rare"])
        before = {"until": middle.isoformat()}
        lists = {
            "the newest": {},
            "from the middle on": before,
            "of one run": {"run": steps[0].split("/")[3]},
            "of one run, from the middle on": before | {"run": steps[0].split("/")[3]},
            "of an account that nearly all charge": {"account": "p"},
            "the same, from the middle on": before | {"account": "p"},
            "of an account with one decision, the oldest": {"account": "old"},
            "of an account with the oldest and the newest": {"account": "rare"},
            "of an actor of one decision, the oldest": {"actor": actors["old"]},
            "of an actor of the oldest and the newest": {"actor": actors["rare"]},
            "of an actor who never asked": {"actor": "key_nobody"},
            "admitted, of an account with the oldest": {"account": "old", "decision": "admitted"},
            "refused": {"decision": "refused"},
        }
        times: dict[str, list[float]] = {name: [] for name in ("/healthz, the floor", *lists)}
        for _ in range(TURNS):
            times["/healthz, the floor"].append(server.timed("GET", "/healthz"))
            for name, asked in lists.items():
                times[name].append(server.timed("GET", f"/v1/decisions?{urlencode(asked)}"))
    print(f"{'median ms':50} {count:,} decisions of {run_count} runs")
    for name, taken in times.items():
        print(f"{name:50} {median(taken):7.1f}")


def charge(server: Server, path: str, headers: dict[str, str]) -> None:
    """Charge a step."""
    server.client.post(path, json={"count": 1}, headers=headers).raise_for_status()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--decisions", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--postgresql", action="store_true")
    asked = parser.parse_args()
    main(asked.decisions, asked.runs, on_postgresql=asked.postgresql)
