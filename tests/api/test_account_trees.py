"""Trees: disjoint parts, parts that units may leave, runs that charge several budgets, and what is refused of them."""

from typing import Any

import httpx2
import pytest

from app.service.verification.verify import verify
from tests.api.conftest import LIMIT
from tests.api.trainer import is_refused
from tests.conftest import Ledger
from tests.epsilons import tightest

ATTESTED: dict[str, Any] = {"composition": "parallel", "attestation": "each patient is treated at one site"}
WIDE = {"epsilon": 4.0, "delta": 1e-5}
NOISE = {"type": "gaussian", "noise_multiplier": 60.0}


def sites(ledger: Ledger, *names: str, **terms: object) -> list[str]:
    """A parallel population with epsilon 1, and a part with room for more by each name; the ids of the parts."""
    ledger.population(limit=LIMIT, **ATTESTED | terms)
    return [str(ledger.budget(name, limit=WIDE)["id"]) for name in names or ("north", "south")]


def steps(ledger: Ledger, run: str, count: int = 1, **body: object) -> dict[str, Any]:
    return dict(ledger.post(f"/v1/runs/{run}/steps", {"count": count} | body).json())


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
    assert (answer["binding_account_path"], answer["max_steps_that_fit"]) == ("mimic", room)
    share = answer["used"]
    assert room / (room + 1) < share == answer["used_including_reserved"] <= 1
    assert answer["used_requested"] == pytest.approx(share * (room + 1) / room, rel=1e-6)
    assert steps(ledger, south, room)["steps_remaining"] == 0
    [population] = ledger.get("/v1/populations").json()["items"]
    budgets = ledger.get("/v1/budgets").json()["items"]
    assert population["used"] == share
    assert {each["epsilon"] for each in (population, *budgets)} == {tightest((NOISE, room))}
    assert verify(ledger.database).sound


def test_part_that_is_split_again_can_take_what_the_whole_leaves(ledger: Ledger) -> None:
    [north] = sites(ledger, "north")
    south = ledger.budget("south", limit=WIDE, **ATTESTED)
    assert south["available"] == {"share": 1.0, "account": south["id"], "account_path": "mimic/south"}
    ward = ledger.budget("ward", "mimic/south", limit=WIDE)
    assert "epsilon" in steps(ledger, ledger.run("mimic/south/ward", event=NOISE), 9)
    left = [ledger.get(f"/v1/budgets/{each}").json()["available"] for each in (south["id"], ward["id"], north)]
    assert 0.0 < left[0]["share"] <= left[1]["share"] < left[2]["share"] == 1.0
    assert [each["account_path"] for each in left] == ["mimic", "mimic", "mimic/north"]


REPLACED = ATTESTED | {"neighboring_relation": "replace_one"}
NOT_ATTESTED: list[tuple[dict[str, Any], str]] = [
    ({"composition": "parallel"}, "an `attestation` is needed"),
    ({"composition": "parallel", "attestation": "  "}, "words that can be read"),
    ({"attestation": "x"}, "composition"),
    ({"max_partitions_per_unit": 2}, "composition"),
    (ATTESTED | {"max_partitions_per_unit": 0}, "max_partitions_per_unit"),
    (ATTESTED | {"max_partitions_per_unit": 65}, "max_partitions_per_unit"),
    ({"composition": "serial"}, "composition"),
    (REPLACED, "replacement_assumption"),
    (ATTESTED | {"replacement_assumption": "removal_is_bounded"}, "replace_one only"),
    (REPLACED | {"replacement_assumption": "they go"}, "replacement_assumption"),
]


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_parts_need_an_attestation(ledger: Ledger, relation: str) -> None:
    ledger.population(neighboring_relation=relation)
    for terms, words in NOT_ATTESTED:
        if terms.get("neighboring_relation", "add_or_remove_one") == relation:
            relations = {"neighboring_relation": relation}
            body = {"name": "p", "privacy_unit": "patient", "limit": LIMIT, **relations} | terms
            assert words in refused(ledger.post("/v1/populations", body))
            budget = {"name": "b", "parent": "mimic", "limit": LIMIT} | terms
            budget.pop("neighboring_relation", None)
            assert words in refused(ledger.post("/v1/budgets", budget))
    assert len(ledger.get("/v1/populations").json()["items"]) == 1
    assert ledger.get("/v1/budgets").json()["items"] == []


