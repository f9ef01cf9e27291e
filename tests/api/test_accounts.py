"""Accounts: populations, budgets and runs as they are created, under one another and beside each other."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from app.accounting.curves import GRID_VERSION, finite_orders
from app.ledger.accounts import MAX_DEPTH
from app.ledger.filters import smallest_useful_epsilon
from app.service.verification import verify
from tests.api.conftest import LIMIT, POPULATION, SeededLedger
from tests.conftest import SAMPLED, Ledger


def _bodies(name: str) -> dict[str, dict[str, Any]]:
    return {
        "/v1/populations": POPULATION | {"name": name},
        "/v1/budgets": {"name": name, "parent": "mimic", "limit": LIMIT},
        "/v1/runs": {"name": name, "budget": "mimic/icu-team"},
    }


CREATES = list(_bodies(""))


def test_population_is_answered_as_it_was_asked(ledger: Ledger) -> None:
    planned = [{"event": GAUSSIAN, "count": 7}]
    made = ledger.population("mimic", size=46520, planned=planned)
    assert ledger.get(f"/v1/populations/{made['id']}").json() == made
    assert str(made["id"]).startswith("pop_")
    expected = {"name": "mimic", "path": "mimic", "privacy_unit": "patient", "size": 46520}
    assert {key: made[key] for key in expected} == expected
    assert (made["limit"], made["planned"]) == ({"epsilon": 3.0, "delta": 1e-5}, planned)
    assert (made["epsilon"], made["epsilon_rdp"]) == (0.0, 0.0)
    assert made["created_at"] == made["updated_at"]


def test_budget_lies_under_its_parent_by_id_or_by_path(ledger: Ledger) -> None:
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
def test_run_starts_with_nothing_spent(ledger: Ledger, by: str) -> None:
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


def test_run_without_an_event_says_nothing_about_what_remains(seeded: SeededLedger) -> None:
    run = seeded.ledger.run(event=None)
    read = seeded.ledger.get(f"/v1/runs/{run}").json()
    assert (read["event"], read["steps_remaining"], read["binding_account"]) == (None, None, None)
    reply = seeded.ledger.post(f"/v1/runs/{run}/steps", {"count": 1}, "trainer")
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request")
    assert seeded.ledger.post(f"/v1/runs/{run}/steps", {"event": SAMPLED}, "trainer").status_code == 200


@pytest.mark.parametrize("path", CREATES)
def test_readable_name_is_taken(shared: SeededLedger, path: str) -> None:
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
def test_unreadable_name_is_refused(shared: SeededLedger, path: str) -> None:
    before = shared.rows()
    for name in UNREADABLE:
        reply = shared.ledger.post(path, _bodies(name)[path])
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_request"), repr(name)
        assert reply.json()["errors"][0]["field"] == "body.name"
    assert shared.rows() == before


def test_name_is_taken_once_among_siblings(seeded: SeededLedger) -> None:
    seeded.ledger.population("other")
    before = seeded.rows()
    for path, body in (("/v1/populations", POPULATION | {"name": "mimic"}), ("/v1/budgets", _bodies("icu-team"))):
        reply = seeded.ledger.post(path, body.get(path, body))
        assert (reply.status_code, reply.json()["code"]) == (409, "name_taken")
    assert seeded.rows() == before
    assert seeded.ledger.budget("icu-team", "other")["path"] == "other/icu-team"
    assert seeded.ledger.budget("icu-team", "mimic/icu-team")["path"] == "mimic/icu-team/icu-team"


@pytest.mark.parametrize(
    "reference", ["mimic/", "/mimic", "mimic//icu-team", "MIMIC", " mimic", "mimic/icu-team/..", "%", "mimic/%"]
)
def test_reference_is_an_id_or_an_exact_path(shared: SeededLedger, reference: str) -> None:
    before = shared.rows()
    for path, member in (("/v1/budgets", "parent"), ("/v1/runs", "budget")):
        reply = shared.ledger.post(path, _bodies("new")[path] | {member: reference})
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    assert shared.rows() == before


def test_tree_is_only_so_deep_and_a_charge_touches_all_of_it(ledger: Ledger) -> None:
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


@pytest.mark.parametrize("path", CREATES)
def test_limit_that_only_bounded_losses_fit_is_warned_of(shared: SeededLedger, path: str) -> None:
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


GAUSSIAN = {"type": "gaussian", "noise_multiplier": 100.0}


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
def test_delta_of_one_over_the_size_is_refused(
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
def test_run_must_protect_what_its_population_protects(
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


def _population(seeded: SeededLedger, name: str) -> httpx2.Response:
    body = {"name": name, "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one", "limit": LIMIT}
    return seeded.ledger.post("/v1/populations", body)


def _budget(seeded: SeededLedger, name: str, parent: str = "mimic") -> httpx2.Response:
    return seeded.ledger.post("/v1/budgets", {"name": name, "parent": parent, "limit": LIMIT})


@pytest.mark.parametrize("name", ["Mimic", "MIMIC", "m\u0456mic", "mi-mic", "rnimic"])
def test_second_population_of_the_same_looks_is_refused_with_the_others_name(shared: SeededLedger, name: str) -> None:
    before = shared.rows()
    reply = _population(shared, name)
    answer = reply.json()
    assert (reply.status_code, answer["code"], answer["name"]) == (409, "name_taken", "mimic")
    assert "'mimic'" in answer["detail"]
    assert shared.rows() == before


@pytest.mark.parametrize("name", ["icu team", "ICU-Team", "icu_te\u0430m", "icuteam"])
def test_budgets_beside_each_other_have_names_that_differ(shared: SeededLedger, name: str) -> None:
    assert (_budget(shared, name).json()["code"], _budget(shared, name).json()["name"]) == ("name_taken", "icu-team")


def test_digit_more_is_another_name_and_elsewhere_a_name_is_free(seeded: SeededLedger) -> None:
    assert _population(seeded, "mimic2").status_code == 201
    assert _budget(seeded, "ICU team", "mimic2").status_code == 201
    assert _budget(seeded, "mimic", "mimic2").status_code == 201
    assert seeded.ledger.run(name="model") != seeded.ledger.run(name="Model")
    assert verify(seeded.ledger.database).problems == ()


def test_opened_at_once_one_of_two_names_is_taken(seeded: SeededLedger) -> None:
    names = ["ward-a", "Ward A", "WARD_A", "w\u0430rda"]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda name: _budget(seeded, name).status_code, names))
    assert sorted(replies) == [201, 409, 409, 409]
