"""Cost of a large organisation's pages: `python -m benchmarks.dashboard [--postgresql]`.

100 populations, 2,000 budgets, 10,000 runs. The whole overview, a poll of it without changes, the page of runs and its
filters, and `/healthz` as the baseline, interleaved: response time and processor time of the server. Then a browser
opens the overview and the page of runs: first paint, and size of the scripts; and it sends the search form.
"""

import argparse
import gzip
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

import httpx2

from benchmarks.databases import databases
from benchmarks.servers import EVENT, Server, ledger
from tests.browser import browsing

POPULATIONS, BUDGETS, RUNS = 100, 20, 5
"""Populations, budgets of each, runs of each budget."""

TURNS = 60
POLLS = 20
"""Polls measured at once: one is shorter than the resolution of processor time."""

RUN_LISTS: Final = {
    "all": "",
    "by text": "?q=population-07",
    "by text of none": "?q=nothing-like-this",
    "by status": "?status=active",
    "by budget": "?within=population-042",
    "by owner": "?owner=team%207",
    "by two labels": "?label=model:m3&label=team:t7",
    "by time": "?created_after=2020-01-01",
    "by name": "?sort=name",
    "by last change": "?sort=-updated_at",
}
"""Queries of the page of runs."""

_TICK = os.sysconf("SC_CLK_TCK")


def fill(server: Server) -> None:
    """Create the accounts, and let every run take a step."""
    made = 0

    def post(path: str, body: dict[str, object]) -> str:
        reply = server.client.post(path, json=body)
        reply.raise_for_status()
        return str(reply.json().get("id", ""))

    def tree(number: int) -> None:
        nonlocal made
        limit = {"epsilon": 0.2 + number, "delta": 1e-6}
        terms = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
        post("/v1/populations", {"name": f"population-{number:03}", "limit": limit, **terms})
        for budget in range(BUDGETS):
            path = f"population-{number:03}/team-{budget:02}"
            post("/v1/budgets", {"name": f"team-{budget:02}", "parent": f"population-{number:03}", "limit": limit})
            for run in range(RUNS):
                about = {"owner": f"team {budget}", "labels": {"model": f"m{run}", "team": f"t{budget}"}}
                run_id = post("/v1/runs", {"name": f"model-{run}", "budget": path, "event": EVENT, **about})
                server.client.post(f"/v1/runs/{run_id}/steps", json={"count": 1 + 300 * budget * run})  # or refused
        made += 1
        print(f"\r{made} of {POPULATIONS} populations ", end="", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tree, range(POPULATIONS)))
    print(file=sys.stderr)


def processor_ms(server: Server) -> float:
    """Return the server process's processor time in milliseconds."""
    fields = Path(f"/proc/{server.process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / _TICK


def signed_in(server: Server) -> httpx2.Client:
    """Return a client with a session cookie."""
    key = server.client.headers["authorization"].partition(" ")[2]
    client = httpx2.Client(base_url=server.client.base_url, timeout=60, trust_env=False)
    reply = client.post("/sign-in", data={"key": key}, headers={"Sec-Fetch-Site": "same-origin"})
    assert reply.is_redirect, reply.text
    return client


def compare(server: Server) -> dict[str, list[tuple[float, float]]]:
    """Measure response and processor milliseconds of each request, interleaved."""
    client = signed_in(server)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(TURNS):
        polled = client.get("/", headers={"X-Part": "page"}).raise_for_status()
        polls = {"X-Part": "page", "If-None-Match": polled.headers["etag"]}
        for what, path, headers, times in (
            ("/healthz", "/healthz", {}, POLLS),
            ("overview, whole", "/", {}, 1),
            ("overview, nothing new", "/", polls, POLLS),
            *((f"runs, {what}", f"/runs{query}", {}, 1) for what, query in RUN_LISTS.items()),
        ):
            before, start = processor_ms(server), time.perf_counter()
            for _ in range(times):
                reply = client.get(path, headers=headers)
            waited = (time.perf_counter() - start) * 1e3 / times
            used = (processor_ms(server) - before) / times
            fresh = what != "overview, nothing new" or reply.status_code == 304  # noqa: PLR2004 - nothing new
            if fresh:  # a minute may end in between, and then there is something new
                found.setdefault(what, []).append((waited, used))
    return found


FIRST_PAINT: Final = """new Promise((done) => new PerformanceObserver((seen) => {
  const [first] = seen.getEntriesByName("first-contentful-paint");
  if (first) done(first.startTime);
}).observe({ type: "paint", buffered: true }))"""
"""Waits inside the page, because its CSP forbids the repeated evaluation of Playwright's waiting."""


def painted(server: Server) -> tuple[dict[str, list[float]], int, int]:
    """Measure first paints in ms, and the bytes of the overview's HTML and of its scripts, compressed."""
    client = signed_in(server)
    cookie = next(iter(client.cookies.jar))
    paints: dict[str, list[float]] = {}
    scripts: dict[str, int] = {}
    with browsing() as browser:
        for _ in range(7):
            context = browser.new_context()
            context.add_cookies([{"name": cookie.name, "value": cookie.value or "", "url": str(client.base_url)}])
            page = context.new_page()
            page.on(
                "response",
                lambda reply: (
                    scripts.update({reply.url: len(gzip.compress(reply.body()))}) if reply.url.endswith(".js") else None
                ),
            )
            for what, path in (("overview", "/"), ("runs", "/runs")):
                page.goto(f"{client.base_url}{path}")
                paints.setdefault(what, []).append(float(page.evaluate(FIRST_PAINT)))
            page.get_by_label("Search").fill("population-07")
            page.get_by_role("button", name="Find").click()
            page.wait_for_url("**q=population-07**")
            paints.setdefault("runs, after a search", []).append(float(page.evaluate(FIRST_PAINT)))
            context.close()
    own = sum(size for url, size in scripts.items() if not url.endswith("/chart.js"))
    return paints, len(client.get("/").content), own


def main(*, on_postgresql: bool = False) -> None:
    """Print the table, on SQLite or PostgreSQL."""
    with databases("dashboard", on_postgresql=on_postgresql) as (url,), ledger(url) as server:
        fill(server)
        found = compare(server)
        paints, size, scripts = painted(server)
    print(f"{'median':24} {'ms waited':>10} {'ms of processor':>16}")
    for what, measured in found.items():
        print(f"{what:24} {median(each[0] for each in measured):10.2f} {median(each[1] for each in measured):16.2f}")
    for what, times in paints.items():
        print(f"first paint of {what}: median {median(times):.0f} ms, slowest {max(times):.0f} ms")
    print(f"HTML {size / 1000:.0f} kB; scripts but the chart library {scripts / 1000:.1f} kB by gzip")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgresql", action="store_true")
    main(on_postgresql=parser.parse_args().postgresql)
