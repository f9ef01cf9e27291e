"""Parts that units may leave: what is done there must bound that, or it is refused wherever it is asked."""

from collections.abc import Callable
from typing import Any

import pytest

from app.service.verification import verify
from tests.conftest import Ledger

ATTESTED: dict[str, Any] = {
    "composition": "parallel",
    "attestation": "each patient is treated at one site",
    "neighboring_relation": "replace_one",
    "limit": {"epsilon": 4.0, "delta": 1e-5},
}
NOISE = {"type": "gaussian", "noise_multiplier": 60.0}
ANSWERS = {"type": "randomized_response", "noise_parameter": 0.9, "num_buckets": 2}
SHOWING = {
    "randomized_response": ANSWERS,
    "tree_aggregation": {"type": "tree_aggregation", "noise_multiplier": 60.0, "step_counts": [4]},
    "sampled_without_replacement": {
        "type": "sampled_without_replacement",
        "source_dataset_size": 100,
        "sample_size": 10,
        "event": NOISE,
    },
}


def hospital(ledger: Ledger, replacement_assumption: str = "removal_is_bounded") -> str:
    """Two sites of one population, and a team under the first; a run of the team."""
    ledger.population(**ATTESTED, replacement_assumption=replacement_assumption)
    for name in ("north", "south"):
        ledger.budget(name, limit=ATTESTED["limit"])
    ledger.budget("team", "mimic/north", limit=ATTESTED["limit"])
    return ledger.run("mimic/north/team", event=NOISE)


def refused(ledger: Ledger, path: str, body: dict[str, Any], name: str = "randomized_response") -> None:
    reply = ledger.post(path, body)
    assert (reply.status_code, reply.json()["code"]) == (422, "unsupported_event"), reply.text
    assert f"{name} is not supported under mimic:" in reply.json()["detail"]
    assert "stay_in_their_parts" in reply.json()["detail"]


@pytest.mark.parametrize("name", SHOWING)
def test_event_that_shows_a_missing_record_is_refused(ledger: Ledger, name: str) -> None:
    run = hospital(ledger)
    refused(ledger, f"/v1/runs/{run}/steps", {"count": 1, "event": SHOWING[name]}, name)
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 1}).json()["decision"] == "admitted"
    assert verify(ledger.database).sound


ASKED: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "a run that declares it": lambda _: ("/v1/runs", {"name": "m", "budget": "mimic/south", "event": ANSWERS}),
    "a run that plans it": lambda _: (
        "/v1/runs",
        {"name": "m", "budget": "mimic/south", "plan": [{"event": ANSWERS}]},
    ),
    "a run of several budgets": lambda _: (
        "/v1/runs",
        {"name": "m", "budgets": ["other/lab", "mimic/south"], "event": ANSWERS},
    ),
    "a run's workload": lambda _: (
        "/v1/runs",
        {"name": "m", "budget": "mimic/south", "limit": {"epsilon": 1, "delta": 1e-6}, "planned": [{"event": ANSWERS}]},
    ),
    "a budget's workload": lambda _: (
        "/v1/budgets",
        {"name": "b", "parent": "mimic/south", "limit": ATTESTED["limit"], "planned": [{"event": ANSWERS}]},
    ),
    "a reservation": lambda run: (
        f"/v1/runs/{run}/reservations",
        {"plan": [{"event": NOISE}, {"event": ANSWERS}]},
    ),
    "a preview": lambda run: (f"/v1/runs/{run}/steps?dry_run=true", {"count": 1, "event": ANSWERS}),
    "a report": lambda run: (f"/v1/runs/{run}/steps", {"count": 1, "event": ANSWERS, "mode": "report"}),
    "a sweep": lambda _: (
        "/v1/experiments",
        {
            "name": "s",
            "budget": "mimic/south",
            "charging_mode": "repeat_and_select",
            "trials": {"events": [{"event": ANSWERS}], "mean": 2.0},
        },
    ),
    "an experiment's workload": lambda _: (
        "/v1/experiments",
        {"name": "s", "budget": "mimic/south", "charging_mode": "each_run", "planned": [{"event": ANSWERS}]},
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_event_that_shows_a_missing_record_is_refused_in_any_request(ledger: Ledger, what: str) -> None:
    run = hospital(ledger)
    ledger.population("other", neighboring_relation="replace_one", limit=ATTESTED["limit"])
    ledger.budget("lab", "other", limit=ATTESTED["limit"])
    refused(ledger, *ASKED[what](run))


def test_events_are_admitted_where_units_stay_in_their_parts(ledger: Ledger) -> None:
    run = hospital(ledger, "stay_in_their_parts")
    for event in SHOWING.values():
        assert ledger.post(f"/v1/runs/{run}/steps", {"count": 1, "event": event}).json()["decision"] == "admitted"
