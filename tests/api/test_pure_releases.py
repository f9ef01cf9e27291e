"""Pure releases over HTTP: decimals add up to the limit, and refusals, readings and plans say the same numbers."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.service.verification.verify import verify
from tests.api.trainer import counted, gaussian, is_refused
from tests.conftest import Ledger

TENTH = {"type": "laplace", "epsilon": 0.1}


def stated(epsilon: float) -> dict[str, Any]:
    return {"type": "epsilon_delta", "epsilon": epsilon}


def opened(ledger: Ledger, epsilon: float, delta: float = 1e-6, **terms: object) -> str:
    ledger.population("survey", limit={"epsilon": epsilon, "delta": delta}, **terms)
    return ledger.run("survey")


def taken(ledger: Ledger, run: str, *events: dict[str, Any]) -> None:
    for number, event in enumerate(events):
        body = {"first_step": number, "events": counted((event, 1))}
        ledger.post(f"/v1/runs/{run}/steps", body, "trainer").raise_for_status()


@pytest.mark.parametrize(
    ("epsilon", "events"),
    [
        (1.0, [{"type": "laplace", "noise_multiplier": 1}]),
        (1.0, [{"type": "laplace", "noise_multiplier": 3}] * 3),
        (0.3, [stated(0.1), stated(0.2)]),
        (1.0, [stated(0.7), stated(0.1), stated(0.2)]),
        (1.0, [TENTH] * 10),
    ],
)
@pytest.mark.parametrize("planned", [False, True])
def test_releases_that_sum_to_the_limit_fit_and_one_more_is_refused(
    ledger: Ledger, epsilon: float, events: Sequence[dict[str, Any]], *, planned: bool
) -> None:
    plan = counted(*((event, 1) for event in events)) if planned else []
    run = opened(ledger, epsilon, 1e-30, planned=plan)
    taken(ledger, run, *events)
    body = {"first_step": len(events), "events": counted((stated(1e-9), 1))}
    reply = ledger.post(f"/v1/runs/{run}/steps", body, "trainer")
    assert is_refused(reply, 403, "budget_exceeded")["epsilon"] == epsilon
    assert verify(ledger.database).problems == ()


def test_refusal_and_readings_say_the_sum_as_people_write_it(ledger: Ledger) -> None:
    run = opened(ledger, 1.0, 1e-30)
    taken(ledger, run, *[TENTH] * 9)
    [population] = ledger.get("/v1/populations").json()["items"]
    assert (population["epsilon"], population["used"]) == (0.9, 0.9)
    assert population["available"]["share"] == pytest.approx(0.1, rel=1e-12)
    reply = ledger.post(f"/v1/runs/{run}/steps", {"first_step": 9, "events": counted((TENTH, 2))}, "trainer")
    refusal = is_refused(reply, 403, "budget_exceeded")
    assert (refusal["epsilon"], refusal["used_requested"], refusal["max_steps_that_fit"]) == (0.9, 1.1, 1)
    history = ledger.get(f"/v1/accounts/{population['id']}/history").json()
    assert history["points"][-1]["epsilon"] == 0.9


def test_plan_of_pure_releases_is_held_exactly(ledger: Ledger) -> None:
    run = opened(ledger, 1.0, 1e-30)
    body = {"events": counted((TENTH, 7), (stated(0.3), 1))}
    ledger.post(f"/v1/runs/{run}/reservations", body, "trainer").raise_for_status()
    other = ledger.run("survey")
    reply = ledger.post(f"/v1/runs/{other}/steps", {"first_step": 0, "events": counted((stated(1e-9), 1))}, "trainer")
    refusal = is_refused(reply, 403, "budget_exceeded")
    assert (refusal["used"], refusal["used_including_reserved"]) == (0.0, 1.0)
    assert verify(ledger.database).problems == ()


def test_planning_answers_with_the_sum_and_what_fits(ledger: Ledger) -> None:
    asked = {"events": counted((TENTH, 10)), "delta": 1e-30}
    answer = ledger.post("/v1/accounting/epsilon", asked).raise_for_status().json()
    assert answer["epsilon"] == 1.0
    assert answer["limit_needed"] == {"with_plan": 1.0, "without_plan": 1.0}
    asked = {"event": TENTH, "epsilon": 0.3, "delta": 1e-30}
    answer = ledger.post("/v1/accounting/steps", asked).raise_for_status().json()
    assert answer["steps"] == {"with_plan": 3, "without_plan": 3}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "laplace"},
        {"type": "laplace", "epsilon": 0.1, "noise_multiplier": 10},
        {"type": "laplace", "epsilon": 0},
    ],
)
def test_laplace_with_neither_or_both_of_its_forms_is_refused(ledger: Ledger, event: dict[str, Any]) -> None:
    run = opened(ledger, 1.0)
    reply = ledger.post(f"/v1/runs/{run}/steps", {"first_step": 0, "events": counted((event, 1))}, "trainer")
    assert reply.status_code == 422
    assert "epsilon" in reply.text


def test_gaussian_noise_ends_exact_sums(ledger: Ledger) -> None:
    run = opened(ledger, 1.0, 1e-30)
    taken(ledger, run, *[TENTH] * 5, gaussian(1000.0))
    reply = ledger.post(f"/v1/runs/{run}/steps", {"first_step": 6, "events": counted((TENTH, 5))}, "trainer")
    is_refused(reply, 403, "budget_exceeded")
