"""What a population is: its size, its unit and its neighboring relation bind everything under it."""

from typing import Any

import pytest

from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.conftest import SAMPLED, Ledger

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 100.0}
UNSAMPLED = {"type": "poisson_sampled", "sampling_probability": 1, "event": GAUSSIAN}


@pytest.mark.parametrize(
    ("size", "delta", "code"),
    [
        (1000, 0.999e-3, None),
        (1000, 1e-3, "delta_too_large"),
        (1000, 0.1, "delta_too_large"),
        (3, 1 / 3, "delta_too_large"),
        (2, 0.49, None),
        (10**12, 0.9e-12, None),
        (10**12, 1e-12, "delta_too_large"),
        (None, 0.49, None),
        (1, 0.49, None),
    ],
)
def test_a_delta_of_one_in_the_population_protects_nobody(
    ledger: Ledger, size: int | None, delta: float, code: str | None
) -> None:
    limit = {"epsilon": 1.0, "delta": delta}
    reply = ledger.post("/v1/populations", POPULATION | {"size": size, "limit": limit})
    if code is None:
        assert reply.status_code == 201
        return
    assert (reply.status_code, reply.json()["code"]) == (422, code)
    assert (reply.json()["delta"], reply.json()["population_size"]) == (delta, size)
    ledger.population("people", size=size, limit={"epsilon": 1.0, "delta": 1e-20})
    ledger.budget("team", "people", limit={"epsilon": 1.0, "delta": 1e-20})
    budget = ledger.post("/v1/budgets", {"name": "b", "parent": "people", "limit": limit})
    run = ledger.post("/v1/runs", {"name": "r", "budget": "people/team", "limit": limit})
    assert [made.json()["code"] for made in (budget, run)] == [code] * 2


def test_a_delta_above_every_bound_is_told_that_of_the_size(ledger: Ledger) -> None:
    limit = {"epsilon": 1.0, "delta": 0.7}
    sized = ledger.post("/v1/populations", POPULATION | {"size": 1000, "limit": limit}).json()
    assert (sized["code"], "delta 0.7 is not below 1/1000 = 0.001" in sized["detail"]) == ("delta_too_large", True)
    for size in (None, 1, 0):
        other = ledger.post("/v1/populations", POPULATION | {"size": size, "limit": limit}).json()
        assert "body.limit.delta: must be less than 0.5" in other["detail"]


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"privacy_unit": "patient"}, None),
        ({"neighboring_relation": "add_or_remove_one"}, None),
        ({"privacy_unit": None, "neighboring_relation": None}, None),
        ({"privacy_unit": "Patient"}, "privacy_unit_mismatch"),
        ({"privacy_unit": "record"}, "privacy_unit_mismatch"),
        ({"neighboring_relation": "replace_one"}, "neighboring_relation_mismatch"),
        ({"neighboring_relation": "replace_special"}, "neighboring_relation_mismatch"),
    ],
)
def test_a_run_must_protect_what_its_population_protects(
    seeded: SeededLedger, declared: dict[str, Any], code: str | None
) -> None:
    before = seeded.rows()
    reply = seeded.ledger.post("/v1/runs", {"name": "r", "budget": "mimic/icu-team"} | declared, "trainer")
    if code is None:
        assert reply.status_code == 201
        return
    assert (reply.status_code, reply.json()["code"]) == (422, code)
    answer = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    assert {name: reply.json()[name] for name in declared} == {name: answer[name] for name in declared}
    assert seeded.rows() == before


@pytest.fixture
def replacing(ledger: Ledger) -> Ledger:
    """A ledger whose population counts replaced records as neighbours."""
    ledger.population(neighboring_relation="replace_one")
    ledger.budget()
    return ledger


def _places(run: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every place where an event can be named."""
    planned = {"planned": [{"event": SAMPLED}]}
    return {
        "population's plan": ("/v1/populations", POPULATION | {"neighboring_relation": "replace_one"} | planned),
        "budget's plan": ("/v1/budgets", {"name": "b", "parent": "mimic", "limit": LIMIT} | planned),
        "run's plan": ("/v1/runs", {"name": "r", "budget": "mimic/icu-team"} | planned),
        "run's event": ("/v1/runs", {"name": "r", "budget": "mimic/icu-team", "event": SAMPLED}),
        "steps' event": (f"/v1/runs/{run}/steps", {"event": SAMPLED}),
        "steps' events": (f"/v1/runs/{run}/steps", {"events": [{"event": GAUSSIAN}, {"event": SAMPLED}]}),
        "accounting": (
            "/v1/accounting/epsilon",
            {"events": [{"event": SAMPLED}], "delta": 1e-5, "neighboring_relation": "replace_one"},
        ),
    }


@pytest.mark.parametrize("place", _places(""))
def test_sampling_is_refused_where_its_amplification_is_not_proven(replacing: Ledger, place: str) -> None:
    run = replacing.run(event=None)
    seeded = SeededLedger(replacing, "", "", run)
    before = seeded.rows()
    path, body = _places(run)[place]
    reply = replacing.post(path, body)
    assert (reply.status_code, reply.json()["code"]) == (422, "unsupported_event")
    assert seeded.rows() == before


def test_replacing_a_record_costs_more_than_removing_one(replacing: Ledger) -> None:
    replacing.population("removing")
    replacing.budget("icu-team", "removing")
    spent = []
    for budget in ("removing/icu-team", "mimic/icu-team"):
        for event in (GAUSSIAN, UNSAMPLED):
            run = replacing.run(budget, event=event)
            spent.append(replacing.post(f"/v1/runs/{run}/steps", {}, "trainer").json()["epsilon"])
    removing, removing_unsampled, replacing_one, replacing_unsampled = spent
    assert replacing_one > removing
    assert (removing_unsampled, replacing_unsampled) == (removing, replacing_one)


@pytest.mark.parametrize("path", ["/v1/populations", "/v1/budgets", "/v1/runs"])
def test_an_account_has_no_plan_unless_it_is_said(shared: SeededLedger, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/populations": POPULATION | {"name": "defaults"},
        "/v1/budgets": {"name": "defaults", "parent": "mimic", "limit": LIMIT},
        "/v1/runs": {"name": "defaults", "budget": "mimic/icu-team"},
    }
    made = shared.ledger.post(path, bodies[path]).json()
    assert (made["planned"], made["plan"], made["weights_frozen"]) == ([], None, False)


def test_weights_freeze_with_the_first_charge_at_every_level(seeded: SeededLedger) -> None:
    seeded.ledger.budget("sibling")
    frozen = {budget["name"]: budget["weights_frozen"] for budget in seeded.ledger.get("/v1/budgets").json()["items"]}
    assert frozen == {"icu-team": True, "sweep": False, "sibling": False}
    assert seeded.ledger.get(f"/v1/populations/{seeded.population}").json()["weights_frozen"]
