"""Limits in pure epsilon, rho and mu over HTTP: what fits exactly, what is refused, and what verification replays."""

from typing import Any

import pytest

from app.service.verification.verify import verify
from tests.api.trainer import counted, is_refused
from tests.conftest import Ledger
from tests.waiting_reservations import OVER_TEN_DAYS, allocate

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 10.0}
TENTH = {"type": "laplace", "epsilon": 0.1}


def stated(epsilon: float) -> dict[str, Any]:
    return {"type": "epsilon_delta", "epsilon": epsilon}


def zcdp(rho: float, delta: float = 0.0) -> dict[str, Any]:
    return {"type": "zcdp", "rho": rho, "delta": delta}


def opened(ledger: Ledger, limit: dict[str, float], event: dict[str, Any], **terms: object) -> str:
    ledger.population("survey", limit=limit, **terms)
    return ledger.run("survey", event=event)


def take(ledger: Ledger, run: str, first_step: int, event: dict[str, Any], count: int = 1) -> Any:  # noqa: ANN401
    body = {"first_step": first_step, "events": counted((event, count))}
    return ledger.post(f"/v1/runs/{run}/steps", body, "trainer")


@pytest.mark.parametrize(
    ("limit", "events"),
    [
        ({"epsilon": 1.0, "delta": 0}, [TENTH] * 10),
        ({"epsilon": 1.0, "delta": 0}, [stated(1 / 3)] * 3),
        ({"epsilon": 1.0, "delta": 0}, [{"type": "laplace", "noise_multiplier": 3}] * 3),
        ({"epsilon": 0.3, "delta": 0}, [stated(0.1), stated(0.2)]),
        ({"epsilon": 1.0, "delta": 0}, [stated(0.7), stated(0.1), stated(0.2)]),
        ({"rho": 0.3}, [zcdp(0.1), zcdp(0.2)]),
        ({"rho": 0.5, "delta": 1e-6}, [zcdp(0.05, 1e-7)] * 10),
    ],
)
def test_releases_that_sum_to_the_limit_fit_and_one_more_is_refused(
    ledger: Ledger, limit: dict[str, float], events: list[dict[str, Any]]
) -> None:
    run = opened(ledger, limit, events[0])
    for number, event in enumerate(events):
        assert take(ledger, run, number, event).status_code == 200, number
    refused = is_refused(take(ledger, run, len(events), events[0]), 403, "budget_exceeded")
    assert refused["limit"] == limit
    assert verify(ledger.database).problems == ()


@pytest.mark.both_databases
@pytest.mark.parametrize("limit", [{"rho": 0.5}, {"mu": 1.0}])
def test_gaussian_of_noise_ten_fills_rho_a_half_and_mu_one_with_a_hundred_steps(
    ledger: Ledger, limit: dict[str, float]
) -> None:
    run = opened(ledger, limit, GAUSSIAN)
    for number in range(3):
        answer = take(ledger, run, number, GAUSSIAN).json()
        assert (answer["steps_remaining"], answer["used"]) == (99 - number, pytest.approx((number + 1) / 100))
        assert answer["delta"] == 1e-6
    assert take(ledger, run, 3, GAUSSIAN, 97).json()["steps_remaining"] == 0
    is_refused(take(ledger, run, 100, GAUSSIAN), 403, "budget_exceeded")
    [population] = ledger.get("/v1/populations").json()["items"]
    assert (population["limit"], population["used"], population["delta"]) == (limit, 1.0, 1e-6)
    assert population["epsilon"] == pytest.approx(4.8866, rel=1e-3)
    assert verify(ledger.database).problems == ()


