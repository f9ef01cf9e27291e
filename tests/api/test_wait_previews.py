"""What would become of a plan that arrived now: the same as of one that does."""

import pytest

from tests.conftest import Ledger
from tests.waiting_plans import OVER_TEN_DAYS, allocate, ask, later, preview, waiting_of


@pytest.fixture
def locked(ledger: Ledger) -> str:
    """A population of which a tenth is unlocked."""
    population = str(ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    return population


@pytest.mark.parametrize("steps", [1, 20, 100, 800, 2000, 5000, 100_000])
def test_a_plan_gets_the_place_that_its_preview_has(ledger: Ledger, locked: str, steps: int) -> None:
    del locked
    for name, count in (("first", 800), ("second", 30)):
        ask(ledger, name, count)
    said = preview(ledger, "mimic/icu-team", steps).json()
    arrived = ask(ledger, "newcomer", steps)
    if said == {"fits": False, "waiting": None}:
        assert arrived.json()["code"] == "budget_exceeded"
        return
    assert arrived.status_code == 201, arrived.text
    assert said["fits"] == (arrived.json()["status"] == "active")
    if said["fits"]:
        assert said["waiting"] is None
        return
    became = waiting_of(ledger, arrived.json())
    assert [each.pop("available") for each in became["lacks"]] == pytest.approx(
        [each.pop("available") for each in said["waiting"]["lacks"]], rel=1e-6
    )
    assert became == said["waiting"]


def test_previews_differ_and_so_prove_something(ledger: Ledger, locked: str) -> None:
    del locked
    found = [preview(ledger, "mimic/icu-team", steps).json() for steps in (1, 800, 100_000)]
    assert found[0] == {"fits": True, "waiting": None}
    [short] = found[1]["waiting"]["lacks"]
    assert (short["account_path"], short["reason"]) == ("mimic", "locked")
    assert found[1]["waiting"]["estimated_at"] is not None
    assert found[2] == {"fits": False, "waiting": None}


def test_a_preview_behind_others_counts_them_and_leaves_them_as_they_are(ledger: Ledger, locked: str) -> None:
    first = ask(ledger, "first", 800).json()
    before = waiting_of(ledger, first), ledger.get(f"/v1/accounts/{locked}/queue").json()
    said = [preview(ledger, "mimic/icu-team", 800).json()["waiting"] for _ in range(2)]
    assert [(each["position"], each["plans"]) for each in said] == [(2, 2), (2, 2)]
    assert (waiting_of(ledger, first), ledger.get(f"/v1/accounts/{locked}/queue").json()) == before
    assert len(ledger.get("/v1/runs").json()["items"]) == 1


def test_the_preview_is_itself_an_arrival_that_unlocks(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    allocate(ledger, population, unlock={"type": "by_plans", "plans": 2})
    assert preview(ledger, "mimic/icu-team", 10).json()["fits"]
    assert ledger.get(f"/v1/accounts/{population}/allocation").json()["arrivals"] == 0


def test_a_closed_account_is_waited_for_or_refuses(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget(opens_at=later(24))
    [short] = preview(ledger, "mimic/icu-team", 10).json()["waiting"]["lacks"]
    assert (short["reason"], short["opens_at"] is not None) == ("closed", True)


def test_policies_and_kinds_of_accounts_hold_for_previews(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    ledger.budget()
    parts = {"composition": "parallel", "attestation": "Each patient is in one ward."}
    ledger.budget("wards", **parts)
    assert preview(ledger, "mimic/wards", 1).json()["code"] == "invalid_request"
    assert preview(ledger, "nowhere", 1).status_code == 404
    noisier = {"policy": {"min_noise_multiplier": 2.0}, "reason": "Less."}
    headers = ledger.headers("privacy_officer") | {"If-Match": "*"}
    assert ledger.http.put(f"/v1/accounts/{population}/policy", json=noisier, headers=headers).status_code == 200
    assert preview(ledger, "mimic/icu-team", 1).json()["code"] == "policy_violation"


def test_a_preview_stays_within_the_scope_of_a_key(ledger: Ledger) -> None:
    ledger.population()
    budget = str(ledger.budget()["id"])
    ledger.budget("others")
    made = ledger.post("/v1/api-keys", {"role": "viewer", "scope": budget}).json()
    ledger.keys["hospital", "bound"] = made["key"]
    assert preview(ledger, "mimic/icu-team", 1, "bound").json() == {"fits": True, "waiting": None}
    assert preview(ledger, "mimic/others", 1, "bound").json()["code"] == "insufficient_scope"
