"""Histories of runs and accounts, whole or thinned out, and their pictures."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from app.api.pagination import encode_cursor
from app.api.routers import charts
from app.charts.model import Chart
from app.charts.render import Frame, draw
from app.service.queries import account_history
from tests.api.conftest import SeededLedger
from tests.api.trainer import Trainer
from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import visitor
from tests.epsilons import tightest

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 300.0}


def _history(seeded: SeededLedger, query: str = "") -> dict[str, Any]:
    return dict(seeded.ledger.get(f"/v1/runs/{seeded.run}/history{query}").json())


def test_history_has_every_decision_as_it_was_answered(seeded: SeededLedger) -> None:
    three = [{"event": SAMPLED, "count": 2}, {"event": GAUSSIAN, "count": 1}, {"event": SAMPLED, "count": 5}]
    bodies: list[dict[str, Any]] = [
        *({"count": 3}, {"count": 10**6}, {"event": GAUSSIAN}, {"events": three}),
        *({"events": [{"event": GAUSSIAN, "count": 10**9}, {"event": SAMPLED}]}, {}),
    ]
    answers = [seeded.steps(**body).json() for body in bodies]
    history = _history(seeded)
    assert (history["run"], history["decisions"], len(history["points"])) == (seeded.run, 7, 7)
    path, epsilon = [seeded.population, seeded.budget, seeded.run], history["points"][0]["epsilon"]
    for position, (point, answer) in enumerate(zip(history["points"][1:], answers, strict=True), 1):
        same = ("decision", "first_step", "count", "delta", "used", "binding_account")
        assert {key: point[key] for key in same} == {key: answer[key] for key in same}
        assert (point["position"], point["accounts"]) == (position, path)
        if answer["decision"] == "refused":
            assert (point["epsilon"], point["next_step"]) == (epsilon, answer["first_step"])
        else:
            assert point["epsilon"] == answer["epsilon"] > epsilon
            assert point["next_step"] == answer["next_step"]
        epsilon = point["epsilon"]
    assert [point["events"] for point in history["points"][3:5]] == [[{"event": GAUSSIAN, "count": 1}], three]
    times = [point["created_at"] for point in history["points"]]
    assert times == sorted(times)
    for body in ({"first_step": 0}, {"first_step": 9}, {"count": 0}, {"query": "?dry_run=true"}):
        seeded.steps(**body)
    seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", None, "trainer")
    seeded.steps()
    assert _history(seeded) == history, "what is no decision is not in it"


def test_thinned_history_keeps_its_ends_and_order_and_polling_shows_each_decision_once(seeded: SeededLedger) -> None:
    polled: list[dict[str, Any]] = []
    cursor = ""
    for number in range(1, 16):
        page = _history(seeded, f"?after={cursor}")
        polled, cursor = polled + page["points"], page["next"] or ""
        seeded.steps(**({"event": GAUSSIAN} if number % 7 else {"count": 10**6}))
    polled += _history(seeded, f"?after={cursor}")["points"]
    whole = _history(seeded)["points"]
    assert [point["position"] for point in whole] == [point["position"] for point in polled] == list(range(16))
    for most in (2, 7, 15, 16, 2000):
        thinned = _history(seeded, f"?max_points={most}")
        assert (thinned["decisions"], len(thinned["points"])) == (16, min(most, 16))
        assert thinned["points"] == [whole[point["position"]] for point in thinned["points"]]
        places = [point["position"] for point in thinned["points"]]
        assert (places[0], places[-1]) == (0, 15)
        gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
        assert max(gaps) - min(gaps) <= 1


def _many(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Events that differ, so that none is told twice."""
    return [{"event": {"type": "gaussian", "noise_multiplier": 30_000.0 + first + place}} for place in range(count)]


def _shown(point: dict[str, Any]) -> list[float]:
    return [item["event"]["noise_multiplier"] for item in point["events"]]


