"""Populations, budgets and runs: what is taken, what is refused, and what the answer says."""

from typing import Any

import pytest

from app.accounting.curves import GRID_VERSION, finite_orders
from app.ledger.accounts import MAX_DEPTH
from app.ledger.filters import smallest_useful_epsilon
from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.conftest import SAMPLED, Ledger

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 100.0}


def _bodies(name: str) -> dict[str, dict[str, Any]]:
    return {
        "/v1/populations": POPULATION | {"name": name},
        "/v1/budgets": {"name": name, "parent": "mimic", "limit": LIMIT},
        "/v1/runs": {"name": name, "budget": "mimic/icu-team"},
    }


CREATES = list(_bodies(""))


def test_a_population_is_answered_as_it_was_asked(ledger: Ledger) -> None:
    planned = [{"event": SAMPLED, "count": 7}]
    made = ledger.population("mimic", size=46520, planned=planned)
    assert ledger.get(f"/v1/populations/{made['id']}").json() == made
    assert str(made["id"]).startswith("pop_")
    expected = {"name": "mimic", "path": "mimic", "privacy_unit": "patient", "size": 46520}
    assert {key: made[key] for key in expected} == expected
    assert (made["limit"], made["planned"]) == ({"epsilon": 3.0, "delta": 1e-5}, planned)
    assert (made["epsilon"], made["epsilon_rdp"]) == (0.0, 0.0)
    assert made["created_at"] == made["updated_at"]


def test_a_budget_lies_under_its_parent_by_id_or_by_path(ledger: Ledger) -> None:
    population = ledger.population()
    by_path = ledger.budget("one", "mimic")
    by_id = ledger.budget("two", str(population["id"]))
    under = ledger.budget("three", "mimic/one")
    assert by_path["parent"] == by_id["parent"] == population["id"]
    assert under["parent"] == by_path["id"]
    assert {budget["population"] for budget in (by_path, by_id, under)} == {population["id"]}
    assert [budget["path"] for budget in (by_path, by_id, under)] == ["mimic/one", "mimic/two", "mimic/one/three"]
    assert ledger.get(f"/v1/budgets/{under['id']}").json() == under


@pytest.mark.parametrize("by", ["id", "path"])
def test_a_run_starts_with_nothing_spent(ledger: Ledger, by: str) -> None:
    population = ledger.population()
    budget = ledger.budget()
    run = ledger.get(f"/v1/runs/{ledger.run(str(budget[by]))}").json()
    assert run["id"].startswith("run_")
    assert (run["budget"], run["budget_path"], run["population"]) == (budget["id"], "mimic/icu-team", population["id"])
    assert (run["status"], run["attempt"], run["next_step"], run["epsilon"]) == ("active", 1, 0, 0.0)
    assert (run["event"], run["limit"]) == (SAMPLED, None)
    assert {"epsilon": run["epsilon_limit"], "delta": run["delta"]} == budget["limit"]
    assert (run["privacy_unit"], run["neighboring_relation"]) == ("patient", "add_or_remove_one")
    assert (run["binding_account"], run["binding_account_path"]) == (budget["id"], "mimic/icu-team")
    assert run["steps_remaining"] > 0


def test_a_run_without_an_event_says_nothing_about_what_remains(seeded: SeededLedger) -> None:
    run = seeded.ledger.run(event=None)
    read = seeded.ledger.get(f"/v1/runs/{run}").json()
    assert (read["event"], read["steps_remaining"], read["binding_account"]) == (None, None, None)
    reply = seeded.ledger.post(f"/v1/runs/{run}/steps", {"count": 1}, "trainer")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert seeded.ledger.post(f"/v1/runs/{run}/steps", {"event": SAMPLED}, "trainer").status_code == 200


def test_a_run_with_a_limit_of_its_own_is_read_by_it(seeded: SeededLedger) -> None:
    limit = {"epsilon": 0.3, "delta": 1e-6}
    run = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run(limit=limit)}").json()
    assert (run["limit"], run["epsilon_limit"], run["delta"]) == (limit, 0.3, 1e-6)
    assert (run["binding_account"], run["binding_account_path"]) == (run["id"], "mimic/icu-team/model")


@pytest.mark.parametrize("path", CREATES)
def test_a_readable_name_is_taken(shared: SeededLedger, path: str) -> None:
    readable = (
        "a",
        "ICU team 2",
        "Ärzte",
        "病人",
        "a.b-c_d",
        "%2F",
        "..",
        "population",
        "popx_",
        "x" * 100,
        "1",
        "null",
    )
    for name in readable:
        made = shared.ledger.post(path, _bodies(name)[path])
        assert made.status_code == 201, made.text
        assert made.json()["name"] == name
        assert made.json()["path"].endswith(name)
        assert shared.ledger.get(f"{path}/{made.json()['id']}").json() == made.json()


