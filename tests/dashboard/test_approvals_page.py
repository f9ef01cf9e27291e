"""What waits for another person, as the page tells it."""

import re
from datetime import UTC, datetime

import pytest
from sqlalchemy import event

from app.dashboard.formatting import percent
from app.service.auth.authentication import CLI_ACTOR, authenticate
from app.service.auth.request_context import RequestContext
from app.service.governance.proposals import count_decidable
from app.service.verification.requests import apply_quarantines
from app.service.verification.verify import verify
from tests.api.trainer import issue
from tests.conftest import SAMPLED, Ledger
from tests.dashboard.page_visitor import scoped_visitor, visitor
from tests.service.tampering import ALL, TEAM, shift_curve, tampering


def work(ledger: Ledger) -> tuple[str, str]:
    """A budget under a population, and its run; their ids."""
    ledger.population()
    return str(ledger.budget()["id"]), ledger.run()


FURNISHED = {"team": work}


@pytest.fixture
def team(made: tuple[str, str]) -> tuple[str, str]:
    return made


def said(share: float) -> str:
    """A share as a page says it."""
    return " ".join(percent(share).split())


def quarantine(ledger: Ledger, path: str) -> None:
    """Let verification find that an account's balance is not what was charged."""
    with tampering(ledger.database) as tx:
        shift_curve(tx, path, -1)
    apply_quarantines(ledger.database, verify(ledger.database), CLI_ACTOR, datetime(2026, 12, 1, tzinfo=UTC))


def test_lifting_a_quarantine_is_shown_with_its_discrepancies(ledger: Ledger, team: tuple[str, str]) -> None:
    budget, run = team
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    quarantine(ledger, TEAM)
    reason = {"reason": "The backup of the night is back."}
    assert ledger.post(f"/v1/accounts/{budget}/quarantine/lift", reason, "auditor").status_code == 201
    answer = visitor(ledger).open("/approvals").words
    assert f"The quarantine of {TEAM} and of all accounts under it would be lifted" in answer
    assert "its spent curve is not the sum of its charges" in answer
    assert reason["reason"] in answer


def test_quarantine_is_shown_on_pages_of_accounts_under_it(ledger: Ledger, team: tuple[str, str]) -> None:
    budget, run = team
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    quarantine(ledger, ALL)
    assert ledger.post(f"/v1/runs/{run}/steps", {}).json()["code"] == "account_quarantined"
    for page in (f"/runs/{run}", f"/accounts/{budget}"):
        assert f"Quarantined, no charges accepted: {ALL}" in visitor(ledger).open(page).words
    assert "0 by mimic , in quarantine" in visitor(ledger).open(f"/runs/{run}").words
    for page in ("/", "/runs", f"/accounts/{budget}"):
        assert "active quarantined" in visitor(ledger).open(page).words, page
    assert ledger.get(f"/v1/runs/{run}").json()["steps_remaining"] == 0


def test_quarantined_run_is_shown_on_the_overview_though_it_has_ended(ledger: Ledger, team: tuple[str, str]) -> None:
    _, run = team
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 2}).status_code == 200
    assert ledger.post(f"/v1/runs/{run}/complete", None).status_code == 200
    quarantine(ledger, ledger.get(f"/v1/runs/{run}").json()["path"])
    assert "Quarantined by verification: " in visitor(ledger).open("/").words
    assert "completed finished quarantined" in visitor(ledger).open("/runs").words


def test_population_of_disjoint_parts_is_shown_with_its_attestation(ledger: Ledger) -> None:
    assert ledger.set_policy({"approvers_to_create_population": 2}).is_success
    parts = {
        "composition": "parallel",
        "max_partitions_per_unit": 2,
        "attestation": "A patient is treated at two sites at most.",
        "replacement_assumption": "stay_in_their_parts",
    }
    terms = {"name": "lung", "privacy_unit": "patient", "neighboring_relation": "replace_one"}
    limit = {"limit": {"epsilon": 1.0, "delta": 1e-5}}
    assert ledger.post("/v1/populations", terms | limit | parts).status_code == 202
    answer = visitor(ledger).open("/approvals").words
    assert "A patient is treated at two sites at most. A unit is in at most 2 of them." in answer
    assert "Replaced units: stay in their parts." in answer
    assert "epsilon 1 at delta 1e-5" in answer


def _badge(ledger: Ledger, role: str, page: str = "/planner") -> str:
    found = re.search(r'<span class="badge">(\d+)<', visitor(ledger, role).open(page).reply.text)
    return found[1] if found else ""


