"""Lineage: what a run starts from is declared once, recorded, and verified; its statement has the total of all."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from app.accounting.events import NeighboringRelation, event_from_dict
from app.accounting.tightest_epsilon import epsilon_by_distributions
from app.ledger.admission.lineage_loss import loss_of_runs
from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts as account_rows
from app.persistence.repositories import organisations, usage_history
from app.persistence.tables import accounts, run_origins, runs
from app.service.queries import lineage
from app.service.signing.ed25519 import is_signed_by
from app.service.verification.verify import verify
from tests.api.conftest import SeededLedger
from tests.api.trainer import LOUD, audited, is_refused, issue
from tests.conftest import signing_key
from tests.service.tampering import tampering

GPT2 = {"name": "gpt2", "sha256": "5a" * 32}


def _register(seeded: SeededLedger, role: str = "trainer", **terms: object) -> Any:  # noqa: ANN401 - a response
    body = {"name": "tuned", "budget": "mimic/icu-team"} | terms
    return seeded.ledger.post("/v1/runs", body, role)


def test_origins_are_resolved_recorded_and_shown(seeded: SeededLedger) -> None:
    made = _register(seeded, starts_from=[{"run": "mimic/icu-team/model"}, GPT2 | {"sha256": "5A" * 32}])
    run, expected = made.json(), [{"run": seeded.run}, GPT2]
    assert (made.status_code, run["starts_from"]) == (201, expected)
    assert seeded.ledger.get(f"/v1/runs/{run['id']}").json() == run
    [event] = audited(seeded.ledger, f"action=run.created&subject={run['id']}")
    assert event["after"]["starts_from"] == expected
    header, *rows = seeded.ledger.get("/v1/runs.csv?sort=created_at").text.splitlines()
    assert "starts_from" in header.split(",")
    assert any(GPT2["sha256"] in row and seeded.run in row for row in rows)
    assert seeded.sound()


@pytest.mark.parametrize(("declared", "stored"), [([], []), (None, None)])
def test_nothing_and_not_declared_differ(seeded: SeededLedger, declared: object, stored: object) -> None:
    run = _register(seeded, starts_from=declared).json()
    assert run["starts_from"] == stored
    [event] = audited(seeded.ledger, f"action=run.created&subject={run['id']}")
    assert event["after"]["starts_from"] == stored
    assert seeded.sound()


WRONG: dict[str, tuple[object, str]] = {
    "unknown run": ([{"run": "run_19aa5b3c4d7b0c1"}], "run_19aa5b3c4d7b0c1"),
    "unknown path": ([{"run": "mimic/icu-team/nothing"}], "mimic/icu-team/nothing"),
    "a budget": ([{"run": "mimic/icu-team"}], "mimic/icu-team"),
}
MALFORMED: dict[str, object] = {
    "neither": [{}],
    "both": [{"run": "mimic/icu-team/model"} | GPT2],
    "no digest": [{"name": "gpt2"}],
    "no name": [{"sha256": GPT2["sha256"]}],
    "half a digest": [GPT2 | {"sha256": "5a" * 16}],
    "no words": [GPT2 | {"name": "\x00"}],
    "too many": [{"name": "m", "sha256": f"{number:064x}"} for number in range(17)],
    "no list": {"run": "mimic/icu-team/model"},
}


def test_wrong_origins_are_refused_and_nothing_is_stored(seeded: SeededLedger) -> None:
    before = seeded.rows()
    for origins, named in WRONG.values():
        assert named in is_refused(_register(seeded, starts_from=origins), 404, "not_found")["detail"]
    for origins in MALFORMED.values():
        is_refused(_register(seeded, starts_from=origins), 422, "invalid_request")
    for twice in ([{"run": seeded.run}, {"run": "mimic/icu-team/model"}], [GPT2, GPT2 | {"name": "another"}]):
        assert "twice" in is_refused(_register(seeded, starts_from=twice), 422, "invalid_request")["detail"]
    assert seeded.rows() == before


def test_path_of_several_runs_needs_an_id(seeded: SeededLedger) -> None:
    second = seeded.ledger.run()
    refused = is_refused(_register(seeded, starts_from=[{"run": "mimic/icu-team/model"}]), 422, "invalid_request")
    assert all(each in refused["detail"] for each in (seeded.run, second))
    assert _register(seeded, starts_from=[{"run": second}]).status_code == 201


def test_run_out_of_scope_is_as_unknown(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    issue(seeded.ledger, "bound", "trainer", "mimic/other")
    for named in (seeded.run, "mimic/icu-team/model"):
        refused = _register(seeded, "bound", budget="mimic/other", starts_from=[{"run": named}])
        assert named in is_refused(refused, 404, "not_found")["detail"]


def test_key_for_one_run_may_name_others_of_its_scope(seeded: SeededLedger) -> None:
    ends = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    terms = {"role": "trainer", "scope": "mimic/icu-team", "expires_at": ends, "single_use": True}
    key = seeded.ledger.post("/v1/api-keys", terms).raise_for_status()
    seeded.ledger.keys["hospital", "job"] = key.json()["key"]
    assert _register(seeded, "job", starts_from=[{"run": seeded.run}]).status_code == 201


def test_policy_requires_the_declaration(seeded: SeededLedger) -> None:
    seeded.ledger.set_policy({"require_starts_from": True}, seeded.budget).raise_for_status()
    refused = is_refused(_register(seeded), 403, "policy_violation")
    assert (refused["rule"], refused["policy"]) == ("require_starts_from", "mimic/icu-team")
    assert "Send `starts_from`: the runs and the outside models" in refused["detail"]
    assert _register(seeded, starts_from=[]).status_code == 201
    sweep = {
        "name": "sweep-2",
        "budget": "mimic/icu-team",
        "charging_mode": "repeat_and_select",
        "trials": {"events": [{"event": {"type": "gaussian", "noise_multiplier": 90.0}, "count": 1}], "mean": 2.0},
    }
    is_refused(seeded.ledger.post("/v1/experiments", sweep, "trainer"), 403, "policy_violation")
    made = seeded.ledger.post("/v1/experiments", sweep | {"starts_from": [GPT2]}, "trainer").raise_for_status()
    assert seeded.ledger.get(f"/v1/runs/{made.json()['run']}").json()["starts_from"] == [GPT2]


def test_verification_finds_another_lineage(seeded: SeededLedger) -> None:
    run = _register(seeded, starts_from=[{"run": seeded.run}]).json()["id"]
    assert seeded.sound()
    with tampering(seeded.ledger.database) as tx:
        tx.execute(delete(run_origins))
    assert any("not those that it declared" in each for each in verify(seeded.ledger.database).problems)
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(runs).where(runs.c.account_id == run).values(starts_from=()))
    assert any("starts_from" in each for each in verify(seeded.ledger.database).problems)


def _charged(seeded: SeededLedger, name: str, starts_from: list[str] | None, count: int, **terms: Any) -> str:  # noqa: ANN401 - JSON is anything
    """Register a run and charge it."""
    origins = None if starts_from is None else [{"run": each} for each in starts_from]
    made = _register(seeded, name=name, starts_from=origins, event=LOUD, **terms).raise_for_status()
    run = str(made.json()["id"])
    assert seeded.steps(run=run, count=count).status_code == 200
    return run


def _lineage(seeded: SeededLedger, run: str) -> dict[str, Any]:
    document = seeded.ledger.get(f"/v1/runs/{run}/statement").raise_for_status().json()
    assert is_signed_by(document, signing_key()[1].read_bytes())
    return dict(document["payload"]["lineage"])


def _epsilon_of(*charges: tuple[dict[str, Any], int]) -> float:
    """The epsilon of events with counts, by their distributions."""
    counts = {event_from_dict(event): count for event, count in charges}
    return epsilon_by_distributions(counts, NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-5)


def test_total_of_two_generations_has_each_run_once(seeded: SeededLedger) -> None:
    base = _charged(seeded, "base", [], 3)
    middle = _charged(seeded, "middle", [base], 4)
    last = _charged(seeded, "last", [middle], 5)
    found = _lineage(seeded, last)
    assert found["starts_from"] == [{"run": middle}]
    assert [(each["id"], each["generation"]) for each in found["runs"]] == [(middle, 1), (base, 2)]
    assert [each["title"] for each in found["runs"]] == ["mimic/icu-team/middle", "mimic/icu-team/base"]
    assert [each["epsilon"] for each in found["runs"]] == [_epsilon_of((LOUD, 4)), _epsilon_of((LOUD, 3))]
    [total] = found["totals"]
    assert (total["population"], total["runs"], total["delta"]) == (seeded.population, 3, 1e-5)
    assert total["epsilon"] == _epsilon_of((LOUD, 12))
    assert found["complete"]
    assert not any("Not declared by" in note for note in found["notes"])
    [alone] = _lineage(seeded, base)["totals"]
    assert (alone["runs"], alone["epsilon"]) == (1, _epsilon_of((LOUD, 3)))


def test_diamond_counts_its_first_run_once(seeded: SeededLedger) -> None:
    base = _charged(seeded, "base", None, 3)
    left, right = (_charged(seeded, name, [base], 2) for name in ("left", "right"))
    merged = _charged(seeded, "merged", [left, right], 1)
    found = _lineage(seeded, merged)
    assert [(each["id"], each["generation"]) for each in found["runs"]] == [(left, 1), (right, 1), (base, 2)]
    [total] = found["totals"]
    assert (total["runs"], total["epsilon"]) == (4, _epsilon_of((LOUD, 8)))
    assert any("Not declared by 1 run of" in note for note in found["notes"])
    page = seeded.ledger.get(f"/v1/runs/{merged}/statement.html").text
    for words in ("with its lineage", "mimic/icu-team/left", "mimic/icu-team/base", "Not declared by 1 run"):
        assert words in page


def test_outside_models_are_named_and_have_no_price(seeded: SeededLedger) -> None:
    base = _register(seeded, name="base", starts_from=[GPT2]).json()["id"]
    run = _charged(seeded, "tuned", [base], 2)
    found = _lineage(seeded, run)
    assert found["models"] == [GPT2 | {"start_of": [base]}]
    assert any("does not know what the outside models cost" in note for note in found["notes"])
    assert GPT2["sha256"] in seeded.ledger.get(f"/v1/runs/{run}/statement.html").text


def test_undeclared_run_says_so(seeded: SeededLedger) -> None:
    found = _lineage(seeded, seeded.run)
    assert (found["starts_from"], found["runs"], found["models"]) == (None, [], [])
    assert any("Not declared by 1 run of" in note for note in found["notes"])
    text = seeded.ledger.get(f"/v1/runs/{seeded.run}/statement.html").text
    assert "It was not declared what this run starts from." in text


def test_each_population_has_its_own_total_at_its_delta(seeded: SeededLedger) -> None:
    seeded.ledger.population("other", limit={"epsilon": 9.0, "delta": 1e-7})
    base = _charged(seeded, "base", [], 3, budget="other")
    both = _register(seeded, name="both", budget=None, budgets=["other", "mimic/icu-team"], event=LOUD, starts_from=[])
    assert seeded.steps(run=both.json()["id"], count=2).status_code == 200
    run = _charged(seeded, "last", [base, both.json()["id"]], 4)
    found = _lineage(seeded, run)
    totals = {each["name"]: (each["runs"], each["delta"], each["epsilon"]) for each in found["totals"]}
    assert totals["mimic"] == (2, 1e-5, _epsilon_of((LOUD, 6)))
    assert totals["other"][:2] == (2, 1e-7)
    assert totals["other"][2] > _epsilon_of((LOUD, 5))
    assert any("one total for each population" in note for note in found["notes"])


def test_of_disjoint_parts_the_largest_counts(seeded: SeededLedger) -> None:
    ledger = seeded.ledger
    ledger.population("sites", composition="parallel", attestation="one site for each patient")
    for site in ("north", "south"):
        ledger.budget(site, "sites")
    north = _charged(seeded, "n", [], 3, budget="sites/north")
    south = _charged(seeded, "s", [north], 5, budget="sites/south")
    [total] = _lineage(seeded, south)["totals"]
    assert (total["runs"], total["epsilon"]) == (2, _epsilon_of((LOUD, 5)))


def test_lineage_out_of_scope_has_numbers_and_no_names(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    base = _charged(seeded, "base", [], 3)
    run = _charged(seeded, "last", [base], 2, budget="mimic/other")
    issue(seeded.ledger, "bound", "viewer", "mimic/other")
    said = seeded.ledger.get(f"/v1/runs/{run}/statement", "bound").raise_for_status().json()["payload"]["lineage"]
    assert [(each["id"], each["title"]) for each in said["runs"]] == [(base, None)]
    assert said["totals"][0]["epsilon"] == _epsilon_of((LOUD, 5))


def test_no_statement_of_a_quarantined_origin(seeded: SeededLedger) -> None:
    base = _charged(seeded, "base", [], 3)
    run = _charged(seeded, "last", [base], 2)
    with tampering(seeded.ledger.database) as tx:
        tx.execute(update(accounts).where(accounts.c.id == base).values(quarantine_reason="why"))
    refused = is_refused(seeded.ledger.get(f"/v1/runs/{run}/statement"), 409, "account_quarantined")
    assert refused["account"] == base


def test_long_lineage_has_no_total(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "MOST_ANCESTORS", 2)
    run = seeded.run
    for place in range(4):
        run = _charged(seeded, f"r{place}", [run], 1)
    found = _lineage(seeded, run)
    assert (len(found["runs"]), found["complete"], found["totals"][0]["epsilon"]) == (2, False, None)
    assert "not composed" in seeded.ledger.get(f"/v1/runs/{run}/statement.html").text


def test_loss_of_all_runs_is_the_loss_of_their_population(seeded: SeededLedger) -> None:
    """Sequential and parallel accounts, several of them one above another, and runs that charge several budgets."""
    ledger = seeded.ledger
    ledger.population("group", composition="sequential", neighboring_relation="replace_one", size=1000)
    disjoint = {"composition": "parallel", "attestation": "sites", "replacement_assumption": "removal_is_bounded"}
    ledger.budget("sites", "group", **disjoint, max_partitions_per_unit=1)
    for place in ("a", "b", "c"):
        ledger.budget(place, "group/sites")
    ledger.budget("rest", "group")
    for count, budgets in enumerate(
        (["group/sites/a"], ["group/sites/b", "group/sites/c"], ["group/sites/c"], ["group/rest"], ["group"]), 1
    ):
        _charged(seeded, f"r{count}", [], count, budget=None, budgets=budgets)
    with ledger.database.read(ALL_TENANTS) as tx:
        organisation = organisations.find_organisation(tx, "hospital")
        assert organisation is not None
        population = account_rows.find_by_path(tx, organisation, "group")
        assert population is not None
        found = usage_history.runs_under(tx, organisation, population.account.id, 99)[0]
        paths = [[each.account for each in account_rows.path_of(tx, organisation, run)] for run in found]
    assert len(paths) == 5
    assert loss_of_runs(population.account, paths) == population.account.spent.using({})


def test_waiting_run_is_not_approved_against_a_later_policy(seeded: SeededLedger) -> None:
    seeded.ledger.set_policy({"approval_above_epsilon": 0.1}, seeded.budget).raise_for_status()
    silent, declared = (
        _register(seeded, name=name, starts_from=said).json() for name, said in (("a", None), ("b", []))
    )
    assert [silent["status"], declared["status"]] == ["pending", "pending"]
    stricter = {"approval_above_epsilon": 0.1, "require_starts_from": True}
    seeded.ledger.set_policy(stricter, seeded.budget).raise_for_status()
    answers = []
    for run in (silent, declared):
        [proposal] = seeded.ledger.get(f"/v1/proposals?account={run['id']}").json()["items"]
        answers.append(seeded.ledger.post(f"/v1/proposals/{proposal['id']}/approve", {}, "privacy_officer"))
    assert is_refused(answers[0], 403, "policy_violation")["rule"] == "require_starts_from"
    assert answers[1].is_success
