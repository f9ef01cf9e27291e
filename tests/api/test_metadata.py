"""What people write about accounts, and accounts that are archived."""

from typing import Any

import httpx2
import pytest

from app.ledger.accounts.metadata import MAX_LABELS
from tests.api.conftest import LIMIT, SeededLedger
from tests.api.trainer import approve, audited, is_refused

ABOUT: dict[str, Any] = {
    "display_name": "Sterblichkeit & Übergänge",
    "description": "Line one.\nLine two.",
    "owner": "icu@hospital.example",
    "labels": {"git-commit": "4ff0372", "team/name_1.x": "", "team": "icu"},
    "links": [{"title": "MLflow", "url": "https://mlflow.example/runs/1?x=1#top"}],
    "deployment": {"data_curators": "ICU; Board", "intended_use": "Triage."},
}
NOTHING: dict[str, Any] = dict.fromkeys(("display_name", "description", "owner", "archived_at"))
NOTHING |= {"labels": {}, "links": [], "deployment": {}}


def _about(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in NOTHING}


def _id(seeded: SeededLedger, kind: str) -> str:
    return str(getattr(seeded, kind))


def _made(seeded: SeededLedger, kind: str, name: str, **about: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    ledger = seeded.ledger
    if kind == "population":
        return dict(ledger.population(name, **about))
    if kind == "budget":
        return dict(ledger.budget(name, "mimic", **about))
    return dict(ledger.get(f"/v1/runs/{ledger.run(name=name, **about)}").json())


@pytest.mark.parametrize("kind", ["population", "budget", "run"])
def test_metadata_is_created_read_changed_by_a_merge_patch_and_recorded(seeded: SeededLedger, kind: str) -> None:
    created_with = ABOUT | {"display_name": "Delirium"}
    ledger, made = seeded.ledger, _made(seeded, kind, "described", **created_with)
    assert _about(made) == created_with | {"archived_at": None}
    assert ledger.get(f"/v1/{kind}s?limit=1").json()["items"] == [made]
    assert ledger.get(f"/v1/{kind}s/{made['id']}").json() == made
    [created] = audited(ledger, f"subject={made['id']}")
    assert created["after"]["metadata"] == created_with
    url = f"/v1/{kind}s/{_id(seeded, kind)}"
    before = ledger.get(url).json()
    assert _about(before) == NOTHING
    assert ledger.patch(url, ABOUT).json() == before | ABOUT
    changes: dict[str, Any] = {"owner": None, "deployment": {"intended_use": None, "publication_date": "2026-12-03"}}
    changes |= {"labels": {"team": None, "new": "1", "git-commit": "5"}, "description": "Short."}
    after = ledger.patch(url, changes).json()
    kept = {"git-commit": "5", "new": "1", "team/name_1.x": ""}
    wanted = ABOUT | {"owner": None, "labels": kept, "description": "Short."}
    wanted |= {"deployment": {"data_curators": "ICU; Board", "publication_date": "2026-12-03"}}
    assert after == ledger.get(url).json() == before | wanted
    assert ledger.patch(url, {"labels": None, "links": None}).json() == before | wanted | {"labels": {}, "links": []}
    assert ledger.patch(url, {"description": "Short."}).json() == before | wanted | {"labels": {}, "links": []}
    first, second, _ = audited(ledger, f"action={kind}.metadata_changed")
    assert (first["after"]["metadata"], second["before"]["metadata"]) == (ABOUT, ABOUT)
    assert (second["after"]["metadata"]["labels"], "owner" in second["after"]["metadata"]) == (kept, False)
    assert seeded.sound()


URLS = [
    *("https://", "https:///x", "https://x y.example", "https://x.example:p/", "https://u:p@x.example/"),
    *("https://t@x.example/", 'https://x.example/"', "https://x.example/\n", "javascript:alert(1)", "ftp://x.example"),
]
BAD: list[tuple[dict[str, Any], str]] = [
    *(({"display_name": text}, "display_name") for text in (" ", "a\nb", "\u3164")),
    ({"owner": "\u2800"}, "owner"),
    ({"labels": {"team": " "}}, "labels"),
    *(({"description": text}, "description") for text in ("\x07", "\u3164")),
    *(({"labels": {key: "x"}}, "labels") for key in ("Team", "", "-x", "x" * 64)),
    *(({"labels": {"team": value}}, "labels") for value in ("x" * 201, "a\nb", 5)),
    ({"labels": {f"k{number}": "" for number in range(MAX_LABELS + 1)}}, "labels"),
    *(({"deployment": {key: "x"}}, "deployment") for key in ("", "name", "publication_date", "access_type")),
    *(({"deployment": {"intended_use": value}}, "deployment") for value in ("", "a\nb", "x" * 2001, 5)),
    ({"deployment": {"publication_date": "3.12.2026"}}, "must be a day, as text such as"),
    ({"deployment": {"data_curators": "ICU;;Board"}}, "write names, separated by semicolons"),
    ({"deployment": {"data_product_type": "Model"}}, "choose one of: Summary statistics; Machine learning model"),
    *(({"links": [{"title": "x", "url": url}]}, "url") for url in (*URLS, "//x.example")),
]


def test_bad_metadata_is_refused_by_its_field(shared: SeededLedger) -> None:
    for about, named in BAD:
        for refused in (
            shared.ledger.post("/v1/runs", {"name": "bad", "budget": "mimic/icu-team"} | about),
            shared.ledger.patch(f"/v1/budgets/{shared.budget}", about),
        ):
            assert named in str(is_refused(refused, 422, "invalid_request")), about


def test_labels_that_are_merged_stay_within_the_bound(shared: SeededLedger) -> None:
    url = f"/v1/runs/{shared.run}"
    assert shared.ledger.patch(url, {"labels": {f"k{number}": "" for number in range(MAX_LABELS)}}).status_code == 200
    refused = is_refused(shared.ledger.patch(url, {"labels": {"one-more": ""}}), 422, "invalid_request")
    assert "33 entries" in refused["detail"]
    exchanged = shared.ledger.patch(url, {"labels": {"one-more": "", "k0": None}})
    assert len(exchanged.json()["labels"]) == MAX_LABELS


def test_population_is_read_by_its_name_and_runs_of_one_path_by_their_numbers(shared: SeededLedger) -> None:
    population = shared.ledger.get("/v1/populations/mimic").json()
    assert population == shared.ledger.get(f"/v1/populations/{shared.population}").json()
    assert shared.ledger.patch("/v1/populations/mimic", {"owner": "board"}).json() == population | {"owner": "board"}
    is_refused(shared.ledger.patch("/v1/runs/mimic", {"owner": "board"}), 404, "not_found")
    runs = [shared.ledger.run(name="twin") for _ in range(3)]
    shared.ledger.budget("other")
    elsewhere = shared.ledger.run("mimic/other", name="twin")
    numbers = [shared.ledger.get(f"/v1/runs/{run}").json()["number"] for run in (*runs, elsewhere)]
    assert numbers == [1, 2, 3, 1]
    found = shared.ledger.get("/v1/runs?path=mimic/icu-team/twin").json()["items"]
    assert [run["id"] for run in found] == runs[::-1]


def _archive(seeded: SeededLedger, account: str, reason: str = "The study is over.") -> httpx2.Response:
    return seeded.ledger.post(f"/v1/accounts/{account}/archive", {"reason": reason})


def _unarchive(seeded: SeededLedger, account: str) -> None:
    """Unarchive an account, by two persons."""
    proposed = seeded.ledger.post(f"/v1/accounts/{account}/unarchive", {"reason": "It is needed."})
    assert (proposed.status_code, proposed.json()["kind"]) == (202, "unarchival"), proposed.text
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    is_refused(seeded.ledger.post(approval, {"reason": "Agreed."}), 403, "permission_denied")
    approve(seeded.ledger, proposed)


@pytest.fixture
def ended(seeded: SeededLedger) -> SeededLedger:
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/complete", None).status_code == 200
    return seeded


def _listed(seeded: SeededLedger, kind: str, query: str = "") -> set[str]:
    return {item["id"] for item in seeded.ledger.get(f"/v1/{kind}s?limit=200{query}").json()["items"]}


@pytest.mark.parametrize("kind", ["population", "budget", "run"])
def test_subtree_of_an_archived_account_is_hidden_until_it_is_unarchived(ended: SeededLedger, kind: str) -> None:
    account, population = _id(ended, kind), f"/v1/populations/{ended.population}"
    before = ended.ledger.get(population).json()
    archived = _archive(ended, account).raise_for_status()
    hidden = {"population": 3, "budget": 2, "run": 1}[kind]
    for place, name in enumerate(("run", "budget", "population")):
        shown = [_id(ended, name) in _listed(ended, name, query) for query in ("", "&archived=true")]
        assert shown == [place >= hidden, place < hidden], name
    assert ended.ledger.get(population).json()["epsilon"] == before["epsilon"] > 0
    [event] = audited(ended.ledger, f"action={kind}.archived")
    assert (event["subject"], event["reason"]) == (account, "The study is over.")
    assert ended.sound()
    rows = ended.rows()
    again = _archive(ended, account)
    assert (again.status_code, again.json()) == (200, archived.json())
    changed = {name for name, value in ended.rows().items() if value != rows[name]}
    assert not changed & {"account_metadata", "audit_entries"}
    if kind != "run":
        _unarchive(ended, account)
    back = ended.ledger.post(f"/v1/accounts/{account}/unarchive", None)
    assert (back.status_code, back.json()) == (200, archived.json() | {"archived_at": None})
    assert ended.run in _listed(ended, "run")
    assert ended.sound()


def test_account_with_an_open_run_is_not_archived(seeded: SeededLedger) -> None:
    for _ in ("active", "paused"):
        for account in (seeded.run, seeded.budget, seeded.population):
            refused = is_refused(_archive(seeded, account), 409, "account_state_conflict")
            assert seeded.run in refused["detail"]
        assert seeded.ledger.post(f"/v1/runs/{seeded.run}/pause", None).status_code == 200


def test_nothing_is_created_under_an_archived_account(ended: SeededLedger) -> None:
    apart = {"composition": "parallel", "attestation": "Each record is of one month."}
    blocks = ended.ledger.budget("logs", "mimic", limit=LIMIT, **apart)["id"]
    assert _archive(ended, ended.population).status_code == 200
    for path, body in (
        ("runs", {"name": "late", "budget": "mimic/icu-team"}),
        ("budgets", {"name": "late", "parent": "mimic", "limit": LIMIT}),
        ("experiments", {"name": "late", "budget": "mimic/icu-team", "charging_mode": "each_run"}),
        (f"accounts/{blocks}/blocks", {"period": "month", "start": "2026-01-01", "count": 2, "limit": LIMIT}),
    ):
        refused = is_refused(ended.ledger.post(f"/v1/{path}", body), 409, "account_archived")
        assert refused["archived"] == "mimic"
    _unarchive(ended, ended.population)
    assert ended.ledger.run(name="late")


def test_limit_of_an_archived_account_is_not_raised(ended: SeededLedger) -> None:
    path = f"/v1/accounts/{ended.population}/limit"
    now = ended.ledger.get(path).json()["limit"]
    limits = [now | {"epsilon": factor * now["epsilon"]} for factor in (2.0, 0.9)]
    raised, lowered = ({"limit": limit, "reason": "As agreed."} for limit in limits)
    assert _archive(ended, ended.population).status_code == 200
    approval = ended.ledger.post(f"/v1/proposals/{ended.proposal}/approve", {"reason": "Agreed."})
    ended.ledger.post(f"/v1/proposals/{ended.proposal}/reject", {"reason": "It is archived."})
    for refused in (approval, ended.ledger.post(path, raised, If_Match="*")):
        is_refused(refused, 409, "account_archived")
    assert ended.ledger.get(path).json()["limit"] == now
    assert ended.ledger.post(path, lowered, If_Match="*").status_code == 200


def test_account_is_unarchived_by_two_persons(ended: SeededLedger) -> None:
    assert _archive(ended, ended.budget).status_code == 200
    unarchive, late = f"/v1/accounts/{ended.budget}/unarchive", {"name": "late", "budget": "mimic/icu-team"}
    first, again = (ended.ledger.post(unarchive, {"reason": "It is needed."}, "budget_admin") for _ in range(2))
    assert (first.status_code, again.json()) == (202, first.json())
    is_refused(ended.ledger.post(unarchive, {"reason": "By me."}, "admin"), 422, "invalid_request")
    is_refused(ended.ledger.post("/v1/runs", late), 409, "account_archived")
    approve(ended.ledger, first, "admin")
    assert ended.ledger.post("/v1/runs", late).status_code == 201
    event = audited(ended.ledger, f"subject={ended.budget}")[-1]
    assert (event["action"], event["reason"]) == ("budget.unarchived", "It is needed.")
    assert ended.sound()


def test_display_name_is_that_of_no_other_population_or_sibling(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    other, team = ledger.population("eicu", display_name="Elderly")["id"], ledger.budget("other")["id"]
    population = {"privacy_unit": "user", "neighboring_relation": "add_or_remove_one", "limit": LIMIT}
    changes = [("populations", other, ("mimic", "Mimic", "m\u0456mic")), ("budgets", team, ("icu-team", "ICU team"))]
    changes.append(("populations", seeded.population, ("elderly", "EICU")))
    for kind, account, taken in changes:
        for name in taken:
            refused = ledger.patch(f"/v1/{kind}/{account}", {"display_name": name})
            assert is_refused(refused, 409, "name_taken")["name"] in ("mimic", "icu-team", "Elderly", "eicu")
    for terms in ({"name": "elderly"}, {"name": "new", "display_name": "mimic"}):
        is_refused(ledger.post("/v1/populations", population | terms), 409, "name_taken")
    for kind, account, name in (
        ("populations", other, "eicu"),
        ("budgets", team, "mimic"),
        ("runs", seeded.run, "mimic"),
    ):
        assert ledger.patch(f"/v1/{kind}/{account}", {"display_name": name}).json()["display_name"] == name