def test_navigation_counts_proposals_that_this_person_may_decide(ledger: Ledger) -> None:
    ledger.population()
    budgets = [ledger.budget(name)["id"] for name in ("a", "b")]
    assert _badge(ledger, "privacy_officer") == ""
    for account, proposer in zip(budgets, ("planner", "privacy_officer"), strict=True):
        assert ledger.set_limit(account, 50.0, proposer).status_code == 201
    assert _badge(ledger, "privacy_officer") == "1", "not their own"
    assert _badge(ledger, "admin") == "2"
    assert _badge(ledger, "planner") == _badge(ledger, "viewer") == "", "they decide nothing"
    assert "2 proposals wait for your decision." in visitor(ledger, "admin").open("/").words
    assert "1 proposal waits for your decision." in visitor(ledger, "privacy_officer").open("/").words
    part = visitor(ledger, "admin").open("/", X_Part="page").reply.text
    assert '<span class="badge">2<' in part, "a page that is open learns it too"
    issue(ledger, "mine", "planner")
    assert ledger.set_limit(ledger.budget("c")["id"], 50.0, "mine").status_code == 201
    assert _badge(ledger, "admin") == "2", "not those of a key that one issued"
    assert _badge(ledger, "privacy_officer") == "2"


def test_badge_without_proposals_takes_one_statement(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    context = RequestContext(
        ledger.database, authenticate(ledger.database, f"Bearer {ledger.keys['hospital', 'admin']}", now), now
    )
    statements: list[str] = []
    event.listen(ledger.database.engine, "before_cursor_execute", lambda *given: statements.append(str(given[2])))
    assert count_decidable(context) == 0
    assert len([each for each in statements if each.startswith("SELECT")]) == 1, statements


def test_higher_limit_is_shown_with_what_it_would_leave(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})
    budget = ledger.budget(limit={"epsilon": 2.0, "delta": 1e-5})["id"]
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {"count": 200}).status_code == 200
    used = ledger.get(f"/v1/budgets/{budget}").json()["used"]
    assert ledger.set_limit(budget, 5.0, "planner").status_code == 201
    card = visitor(ledger, "admin").open("/approvals").words
    assert "2 → becomes 5 at δ 1e-5" in card
    changes = rf"{said(used)} → becomes (\d+\.\d) % {said(1 - used)} → becomes (\d+\.\d) %"
    found = re.search(changes, card)
    assert found is not None, card
    assert 0 < float(found[1]) < 100 * used
    assert float(found[1]) + float(found[2]) == pytest.approx(100, abs=0.11)
    above = ledger.get("/v1/populations").json()["items"][0]["used"]
    assert f"mimic is fuller: only {said(1 - above)} of its limit is left" in card


def test_run_that_needs_approval_is_shown_with_what_its_plan_would_leave(ledger: Ledger, team: tuple[str, str]) -> None:
    assert ledger.set_policy({"approval_above_epsilon": 0.1}).is_success
    plan = [{"event": SAMPLED, "count": 50}]
    run = {"name": "cnn", "budget": "mimic/icu-team", "event": SAMPLED, "reserve": plan}
    made = ledger.post("/v1/runs", run, "trainer").json()
    assert made["status"] == "pending"
    card = visitor(ledger, "admin").open("/approvals").words
    proposal = ledger.get("/v1/proposals").json()["items"][0]["id"]
    assert ledger.post(f"/v1/proposals/{proposal}/approve", {}, "admin").status_code == 200
    assert ledger.post(f"/v1/runs/{made['id']}/steps", {"count": 50}).status_code == 200
    used = ledger.get(f"/v1/budgets/{team[0]}").json()["used"]
    assert f"0.0 % → becomes {said(used)}" in card, "what was foretold is what was spent"


def test_run_on_two_budgets_is_shown_in_the_scope_of_either(ledger: Ledger, team: tuple[str, str]) -> None:
    ledger.population("eicu")
    lab = str(ledger.budget("lab", "eicu")["id"])
    assert ledger.set_policy({"approval_above_epsilon": 0.4}, team[0]).is_success
    limit = {"epsilon": 0.5, "delta": 1e-6}
    both = {"name": "both", "budgets": ["mimic/icu-team", "eicu/lab"], "event": SAMPLED, "limit": limit}
    run = ledger.post("/v1/runs", both).raise_for_status().json()
    assert run["status"] == "pending"
    for scope in (team[0], lab):
        page = scoped_visitor(ledger, "viewer", scope).open("/approvals")
        effects = {link.get("href") for head in page.root.iter("th") for link in head.iter("a")}
        assert {f"/accounts/{scope}", f"/runs/{run['id']}"} <= effects
