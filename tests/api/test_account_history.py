"""An account's epsilon over time: what its charges add up to, and through which children."""

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest

from app.api.routers import charts
from app.service.queries import account_history
from tests.conftest import SAMPLED, Ledger

NOISIER = SAMPLED | {"event": {"type": "gaussian", "noise_multiplier": 2.5}}


def two_teams(ledger: Ledger) -> tuple[str, list[str]]:
    """A population with two budgets and a run under each of them, which took turns."""
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    runs = []
    for name in ("icu-team", "ward-team"):
        ledger.budget(name, limit={"epsilon": 6.0, "delta": 1e-5})
        runs.append(ledger.run(f"mimic/{name}"))
    for turn in range(6):
        steps = {"count": 10 + turn, "event": SAMPLED if turn < 4 else NOISIER}
        assert ledger.post(f"/v1/runs/{runs[turn % 2]}/steps", steps, "trainer").status_code == 200
    return population, runs


def history(ledger: Ledger, account: str, query: str = "") -> dict[str, Any]:
    reply = ledger.get(f"/v1/accounts/{account}/history{query}")
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.both_databases
def test_each_point_is_what_the_account_showed_then(ledger: Ledger) -> None:
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    ledger.budget(limit={"epsilon": 6.0, "delta": 1e-5})
    run, shown = ledger.run(), [0.0]
    for count in (1, 20, 300):
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": count}, "trainer").status_code == 200
        shown.append(ledger.get(f"/v1/populations/{population}").json()["epsilon"])
    answer = history(ledger, population)
    assert [point["epsilon"] for point in answer["points"]] == pytest.approx(shown, rel=1e-12)
    assert (answer["exact"], answer["decisions"], answer["decisions_sampled"]) == (True, 3, 3)


def test_shares_of_children_add_up_to_what_the_forecast_counts(ledger: Ledger) -> None:
    population, _ = two_teams(ledger)
    answer = history(ledger, population)
    shares = [child["shares"][-1] for child in answer["children"]]
    forecast = ledger.get(f"/v1/accounts/{population}/forecast").json()
    assert [child["path"] for child in answer["children"]] == ["mimic/ward-team", "mimic/icu-team"]
    assert sum(shares) == pytest.approx(forecast["utilisation"], rel=1e-12)


def test_a_refusal_and_a_reservation_move_nothing(ledger: Ledger) -> None:
    population, runs = two_teams(ledger)
    before = history(ledger, population)["points"]
    refused = ledger.post(f"/v1/runs/{runs[0]}/steps", {"count": 10_000_000}, "trainer")
    assert refused.status_code == 403
    assert history(ledger, population)["points"] == before


@pytest.mark.both_databases
def test_a_history_of_many_decisions_ends_with_what_is_spent_and_says_that_it_is_thinned_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    population, _ = two_teams(ledger)
    exact = history(ledger, population)
    monkeypatch.setattr(account_history, "SAMPLES", 4)
    ledger.http.app.state.account_histories = account_history.AccountHistoryCache()
    thin = history(ledger, population)
    assert (thin["exact"], thin["decisions_sampled"]) == (False, 4)
    assert thin["points"][-1] == exact["points"][-1]
    epsilons = [point["epsilon"] for point in thin["points"]]
    assert epsilons == sorted(epsilons)
    assert len(thin["points"]) < len(exact["points"])


def test_no_more_points_than_asked_for_and_the_last_is_among_them(ledger: Ledger) -> None:
    population, _ = two_teams(ledger)
    every, few = history(ledger, population)["points"], history(ledger, population, "?max_points=3")["points"]
    assert len(few) == 3
    assert (few[0], few[-1]) == (every[0], every[-1])


def test_two_points_are_the_opening_and_the_last_charge(ledger: Ledger) -> None:
    population, _ = two_teams(ledger)
    whole, ends = history(ledger, population)["points"], history(ledger, population, "?max_points=2")["points"]
    assert len(whole) > 3
    assert ends == [whole[0], whole[-1]]


def test_of_disjoint_parts_the_largest_counts(ledger: Ledger) -> None:
    population = str(
        ledger.population(
            limit={"epsilon": 8.0, "delta": 1e-5},
            composition="parallel",
            max_partitions_per_unit=1,
            attestation="By year of birth.",
        )["id"]
    )
    for name, count in (("early", 50), ("late", 400)):
        ledger.budget(name, limit={"epsilon": 6.0, "delta": 1e-5})
        assert ledger.post(f"/v1/runs/{ledger.run(f'mimic/{name}')}/steps", {"count": count}, "trainer").is_success
    answer = history(ledger, population)
    assert answer["exact"] is True
    assert answer["points"][-1]["epsilon"] == ledger.get(f"/v1/populations/{population}").json()["epsilon"]


def test_a_change_of_the_limit_is_told(ledger: Ledger) -> None:
    population, _ = two_teams(ledger)
    lower = {"limit": {"epsilon": 7.0, "delta": 1e-5}, "reason": "The board has met."}
    assert ledger.post(f"/v1/accounts/{population}/limit", lower, "privacy_officer", If_Match="*").is_success
    [change] = history(ledger, population)["limit_changes"]
    assert (change["before"], change["after"]) == ({"epsilon": 8.0, "delta": 1e-5}, lower["limit"])


