"""What people write about accounts, and accounts that are archived."""

from typing import Any

import pytest

from app.ledger.metadata import MAX_LABELS
from tests.api.conftest import SeededLedger
from tests.api.trainer import is_refused
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
def test_merge_patch_changes_what_it_names_and_is_recorded(seeded: SeededLedger, kind: str) -> None:
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


BAD: list[tuple[dict[str, Any], str]] = [
    *(({"display_name": text}, "display_name") for text in (" ", "a\nb")),
    ({"description": "\x07"}, "description"),
    *(({"labels": {key: "x"}}, "labels") for key in ("Team", "", "-x", "x" * 64)),
    *(({"labels": {"team": value}}, "labels") for value in ("x" * 201, "a\nb", 5)),
    ({"labels": {f"k{number}": "" for number in range(MAX_LABELS + 1)}}, "labels"),
    *(
        ({"links": [{"title": "x", "url": f"https://{rest}"}]}, "url")
        for rest in ("", "/x", "x y.example", "x.example:p/")
    ),
    *(({"links": [{"title": "x", "url": f"https://{rest}"}]}, "url") for rest in ("u:p@x.example/", "t@x.example/")),
    *(({"links": [{"title": "x", "url": f"https://x.example/{end}"}]}, "url") for end in ('"', "\n")),
    *(
        ({"links": [{"title": "x", "url": url}]}, "url")
        for url in ("javascript:alert(1)", "ftp://x.example", "//x.example")
    ),
]


def test_bad_metadata_is_refused_by_its_field(shared: SeededLedger) -> None:
    for about, named in BAD:
        for refused in (
            shared.ledger.post("/v1/runs", {"name": "bad", "budget": "mimic/icu-team"} | about),
            shared.ledger.patch(f"/v1/budgets/{shared.budget}", about),
        ):
            assert named in str(is_refused(refused, 422, "invalid_request")), about


def test_labels_that_are_merged_stay_within_the_bound(seeded: SeededLedger) -> None:
    url = f"/v1/runs/{seeded.run}"
    full = {f"k{number}": "" for number in range(MAX_LABELS)}
    assert seeded.ledger.patch(url, {"labels": full}).status_code == 200
    refused = seeded.ledger.patch(url, {"labels": {"one-more": ""}})
    assert (refused.status_code, "33 entries" in refused.json()["detail"]) == (422, True), refused.text
    exchanged = seeded.ledger.patch(url, {"labels": {"one-more": "", "k0": None}})
    assert len(exchanged.json()["labels"]) == MAX_LABELS


def test_population_is_read_and_changed_by_its_name(shared: SeededLedger) -> None:
    population = shared.ledger.get("/v1/populations/mimic").json()
    assert population == shared.ledger.get(f"/v1/populations/{shared.population}").json()
    assert shared.ledger.patch("/v1/populations/mimic", {"owner": "board"}).json() == population | {"owner": "board"}
    assert shared.ledger.patch("/v1/runs/mimic", {"owner": "board"}).status_code == 404


def test_run_has_a_number_among_those_of_its_path(seeded: SeededLedger) -> None:
    runs = [seeded.ledger.run(name="twin") for _ in range(3)]
    seeded.ledger.budget("other")
    elsewhere = seeded.ledger.run("mimic/other", name="twin")
    numbers = [seeded.ledger.get(f"/v1/runs/{run}").json()["number"] for run in (*runs, elsewhere)]
    assert numbers == [1, 2, 3, 1]
    found = seeded.ledger.get("/v1/runs?path=mimic/icu-team/twin").json()["items"]
    assert [run["id"] for run in found] == runs[::-1]


def _ended(seeded: SeededLedger) -> None:
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/complete", None).status_code == 200


def _unarchive(seeded: SeededLedger, account: str) -> None:
    """Unarchive an account, by two persons."""
    proposed = seeded.ledger.post(f"/v1/accounts/{account}/unarchive", {"reason": "It is needed."})
    assert (proposed.status_code, proposed.json()["kind"]) == (202, "unarchival"), proposed.text
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    assert seeded.ledger.post(approval, {"reason": "Agreed."}).status_code == 403, "the proposer"
    assert seeded.ledger.post(approval, {"reason": "Agreed."}, "privacy_officer").status_code == 200


def _listed(seeded: SeededLedger, kind: str, query: str = "") -> set[str]:
    return {item["id"] for item in seeded.ledger.get(f"/v1/{kind}?limit=200{query}").json()["items"]}


