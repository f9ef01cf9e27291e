"""A run's history: every decision, refused ones included, whole or thinned out."""

import base64
import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 300.0}


@dataclass(frozen=True)
class Crowded:
    """A run whose decisions were about very many events."""

    shared: SeededLedger
    run: str
    bodies: list[list[dict[str, Any]]]

    def read(self, query: str = "") -> dict[str, Any]:
        """Its history."""
        history: dict[str, Any] = self.shared.ledger.get(f"/v1/runs/{self.run}/history{query}").json()
        return history


def _history(seeded: SeededLedger, query: str = "") -> dict[str, Any]:
    history: dict[str, Any] = seeded.ledger.get(f"/v1/runs/{seeded.run}/history{query}").json()
    return history


def _take(seeded: SeededLedger, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = seeded.ledger.post(f"/v1/runs/{seeded.run}/steps", body, "trainer").json()
    return answer


@pytest.mark.both_databases
def test_a_history_holds_every_decision_as_it_was_given(seeded: SeededLedger) -> None:
    bodies: list[dict[str, Any]] = [
        {"count": 3},
        {"count": 10**6},
        {"event": GAUSSIAN},
        {"events": [{"event": SAMPLED, "count": 2}, {"event": GAUSSIAN}, {"event": SAMPLED, "count": 5}]},
        {"events": [{"event": GAUSSIAN, "count": 10**9}, {"event": SAMPLED}]},
        {},
    ]
    answers = [_take(seeded, body) for body in bodies]
    history = _history(seeded)
    assert (history["run"], history["decisions"], len(history["points"])) == (seeded.run, 7, 7)
    path = [seeded.population, seeded.budget, seeded.run]
    epsilon = history["points"][0]["epsilon"]
    for position, (point, answer) in enumerate(zip(history["points"][1:], answers, strict=True), 1):
        same = ("decision", "first_step", "count", "delta", "epsilon_limit", "binding_account")
        assert {key: point[key] for key in same} == {key: answer[key] for key in same}
        assert (point["position"], point["accounts"]) == (position, path)
        if answer["decision"] == "refused":
            assert (point["epsilon"], point["next_step"]) == (epsilon, answer["first_step"])
        else:
            assert point["epsilon"] == answer["epsilon"] > epsilon
            assert point["next_step"] == answer["next_step"]
        epsilon = point["epsilon"]
    assert [point["events"] for point in history["points"][3:5]] == [
        [{"event": GAUSSIAN, "count": 1}],
        [{"event": SAMPLED, "count": 2}, {"event": GAUSSIAN, "count": 1}, {"event": SAMPLED, "count": 5}],
    ]
    assert [point["created_at"] for point in history["points"]] == sorted(
        point["created_at"] for point in history["points"]
    )


def test_what_is_no_decision_is_not_in_the_history(seeded: SeededLedger) -> None:
    before = _history(seeded)
    _take(seeded, {"first_step": 0})
    _take(seeded, {"first_step": 9})
    _take(seeded, {"count": 0})
    seeded.ledger.post(f"/v1/runs/{seeded.run}/steps?dry_run=true", {}, "trainer")
    seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", None, "trainer")
    _take(seeded, {})
    assert _history(seeded) == before


def test_a_run_that_asked_nothing_has_an_empty_history(seeded: SeededLedger) -> None:
    run = seeded.ledger.run()
    empty = seeded.ledger.get(f"/v1/runs/{run}/history").json()
    assert empty == {"run": run, "points": [], "decisions": 0, "next": None}


@pytest.fixture(scope="module")
def long(shared: SeededLedger) -> SeededLedger:
    """A seeded ledger whose run decided sixty times, some of it refused."""
    for number in range(1, 60):
        _take(shared, {"event": GAUSSIAN} if number % 7 else {"count": 10**6})
    return shared


@pytest.mark.parametrize("most", [2, 3, 7, 20, 59, 60, 61, 500, 2000])
def test_a_thinned_history_keeps_its_ends_and_its_order(long: SeededLedger, most: int) -> None:
    whole = _history(long)["points"]
    assert [point["position"] for point in whole] == list(range(60))
    thinned = _history(long, f"?max_points={most}")
    assert thinned["decisions"] == 60
    assert len(thinned["points"]) == min(most, 60)
    assert thinned["points"] == [whole[point["position"]] for point in thinned["points"]]
    places = [point["position"] for point in thinned["points"]]
    assert (places[0], places[-1]) == (0, 59)
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("most", [2, 3, 60, 500])
def test_a_cursor_shows_only_what_came_later(long: SeededLedger, most: int) -> None:
    whole = _history(long)["points"]
    first = _history(long, "?max_points=2")
    assert first["points"] == [whole[0], whole[59]]
    after = _history(long, f"?max_points={most}&after={first['next']}")
    assert (after["points"], after["next"], after["decisions"]) == ([], first["next"], 60)


@pytest.mark.both_databases
def test_polling_shows_each_decision_once(seeded: SeededLedger) -> None:
    seen: list[int] = []
    cursor = ""
    for burst in (0, 1, 3, 0, 10, 1):
        for number in range(burst):
            _take(seeded, {"event": GAUSSIAN} if number % 3 else {"count": 10**6})
        page = _history(seeded, f"?after={cursor}")
        seen.extend(point["position"] for point in page["points"])
        cursor = page["next"] or ""
    assert seen == list(range(16))


def test_every_later_page_keeps_its_ends_too(seeded: SeededLedger) -> None:
    cursor = _history(seeded)["next"]
    for _ in range(9):
        _take(seeded, {"event": GAUSSIAN})
    page = _history(seeded, f"?max_points=3&after={cursor}")
    assert [point["position"] for point in page["points"]] == [1, 5, 9]


def test_a_history_is_of_five_hundred_unless_it_is_said(seeded: SeededLedger) -> None:
    cheap = {"event": {"type": "gaussian", "noise_multiplier": 9000.0}}
    for _ in range(500):
        assert _take(seeded, cheap)["decision"] == "admitted"
    page = _history(seeded)
    places = [point["position"] for point in page["points"]]
    assert (page["decisions"], len(places), places[0], places[-1]) == (501, 500, 0, 500)


def _many(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Events that differ, so that none is told twice."""
    return [{"event": {"type": "gaussian", "noise_multiplier": 30_000.0 + first + place}} for place in range(count)]


def _shown(point: dict[str, Any]) -> list[float]:
    return [item["event"]["noise_multiplier"] for item in point["events"]]


@pytest.fixture(scope="module")
def crowded(shared: SeededLedger) -> Crowded:
    """A run that took a thousand events at a time, one, and three, and was refused a thousand."""
    run = shared.ledger.run()
    bodies = [_many(1000), _many(1, 2000), _many(3, 3000), *[_many(1000, number) for number in range(9)]]
    bodies.append([*_many(999), {"event": GAUSSIAN, "count": 10**9}])
    for body in bodies:
        shared.ledger.post(f"/v1/runs/{run}/steps", {"events": body}, "trainer")
    return Crowded(shared, run, bodies)


def test_a_point_shows_the_first_of_very_many_events_and_says_so(crowded: Crowded) -> None:
    page = crowded.read()
    assert [point["decision"] for point in page["points"]] == ["admitted"] * 12 + ["refused"]
    for point, body in zip(page["points"], crowded.bodies, strict=True):
        whole = [item["event"]["noise_multiplier"] for item in body]
        shown = _shown(point)
        assert shown == whole[: len(shown)]
        assert point["events_truncated"] == (len(shown) < len(whole)) == (len(whole) == 1000)
        assert point["count"] == sum(item.get("count", 1) for item in body)
        assert len(shown) > 500 or not point["events_truncated"]


def test_fewer_points_show_all_of_their_events(crowded: Crowded) -> None:
    first, last = crowded.read("?max_points=2")["points"]
    for point, body in ((first, crowded.bodies[0]), (last, crowded.bodies[-1])):
        assert (len(point["events"]), point["events_truncated"]) == (1000, False)
        assert _shown(point) == [item["event"]["noise_multiplier"] for item in body]


def test_any_one_point_can_be_read_whole(crowded: Crowded) -> None:
    for position, body in enumerate(crowded.bodies):
        cursor = base64.urlsafe_b64encode(str(position - 1).encode()).decode().rstrip("=") if position else ""
        point = crowded.read(f"?max_points=2&after={cursor}")["points"][0]
        assert (point["position"], point["events_truncated"]) == (position, False)
        assert _shown(point) == [item["event"]["noise_multiplier"] for item in body]


@pytest.mark.parametrize("room", [0, 1, 13 * 400, 13 * 500, 13 * 2000, 1 << 20])
def test_an_answer_holds_no_more_events_than_there_is_room_for(
    crowded: Crowded, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("app.persistence.repositories.decisions.EVENTS_ROOM", room)
    points = crowded.read()["points"]
    assert (
        sum(400 + len(json.dumps(item["event"], separators=(",", ":"))) for each in points for item in each["events"])
        <= room
    )
    for point, body in zip(points, crowded.bodies, strict=True):
        assert point["events_truncated"] == (len(point["events"]) < len(body))


def test_a_large_event_is_left_out_of_many_points_and_shown_in_few(seeded: SeededLedger) -> None:
    large = {"type": "composed", "events": [_many(1, number)[0]["event"] for number in range(900)]}
    run = str(
        seeded.ledger.post("/v1/runs", {"name": "large", "budget": "mimic/icu-team", "event": large}).json()["id"]
    )
    for _ in range(120):
        assert seeded.ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    reply = seeded.ledger.get(f"/v1/runs/{run}/history")
    assert len(reply.content) < 1 << 20
    assert [(point["events"], point["events_truncated"]) for point in reply.json()["points"]] == [([], True)] * 120
    for point in seeded.ledger.get(f"/v1/runs/{run}/history?max_points=60").json()["points"]:
        assert (point["events"], point["events_truncated"]) == ([{"event": large, "count": 1}], False)