def _shrink(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr("app.persistence.repositories.decisions.EVENTS_ROOM", room)


def test_point_shows_the_first_of_very_many_events_and_a_single_one_shows_all(
    seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that took many events at a time, one, and three; and that was refused some."""
    run = seeded.ledger.run()
    path, bodies = f"/v1/runs/{run}/history", [_many(40), _many(1, 2000), _many(3, 3000), _many(40, 1), _many(40, 2)]
    bodies.append([*_many(39), {"event": GAUSSIAN, "count": 10**9}])
    for body in bodies:
        seeded.steps(run=run, events=body)
    whole = seeded.ledger.get(path).json()["points"]
    assert [point["decision"] for point in whole] == ["admitted"] * 5 + ["refused"]
    for point, body in zip(whole, bodies, strict=True):
        assert (_shown(point), point["events_truncated"]) == (_shown({"events": body}), False)
        assert point["count"] == sum(item.get("count", 1) for item in body)
    for room in (0, 1, 6 * 400, 6 * 2000):
        _shrink(monkeypatch, room)
        points = seeded.ledger.get(path).json()["points"]
        shown = [json.dumps(item["event"], separators=(",", ":")) for point in points for item in point["events"]]
        assert sum(400 + len(text) for text in shown) <= room
        for point, body in zip(points, bodies, strict=True):
            assert _shown(point) == _shown({"events": body[: len(point["events"])]})
            assert point["events_truncated"] == (len(point["events"]) < len(body))
    _shrink(monkeypatch, 2 * 40 * 500)
    points = seeded.ledger.get(path).json()["points"]
    assert [point["events_truncated"] for point in points] == [len(body) == 40 for body in bodies]
    for position, body in enumerate(bodies):
        after = encode_cursor(str(position - 1)) if position else ""
        single = seeded.ledger.get(f"{path}?max_points=2&after={after}").json()["points"][0]
        assert (single["position"], _shown(single)) == (position, _shown({"events": body}))


WIDE = {"epsilon": 8.0, "delta": 1e-5}
NOISIER = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 2.5}}


def two_teams(ledger: Ledger) -> str:
    """A population with two budgets and a run under each of them, which took turns."""
    population, runs = str(ledger.population(limit=WIDE)["id"]), []
    for name in ("icu-team", "ward-team"):
        ledger.budget(name, limit=WIDE)
        runs.append(ledger.run(f"mimic/{name}"))
    for turn in range(6):
        steps = {"count": 10 + turn, "event": SAMPLED if turn < 4 else NOISIER}
        assert ledger.post(f"/v1/runs/{runs[turn % 2]}/steps", steps, "trainer").status_code == 200
    return population


def history(ledger: Ledger, account: str, query: str = "") -> dict[str, Any]:
    return dict(ledger.get(f"/v1/accounts/{account}/history{query}").raise_for_status().json())


def test_thinned_history_ends_with_the_spent_epsilon(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    population = two_teams(ledger)
    assert ledger.set_limit(population, 7.0, "privacy_officer").is_success
    exact, few = history(ledger, population), history(ledger, population, "?max_points=3")["points"]
    assert (len(few), few[0], few[-1]) == (3, exact["points"][0], exact["points"][-1])
    [change] = exact["limit_changes"]
    assert (change["before"], change["after"]) == (WIDE, WIDE | {"epsilon": 7.0})
    monkeypatch.setattr(account_history, "SAMPLES", 4)
    ledger.http.app.state.account_histories = account_history.AccountHistoryCache()
    thin = history(ledger, population)
    assert (thin["exact"], thin["decisions_sampled"]) == (False, 4)
    assert thin["points"][-1] == exact["points"][-1]
    epsilons = [point["epsilon"] for point in thin["points"]]
    assert epsilons == sorted(epsilons)
    assert len(thin["points"]) < len(exact["points"])


def test_history_sums_the_children_with_the_smallest_shares(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    population = two_teams(ledger)
    ledger.budget("large", limit=WIDE)
    assert Trainer(ledger, ledger.run("mimic/large")).steps(count=300).is_success
    whole = history(ledger, population)["children"]
    monkeypatch.setattr(account_history, "MOST_CHILDREN", 1)
    ledger.http.app.state.account_histories = account_history.AccountHistoryCache()
    first, rest = history(ledger, population)["children"]
    assert (first, rest["path"], rest["account"]) == (whole[0], "2 others", None)
    summed = [sum(pair) for pair in zip(*(child["shares"] for child in whole[1:]), strict=True)]
    assert rest["shares"] == pytest.approx(summed, rel=1e-12)


def test_history_of_an_account_has_the_epsilon_that_it_had(ledger: Ledger) -> None:
    population = str(ledger.population(limit=WIDE)["id"])
    ledger.budget(limit=WIDE)
    trainer, shown = Trainer(ledger, ledger.run()), [{"epsilon": 0.0, "used": 0.0}]
    assert history(ledger, population)["points"] == []

    def read() -> dict[str, float]:
        return dict(ledger.get(f"/v1/populations/{population}").json())

    for count in (1, 20, 300):
        assert trainer.steps(count=count).status_code == 200
        shown.append(read())
    spent = read()
    assert spent["used_including_reserved"] == spent["used"]
    trainer.reserved((SAMPLED, 500), lease_seconds=3600)
    held = read()
    assert (held["epsilon"], held["used"]) == (spent["epsilon"], spent["used"])
    assert trainer.act("abort", {}).is_success
    shown.append(read())
    assert shown[-1]["used"] == held["used_including_reserved"] > held["used"]
    answer = history(ledger, population)
    for name in ("epsilon", "used"):
        assert [point[name] for point in answer["points"]] == pytest.approx([each[name] for each in shown], rel=1e-12)
    assert [each["epsilon"] for each in shown[1:]] == [tightest((SAMPLED, count)) for count in (1, 21, 321, 821)]
    assert (answer["exact"], answer["decisions"], answer["decisions_sampled"]) == (True, 4, 4)
    assert ledger.get(f"/v1/accounts/{trainer.run}/history").status_code == 404


# The series of the run's charges in the history of each account: of a child, or of the run itself.
BUDGETS_OF_A_RUN: list[dict[str, set[str]]] = [
    {"p": {"run"}, "q": {"run"}},
    {"p/b": {"run"}, "q/b": {"run"}, "p": {"p/b"}, "q": {"q/b"}},
    {"p/b": {"run"}, "q": {"run"}, "p": {"p/b"}},
    {"p/b": {"run"}, "p/c": {"run"}, "p": {"run"}},
    {"p/parts/b": {"run"}, "p/parts/c": {"run"}, "p/parts": {"p/parts/b", "p/parts/c"}},
]


@pytest.mark.both_databases
@pytest.mark.parametrize("series", BUDGETS_OF_A_RUN, ids=",".join)
def test_history_of_every_account_shows_a_run_on_two_budgets(ledger: Ledger, series: dict[str, set[str]]) -> None:
    ids = {name: str(ledger.population(name, limit=WIDE)["id"]) for name in ("p", "q")}
    parallel = {"composition": "parallel", "max_partitions_per_unit": 1, "attestation": "Each person is in one part."}
    ids["p/parts"] = str(ledger.budget("parts", "p", limit=WIDE, **parallel)["id"])
    for name in ("p/b", "p/c", "q/b", "p/parts/b", "p/parts/c"):
        parent, _, own = name.rpartition("/")
        ids[name] = str(ledger.budget(own, parent, limit=WIDE)["id"])
    first, second, *_ = series
    made = {"name": "both", "budgets": [first, second], "event": SAMPLED}
    ids["run"] = str(ledger.post("/v1/runs", made).raise_for_status().json()["id"])
    for run in (ids["run"], ledger.run(second), ids["run"]):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer").status_code == 200
    for name, children in series.items():
        answer = history(ledger, ids[name])
        read = ledger.get(f"/v1/{'budgets' if '/' in name else 'populations'}/{ids[name]}").json()
        assert (answer["points"][-1]["epsilon"], answer["exact"]) == (read["epsilon"], True)
        assert {ids[each] for each in children} <= {child["account"] for child in answer["children"]}, name
        assert answer["decisions"] == len(ledger.get(f"/v1/runs?within={ids[name]}").json()["items"]) + 1
        assert visitor(ledger).open(f"/accounts/{ids[name]}").status == 200


def test_waiting_for_histories_takes_no_thread_from_other_requests(
    seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_go, make = 45, Event(), account_history._made

    def slow(*given: Any) -> Any:  # noqa: ANN401 - as that
        assert may_go.wait(60)
        return make(*given)

    monkeypatch.setattr(account_history, "_made", slow)
    path = f"/v1/accounts/{seeded.population}/history?max_points="
    with ThreadPoolExecutor(asked + 1) as pool:
        waiting = [pool.submit(seeded.ledger.get, f"{path}{10 + one}") for one in range(asked)]
        wait(waiting, timeout=1)
        reply = pool.submit(seeded.ledger.get, "/v1/populations")
        done, _ = wait([reply], timeout=20)
        may_go.set()
        assert [each.result().status_code for each in waiting] == [200] * asked
    assert done == {reply}


SVG = "{http://www.w3.org/2000/svg}"
TITLES = {"run": "mimic/icu-team/model: epsilon over steps", "population": "mimic: epsilon over time"}


@pytest.mark.parametrize("of", TITLES)
def test_svg_shows_the_history_and_is_drawn_once(
    shared: SeededLedger, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    ledger, drawn = shared.ledger, []
    path = f"/v1/runs/{shared.run}/history" if of == "run" else f"/v1/accounts/{shared.population}/history"

    def watched(chart: Chart, frame: Frame) -> bytes:
        drawn.append(chart)
        return draw(chart, frame)

    monkeypatch.setattr(charts, "draw", watched)
    reply = ledger.get(f"{path}.svg")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "image/svg+xml")
    root = ET.fromstring(reply.content)  # noqa: S314 - it is our own
    assert TITLES[of] in " ".join(root.findtext(f"{SVG}{name}") or "" for name in ("title", "desc"))
    assert (root.tag, list(root.iter(f"{SVG}script")), b"<!DOCTYPE" in reply.content) == (f"{SVG}svg", [], False)
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    taken = [point for point in ledger.get(path).json()["points"] if point.get("decision") != "refused"]
    points = [point["epsilon"] for point in taken]
    [spent] = [series for series in drawn[0].series if series.name == "Epsilon"]
    assert [y for _, y in spent.points][-len(points) :] == points
    assert ledger.get(f"{path}.svg", If_None_Match=reply.headers["etag"]).status_code == 304
    assert len(drawn) == 1
    assert ledger.get(f"{path}.svg").content == reply.content
    dark = ledger.get(f"{path}.svg?theme=dark")
    assert dark.content != reply.content
    assert dark.headers["etag"] != reply.headers["etag"]
    sized = ET.fromstring(ledger.get(f"{path}.svg?width=500&height=300&theme=dark").content)  # noqa: S314 - as above
    assert (sized.get("width"), sized.get("height"), sized.get("viewBox")) == ("500", "300", "0 0 500 300")
