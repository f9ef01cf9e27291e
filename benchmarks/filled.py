"""Comparison of a full ledger with an empty one: `python -m benchmarks.filled [--rows 1000000] [--postgresql]`.

Fills a ledger over HTTP, ten steps in each event row, `--events` rows in each request, a quarter of them in one run;
then compares it, interleaved, with a ledger that has only the required rows: registering a run, charging a step,
reading 500 points of a history; and the resident memory of both servers. A million rows take some minutes.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from http import HTTPStatus
from statistics import median

from benchmarks.databases import databases
from benchmarks.load import Requests, loaded, request
from benchmarks.servers import EVENT, Server, ledger, steps_path

CONNECTIONS = 64
TURNS = 100
POINTS = 500
STEPS_A_ROW = 10


def rows_of(events: int) -> dict[str, object]:
    """Build a request that creates so many event rows."""
    kinds = [EVENT | {"sampling_probability": 0.001 + place / 1e5} for place in range(events)]
    return {"events": [{"event": kind, "count": STEPS_A_ROW} for kind in kinds]}


def filling(server: Server, events: int, run: str) -> Requests:
    """Build the requests that fill a ledger: every fourth connection charges one run, the others their own."""
    headers = {"Authorization": server.client.headers["authorization"]}
    paths = [steps_path(server) if index % 4 else run for index in range(CONNECTIONS)]
    return [[request(path, rows_of(events), headers)] for path in paths]


def fill(server: Server, rows: int, events: int, run: str) -> None:
    """Charge until a ledger has so many event rows."""
    requests = filling(server, events, run)
    done, start = 0, time.monotonic()
    while done < rows:
        done += loaded(server.port, requests, 10).replies * events
        rate = done / (time.monotonic() - start)
        print(f"\r{done:,} of {rows:,} rows, {rate:,.0f} a second ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def compare(servers: dict[str, Server], runs: dict[str, str]) -> dict[str, dict[str, list[float]]]:
    """Measure each request on each server, interleaved."""
    found: dict[str, dict[str, list[float]]] = {}
    body = {"name": "r", "budget": "p/b", "event": EVENT}
    for _ in range(TURNS):
        for name, server in servers.items():
            history = runs[name].replace("/steps", f"/history?max_points={POINTS}")
            times = {
                "register a run": server.timed("POST", "/v1/runs", body, HTTPStatus.CREATED),
                "charge a step": server.timed("POST", runs[name], {"count": 1}),
                f"read {POINTS} points": server.timed("GET", history),
            }
            for what, taken in times.items():
                found.setdefault(what, {}).setdefault(name, []).append(taken)
    return found


def main(rows: int, events: int, *, on_postgresql: bool) -> None:
    """Print the table for `rows` event rows, `events` in each request."""
    with databases("empty", "full", on_postgresql=on_postgresql) as urls, ExitStack() as stack:
        servers = {name: stack.enter_context(ledger(url)) for name, url in zip(("empty", "full"), urls, strict=True)}
        runs = {name: steps_path(server) for name, server in servers.items()}
        for _ in range(POINTS):
            servers["empty"].client.post(runs["empty"], json=rows_of(events)).raise_for_status()
        fill(servers["full"], rows, events, runs["full"])
        found = compare(servers, runs)
        memory = {name: server.memory() for name, server in servers.items()}
    print(f"\n{'median ms':24} {'empty':>9} {f'{rows:,} rows':>18} {'ratio':>7}")
    for what, times in found.items():
        empty, full = median(times["empty"]), median(times["full"])
        print(f"{what:24} {empty:9.2f} {full:18.2f} {full / empty:7.2f}")
    for place, what in enumerate(("resident MB", "resident MB at most")):
        print(f"{what:24} {memory['empty'][place]:9.0f} {memory['full'][place]:18.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=10)
    parser.add_argument("--postgresql", action="store_true")
    asked = parser.parse_args()
    main(asked.rows, asked.events, on_postgresql=asked.postgresql)
