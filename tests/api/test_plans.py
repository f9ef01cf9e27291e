"""Plans of accounts: what they are, what may be planned, and how much of them is used."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.conftest import SAMPLED, Ledger

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 40.0}
UNPLANNABLE: dict[str, dict[str, Any]] = {
    "discrete_gaussian": {"type": "discrete_gaussian", "noise_multiplier": 30.0},
    "zcdp": {"type": "zcdp", "rho": 1e-4},
    "sampled_without_replacement": {
        "type": "sampled_without_replacement",
        "source_dataset_size": 1000,
        "sample_size": 10,
        "event": GAUSSIAN,
    },
    "sampled_with_replacement": {
        "type": "sampled_with_replacement",
        "source_dataset_size": 1000,
        "sample_size": 10,
        "event": GAUSSIAN,
    },
}


@pytest.mark.parametrize("name", UNPLANNABLE)
def test_an_event_without_a_proven_pair_is_charged_and_cannot_be_planned(seeded: SeededLedger, name: str) -> None:
    before, planned = seeded.rows(), [{"event": SAMPLED, "count": 5}, {"event": UNPLANNABLE[name], "count": 1}]
    reply = seeded.ledger.post("/v1/populations", POPULATION | {"planned": planned})
    assert (reply.status_code, reply.json()["code"]) == (422, "unsupported_event")
    assert name in reply.json()["detail"]
    assert seeded.rows() == before


def test_only_the_last_event_is_repeated_without_end(seeded: SeededLedger) -> None:
    planned: list[dict[str, Any]] = [
        {"event": SAMPLED, "count": 5},
        {"event": GAUSSIAN},
        {"event": SAMPLED, "count": 1},
    ]
    reply = seeded.ledger.post("/v1/populations", POPULATION | {"planned": planned})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert reply.json()["detail"].startswith("planned[1] has no count")
    made = seeded.ledger.post("/v1/populations", POPULATION | {"planned": planned[:2]}).json()
    assert made["planned"] == [planned[0], planned[1] | {"count": None}]
    first, last = made["plan"]["items"]
    assert (first["count"], first["steps"], last["count"]) == (5, 5, None)
    assert made["plan"]["steps"] == 5 + last["steps"] > 5
    assert made["weights_frozen"]


def test_a_run_with_a_limit_plans_its_default_event(seeded: SeededLedger) -> None:
    run = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run(limit={'epsilon': 0.5, 'delta': 1e-5})}").json()
    assert run["planned"] == [{"event": SAMPLED, "count": None}]
    assert (run["plan"]["state"], run["plan"]["share"]) == ("active", 0.55)
    assert run["plan"]["delta"] == pytest.approx(5.5e-6)
    without: list[dict[str, Any]] = [
        {"limit": None},
        {"limit": LIMIT, "event": None},
        {"limit": LIMIT, "event": UNPLANNABLE["zcdp"]},
    ]
    for terms in without:
        read = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run(**terms)}").json()
        assert (read["planned"], read["plan"]) == ([], None)


def test_the_whole_plan_fits_and_the_orders_decide_after_it(ledger: Ledger) -> None:
    ledger.population(planned=[{"event": SAMPLED}])
    budget = ledger.budget(planned=[{"event": SAMPLED}])
    run = ledger.run()
    path = f"/v1/runs/{run}/steps"
    steps = ledger.get(f"/v1/budgets/{budget['id']}").json()["plan"]["steps"]

    def plan() -> tuple[str, int, int, int]:
        found = ledger.get(f"/v1/budgets/{budget['id']}").json()["plan"]
        return found["state"], found["steps_used"], found["steps_reserved"], found["steps_left"]

    assert ledger.post(path, {"count": steps - 3}, "trainer").status_code == 200
    assert plan() == ("active", steps - 3, 0, 3)
    reserved = ledger.post(f"/v1/runs/{run}/reservations", {"plan": [{"event": SAMPLED, "count": 2}]}, "trainer").json()
    assert plan() == ("active", steps - 3, 2, 1)
    assert ledger.post(path, {}, "trainer").json()["reservation"] == reserved["id"]
    assert ledger.post(f"/v1/reservations/{reserved['id']}/commit", {"steps_executed": 2}, "trainer").is_success
    assert plan() == ("active", steps - 1, 0, 1)
    assert ledger.post(path, {}, "trainer").json()["steps_remaining"] == 0
    assert plan() == ("exhausted", steps, 0, 0)
    assert ledger.post(path, {}, "trainer").status_code == 403
    assert verify(ledger.database).problems == ()


def test_an_event_beside_the_plan_ends_it(ledger: Ledger) -> None:
    ledger.population(planned=[{"event": GAUSSIAN}])
    budget = ledger.budget(planned=[{"event": GAUSSIAN}])
    path = f"/v1/runs/{ledger.run(event=GAUSSIAN)}/steps"
    before = ledger.post(path, {}, "trainer").json()["steps_remaining"]
    answer = ledger.post(path, {"event": {"type": "laplace", "noise_multiplier": 500.0}}, "trainer")
    assert answer.status_code == 200, answer.text
    assert ledger.get(f"/v1/budgets/{budget['id']}").json()["plan"]["state"] == "ended"
    after = ledger.post(path, {"count": 10**6, "on_exceed": "truncate"}, "trainer").json()["count"]
    assert 0 < after < before
    assert verify(ledger.database).problems == ()
