"""Trees that mean something: disjoint parts, runs that charge several budgets, and what is refused of both."""

from typing import Any

import httpx2
import pytest

from app.service.verification import verify
from tests.api.conftest import LIMIT
from tests.conftest import Ledger

ATTESTED: dict[str, Any] = {"composition": "parallel", "attestation": "each patient is treated at one site"}
WIDE = {"epsilon": 4.0, "delta": 1e-5}
NOISE = {"type": "gaussian", "noise_multiplier": 60.0}


def sites(ledger: Ledger, *names: str, **terms: object) -> list[str]:
    """A parallel population with epsilon 1, and a part with room for more by each name; the ids of the parts."""
    ledger.population(limit=LIMIT, **ATTESTED | terms)
    return [str(ledger.budget(name, limit=WIDE)["id"]) for name in names or ("north", "south")]


def steps(ledger: Ledger, run: str, count: int = 1, **body: object) -> dict[str, Any]:
    answer: dict[str, Any] = ledger.post(f"/v1/runs/{run}/steps", {"count": count} | body).json()
    return answer


def register(ledger: Ledger, *budgets: str, **body: object) -> httpx2.Response:
    return ledger.post("/v1/runs", {"name": "model", "budgets": list(budgets), "event": NOISE} | body)


def refused(reply: httpx2.Response, code: str = "invalid_request") -> str:
    assert (reply.status_code, reply.json()["code"]) == (422, code), reply.text
    return str(reply.json()["detail"])


def most(ledger: Ledger, run: str) -> int:
    """How many steps the ledger says that there are."""
    return int(ledger.get(f"/v1/runs/{run}").json()["steps_remaining"])


def test_parts_share_no_loss(ledger: Ledger) -> None:
    sites(ledger)
    north, south = (ledger.run(f"mimic/{name}", event=NOISE) for name in ("north", "south"))
    room = most(ledger, north)
    assert steps(ledger, north, room)["steps_remaining"] == 0
    assert most(ledger, south) == room
    assert steps(ledger, north)["code"] == "budget_exceeded"
    answer = steps(ledger, south, room + 1)
    assert (answer["binding_account_path"], answer["max_count_that_fits"]) == ("mimic", room)
    rdp = answer["rdp"]
    assert rdp["spent"] + rdp["held"] + rdp["requested"] > rdp["limit"] >= rdp["spent"]
    assert steps(ledger, south, room)["steps_remaining"] == 0
    population = ledger.get("/v1/populations").json()["items"][0]
    assert population["epsilon"] <= 1.0
    assert verify(ledger.database).sound


def test_attestation_is_kept_with_who_and_when(ledger: Ledger) -> None:
    made = ledger.population(**ATTESTED, max_partitions_per_unit=3)
    read = ledger.get(f"/v1/populations/{made['id']}").json()
    assert (read["composition"], read["max_partitions_per_unit"]) == ("parallel", 3)
    said = read["attestation"]
    assert (said["text"], said["replacement_assumption"]) == (ATTESTED["attestation"], None)
    assert said["attested_by"] == ledger.keys["hospital", "admin"].split(".")[0]
    assert said["attested_at"] == read["created_at"]
    assert ledger.budget()["attestation"] is None


NOT_ATTESTED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing is said": ({"composition": "parallel"}, "an `attestation` is needed"),
    "blanks are said": ({"composition": "parallel", "attestation": "  "}, "words that can be read"),
    "it is said of no parts": ({"attestation": "x"}, "composition"),
    "k of no parts": ({"max_partitions_per_unit": 2}, "composition"),
    "k is 0": (ATTESTED | {"max_partitions_per_unit": 0}, "max_partitions_per_unit"),
    "k is more than there may be parts": (ATTESTED | {"max_partitions_per_unit": 65}, "max_partitions_per_unit"),
    "an unknown composition": ({"composition": "serial"}, "composition"),
    "nothing is said of replaced units": (ATTESTED | {"neighboring_relation": "replace_one"}, "replacement_assumption"),
    "it is said of another relation": (ATTESTED | {"replacement_assumption": "removal_is_bounded"}, "replace_one only"),
    "it is said in other words": (
        ATTESTED | {"neighboring_relation": "replace_one", "replacement_assumption": "they go"},
        "replacement_assumption",
    ),
}


@pytest.mark.parametrize("what", NOT_ATTESTED)
def test_parts_need_an_attestation(ledger: Ledger, what: str) -> None:
    terms, words = NOT_ATTESTED[what]
    relation = {"neighboring_relation": "add_or_remove_one"}
    body = {"name": "p", "privacy_unit": "patient", "limit": LIMIT, **relation} | terms
    assert words in refused(ledger.post("/v1/populations", body))
    assert ledger.get("/v1/populations").json()["items"] == []
    ledger.population(neighboring_relation=body["neighboring_relation"])
    budget = {"name": "b", "parent": "mimic", "limit": LIMIT} | terms
    budget.pop("neighboring_relation", None)
    assert words in refused(ledger.post("/v1/budgets", budget))