def test_run_charges_no_parallel_account_itself(ledger: Ledger) -> None:
    ledger.population()
    made = ledger.budget("parts", **ATTESTED)
    assert "a run charges its parts" in refused(register(ledger, "mimic/parts"))
    ledger.population("whole", **ATTESTED, max_partitions_per_unit=3)
    assert "a run charges its parts" in refused(register(ledger, "whole"))
    read = ledger.get("/v1/populations/whole").json()
    assert (read["composition"], read["max_partitions_per_unit"]) == ("parallel", 3)
    said = {"text": ATTESTED["attestation"], "replacement_assumption": None, "attested_at": read["created_at"]}
    said |= {"attested_by": ledger.keys["hospital", "admin"].split(".")[0]}
    assert said.items() <= read["attestation"].items()
    assert (made["attestation"]["text"], ledger.budget()["attestation"]) == (ATTESTED["attestation"], None)  # type: ignore[index]


def test_run_charges_a_population_directly(ledger: Ledger) -> None:
    population = ledger.population()
    ledger.budget()
    ledger.population("other")
    run = ledger.get(f"/v1/runs/{ledger.run('mimic', event=NOISE)}").json()
    assert (run["budget"], run["budget_path"], run["path"]) == (population["id"], "mimic", f"mimic/{run['name']}")
    assert (run["limit"], run["delta"]) == (None, population["limit"]["delta"])  # type: ignore[index]
    assert steps(ledger, run["id"])["decision"] == "admitted"
    assert ledger.get("/v1/populations?name=mimic").json()["items"][0]["epsilon"] > 0
    both = {"name": "both", "budgets": ["mimic", "other"], "event": NOISE}
    several = ledger.post("/v1/runs", both).raise_for_status()
    assert steps(ledger, several.json()["id"])["decision"] == "admitted"
    assert "lies above" in refused(ledger.post("/v1/runs", both | {"budgets": ["mimic", "mimic/icu-team"]}))
    sweep = {"name": "sweep", "budget": "mimic", "charging_mode": "each_run"}
    assert ledger.post("/v1/experiments", sweep).status_code == 201
    for query in ("budget=mimic", "within=mimic", "population=mimic"):
        assert run["id"] in {one["id"] for one in ledger.get(f"/v1/runs?{query}").json()["items"]}
    assert ledger.post("/v1/verifications", None).json()["discrepancies"] == []


def test_run_on_two_hospitals_charges_both_or_none(ledger: Ledger) -> None:
    for name, limit in (("mimic", LIMIT), ("eicu", WIDE)):
        ledger.population(name, limit=WIDE)
        ledger.budget("team", name, limit=limit)
    made = register(ledger, "eicu/team", "mimic/team").json()
    budgets = {item["path"]: item["id"] for item in ledger.get("/v1/budgets").json()["items"]}
    assert made["budgets"] == [budgets["eicu/team"], budgets["mimic/team"]]
    assert (made["budget"], made["path"], made["delta"]) == (budgets["eicu/team"], "eicu/team/model", WIDE["delta"])
    room = made["steps_remaining"]
    assert made["binding_account_path"] == "mimic/team"
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


NOT_TOGETHER: list[tuple[list[str], str, str]] = [
    (["mimic/a", "mimic/a/sub"], "lies above", "invalid_request"),
    (["mimic/a", "mimic/a"], "named twice", "invalid_request"),
    (["mimic/b", "mimic/a/parts/one"], "beside them", "invalid_request"),
    (["mimic/a/parts/one", "mimic/a/more/one"], "two kinds", "invalid_request"),
    (["mimic/b", "device/team"], "counted by", "privacy_unit_mismatch"),
    (["mimic/b", "replaced/team"], "kept under", "neighboring_relation_mismatch"),
]
BAD_BUDGETS: list[dict[str, Any]] = [{}, {"budget": "mimic/a", "budgets": ["mimic/b"]}]
BAD_BUDGETS += [{"budgets": budgets} for budgets in ([], [f"mimic/{number}" for number in range(9)], [1])]


