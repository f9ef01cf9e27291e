"""Accounts: populations, budgets and runs as they are created, under one another and beside each other."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import httpx2
import pytest

from app.accounting.curves import GRID_VERSION, finite_orders
from app.ledger.accounts.account import MAX_DEPTH
from app.ledger.filter.filters import smallest_useful_epsilon
from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.api.trainer import is_refused
from tests.conftest import SAMPLED, Ledger

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 100.0}


def _bodies(name: str) -> dict[str, dict[str, Any]]:
    return {
        "/v1/populations": POPULATION | {"name": name},
        "/v1/budgets": {"name": name, "parent": "mimic", "limit": LIMIT},
        "/v1/runs": {"name": name, "budget": "mimic/icu-team"},
    }


CREATES = list(_bodies(""))


def _create(seeded: SeededLedger, path: str, name: str, **terms: object) -> httpx2.Response:
    return seeded.ledger.post(path, _bodies(name)[path] | terms)


def test_population_and_budgets_are_answered_as_they_were_asked(ledger: Ledger) -> None:
    planned = [{"event": GAUSSIAN, "count": 7}]
    made = ledger.population("mimic", size=46520, planned=planned)
    assert ledger.get(f"/v1/populations/{made['id']}").json() == made
    assert str(made["id"]).startswith("pop_")
    expected = {"name": "mimic", "path": "mimic", "privacy_unit": "patient", "size": 46520, "planned": planned}
    expected |= {"limit": {"epsilon": 3.0, "delta": 1e-5}, "epsilon": 0.0, "delta": 1e-5}
    expected |= {"used": 0.0, "used_including_reserved": 0.0}
    assert {key: made[key] for key in expected} == expected
    assert made["created_at"] == made["updated_at"]
    by_path, by_id, under = (
        ledger.budget(name, str(parent))
        for name, parent in (("one", "mimic"), ("two", made["id"]), ("three", "mimic/one"))
    )
    assert [budget["parent"] for budget in (by_path, by_id, under)] == [made["id"], made["id"], by_path["id"]]
    assert {budget["population"] for budget in (by_path, by_id, under)} == {made["id"]}
    assert [budget["path"] for budget in (by_path, by_id, under)] == ["mimic/one", "mimic/two", "mimic/one/three"]
    assert ledger.get(f"/v1/budgets/{under['id']}").json() == under


def test_run_starts_with_nothing_spent(ledger: Ledger) -> None:
    population, budget = ledger.population(), ledger.budget()
    run, same = (ledger.get(f"/v1/runs/{ledger.run(str(budget[by]))}").json() for by in ("id", "path"))
    assert (same["budget"], same["path"]) == (run["budget"], run["path"])
    expected = {"budget": budget["id"], "budget_path": "mimic/icu-team", "population": population["id"]}
    expected |= {"status": "active", "attempt": 1, "next_step": 0, "epsilon": 0.0, "event": SAMPLED, "limit": None}
    expected |= {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    expected |= {"binding_account": budget["id"], "binding_account_path": "mimic/icu-team"}
    assert {name: run[name] for name in expected} == expected
    assert (run["delta"], run["used"]) == (budget["limit"]["delta"], 0.0)  # type: ignore[index]
    assert run["steps_remaining"] > 0
    bare = ledger.run(event=None)
    read = ledger.get(f"/v1/runs/{bare}").json()
    assert (read["event"], read["steps_remaining"], read["binding_account"]) == (None, None, None)
    is_refused(ledger.post(f"/v1/runs/{bare}/steps", {"count": 1}, "trainer"), 422, "invalid_request")
    assert ledger.post(f"/v1/runs/{bare}/steps", {"event": SAMPLED}, "trainer").status_code == 200


READABLE = ("a", "ICU team 2", "Ärzte", "病人", "a.b-c_d", "%2F", "..", "population", "popx_", "x" * 100, "1", "null")
UNREADABLE = [
    *("", " ", "x" * 101, "a/b", "/", " a", "a ", "a\n", "a\tb", "a\x01b", "a\x7fb", "a\u200bb", "a\u202eb"),
    *("\ufeffa", "a\u2028b", "a\u00a0", "pop_", "pop_x", "bud_1", "run_0123456789ab"),
]


def test_readable_name_is_taken_and_an_unreadable_one_refused(shared: SeededLedger) -> None:
    for place, name in enumerate(READABLE):
        for path in CREATES if place in {2, 5} else CREATES[:1]:
            made = _create(shared, path, name).raise_for_status()
            assert (made.json()["name"], made.json()["path"].endswith(name)) == (name, True)
            assert shared.ledger.get(f"{path}/{made.json()['id']}").json() == made.json()
    before = shared.rows()
    for path, name in product(CREATES, UNREADABLE):
        answer = is_refused(_create(shared, path, name), 422, "invalid_request")
        assert answer["errors"][0]["field"] == "body.name", repr(name)
    wrong = ("mimic/", "/mimic", "mimic//icu-team", "MIMIC", " mimic", "mimic/icu-team/..", "%", "mimic/%")
    for reference, (path, member) in product(wrong, (("/v1/budgets", "parent"), ("/v1/runs", "budget"))):
        is_refused(_create(shared, path, "new", **{member: reference}), 404, "not_found")
    assert shared.rows() == before


def test_name_is_taken_once_among_siblings_whatever_it_looks_like(seeded: SeededLedger) -> None:
    before = seeded.rows()
    for name in ("mimic", "Mimic", "MIMIC", "m\u0456mic", "mi-mic", "rnimic"):
        answer = is_refused(_create(seeded, "/v1/populations", name), 409, "name_taken")
        assert (answer["name"], "'mimic'" in answer["detail"]) == ("mimic", True)
    for name in ("icu-team", "icu team", "ICU-Team", "icu_te\u0430m", "icuteam"):
        assert is_refused(_create(seeded, "/v1/budgets", name), 409, "name_taken")["name"] == "icu-team"
    assert seeded.rows() == before
    assert _create(seeded, "/v1/populations", "mimic2").status_code == 201  # a digit more is another name
    for name, parent in (("ICU team", "mimic2"), ("mimic", "mimic2"), ("icu-team", "mimic/icu-team")):
        assert seeded.ledger.budget(name, parent)["path"] == f"{parent}/{name}"
    assert seeded.ledger.run(name="model") != seeded.ledger.run(name="Model")
    with ThreadPoolExecutor(8) as pool:
        names = ["ward-a", "Ward A", "WARD_A", "w\u0430rda"]
        replies = list(pool.map(lambda name: _create(seeded, "/v1/budgets", name).status_code, names))
    assert sorted(replies) == [201, 409, 409, 409]
    assert seeded.sound()


def test_tree_is_only_so_deep_and_a_charge_touches_all_of_it(ledger: Ledger) -> None:
    ids, path = [ledger.population("p")["id"]], "p"
    for depth in range(1, MAX_DEPTH + 1):
        ids.append(ledger.budget(f"b{depth}", path, limit={"epsilon": 3.0, "delta": 1e-5})["id"])
        path = f"{path}/b{depth}"
    is_refused(ledger.post("/v1/budgets", {"name": "deeper", "parent": path, "limit": LIMIT}), 422, "invalid_request")
    run = ledger.run(path)
    assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    assert ledger.get(f"/v1/runs/{run}/history").json()["points"][0]["accounts"] == [*ids, run]
    [epsilon] = {budget["epsilon"] for budget in ledger.get("/v1/budgets").json()["items"]}
    assert epsilon == ledger.get(f"/v1/populations/{ids[0]}").json()["epsilon"] > 0


@pytest.mark.parametrize("path", CREATES[1:])
def test_limit_that_only_bounded_losses_fit_is_warned_of(shared: SeededLedger, path: str) -> None:
    delta = 1e-30
    smallest = smallest_useful_epsilon(delta, finite_orders(GRID_VERSION))
    assert smallest > 0
    small = _create(shared, path, "small", limit={"epsilon": smallest, "delta": delta})
    [warning] = small.json()["warnings"]
    assert f"admitted above epsilon {smallest:.4g} only" in warning
    assert _create(shared, path, "larger", limit={"epsilon": smallest * 1.01, "delta": delta}).json()["warnings"] == []
    vacuous = _create(shared, path, "vacuous", limit={"epsilon": 21.0, "delta": 1e-9})
    assert "vacuous" in vacuous.json()["warnings"][0]


TOO_LARGE = "delta_too_large"
SIZES: list[tuple[int | None, float, str | None]] = [
    *((1000, 0.999e-3, None), (1000, 1e-3, TOO_LARGE), (3, 1 / 3, TOO_LARGE), (2, 0.49, None)),
    *((10**12, 0.9e-12, None), (10**12, 1e-12, TOO_LARGE), (None, 0.49, None), (1, 0.49, None)),
]


UNIT, RELATION = "privacy_unit", "neighboring_relation"
KNOWN = {UNIT: "patient", RELATION: "add_or_remove_one"}
DECLARED: list[tuple[dict[str, Any], str | None]] = [
    *(({name: value}, None) for name, value in KNOWN.items()),
    ({UNIT: None, RELATION: None}, None),
    *(({UNIT: value}, f"{UNIT}_mismatch") for value in ("Patient", "record")),
    *(({RELATION: value}, f"{RELATION}_mismatch") for value in ("replace_one", "replace_special")),
]


def test_delta_of_one_over_the_size_and_another_unit_or_relation_are_refused(shared: SeededLedger) -> None:
    for place, (size, delta, code) in enumerate(SIZES):
        name, limit, tiny = f"sized-{place}", {"epsilon": 1.0, "delta": delta}, {"epsilon": 1.0, "delta": 1e-20}
        reply = _create(shared, "/v1/populations", name, size=size, limit=limit)
        if code is None:
            assert reply.status_code == 201
            continue
        answer = is_refused(reply, 422, code)
        assert (answer["delta"], answer["population_size"]) == (delta, size)
        shared.ledger.population(name, size=size, limit=tiny)
        shared.ledger.budget("team", name, limit=tiny)
        is_refused(_create(shared, "/v1/budgets", "b", parent=name, limit=limit), 422, code)
        is_refused(_create(shared, "/v1/runs", "r", budget=f"{name}/team", limit=limit), 422, code)
    for declared, code in DECLARED:
        before, reply = shared.rows(), _create(shared, "/v1/runs", "r", **declared)
        if code is None:
            assert reply.status_code == 201
            continue
        answer = is_refused(reply, 422, code)
        assert {name: answer[name] for name in declared} == {name: KNOWN[name] for name in declared}
        assert shared.rows() == before


BATCH = {"type": "sampled_without_replacement", "source_dataset_size": 100, "sample_size": 10, "event": GAUSSIAN}
TWICE_SAMPLED = {"type": "poisson_sampled", "sampling_probability": 0.1, "event": BATCH}


def test_sampling_is_refused_where_its_amplification_is_not_proven(ledger: Ledger) -> None:
    replaced, planned = {RELATION: "replace_one"}, {"planned": [{"event": TWICE_SAMPLED}]}
    ledger.population(**replaced)
    ledger.budget()
    seeded = SeededLedger(ledger, "", "", ledger.run(event=None))
    before, registered, steps = seeded.rows(), _bodies("r")["/v1/runs"], f"runs/{seeded.run}/steps"
    for path, body in (
        ("populations", POPULATION | replaced | planned),
        ("budgets", _bodies("b")["/v1/budgets"] | planned),
        *(("runs", registered | planned), ("runs", registered | {"event": TWICE_SAMPLED})),
        *((steps, {"event": TWICE_SAMPLED}), (steps, {"events": [{"event": GAUSSIAN}, {"event": TWICE_SAMPLED}]})),
        ("accounting/epsilon", {"events": [{"event": TWICE_SAMPLED}], "delta": 1e-5} | replaced),
    ):
        is_refused(ledger.post(f"/v1/{path}", body), 422, "unsupported_event")
    assert seeded.rows() == before