def test_run_charges_no_parallel_account_itself(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget("parts", **ATTESTED)
    assert "a run charges its parts" in refused(register(ledger, "mimic/parts"))
    ledger.population("whole", **ATTESTED)
    assert "a run charges its parts" in refused(register(ledger, "whole"))


def test_run_charges_a_population_directly(ledger: Ledger) -> None:
    population = ledger.population()
    ledger.budget()
    ledger.population("other")
    run = ledger.get(f"/v1/runs/{ledger.run('mimic', event=NOISE)}").json()
    assert (run["budget"], run["budget_path"], run["path"]) == (population["id"], "mimic", f"mimic/{run['name']}")
    assert run["epsilon_limit"] == population["limit"]["epsilon"]  # type: ignore[index]
    assert steps(ledger, run["id"])["decision"] == "admitted"
    assert ledger.get("/v1/populations?name=mimic").json()["items"][0]["epsilon"] > 0
    both = {"name": "both", "budgets": ["mimic", "other"], "event": NOISE}
    several = ledger.post("/v1/runs", both)
    assert several.status_code == 201, several.text
    assert steps(ledger, several.json()["id"])["decision"] == "admitted"
    assert "lies above" in refused(ledger.post("/v1/runs", both | {"budgets": ["mimic", "mimic/icu-team"]}))
    sweep = {"name": "sweep", "budget": "mimic", "charging_mode": "each_run"}
    assert ledger.post("/v1/experiments", sweep).status_code == 201
    for query in ("budget=mimic", "within=mimic", "population=mimic"):
        assert run["id"] in {one["id"] for one in ledger.get(f"/v1/runs?{query}").json()["items"]}
    assert ledger.post("/v1/verifications", None).json()["discrepancies"] == []


@pytest.mark.both_databases
def test_run_on_two_hospitals_charges_both_or_none(ledger: Ledger) -> None:
    for name, limit in (("mimic", LIMIT), ("eicu", WIDE)):
        ledger.population(name, limit=WIDE)
        ledger.budget("team", name, limit=limit)
    made = register(ledger, "eicu/team", "mimic/team").json()
    budgets = {item["path"]: item["id"] for item in ledger.get("/v1/budgets").json()["items"]}
    assert made["budgets"] == [budgets["eicu/team"], budgets["mimic/team"]]
    assert (made["budget"], made["path"], made["epsilon_limit"]) == (budgets["eicu/team"], "eicu/team/model", 4.0)
    room = made["steps_remaining"]
    assert (made["binding_account_path"]) == "mimic/team"
    answer = steps(ledger, made["id"], room + 1)
    assert (answer["code"], answer["binding_account_path"]) == ("budget_exceeded", "mimic/team")
    assert {item["epsilon"] for item in ledger.get("/v1/budgets").json()["items"]} == {0.0}
    assert steps(ledger, made["id"], room)["decision"] == "admitted"
    spent = [item["epsilon"] for item in ledger.get("/v1/populations").json()["items"]]
    assert min(spent) > 0.9
    for budget in budgets.values():
        found = ledger.get(f"/v1/runs?budget={budget}").json()["items"]
        assert [run["id"] for run in found] == [made["id"]]
    assert verify(ledger.database).sound


NOT_TOGETHER: dict[str, tuple[list[str], str, str]] = {
    "one above the other": (["mimic/a", "mimic/a/sub"], "lies above", "invalid_request"),
    "the same twice": (["mimic/a", "mimic/a"], "named twice", "invalid_request"),
    "beside parts and through them": (["mimic/b", "mimic/a/parts/one"], "beside them", "invalid_request"),
    "parts of two kinds": (["mimic/a/parts/one", "mimic/a/more/one"], "two kinds", "invalid_request"),
    "another unit": (["mimic/b", "device/team"], "counted by", "privacy_unit_mismatch"),
    "another relation": (["mimic/b", "replaced/team"], "kept under", "neighboring_relation_mismatch"),
}


@pytest.mark.parametrize("what", NOT_TOGETHER)
def test_budgets_that_one_run_cannot_charge_together_are_refused(ledger: Ledger, what: str) -> None:
    ledger.population()
    for path in ("a", "b", "a/sub"):
        *above, name = path.split("/")
        ledger.budget(name, "/".join(["mimic", *above]))
    for name in ("parts", "more"):
        ledger.budget(name, "mimic/a", **ATTESTED)
        ledger.budget("one", f"mimic/a/{name}")
    ledger.population("device", privacy_unit="device")
    ledger.population("replaced", neighboring_relation="replace_one")
    for name in ("device", "replaced"):
        ledger.budget("team", name)
    names, words, code = NOT_TOGETHER[what]
    for budgets in (names, names[::-1]):
        assert words in refused(register(ledger, *budgets), code)
    assert ledger.get("/v1/runs").json()["items"] == []


BAD_BUDGETS: dict[str, dict[str, Any]] = {
    "both": {"budget": "mimic/north", "budgets": ["mimic/south"]},
    "neither": {},
    "none": {"budgets": []},
    "nine": {"budgets": [f"mimic/{number}" for number in range(9)]},
    "no text": {"budgets": [1]},
}


@pytest.mark.parametrize("what", BAD_BUDGETS)
def test_run_names_one_budget_or_up_to_eight(ledger: Ledger, what: str) -> None:
    sites(ledger)
    body = {"name": "model", "event": NOISE} | BAD_BUDGETS[what]
    assert "budget" in refused(ledger.post("/v1/runs", body))


def test_one_of_several_budgets_that_is_missing_is_named(ledger: Ledger) -> None:
    sites(ledger)
    reply = register(ledger, "mimic/north", "mimic/nowhere")
    assert (reply.status_code, "nowhere" in reply.json()["detail"]) == (404, True)