def test_budgets_that_one_run_cannot_charge_together_are_refused(ledger: Ledger) -> None:
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
    for names, words, code in NOT_TOGETHER:
        for budgets in (names, names[::-1]):
            assert words in refused(register(ledger, *budgets), code)
    for body in BAD_BUDGETS:
        assert "budget" in refused(ledger.post("/v1/runs", {"name": "model", "event": NOISE} | body))
    assert "nowhere" in is_refused(register(ledger, "mimic/a", "mimic/nowhere"), 404, "not_found")["detail"]
    assert ledger.get("/v1/runs").json()["items"] == []


WITHIN: dict[str, Any] = REPLACED | {"limit": WIDE}
ANSWERS = {"type": "randomized_response", "noise_parameter": 0.9, "num_buckets": 2}
BATCH = {"type": "sampled_without_replacement", "source_dataset_size": 100, "sample_size": 10, "event": NOISE}
TREE = {"type": "tree_aggregation", "noise_multiplier": 60.0, "step_counts": [4]}
SHOWING = {"randomized_response": ANSWERS, "tree_aggregation": TREE, "sampled_without_replacement": BATCH}
ALONE = {"name": "m", "budget": "mimic/south"}
TRIALS = {"charging_mode": "repeat_and_select", "trials": {"events": [{"event": ANSWERS}], "mean": 2.0}}
PLANNED = [{"event": ANSWERS}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("runs", ALONE | {"event": ANSWERS}),
    ("runs", ALONE | {"reserve": PLANNED}),
    ("runs", {"name": "m", "budgets": ["other/lab", "mimic/south"], "event": ANSWERS}),
    ("runs", ALONE | {"limit": {"epsilon": 1, "delta": 1e-6}, "planned": PLANNED}),
    ("budgets", {"name": "b", "parent": "mimic/south", "limit": WIDE, "planned": PLANNED}),
    ("runs/{run}/reservations", {"events": [{"event": NOISE}, {"event": ANSWERS}]}),
    ("runs/{run}/steps?dry_run=true", {"count": 1, "event": ANSWERS}),
    ("runs/{run}/steps", {"count": 1, "event": ANSWERS, "mode": "report"}),
    ("experiments", ALONE | TRIALS),
    ("experiments", ALONE | {"charging_mode": "each_run", "planned": PLANNED}),
]


def hospital(ledger: Ledger, replacement_assumption: str) -> str:
    """Two sites of one population, and a team under the first; a run of the team."""
    ledger.population(**WITHIN, replacement_assumption=replacement_assumption)
    for name, parent in (("north", "mimic"), ("south", "mimic"), ("team", "mimic/north")):
        ledger.budget(name, parent, limit=WIDE)
    return ledger.run("mimic/north/team", event=NOISE)


def test_event_that_shows_a_missing_record_is_refused_in_any_request(ledger: Ledger) -> None:
    run = hospital(ledger, "removal_is_bounded")
    ledger.population("other", neighboring_relation="replace_one", limit=WIDE)
    ledger.budget("lab", "other", limit=WIDE)
    shown = [("runs/{run}/steps", {"count": 1, "event": event}, name) for name, event in SHOWING.items()]
    for path, body, name in (*shown, *((*asked, "randomized_response") for asked in ASKED)):
        detail = refused(ledger.post(f"/v1/{path.format(run=run)}", body), "unsupported_event")
        assert f"{name} is not supported under mimic:" in detail, path
        assert "stay_in_their_parts" in detail, path
    assert steps(ledger, run)["decision"] == "admitted"
    assert verify(ledger.database).sound


def test_events_are_admitted_where_units_stay_in_their_parts(ledger: Ledger) -> None:
    run = hospital(ledger, "stay_in_their_parts")
    assert {steps(ledger, run, event=event)["decision"] for event in SHOWING.values()} == {"admitted"}
