"""Lists: cursors walk through everything exactly once; filters show what they say."""

from itertools import product
from typing import Any

import pytest
from sqlalchemy import event

from app.api.pagination import encode_cursor
from tests.api.conftest import SeededLedger
from tests.conftest import Ledger

LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def _walk(ledger: Ledger, path: str, limit: int) -> list[dict[str, Any]]:
    """Everything that a list shows, page by page; every page but the last is full."""
    items: list[dict[str, Any]] = []
    query = f"{path}{'&' if '?' in path else '?'}limit={limit}"
    page = ledger.get(query).json()
    items.extend(page["items"])
    while page["next"] is not None:
        assert len(page["items"]) == limit
        page = ledger.get(f"{query}&after={page['next']}").json()
        assert page["items"], "a cursor leads to something"
        assert not {item["id"] for item in items} & {item["id"] for item in page["items"]}, "a cursor leads on"
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


@pytest.mark.both_databases
@pytest.mark.parametrize("kind", ["populations", "budgets", "runs"])
def test_cursors_walk_through_everything_exactly_once(
    shared: SeededLedger, full: dict[str, list[str]], kind: str
) -> None:
    for limit in (1, 2, 3, 5, 6, 7, 200):
        assert [item["id"] for item in _walk(shared.ledger, f"/v1/{kind}", limit)] == full[kind][::-1], limit


@pytest.mark.parametrize("kind", ["populations", "budgets", "runs"])
@pytest.mark.parametrize("place", ["5", "key_19aa5b3c4d4e5f6071829304152", "run_1", "x" * 100])
def test_the_cursor_of_another_list_is_refused(shared: SeededLedger, kind: str, place: str) -> None:
    refused = shared.ledger.get(f"/v1/{kind}?after={encode_cursor(place)}")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), refused.text
    assert "The cursor is not one of this list" in refused.json()["detail"]


@pytest.mark.parametrize("kind", ["populations", "budgets", "runs"])
def test_a_list_shows_each_thing_as_it_is_read_alone(
    shared: SeededLedger, full: dict[str, list[str]], kind: str
) -> None:
    items = shared.ledger.get(f"/v1/{kind}").json()["items"]
    assert items == [shared.ledger.get(f"/v1/{kind}/{each}").json() for each in reversed(full[kind])]


@pytest.mark.parametrize("by", ["id", "path"])
def test_budgets_are_listed_by_their_parent(shared: SeededLedger, full: dict[str, list[str]], by: str) -> None:
    parents = {"mimic": full["populations"][0], "p0": full["populations"][1]}
    everything = shared.ledger.get("/v1/budgets").json()["items"]
    for (path, parent_id), limit in product(parents.items(), (1, 2, 200)):
        shown = _walk(shared.ledger, f"/v1/budgets?parent={parent_id if by == 'id' else path}", limit)
        assert shown == [budget for budget in everything if budget["parent"] == parent_id]
        assert shown


def test_a_parent_without_budgets_has_none(shared: SeededLedger, full: dict[str, list[str]]) -> None:
    assert shared.ledger.get(f"/v1/budgets?parent={full['budgets'][-1]}").json() == {"items": [], "next": None}


@pytest.mark.parametrize(("path", "count"), [("mimic/icu-team", 1), ("p0/b0", 1), ("mimic", 0), ("icu-team", 0)])
def test_a_budget_is_found_by_its_path(shared: SeededLedger, full: dict[str, list[str]], path: str, count: int) -> None:
    items = shared.ledger.get(f"/v1/budgets?path={path}").json()["items"]
    assert len(full["budgets"]) > len(items) == count
    assert {item["path"] for item in items} <= {path}


@pytest.mark.both_databases
@pytest.mark.parametrize("budget", [None, "mimic/icu-team", "p0/b0"])
def test_runs_are_listed_by_budget_and_status(
    shared: SeededLedger, full: dict[str, list[str]], budget: str | None
) -> None:
    everything = shared.ledger.get("/v1/runs").json()["items"]
    assert len(everything) == len(full["runs"])
    for status, limit in product((None, "active", "paused", "completed", "aborted"), (1, 2, 200)):
        filters = {"budget": budget, "status": status}
        query = "&".join(f"{name}={value}" for name, value in filters.items() if value is not None)
        wanted = [run for run in everything if budget in {None, run["budget_path"]} and status in {None, run["status"]}]
        assert _walk(shared.ledger, f"/v1/runs?{query}" if query else "/v1/runs", limit) == wanted, (status, limit)


def test_runs_under_a_deeper_budget_are_not_in_the_list_of_the_one_above(seeded: SeededLedger) -> None:
    seeded.ledger.budget("deeper", "mimic/icu-team")
    deeper = seeded.ledger.run("mimic/icu-team/deeper")
    above = [run["id"] for run in seeded.ledger.get("/v1/runs?budget=mimic/icu-team").json()["items"]]
    assert (above, deeper in above) == ([seeded.run], False)


def test_what_is_made_during_a_walk_moves_no_page(seeded: SeededLedger) -> None:
    ids = [seeded.run, *(seeded.ledger.run() for _ in range(3))]
    page = seeded.ledger.get("/v1/runs?limit=2").json()
    later = seeded.ledger.run()
    rest = seeded.ledger.get(f"/v1/runs?limit=200&after={page['next']}").json()
    assert [run["id"] for run in (*page["items"], *rest["items"])] == ids[::-1]
    assert seeded.ledger.get("/v1/runs?limit=1").json()["items"][0]["id"] == later


def test_a_list_is_of_fifty_unless_it_is_said(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    for _ in range(51):
        ledger.run()
    page = ledger.get("/v1/runs").json()
    assert len(page["items"]) == 50
    assert len(ledger.get(f"/v1/runs?after={page['next']}").json()["items"]) == 1
    assert ledger.get("/v1/runs?after=").json() == page


def test_the_same_cursor_shows_the_same_page(shared: SeededLedger, full: dict[str, list[str]]) -> None:
    cursor = shared.ledger.get("/v1/runs?limit=2").json()["next"]
    pages = {shared.ledger.get(f"/v1/runs?limit=2&after={cursor}").content for _ in range(3)}
    assert (len(pages), len(full["runs"])) == (1, 6)


def test_many_runs_are_read_in_as_many_statements_as_one(ledger: Ledger) -> None:
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
    for number in range(12):
        ledger.run(name=f"more-{number}", event={"type": "gaussian", "noise_multiplier": 20.0 + number})
    assert len(asked()) == len(few)


def test_runs_under_several_relations_are_each_priced_by_their_own(ledger: Ledger) -> None:
    for relation in ("add_or_remove_one", "replace_one"):
        ledger.population(relation, neighboring_relation=relation)
        ledger.budget("team", relation)
        ledger.run(f"{relation}/team", event={"type": "gaussian", "noise_multiplier": 33.0})
    listed = ledger.get("/v1/runs").json()["items"]
    alone = [ledger.get(f"/v1/runs/{run['id']}").json() for run in listed]
    assert listed == alone
    assert listed[1]["steps_remaining"] > listed[0]["steps_remaining"]
