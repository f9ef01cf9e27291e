"""Filters and orders of lists: each shows what a filter in Python would, page by page, without repeating a thing."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from app.api.pagination import encode_cursor
from tests.api.conftest import SeededLedger
from tests.api.test_lists import _walk

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
            about |= {
                "display_name": f"ÜBUNG {number}",
                "labels": about["labels"] | {"100%_a\\b".lower().replace("%", ".").replace("\\", "/"): "a:b"},
            }
        place = ("mimic/icu-team", "mimic/icu-team/deep", "other/b")[number % 3]
        run = ledger.run(place, name=("Beta", "alpha", "gamma", "alpha")[number % 4], **about)
        if number % 5 == 0:
            reason = {0: None, 5: {"reason": "budget_exhausted"}, 10: {"reason": "lost"}}[number]
            assert ledger.post(f"/v1/runs/{run}/{'complete' if number % 2 else 'abort'}", reason).status_code == 200
    found: list[Item] = ledger.get("/v1/runs?limit=200").json()["items"]
    assert ledger.post(f"/v1/runs/{found[3]['id']}/steps", {"first_step": 0}).status_code in {200, 422}
    listed: list[Item] = ledger.get("/v1/runs?limit=200").json()["items"]
    return listed


FILTERS: dict[str, Callable[[Item], bool]] = {
    "q=alpha": lambda run: "alpha" in run["path"],
    "q=GAMMA": lambda run: "gamma" in run["path"],
    "q=übung": lambda run: bool(run["display_name"]),
    "q=ZOË": lambda run: run["owner"] == "Zoë",
    "q=icu": lambda run: "icu" in run["path"] or run["owner"] == "icu",
    "q=%25": lambda _: False,
    "q=_": lambda _: False,
    "owner=icu": lambda run: run["owner"] == "icu",
    "owner=ICU": lambda _: False,
    "label=team:icu": lambda run: run["labels"].get("team") == "icu",
    "label=number": lambda run: "number" in run["labels"],
    "label=team:icu&label=number:3": lambda run: run["labels"] == {"team": "icu", "number": "3"},
    "label=100._a/b:a:b": lambda run: "100._a/b" in run["labels"],
    "label=team:": lambda _: False,
    "status=active": lambda run: run["status"] == "active",
    "status=completed&status=aborted": lambda run: run["status"] in {"completed", "aborted"},
    "end_reason=budget_exhausted": lambda run: run["end_reason"] == "budget_exhausted",
    "end_reason=aborted&end_reason=lost": lambda run: run["end_reason"] in {"aborted", "lost"},
    "status=aborted&end_reason=lost": lambda run: (run["status"], run["end_reason"]) == ("aborted", "lost"),
    "status=active&end_reason=lost": lambda _: False,
    "budget=mimic/icu-team": lambda run: run["budget_path"] == "mimic/icu-team",
    "within=mimic/icu-team": lambda run: run["path"].startswith("mimic/icu-team/"),
    "within=mimic/icu-team&budget=mimic/icu-team/deep": lambda run: run["budget_path"] == "mimic/icu-team/deep",
    "population=other": lambda run: run["path"].startswith("other/"),
    "population=mimic&within=other": lambda _: False,
    "path=mimic/icu-team/deep/alpha": lambda run: run["path"] == "mimic/icu-team/deep/alpha",
    "q=alpha&status=active&label=team:icu": lambda run: (
        "alpha" in run["path"] and run["status"] == "active" and run["labels"].get("team") == "icu"
    ),
    "archived=true": lambda _: False,
}
KEYS: dict[str, Callable[[Item], Any]] = {
    "created_at": lambda run: run["id"],
    "updated_at": lambda run: (run["updated_at"], run["id"]),
    "name": lambda run: (run["name"].lower(), run["id"]),
}
MATCHED_NOTHING = {
    *("q=%25", "q=_", "owner=ICU", "label=team:", "population=mimic&within=other", "archived=true"),
    "status=active&end_reason=lost",
}


@pytest.mark.parametrize("query", FILTERS)
def test_a_filter_shows_what_it_says(shared: SeededLedger, runs: list[Item], query: str) -> None:
    wanted = [run for run in runs if FILTERS[query](run)]
    assert bool(wanted) == (query not in MATCHED_NOTHING), "the runs try the filter"
    for limit in (2, 200):
        assert _walk(shared.ledger, f"/v1/runs?{query}", limit) == wanted, limit


@pytest.mark.parametrize("sort", ["created_at", "-created_at", "updated_at", "-updated_at", "name", "-name"])
def test_an_order_holds_over_pages(shared: SeededLedger, runs: list[Item], sort: str) -> None:
    wanted = sorted(runs, key=KEYS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    for limit in (1, 5, 200):
        assert _walk(shared.ledger, f"/v1/runs?sort={sort}", limit) == wanted, limit
    filtered = [run for run in wanted if run["labels"].get("team") == "icu"]
    assert _walk(shared.ledger, f"/v1/runs?sort={sort}&label=team:icu", 2) == filtered


def test_a_cursor_of_another_order_is_refused(shared: SeededLedger, runs: list[Item]) -> None:
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
        refused = shared.ledger.get(f"/v1/runs?sort={sort}&after={cursor}")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), (sort, cursor, refused.text)


def test_the_longest_name_fits_into_a_cursor(seeded: SeededLedger) -> None:
    names = [letter + "\U00020000" * 99 for letter in "ab"]
    for name in names:
        seeded.ledger.run(name=name)
    assert [run["name"] for run in _walk(seeded.ledger, "/v1/runs?sort=name", 1)][:2] == names


def test_times_bound_the_list(shared: SeededLedger, runs: list[Item]) -> None:
    for at in (runs[0], runs[5], runs[-1]):
        for name, key, from_on in (
            ("created_after", "created_at", True),
            ("created_before", "created_at", False),
            ("updated_after", "updated_at", True),
        ):
            moment = datetime.fromisoformat(at[key])
            wanted = [run for run in runs if (datetime.fromisoformat(run[key]) >= moment) == from_on]
            query = urlencode({name: at[key]})
            assert shared.ledger.get(f"/v1/runs?limit=200&{query}").json()["items"] == wanted, name
    late = quote((datetime.fromisoformat(runs[0]["created_at"]) + timedelta(days=1)).isoformat())
    assert shared.ledger.get(f"/v1/runs?created_after={late}").json() == {"items": [], "next": None}


def test_a_run_is_found_by_its_id(shared: SeededLedger, runs: list[Item]) -> None:
    assert shared.ledger.get(f"/v1/runs?q={runs[4]['id']}").json()["items"] == [runs[4]]


@pytest.mark.parametrize("kind", ["populations", "budgets"])
def test_accounts_are_filtered_alike(shared: SeededLedger, runs: list[Item], kind: str) -> None:
    assert runs
    everything: list[Item] = shared.ledger.get(f"/v1/{kind}?limit=200").json()["items"]
    for query, keep in (
        ("q=tiefe", lambda item: item["display_name"] == "Die TIEFE"),
        ("owner=icu", lambda item: item["owner"] == "icu"),
        ("label=team", lambda item: "team" in item["labels"]),
        ("label=tier:1", lambda item: item["labels"].get("tier") == "1"),
        ("path=other", lambda item: item["path"] == "other"),
        ("path=other/b", lambda item: item["path"] == "other/b"),
        ("name=b", lambda item: item["name"] == "b"),
    ):
        assert _walk(shared.ledger, f"/v1/{kind}?{query}", 1) == [item for item in everything if keep(item)], query


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("label=:x", 422),
        ("sort=epsilon", 422),
        ("status=lost", 422),
        ("end_reason=completed", 422),
        ("q=", 422),
        ("created_after=yesterday", 422),
        ("budget=nothing", 404),
        ("within=nothing", 404),
        ("population=nothing", 404),
    ],
)
def test_a_bad_filter_is_refused_by_its_name(shared: SeededLedger, query: str, status: int) -> None:
    refused = shared.ledger.get(f"/v1/runs?{query}")
    assert refused.status_code == status, refused.text
    assert (query.partition("=")[0] if status == 422 else "'nothing'") in refused.text