def test_a_run_is_sent_to_its_own_history_and_nothing_has_an_empty_one(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    ledger.budget()
    assert history(ledger, population)["points"] == []
    assert ledger.get(f"/v1/accounts/{ledger.run()}/history").status_code == 404


def test_what_is_held_is_counted_beside_what_is_spent(ledger: Ledger) -> None:
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    ledger.budget(limit={"epsilon": 6.0, "delta": 1e-5})
    run = ledger.run()
    ledger.post(f"/v1/runs/{run}/steps", {"count": 10}, "trainer")
    spent = ledger.get(f"/v1/populations/{population}").json()
    assert spent["epsilon_including_reserved"] == spent["epsilon"]
    plan = {"plan": [{"event": SAMPLED, "count": 500}], "lease_seconds": 3600}
    made = ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").json()
    held = ledger.get(f"/v1/populations/{population}").json()
    assert held["epsilon"] == spent["epsilon"] < held["epsilon_including_reserved"]
    assert ledger.post(f"/v1/reservations/{made['id']}/commit", {"steps_executed": 500}, "trainer").is_success
    assert ledger.get(f"/v1/populations/{population}").json()["epsilon"] == held["epsilon_including_reserved"]


def test_what_is_forfeited_is_charged_at_its_time(ledger: Ledger) -> None:
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    ledger.budget(limit={"epsilon": 6.0, "delta": 1e-5})
    run = ledger.run()
    plan = {"plan": [{"event": SAMPLED, "count": 300}], "lease_seconds": 3600}
    assert ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer").status_code == 201
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 5}, "trainer").is_success
    assert ledger.post(f"/v1/runs/{run}/abort", {}).is_success
    answer = history(ledger, population)
    assert answer["exact"] is True
    assert len(answer["points"]) == 3
    assert answer["points"][-1]["epsilon"] == ledger.get(f"/v1/populations/{population}").json()["epsilon"]


@pytest.mark.both_databases
def test_a_run_of_two_budgets_is_counted_once_for_their_population(ledger: Ledger) -> None:
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    for name in ("icu-team", "ward-team"):
        ledger.budget(name, limit={"epsilon": 6.0, "delta": 1e-5})
    body = {"name": "both", "budgets": ["mimic/icu-team", "mimic/ward-team"], "event": SAMPLED}
    run = ledger.post("/v1/runs", body, "trainer").json()["id"]
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 50}, "trainer").is_success
    answer = history(ledger, population)
    assert answer["exact"] is True
    assert [child["path"] for child in answer["children"]] == ["mimic/icu-team"]


def test_a_run_that_goes_on_in_another_attempt_has_spent_both(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    population, runs = two_teams(ledger)
    assert ledger.post(f"/v1/runs/{runs[0]}/attempts", {"first_step": 3}, "trainer").is_success
    assert ledger.post(f"/v1/runs/{runs[0]}/steps", {"count": 40, "attempt": 2}, "trainer").is_success
    exact = history(ledger, population)
    assert exact["exact"] is True
    monkeypatch.setattr(account_history, "SAMPLES", 2)
    ledger.http.app.state.account_histories = account_history.AccountHistoryCache()
    assert history(ledger, population)["points"][-1] == exact["points"][-1]


def test_many_children_are_told_apart_up_to_seven(ledger: Ledger) -> None:
    population = str(ledger.population(limit={"epsilon": 8.0, "delta": 1e-5})["id"])
    for number in range(10):
        ledger.budget(f"team-{number}", limit={"epsilon": 6.0, "delta": 1e-5})
        run = ledger.run(f"mimic/team-{number}")
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 10 * (number + 1)}, "trainer").is_success
    answer = history(ledger, population)["children"]
    assert [child["path"] for child in answer] == [*(f"mimic/team-{number}" for number in range(9, 2, -1)), "3 others"]
    used = ledger.get(f"/v1/accounts/{population}/forecast").json()["utilisation"]
    assert sum(child["shares"][-1] for child in answer) == pytest.approx(used, rel=1e-12)


@pytest.mark.parametrize("what", ["/v1/accounts/{}/history?max_points={}", "/v1/accounts/{}/history.svg?width=3{}"])
def test_who_waits_for_a_history_takes_no_thread_from_anybody_else(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    population, _ = two_teams(ledger)
    asked, may_go, make = 50, Event(), account_history._made

    def slow(*given: Any) -> Any:  # noqa: ANN401 - as that
        assert may_go.wait(60)
        return make(*given)

    monkeypatch.setattr(account_history, "_made", slow)
    monkeypatch.setattr(charts, "draw", lambda *_: b"<svg/>")
    with ThreadPoolExecutor(asked + 1) as pool:
        waiting = [pool.submit(ledger.get, what.format(population, 10 + one)) for one in range(asked)]
        wait(waiting, timeout=1)
        reply = pool.submit(ledger.get, "/v1/populations")
        done, _ = wait([reply], timeout=20)
        may_go.set()
        assert [each.result().status_code for each in waiting] == [200] * asked
    assert done == {reply}