UNREADABLE = [
    *("", " ", "x" * 101, "a/b", "/", " a", "a ", "a\n", "a\tb", "a\x01b", "a\x7fb", "a\u200bb", "a\u202eb"),
    *("\ufeffa", "a\u2028b", "a\u00a0", "pop_", "pop_x", "bud_1", "run_0123456789ab"),
]


@pytest.mark.parametrize("path", CREATES)
def test_an_unreadable_name_is_refused(shared: SeededLedger, path: str) -> None:
    before = shared.rows()
    for name in UNREADABLE:
        reply = shared.ledger.post(path, _bodies(name)[path])
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request"), repr(name)
        assert reply.json()["errors"][0]["field"] == "body.name"
    assert shared.rows() == before


@pytest.mark.both_databases
def test_a_name_is_taken_once_among_siblings(seeded: SeededLedger) -> None:
    seeded.ledger.population("other")
    before = seeded.rows()
    for path, body in (("/v1/populations", POPULATION | {"name": "mimic"}), ("/v1/budgets", _bodies("icu-team"))):
        reply = seeded.ledger.post(path, body.get(path, body))
        assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
    assert seeded.rows() == before
    assert seeded.ledger.budget("icu-team", "other")["path"] == "other/icu-team"
    assert seeded.ledger.budget("icu-team", "mimic/icu-team")["path"] == "mimic/icu-team/icu-team"


def test_runs_may_share_their_name_with_runs_and_budgets(seeded: SeededLedger) -> None:
    assert seeded.ledger.run(name="model") != seeded.run
    assert seeded.ledger.budget("model", "mimic/icu-team")["path"] == "mimic/icu-team/model"
    under = seeded.ledger.get(f"/v1/runs/{seeded.ledger.run('mimic/icu-team/model')}").json()
    assert under["budget_path"] == "mimic/icu-team/model"


@pytest.mark.parametrize(
    "reference", ["mimic/", "/mimic", "mimic//icu-team", "MIMIC", " mimic", "mimic/icu-team/..", "%", "mimic/%"]
)
def test_a_reference_is_an_id_or_an_exact_path(shared: SeededLedger, reference: str) -> None:
    before = shared.rows()
    for path, member in (("/v1/budgets", "parent"), ("/v1/runs", "budget")):
        reply = shared.ledger.post(path, _bodies("new")[path] | {member: reference})
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert shared.rows() == before


@pytest.mark.both_databases
def test_a_tree_is_only_so_deep_and_a_charge_touches_all_of_it(ledger: Ledger) -> None:
    ids = [ledger.population("p")["id"]]
    path = "p"
    for depth in range(1, MAX_DEPTH + 1):
        ids.append(ledger.budget(f"b{depth}", path, limit={"epsilon": 3.0, "delta": 1e-5})["id"])
        path = f"{path}/b{depth}"
    reply = ledger.post("/v1/budgets", {"name": "deeper", "parent": path, "limit": LIMIT})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    run = ledger.run(path)
    assert ledger.post(f"/v1/runs/{run}/steps", {}, "trainer").status_code == 200
    assert ledger.get(f"/v1/runs/{run}/history").json()["points"][0]["accounts"] == [*ids, run]
    budgets = ledger.get("/v1/budgets").json()["items"]
    assert len({budget["epsilon"] for budget in budgets}) == 1
    assert budgets[0]["epsilon"] == ledger.get(f"/v1/populations/{ids[0]}").json()["epsilon"] > 0


@pytest.mark.parametrize("by", ["id", "path"])
def test_a_run_may_lie_directly_under_a_population(shared: SeededLedger, by: str) -> None:
    body = {"name": f"by-{by}", "budget": shared.population if by == "id" else "mimic"}
    reply = shared.ledger.post("/v1/runs", body)
    assert reply.status_code == 201
    assert (reply.json()["path"], reply.json()["budget"]) == (f"mimic/by-{by}", shared.population)


@pytest.mark.parametrize("path", CREATES)
def test_a_limit_that_only_bounded_losses_fit_is_warned_of(shared: SeededLedger, path: str) -> None:
    delta = 1e-30
    smallest = smallest_useful_epsilon(delta, finite_orders(GRID_VERSION))
    assert smallest > 0
    body = _bodies("small")[path]
    small = shared.ledger.post(path, body | {"limit": {"epsilon": smallest, "delta": delta}})
    assert small.status_code == 201
    [warning] = small.json()["warnings"]
    assert f"admitted above epsilon {smallest:.4g} only" in warning
    large = body | {"name": "larger", "limit": {"epsilon": smallest * 1.01, "delta": delta}}
    assert shared.ledger.post(path, large).json()["warnings"] == []
    vacuous = body | {"name": "vacuous", "limit": {"epsilon": 21.0, "delta": 1e-9}}
    assert "vacuous" in shared.ledger.post(path, vacuous).json()["warnings"][0]
