"""What people write about accounts: it is merged, bounded, recorded, and changes nothing that is charged."""

import json
from typing import Any

import pytest

from app.ledger.metadata import MAX_LABELS
from app.ledger.permissions import PERMISSIONS, Role
from tests.api.conftest import SeededLedger
from tests.api.test_policies import put
from tests.conftest import Ledger

LINK = {"title": "MLflow", "url": "https://mlflow.example/runs/1?x=1#top"}
ABOUT: dict[str, Any] = {
    "display_name": "Sterblichkeit & Übergänge",
    "description": "Line one.\nLine two.",
    "owner": "icu@hospital.example",
    "labels": {"git-commit": "4ff0372", "team/name_1.x": "", "team": "icu"},
    "links": [LINK],
}
NOTHING: dict[str, Any] = {
    "display_name": None,
    "description": None,
    "owner": None,
    "labels": {},
    "links": [],
    "archived_at": None,
}
KINDS = ("populations", "budgets", "runs")


def _about(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in NOTHING}


def _id(seeded: SeededLedger, kind: str) -> str:
    return {"populations": seeded.population, "budgets": seeded.budget, "runs": seeded.run}[kind]


def _made(ledger: Ledger, kind: str, name: str, **about: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    if kind == "populations":
        return dict(ledger.population(name, **about))
    if kind == "budgets":
        return dict(ledger.budget(name, "mimic", **about))
    return dict(ledger.get(f"/v1/runs/{ledger.run(name=name, **about)}").json())


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_is_created_read_listed_and_audited(shared: SeededLedger, kind: str) -> None:
    made = _made(shared.ledger, kind, "described", **ABOUT)
    assert _about(made) == ABOUT | {"archived_at": None}
    assert shared.ledger.get(f"/v1/{kind}/{made['id']}").json() == made
    assert shared.ledger.get(f"/v1/{kind}?limit=1").json()["items"] == [made]
    [created] = shared.ledger.get(f"/v1/audit-events?subject={made['id']}", "auditor").json()["items"]
    assert created["after"]["metadata"] == ABOUT
    assert _about(_made(shared.ledger, kind, "plain")) == NOTHING


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_patch_changes_what_it_names_and_is_recorded(seeded: SeededLedger, kind: str) -> None:
    ledger, url = seeded.ledger, f"/v1/{kind}/{_id(seeded, kind)}"
    before = ledger.get(url).json()
    assert ledger.patch(url, ABOUT).json() == before | ABOUT
    changes = {"owner": None, "labels": {"team": None, "new": "1", "git-commit": "5"}, "description": "Short."}
    after = ledger.patch(url, changes).json()
    kept = {"git-commit": "5", "new": "1", "team/name_1.x": ""}
    wanted = ABOUT | {"owner": None, "labels": kept, "description": "Short."}
    assert after == ledger.get(url).json() == before | wanted
    assert ledger.patch(url, {"labels": None, "links": None}).json() == before | wanted | {"labels": {}, "links": []}
    events = ledger.get(f"/v1/audit-events?action={kind[:-1]}.metadata_changed", "auditor").json()["items"]
    assert len(events) == 3
    assert (events[1]["before"]["metadata"], events[1]["after"]["metadata"]["labels"]) == (ABOUT, kept)
    assert "owner" not in events[1]["after"]["metadata"]
    assert ledger.post("/v1/verifications", None).json()["discrepancies"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_without_a_difference_is_not_recorded(seeded: SeededLedger, kind: str) -> None:
    url = f"/v1/{kind}/{_id(seeded, kind)}"
    rows = seeded.rows()
    unchanged: tuple[dict[str, Any], ...] = (
        {},
        {"owner": None},
        {"labels": {"gone": None}},
        {"labels": {}},
        {"links": []},
    )
    for same in unchanged:
        assert seeded.ledger.patch(url, same).status_code == 200
    assert seeded.rows() == rows


def test_metadata_moves_no_balance_and_no_version(seeded: SeededLedger) -> None:
    before = {name: rows for name, rows in seeded.rows().items() if name in {"accounts", "balances", "runs"}}
    for kind in KINDS:
        assert seeded.ledger.patch(f"/v1/{kind}/{_id(seeded, kind)}", ABOUT).status_code == 200
    assert {name: rows for name, rows in seeded.rows().items() if name in before} == before


BAD: list[tuple[dict[str, Any], str]] = [
    ({"display_name": ""}, "display_name"),
    ({"display_name": " "}, "display_name"),
    ({"display_name": "a\nb"}, "display_name"),
    ({"display_name": "x" * 101}, "display_name"),
    ({"description": "x" * 2001}, "description"),
    ({"description": "\x07"}, "description"),
    ({"owner": "x" * 201}, "owner"),
    ({"owner": 5}, "owner"),
    ({"labels": {"Team": "x"}}, "labels"),
    ({"labels": {"": "x"}}, "labels"),
    ({"labels": {"-x": "x"}}, "labels"),
    ({"labels": {"x" * 64: "x"}}, "labels"),
    ({"labels": {"team": "x" * 201}}, "labels"),
    ({"labels": {"team": "a\nb"}}, "labels"),
    ({"labels": {"team": 5}}, "labels"),
    ({"labels": {f"k{number}": "" for number in range(MAX_LABELS + 1)}}, "labels"),
    ({"links": [LINK] * 17}, "links"),
    ({"links": [{"title": "", "url": "https://x.example"}]}, "title"),
    ({"links": [{"title": "x", "url": "https://x.example/" + "x" * 2000}]}, "url"),
    *(
        ({"links": [{"title": "x", "url": url}]}, "url")
        for url in (
            *(
                "javascript:alert(1)",
                "ftp://x.example",
                "//x.example",
                "https://",
                "https:///x",
                "x",
                "https://x y.example",
            ),
            *(
                "https://user:secret@x.example/",
                "https://token@x.example/",
                "https://x.example:port/",
                'https://x.example/"',
            ),
            "https://x.example/\n",
        )
    ),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("about", "named"), BAD)
def test_bad_metadata_is_refused_by_its_field(shared: SeededLedger, about: dict[str, Any], named: str) -> None:
    sent = {"name": "bad", "budget": "mimic/icu-team"} | about
    for refused in (
        shared.ledger.post("/v1/runs", sent),
        shared.ledger.patch(f"/v1/runs/{shared.run}", about),
        shared.ledger.patch(f"/v1/budgets/{shared.budget}", about),
    ):
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), refused.text
        assert named in json.dumps(refused.json()), refused.text


def test_labels_that_are_merged_stay_within_the_bound(seeded: SeededLedger) -> None:
    url = f"/v1/runs/{seeded.run}"
    full = {f"k{number}": "" for number in range(MAX_LABELS)}
    assert seeded.ledger.patch(url, {"labels": full}).status_code == 200
    refused = seeded.ledger.patch(url, {"labels": {"one-more": ""}})
    assert (refused.status_code, "33 entries" in refused.json()["detail"]) == (422, True), refused.text
    exchanged = seeded.ledger.patch(url, {"labels": {"one-more": "", "k0": None}})
    assert len(exchanged.json()["labels"]) == MAX_LABELS


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_change_metadata(shared: SeededLedger, kind: str) -> None:
    creates = {"populations": "accounts:manage", "budgets": "accounts:manage", "runs": "runs:manage"}[kind]
    for role in Role:
        answer = shared.ledger.patch(f"/v1/{kind}/{_id(shared, kind)}", {"owner": role}, role)
        archived = shared.ledger.post(f"/v1/accounts/{_id(shared, kind)}/unarchive", None, role)
        allowed = creates in PERMISSIONS[role]
        assert [answer.status_code, archived.status_code] == [200 if allowed else 403] * 2, role
        assert allowed or answer.json()["required_permission"] == creates


def test_metadata_of_another_kind_or_organisation_is_not_found(shared: SeededLedger) -> None:
    for url in (f"/v1/runs/{shared.budget}", f"/v1/budgets/{shared.run}", f"/v1/populations/{shared.budget}"):
        assert shared.ledger.patch(url, {"owner": "x"}).status_code == 404


def test_a_population_is_read_and_changed_by_its_name(shared: SeededLedger) -> None:
    population = shared.ledger.get("/v1/populations/mimic").json()
    assert population == shared.ledger.get(f"/v1/populations/{shared.population}").json()
    assert shared.ledger.patch("/v1/populations/mimic", {"owner": "board"}).json() == population | {"owner": "board"}
    assert shared.ledger.patch("/v1/runs/mimic", {"owner": "board"}).status_code == 404


def test_a_run_has_a_number_among_those_of_its_path(seeded: SeededLedger) -> None:
    runs = [seeded.ledger.run(name="twin") for _ in range(3)]
    seeded.ledger.budget("other")
    elsewhere = seeded.ledger.run("mimic/other", name="twin")
    numbers = [seeded.ledger.get(f"/v1/runs/{run}").json()["number"] for run in (*runs, elsewhere)]
    assert numbers == [1, 2, 3, 1]
    found = seeded.ledger.get("/v1/runs?path=mimic/icu-team/twin").json()["items"]
    assert [run["id"] for run in found] == runs[::-1]


def test_a_proposed_population_keeps_its_metadata(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    assert put(seeded, {"approvers_to_create_population": 2}).status_code == 200
    body = {
        "name": "second",
        "privacy_unit": "patient",
        "neighboring_relation": "add_or_remove_one",
        "limit": {"epsilon": 1.0, "delta": 1e-5},
    }
    proposed = ledger.post("/v1/populations", body | ABOUT)
    assert proposed.status_code == 202, proposed.text
    assert ledger.post(f"/v1/proposals/{proposed.json()['id']}/approve", None, "privacy_officer").status_code == 200
    [made] = ledger.get("/v1/populations?name=second").json()["items"]
    assert _about(made) == ABOUT | {"archived_at": None}
    assert ledger.post("/v1/verifications", None).json()["discrepancies"] == []
