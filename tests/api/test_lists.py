"""Lists: cursors, filters, orders, decisions of all runs, and the same as CSV."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import event

from app.api.pagination import encode_cursor
from tests.api.conftest import SeededLedger
from tests.api.trainer import is_refused
from tests.conftest import Ledger


def walk(ledger: Ledger, path: str, limit: int, role: str = "viewer") -> list[dict[str, Any]]:
    """Everything that a list shows, page by page; every page but the last is full."""
    items: list[dict[str, Any]] = []
    query = f"{path}{'&' if '?' in path else '?'}limit={limit}".replace("?&", "?")
    page = ledger.get(query, role).json()
    items.extend(page["items"])
    while page["next"] is not None:
        assert len(page["items"]) == limit
        page = ledger.get(f"{query}&after={page['next']}", role).json()
        assert page["items"], "a cursor leads to something"
        assert not [item for item in page["items"] if item in items], "a cursor leads on"
        items.extend(page["items"])
    return items


@pytest.fixture(scope="module")
def full(shared: SeededLedger) -> dict[str, list[str]]:
    """The ids of what the seeded ledger holds, in the order of their making; lists show the newest first."""
    ledger = shared.ledger
    sweep = ledger.get(f"/v1/experiments/{shared.experiment}").json()["account"]
    ids = {"populations": [shared.population], "budgets": [shared.budget, sweep], "runs": [shared.run]}
    for number in range(5):
        ids["populations"].append(str(ledger.population(f"p{number}")["id"]))
        ids["budgets"].append(str(ledger.budget(f"b{number}", "mimic" if number % 2 else "p0")["id"]))
        ids["runs"].append(ledger.run("mimic/icu-team" if number % 2 else "p0/b0"))
    for number, action in enumerate(("pause", "complete", "abort")):
        ledger.post(f"/v1/runs/{ids['runs'][number]}/{action}", None, "trainer")
    return ids


@pytest.mark.parametrize("kind", ["populations", "runs"])
def test_cursors_walk_through_everything_exactly_once(
    shared: SeededLedger, full: dict[str, list[str]], kind: str
) -> None:
    for limit in (1, 3, 5, 6, 7):
        assert [item["id"] for item in walk(shared.ledger, f"/v1/{kind}", limit)] == full[kind][::-1], limit


def test_cursor_of_another_list_is_refused(shared: SeededLedger) -> None:
    places = ("5", "key_19aa5b3c4d4e5f6071829304152", "run_1", "x" * 100)
    for kind, place in product(("populations", "budgets", "runs"), places):
        answer = is_refused(shared.ledger.get(f"/v1/{kind}?after={encode_cursor(place)}"), 422, "invalid_request")
        assert "The cursor is not one of this list" in answer["detail"]


def test_list_shows_each_thing_as_it_is_read_alone(shared: SeededLedger, full: dict[str, list[str]]) -> None:
    parent = full["populations"][1]
    below = [each for each in shared.ledger.get("/v1/budgets").json()["items"] if each["parent"] == parent]
    for by in (parent, "p0"):
        assert walk(shared.ledger, f"/v1/budgets?parent={by}", 2) == below != []
    for kind, ids in full.items():
        items = shared.ledger.get(f"/v1/{kind}").json()["items"]
        assert items == [shared.ledger.get(f"/v1/{kind}/{each}").json() for each in reversed(ids)]


def test_run_made_during_a_walk_moves_no_page(seeded: SeededLedger) -> None:
    ids = [seeded.run, *(seeded.ledger.run() for _ in range(3))]
    page = seeded.ledger.get("/v1/runs?limit=2").json()
    later = seeded.ledger.run()
    rest = seeded.ledger.get(f"/v1/runs?limit=200&after={page['next']}").json()
    assert [run["id"] for run in (*page["items"], *rest["items"])] == ids[::-1]
    assert seeded.ledger.get("/v1/runs?limit=1").json()["items"][0]["id"] == later


def test_many_runs_are_read_with_the_statements_of_one(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    statements: list[str] = []
    event.listen(ledger.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))

    def asked() -> list[str]:
        statements.clear()
        assert ledger.get("/v1/runs").status_code == 200
        return [each for each in statements if "FROM runs" in each or "FROM accounts" in each or "FROM event" in each]

    ledger.run(name="first")
    few = asked()
    for number in range(5):
        ledger.run(name=f"more-{number}", event={"type": "gaussian", "noise_multiplier": 20.0 + number})
    assert len(asked()) == len(few)


Item = dict[str, Any]


@pytest.fixture(scope="module")
def runs(shared: SeededLedger) -> list[Item]:
    """Runs of several names, owners, labels and states, as the list shows them, the newest first."""
    ledger = shared.ledger
    ledger.budget("deep", "mimic/icu-team", owner="icu", labels={"team": "icu"}, display_name="Die TIEFE")
    ledger.population("other", owner="icu", labels={"team": "icu", "tier": "1"})
    ledger.budget("b", "other")
    for number in range(12):
        about: Item = {"labels": {"team": "icu" if number % 2 else "er", "number": str(number)}}
        if number % 3 == 0:
            about["owner"] = "Zoë" if number % 2 else "icu"
        if number % 4 == 0:
            about |= {"display_name": f"ÜBUNG {number}", "labels": about["labels"] | {"100._a/b": "a:b"}}
        place = ("mimic/icu-team", "mimic/icu-team/deep", "other/b")[number % 3]
        run = ledger.run(place, name=("Beta", "alpha", "gamma", "alpha")[number % 4], **about)
        if number % 5 == 0:
            reason = {0: None, 5: {"reason": "budget_exhausted"}, 10: {"reason": "lost"}}[number]
            assert ledger.post(f"/v1/runs/{run}/{'complete' if number % 2 else 'abort'}", reason).status_code == 200
    found: list[Item] = ledger.get("/v1/runs?limit=200").json()["items"]
    assert ledger.post(f"/v1/runs/{found[3]['id']}/steps", {"first_step": 0}).status_code in {200, 422}
    return list(ledger.get("/v1/runs?limit=200").json()["items"])


FILTERS: dict[str, Callable[[Item], bool]] = {
    "q=GAMMA": lambda run: "gamma" in run["path"],
    "q=übung": lambda run: bool(run["display_name"]),
    "q=ZOË": lambda run: run["owner"] == "Zoë",
    "q=icu": lambda run: "icu" in run["path"] or run["owner"] == "icu",
    "q=%25": lambda _: False,
    "owner=icu": lambda run: run["owner"] == "icu",
    "owner=ICU": lambda _: False,
    "label=team:icu&label=number:3": lambda run: run["labels"] == {"team": "icu", "number": "3"},
    "label=100._a/b:a:b": lambda run: "100._a/b" in run["labels"],
    "label=team:": lambda _: False,
    "status=active": lambda run: run["status"] == "active",
    "status=completed&status=aborted": lambda run: run["status"] in {"completed", "aborted"},
    "end_reason=aborted&end_reason=lost": lambda run: run["end_reason"] in {"aborted", "lost"},
    "status=aborted&end_reason=lost": lambda run: (run["status"], run["end_reason"]) == ("aborted", "lost"),
    "budget=mimic/icu-team": lambda run: run["budget_path"] == "mimic/icu-team",
    "within=mimic/icu-team": lambda run: run["path"].startswith("mimic/icu-team/"),
    "population=other": lambda run: run["path"].startswith("other/"),
    "population=mimic&within=other": lambda _: False,
    "path=mimic/icu-team/deep/alpha": lambda run: run["path"] == "mimic/icu-team/deep/alpha",
    "q=alpha&label=team:icu": lambda run: "alpha" in run["path"] and run["labels"].get("team") == "icu",
    "archived=true": lambda _: False,
}
KEYS: dict[str, Callable[[Item], Any]] = {
    "created_at": lambda run: run["id"],
    "updated_at": lambda run: (run["updated_at"], run["id"]),
    "name": lambda run: (run["name"].lower(), run["id"]),
}
MATCHED_NOTHING = {"q=%25", "owner=ICU", "label=team:", "population=mimic&within=other", "archived=true"}


def test_filter_shows_what_a_filter_in_python_does(shared: SeededLedger, runs: list[Item]) -> None:
    for place, (query, keeps) in enumerate(FILTERS.items()):
        wanted = [run for run in runs if keeps(run)]
        assert bool(wanted) == (query not in MATCHED_NOTHING), "the runs try the filter"
        assert walk(shared.ledger, f"/v1/runs?{query}", 200 if place % 3 else 4) == wanted, query


@pytest.mark.parametrize("sort", ["created_at", "updated_at", "-updated_at", "name", "-name"])
def test_order_holds_over_pages(shared: SeededLedger, runs: list[Item], sort: str) -> None:
    wanted = sorted(runs, key=KEYS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    assert walk(shared.ledger, f"/v1/runs?sort={sort}", 3) == wanted
    filtered = [run for run in wanted if run["labels"].get("team") == "icu"]
    assert walk(shared.ledger, f"/v1/runs?sort={sort}&label=team:icu", 2) == filtered


def test_cursor_of_another_order_is_refused(shared: SeededLedger, runs: list[Item]) -> None:
    orders = ("created_at", "name", "-name", "updated_at", "-updated_at")
    cursors = {sort: shared.ledger.get(f"/v1/runs?limit=1&sort={sort}").json()["next"] for sort in orders}
    tries = [(sort, cursors[other]) for sort in orders for other in orders if sort != other]
    forged: tuple[object, ...] = (
        ["updated_at", "yesterday", runs[0]["id"]],
        ["updated_at", "2026-01-01T00:00:00", runs[0]["id"]],
        ["updated_at", "0001-01-01T00:00:00+23:59", runs[0]["id"]],
        ["updated_at", "9999-12-31T23:59:59-23:59", runs[0]["id"]],
        [[]],
        5,
    )
    tries += [("updated_at", encode_cursor(json.dumps(place))) for place in forged]
    tries += [("name", encode_cursor(text)) for text in ('["name", "alpha", "x"]', '["name", 5, "x"]', "[" * 60, "x")]
    # Printable as JSON, but no text of a database.
    tries += [("name", encode_cursor(json.dumps(["name", text, runs[0]["id"]]))) for text in ("\0", "\ud800")]
    for sort, cursor in tries:
        is_refused(shared.ledger.get(f"/v1/runs?sort={sort}&after={cursor}"), 422, "invalid_request")


def test_times_bound_the_list_and_accounts_are_filtered_alike(shared: SeededLedger, runs: list[Item]) -> None:
    late = {"created_after": (datetime.fromisoformat(runs[0]["created_at"]) + timedelta(days=1)).isoformat()}
    assert shared.ledger.get(f"/v1/runs?{urlencode(late)}").json() == {"items": [], "next": None}
    at, bounds = runs[5], {"created_after": True, "created_before": False, "updated_after": True}
    for name, from_on in bounds.items():
        key = f"{name.partition('_')[0]}_at"
        moment = datetime.fromisoformat(at[key])
        wanted = [run for run in runs if (datetime.fromisoformat(run[key]) >= moment) == from_on]
        found = shared.ledger.get(f"/v1/runs?limit=200&{urlencode({name: at[key]})}").json()["items"]
        assert found == wanted, name
    assert runs
    filters: dict[str, Callable[[Item], bool]] = {
        "q=tiefe": lambda item: item["display_name"] == "Die TIEFE",
        "owner=icu": lambda item: item["owner"] == "icu",
        "label=team": lambda item: "team" in item["labels"],
        "label=tier:1": lambda item: item["labels"].get("tier") == "1",
        "path=other": lambda item: item["path"] == "other",
        "path=other/b": lambda item: item["path"] == "other/b",
        "name=b": lambda item: item["name"] == "b",
    }
    for kind in ("populations", "budgets"):
        everything: list[Item] = shared.ledger.get(f"/v1/{kind}?limit=200").json()["items"]
        for query, keep in filters.items():
            wanted = [item for item in everything if keep(item)]
            assert walk(shared.ledger, f"/v1/{kind}?{query}", 2) == wanted, (kind, query)
