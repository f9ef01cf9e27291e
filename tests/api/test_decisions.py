"""Decisions of all runs, the newest first: filters, cursors, and no more than the caller may see."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from app.api.pagination import encode_cursor
from tests.api.conftest import SeededLedger
from tests.api.test_lists import walk
from tests.api.trainer import issue
from tests.clocks import stand_at
from tests.conftest import Ledger

VAST = {"count": 10**9}


def _list(ledger: Ledger, query: str = "", key: str | None = None) -> list[dict[str, Any]]:
    return list(_asked(ledger, query, key).raise_for_status().json()["items"])


def _asked(ledger: Ledger, query: str = "", key: str | None = None) -> httpx2.Response:
    headers = ledger.headers("viewer") if key is None else {"Authorization": f"Bearer {key}"}
    return ledger.http.get(f"/v1/decisions{query}", headers=headers)


@pytest.fixture(scope="module")
def runs(shared: SeededLedger) -> dict[str, str]:
    """Four runs in three budgets that took steps in turns, were refused some, and told of some."""
    ledger = shared.ledger
    ledger.population("eicu")
    ledger.budget("team", "eicu")
    ledger.budget("deep", "mimic/icu-team")
    found = {"first": shared.run, "deep": ledger.run("mimic/icu-team/deep"), "other": ledger.run("eicu/team")}
    both = {"name": "both", "budgets": ["mimic/icu-team", "eicu/team"]}
    body = both | {"event": {"type": "gaussian", "noise_multiplier": 50.0}}
    found["both"] = str(ledger.post("/v1/runs", body).json()["id"])
    for _ in range(3):
        for run in found.values():
            assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer", X_Request_Id="turn").status_code == 200
    for name in ("deep", "other", "first"):
        assert ledger.post(f"/v1/runs/{found[name]}/steps", VAST, "trainer").status_code == 403
    assert ledger.post(f"/v1/runs/{found['other']}/steps", {"mode": "report"}, "admin").status_code == 200
    return found


def test_item_is_the_decision_of_the_history_with_its_run_and_its_refusal(
    shared: SeededLedger, runs: dict[str, str]
) -> None:
    item = _list(shared.ledger, "?decision=refused&limit=1")[0]
    point = shared.ledger.get(f"/v1/runs/{runs['first']}/history").json()["points"][-1]
    same = ("position", "decision", "attempt", "first_step", "count", "epsilon", "used", "delta", "hash")
    assert {name: item[name] for name in same} == {name: point[name] for name in same}
    assert (item["created_at"], item["binding_account"]) == (point["created_at"], point["binding_account"])
    assert (item["run"], item["run_path"]) == (runs["first"], "mimic/icu-team/model")
    assert (item["actor"], item["request_id"]) == (point["actor"], point["request_id"])
    answer = shared.ledger.post(f"/v1/runs/{runs['first']}/steps?dry_run=true", VAST, "trainer").json()
    assert item["refusal"] == {name: answer[name] for name in item["refusal"]}
    assert item["refusal"]["max_steps_that_fit"] > 0
    assert item["binding_account_path"] == answer["binding_account_path"]
    admitted = _list(shared.ledger, "?decision=admitted&limit=1")[0]
    assert (admitted["refusal"], admitted["request_id"]) == (None, "turn")


FILTERS = [
    *("", "decision=admitted", "decision=refused", "decision=reported", "decision=forfeited"),
    *("run={first}&decision=refused", "account=mimic&decision=refused", "account=eicu/team"),
    *("account=mimic/icu-team/deep", "account={both}", "account=eicu&run={both}", "account=eicu&run={first}"),
]
ABOVE = {"first": "mimic", "deep": "mimic", "other": "eicu", "both": "mimic eicu"}


def test_cursors_walk_through_what_a_filter_shows_exactly_once(shared: SeededLedger, runs: dict[str, str]) -> None:
    names = {run: name for name, run in runs.items()}
    everything = _list(shared.ledger, "?limit=200")

    def shown(item: dict[str, Any], wanted: dict[str, str]) -> bool:
        name, account = names[item["run"]], wanted.get("account", "")
        population, _, below = account.partition("/")
        charged = population in ABOVE[name] if not below.endswith("deep") else name == "deep"
        if account in names:
            charged = item["run"] == account
        return charged and all(wanted.get(each) in {None, item[each]} for each in ("run", "decision"))

    for query in FILTERS:
        wanted = dict(part.split("=") for part in query.format(**runs).split("&")) if query else {}
        expected = [item for item in everything if shown(item, wanted)]
        for limit in (1, 5, 16) if query == "" else (4,):
            assert walk(shared.ledger, f"/v1/decisions?{query.format(**runs)}", limit) == expected, (query, limit)


def test_actor_and_a_time_tell_decisions_apart(shared: SeededLedger, runs: dict[str, str]) -> None:
    items = _list(shared.ledger, "?limit=200")
    [reporter] = {item["actor"] for item in items if item["decision"] == "reported"}
    mine = [item for item in items if item["actor"] == reporter]
    assert (_list(shared.ledger, f"?actor={reporter}"), 0 < len(mine) < len(items)) == (mine, True)
    assert _list(shared.ledger, "?actor=key_nobody") == []
    middle = items[7]["created_at"]
    late, early = (_list(shared.ledger, f"?{name}={middle}&limit=200") for name in ("since", "until"))
    assert (late + early, late[-1]["created_at"]) == (items, middle)
    one = _list(shared.ledger, f"?run={runs['first']}&since={middle}&limit=200")
    assert one == [item for item in late if item["run"] == runs["first"]]


def test_decisions_of_one_moment_are_told_apart_by_a_cursor(
    seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [seeded.ledger.run() for _ in range(2)]
    stand_at(monkeypatch, lambda: datetime(2026, 11, 22, 9, 0, 0, 250, UTC))
    for run in (seeded.run, *others) * 2:
        assert seeded.steps(run=run).status_code == 200
    moment = "since=2026-11-22T09:00:00Z&until=2026-11-22T09:00:01Z"
    whole = _list(seeded.ledger, f"?{moment}")
    assert (len(whole), len({item["created_at"] for item in whole})) == (6, 1)
    assert walk(seeded.ledger, f"/v1/decisions?{moment}", 1) == whole


def test_key_sees_the_decisions_of_runs_under_its_scope(shared: SeededLedger, runs: dict[str, str]) -> None:
    everything = _list(shared.ledger, "?limit=200")
    scopes = {"mimic": {"first", "deep", "both"}, "mimic/icu-team/deep": {"deep"}, "eicu": {"other", "both"}}
    for scope, names in scopes.items():
        key, within = str(issue(shared.ledger, "bound", "viewer", scope)["key"]), {runs[name] for name in names}
        seen = [item for item in everything if item["run"] in within]
        assert _list(shared.ledger, "?limit=200", key) == seen
        refused = [item for item in seen if item["decision"] == "refused"]
        assert _list(shared.ledger, "?decision=refused", key) == refused
        for name, run in runs.items():
            statuses = [_asked(shared.ledger, f"?{by}={run}", key).status_code for by in ("run", "account")]
            assert statuses == [200 if name in names else 403] * 2


RUN = "run_0123456789abcde"
PLACES = [
    *("x", f"2026-11-22T09:00:00+00:00/{RUN}", f"2026-11-22T09:00:00/{RUN}/1", f"2026-11-22T09:00:00+02:00/{RUN}/1"),
    *("2026-11-22T09:00:00+00:00/run_x/1", f"2026-11-22T09:00:00+00:00/{RUN}/" + "9" * 19),
]


def test_cursor_of_no_decision_is_refused(shared: SeededLedger) -> None:
    wrong = ("decision=denied", "actor=", "account=", "since=0001-01-01T00:00:00%2B23:59", "limit=0", "who=x")
    for query in (*wrong, "until=9999-12-31T23:59:59-23:59", *(f"after={encode_cursor(place)}" for place in PLACES)):
        reply = _asked(shared.ledger, f"?{query}")
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request"), query