def test_population_shows_the_pure_sum_at_delta_zero(ledger: Ledger) -> None:
    run = opened(ledger, {"epsilon": 1.0, "delta": 0}, TENTH)
    for number in range(9):
        answer = take(ledger, run, number, TENTH).json()
    assert (answer["epsilon"], answer["delta"], answer["used"], answer["steps_remaining"]) == (0.9, 0.0, 0.9, 1)
    [population] = ledger.get("/v1/populations").json()["items"]
    assert (population["epsilon"], population["delta"], population["used"]) == (0.9, 0.0, 0.9)
    history = ledger.get(f"/v1/accounts/{population['id']}/history").json()
    assert (history["points"][-1]["epsilon"], history["points"][-1]["used"]) == (0.9, 0.9)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"epsilon": 1.0, "delta": 1e-6, "rho": 1.0}, "limit.rho", "a limit has one unit"),
    ({"rho": 1.0, "mu": 1.0}, "limit.mu", "a limit has one unit"),
    ({"mu": 1.0, "delta": 1e-6}, "limit.delta", "`mu` has no delta"),
    ({"epsilon": 1.0}, "limit.delta", "0 for pure differential privacy"),
    ({"epsilon": 1.0, "delta": 1e-31}, "limit.delta", "must be 0, or at least 1e-30"),
    ({"epsilon": 1.0, "delta": -1}, "limit.delta", "must be at least 0"),
    ({"rho": 0}, "limit.rho", "must be greater than 0"),
    ({"rho": 10_001}, "limit.rho", "must be at most 10000"),
    ({"mu": 101}, "limit.mu", "must be at most 100"),
    ({"rho": "0.5"}, "limit.rho", "number"),
    ({"tau": 1.0}, "limit.tau", "known here: delta, epsilon, mu, rho"),
    ({}, "limit", "a limit needs a unit: send one of epsilon and delta"),
    ({"delta": 1e-6}, "limit", "a limit needs a unit"),
]