@pytest.mark.parametrize("kind", ["population", "budget", "run"])
def test_subtree_of_an_archived_account_is_hidden_until_it_is_unarchived(seeded: SeededLedger, kind: str) -> None:
    _ended(seeded)
    account = {"population": seeded.population, "budget": seeded.budget, "run": seeded.run}[kind]
    before = seeded.ledger.get(f"/v1/populations/{seeded.population}").json()
    archived = seeded.ledger.post(f"/v1/accounts/{account}/archive", {"reason": "The study is over."})
    assert archived.status_code == 200, archived.text
    hidden = {"population": 3, "budget": 2, "run": 1}[kind]
    for place, (name, one) in enumerate(
        (("runs", seeded.run), ("budgets", seeded.budget), ("populations", seeded.population))
    ):
        assert (one in _listed(seeded, name)) == (place >= hidden), name
        assert (one in _listed(seeded, name, "&archived=true")) == (place < hidden), name
    after = seeded.ledger.get(f"/v1/populations/{seeded.population}").json()
    assert after["epsilon"] == before["epsilon"] > 0
    [event] = seeded.ledger.get(f"/v1/audit-events?action={kind}.archived", "auditor").json()["items"]
    assert (event["subject"], event["reason"]) == (account, "The study is over.")
    assert seeded.ledger.post("/v1/verifications", None).json()["discrepancies"] == []
    rows = seeded.rows()
    again = seeded.ledger.post(f"/v1/accounts/{account}/archive", None)
    assert (again.status_code, again.json()) == (200, archived.json())
    changed = {name for name, value in seeded.rows().items() if value != rows[name]}
    assert not changed & {"account_metadata", "audit_entries"}
    if kind != "run":
        _unarchive(seeded, account)
    back = seeded.ledger.post(f"/v1/accounts/{account}/unarchive", None)
    assert (back.status_code, back.json()) == (200, archived.json() | {"archived_at": None})
    assert seeded.run in _listed(seeded, "runs")
    assert seeded.ledger.post("/v1/verifications", None).json()["discrepancies"] == []


@pytest.mark.parametrize("state", ["active", "paused"])
def test_account_with_an_open_run_is_not_archived(seeded: SeededLedger, state: str) -> None:
    if state == "paused":
        assert seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", None).status_code == 200
    for account in (seeded.run, seeded.budget, seeded.population):
        refused = seeded.ledger.post(f"/v1/accounts/{account}/archive", None)
        assert (refused.status_code, refused.json()["code"]) == (409, "account_state_conflict"), refused.text
        assert seeded.run in refused.json()["detail"]


def test_nothing_is_created_under_an_archived_account(seeded: SeededLedger) -> None:
    _ended(seeded)
    limit = {"epsilon": 1.0, "delta": 1e-5}
    apart = {"composition": "parallel", "attestation": "Each record is of one month."}
    blocks = seeded.ledger.budget("logs", "mimic", limit=limit, **apart)["id"]
    assert seeded.ledger.post(f"/v1/accounts/{seeded.population}/archive", None).status_code == 200
    for path, body in (
        ("/v1/runs", {"name": "late", "budget": "mimic/icu-team"}),
        ("/v1/budgets", {"name": "late", "parent": "mimic", "limit": limit}),
        ("/v1/experiments", {"name": "late", "budget": "mimic/icu-team", "charging_mode": "each_run"}),
        (f"/v1/accounts/{blocks}/blocks", {"period": "month", "start": "2026-01-01", "count": 2, "limit": limit}),
    ):
        refused = seeded.ledger.post(path, body)
        assert (refused.status_code, refused.json()["code"]) == (409, "account_archived"), refused.text
        assert refused.json()["archived"] == "mimic"
    _unarchive(seeded, seeded.population)
    assert seeded.ledger.run(name="late")


def test_limit_of_an_archived_account_is_not_raised(seeded: SeededLedger) -> None:
    _ended(seeded)
    path = f"/v1/accounts/{seeded.population}/limit"
    now = seeded.ledger.get(path).json()["limit"]
    raised, lowered = (
        {"limit": now | {"epsilon": factor * now["epsilon"]}, "reason": "As agreed."} for factor in (2.0, 0.9)
    )
    [proposal] = seeded.ledger.get("/v1/proposals?status=open").json()["items"]
    assert (proposal["kind"], proposal["account"]) == ("limit", seeded.population)
    assert seeded.ledger.post(f"/v1/accounts/{seeded.population}/archive", None).status_code == 200
    approval = seeded.ledger.post(f"/v1/proposals/{proposal['id']}/approve", {"reason": "Agreed."})
    seeded.ledger.post(f"/v1/proposals/{proposal['id']}/reject", {"reason": "It is archived."})
    for refused in (approval, seeded.ledger.post(path, raised, If_Match="*")):
        assert (refused.status_code, refused.json()["code"]) == (409, "account_archived"), refused.text
    assert seeded.ledger.get(path).json()["limit"] == now
    assert seeded.ledger.post(path, lowered, If_Match="*").status_code == 200


def test_account_is_unarchived_by_two_persons(seeded: SeededLedger) -> None:
    _ended(seeded)
    assert seeded.ledger.post(f"/v1/accounts/{seeded.budget}/archive", None).status_code == 200
    unarchive = f"/v1/accounts/{seeded.budget}/unarchive"
    first = seeded.ledger.post(unarchive, {"reason": "It is needed."}, "budget_admin")
    assert first.status_code == 202
    assert seeded.ledger.post(unarchive, {"reason": "It is needed."}, "budget_admin").json() == first.json()
    other = seeded.ledger.post(unarchive, {"reason": "By me."}, "admin")
    assert (other.status_code, other.json()["code"]) == (422, "invalid_request")
    late = {"name": "late", "budget": "mimic/icu-team"}
    assert seeded.ledger.post("/v1/runs", late).json()["code"] == "account_archived"
    assert seeded.ledger.post(f"/v1/proposals/{first.json()['id']}/approve", None, "admin").status_code == 200
    assert seeded.ledger.post("/v1/runs", late).status_code == 201
    events = seeded.ledger.get(f"/v1/audit-events?order=oldest&subject={seeded.budget}", "auditor").json()["items"]
    assert (events[-1]["action"], events[-1]["reason"]) == ("budget.unarchived", "It is needed.")
    assert seeded.ledger.post("/v1/verifications", None).json()["sound"]