@pytest.mark.parametrize(("limit", "field", "said"), BAD)
def test_bad_limits_name_the_field_and_what_would_be_right(
    ledger: Ledger, limit: dict[str, Any], field: str, said: str
) -> None:
    body = {"name": "survey", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one", "limit": limit}
    refused = is_refused(ledger.post("/v1/populations", body), 422, "invalid_request")
    assert [each["field"] for each in refused["errors"]] == [f"body.{field}"]
    assert said in refused["errors"][0]["message"]
    assert ledger.get("/v1/populations").json()["items"] == []


@pytest.mark.parametrize("rho", ["1e999", "Infinity", '"Infinity"'])
def test_rho_of_infinity_is_refused_by_name(ledger: Ledger, rho: str) -> None:
    fields = '"name": "survey", "privacy_unit": "user", "neighboring_relation": "replace_one"'
    text = f'{{{fields}, "limit": {{"rho": {rho}}}}}'
    headers = ledger.headers("admin") | {"Content-Type": "application/json"}
    refused = is_refused(ledger.http.post("/v1/populations", content=text, headers=headers), 422, "invalid_request")
    assert "rho" in refused["detail"]
    assert "number" in refused["detail"]


@pytest.mark.parametrize(
    ("limit", "event", "named", "units"),
    [
        ({"epsilon": 1.0, "delta": 0}, GAUSSIAN, "gaussian", "epsilon with a positive delta"),
        (
            {"epsilon": 1.0, "delta": 0},
            {"type": "epsilon_delta", "epsilon": 0.1, "delta": 1e-9},
            "epsilon_delta",
            "pos",
        ),
        ({"rho": 1.0}, TENTH, "laplace", "epsilon with delta 0"),
        ({"rho": 1.0}, zcdp(0.1, 1e-9), "zcdp", "rho with a delta"),
        ({"mu": 1.0}, {"type": "discrete_gaussian", "noise_multiplier": 10.0}, "discrete_gaussian", "rho"),
    ],
)
def test_event_without_a_price_is_refused_where_it_is_declared_and_charged(
    ledger: Ledger, limit: dict[str, float], event: dict[str, Any], named: str, units: str
) -> None:
    fitting = {"epsilon": TENTH, "rho": zcdp(0.01), "mu": GAUSSIAN}[next(iter(limit))]
    run = opened(ledger, limit, fitting)
    body = {"name": "other", "budget": "survey", "event": event}
    plan = {"events": counted((event, 1))}
    replies = [
        ledger.post("/v1/runs", body, "trainer"),
        take(ledger, run, 0, event),
        ledger.post(f"/v1/runs/{run}/reservations", plan, "trainer"),
        ledger.post("/v1/budgets", {"name": "team", "parent": "survey", "limit": limit, "planned": plan["events"]}),
    ]
    for reply in replies:
        refused = is_refused(reply, 422, "unsupported_event")
        assert named in refused["detail"]
        assert units in refused["detail"]
    assert [each["id"] for each in ledger.get("/v1/runs").json()["items"]] == [run]
    assert take(ledger, run, 0, fitting).status_code == 200
    assert verify(ledger.database).problems == ()


def test_children_may_have_another_unit_and_each_account_judges_in_its_own(ledger: Ledger) -> None:
    ledger.population("survey", limit={"epsilon": 8.0, "delta": 1e-5})
    ledger.budget("team", "survey", limit={"rho": 0.02})
    ledger.budget("pilot", "survey/team", limit={"mu": 1.0})
    run = ledger.run("survey/team/pilot", event=GAUSSIAN)
    assert take(ledger, run, 0, GAUSSIAN, 4).json()["binding_account_path"] == "survey/team"
    refused = is_refused(take(ledger, run, 4, GAUSSIAN), 403, "budget_exceeded")
    assert (refused["binding_account_path"], refused["limit"]) == ("survey/team", {"rho": 0.02})
    [higher] = [each for each in refused["alternatives"] if each["type"] == "higher_limit"]
    assert [(each["account_path"], each["rho"]) for each in higher["limits"]] == [("survey/team", 0.025)]
    assert "Raise the limit of survey/team to rho 0.025" in refused["detail"]
    assert verify(ledger.database).problems == ()


@pytest.mark.both_databases
def test_unit_changes_with_an_approval_and_only_while_nothing_is_spent_or_reserved(ledger: Ledger) -> None:
    ledger.population("survey", limit={"epsilon": 8.0, "delta": 1e-5})
    team = ledger.budget("team", "survey", planned=counted((GAUSSIAN, 5)))["id"]

    def changed(limit: dict[str, float], role: str = "planner") -> Any:  # noqa: ANN401 - a reply
        body = {"limit": limit, "reason": "The board prefers it."}
        return ledger.post(f"/v1/accounts/{team}/limit", body, role, If_Match="*")

    proposal = changed({"rho": 0.05}).json()
    assert proposal["status"] == "open"
    ledger.post(f"/v1/proposals/{proposal['id']}/approve", {}, "privacy_officer").raise_for_status()
    assert ledger.get(f"/v1/accounts/{team}/limit").json()["limit"] == {"rho": 0.05}
    run = ledger.run("survey/team", event=GAUSSIAN)
    assert take(ledger, run, 0, GAUSSIAN).json()["steps_remaining"] == 9
    waiting = changed({"mu": 1.0})
    detail = is_refused(waiting, 409, "account_state_conflict")["detail"]
    assert "the unit of a limit can change only while nothing is spent or reserved" in detail
    assert changed({"rho": 0.04}, "budget_admin").json()["limit"] == {"rho": 0.04}
    assert changed({"rho": 0.06}).json()["status"] == "open"
    assert verify(ledger.database).problems == ()


def test_equivalents_are_given_at_a_delta_and_as_a_risk(ledger: Ledger) -> None:
    population = ledger.population("survey", limit={"mu": 1.0})["id"]
    found = ledger.get(f"/v1/accounts/{population}/equivalents").json()
    assert (found["limit"], found["delta"], found["rho"], found["mu"]) == ({"mu": 1.0}, 1e-6, 0.5, 1.0)
    assert found["epsilon"] == pytest.approx(4.8866, rel=1e-4)
    assert found["risk"] == {
        "advantage": pytest.approx(0.38292, rel=1e-4),
        "true_positive_rate": pytest.approx(0.0924, rel=1e-3),
        "singled_out": 93,
    }
    assert ledger.get(f"/v1/accounts/{population}/equivalents?delta=0").json()["epsilon"] == "Infinity"
    budget = ledger.budget("team", "survey", limit={"rho": 0.5})["id"]
    found = ledger.get(f"/v1/accounts/{budget}/equivalents?delta=1e-9").json()
    assert (found["epsilon"], found["rho"], found["mu"]) == (pytest.approx(6.47, rel=1e-2), 0.5, None)
    assert 0.38292 < found["risk"]["advantage"] < 0.6
    pure = ledger.budget("pure", "survey", limit={"epsilon": 1.0, "delta": 0})["id"]
    found = ledger.get(f"/v1/accounts/{pure}/equivalents").json()
    assert (found["delta"], found["epsilon"], found["rho"]) == (0.0, 1.0, 0.5)
    run = ledger.run("survey/pure", event=None)
    is_refused(ledger.get(f"/v1/accounts/{run}/equivalents"), 404, "not_found")


def test_reservations_wait_for_what_a_limit_in_mu_unlocks(ledger: Ledger) -> None:
    population = ledger.population("survey", limit={"mu": 1.0})["id"]
    held, asking = ledger.run("survey", event=GAUSSIAN), ledger.run("survey", event=GAUSSIAN)
    plan = {"events": counted((GAUSSIAN, 60))}
    ledger.post(f"/v1/runs/{held}/reservations", plan, "trainer").raise_for_status()
    refused = is_refused(ledger.post(f"/v1/runs/{asking}/reservations", plan, "trainer"), 403, "budget_exceeded")
    assert (refused["used_including_reserved"], refused["used_requested"]) == (0.6, 1.2)
    [account] = ledger.get("/v1/populations").json()["items"]
    assert (account["used"], account["used_including_reserved"], account["available"]["share"]) == (0.0, 0.6, 0.4)
    allocate(ledger, str(population), unlock=OVER_TEN_DAYS)
    [account] = ledger.get("/v1/populations").json()["items"]
    assert account["available"]["share"] < 0.4
    is_refused(ledger.post(f"/v1/runs/{asking}/reservations", plan, "trainer"), 403, "budget_exceeded")
    assert verify(ledger.database).problems == ()


def test_block_schedules_parts_and_statements_have_limits_in_rho(ledger: Ledger) -> None:
    parts = {"composition": "parallel", "attestation": "Each record has one date."}
    population = ledger.population("survey", limit={"rho": 0.05}, **parts)["id"]
    for name in ("north", "south"):
        ledger.budget(name, "survey", limit={"rho": 0.05})
    runs = [ledger.run(f"survey/{name}", event=GAUSSIAN) for name in ("north", "south")]
    for run in runs:
        assert take(ledger, run, 0, GAUSSIAN, 10).json()["steps_remaining"] == 0
    [shown] = ledger.get("/v1/populations").json()["items"]
    assert (shown["used"], shown["limit"]) == (1.0, {"rho": 0.05})
    history = ledger.get(f"/v1/accounts/{population}/history").json()
    assert (history["points"][-1]["used"], history["limit"]) == (1.0, {"rho": 0.05})
    schedule = {"period": "month", "start": "2099-01-01", "limit": {"rho": 0.01}, "prefix": "m-"}
    body = {"schedule": schedule, "reason": "New data each month."}
    made = ledger.put(f"/v1/accounts/{population}/block-schedule", body)
    assert made.json()["schedule"]["limit"] == {"rho": 0.01}, made.text
    assert verify(ledger.database).problems == ()


def test_policies_judge_the_epsilon_that_follows(ledger: Ledger) -> None:
    ledger.population("survey", limit={"rho": 0.5})
    body = {"policy": {"max_epsilon": 1.0, "max_delta": 1e-6}, "reason": "Small runs."}
    population = ledger.get("/v1/populations").json()["items"][0]["id"]
    ledger.put(f"/v1/accounts/{population}/policy", body, "privacy_officer").raise_for_status()
    terms = {"name": "model", "budget": "survey", "event": GAUSSIAN}
    refused = is_refused(ledger.post("/v1/runs", terms | {"limit": {"rho": 0.5}}, "trainer"), 403, "policy_violation")
    assert (refused["rule"], refused["value"]) == ("max_epsilon", pytest.approx(5.2215, rel=1e-4))
    assert ledger.post("/v1/runs", terms | {"limit": {"rho": 0.01}}, "trainer").status_code == 201
    refused = is_refused(
        ledger.post("/v1/runs", terms | {"limit": {"rho": 0.01, "delta": 1e-5}}, "trainer"), 403, "policy_violation"
    )
    assert refused["rule"] == "max_delta"
