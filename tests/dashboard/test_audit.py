"""Audit: every audit event in words, from the newest to the first, and the chain's state of health."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from app.dashboard.audit_messages import SENTENCES, describe_event
from app.ledger.accounts import AccountKind
from app.ledger.audit import AuditAction, AuditEntry
from app.ledger.proposals import ProposalKind, ProposalStatus
from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.page_actions import browser_client, scoped_client
from tests.dashboard.sample_hospital import Clock, Hospital


@pytest.fixture
def auditor(server: LiveServer) -> Iterator[httpx2.Client]:
    with browser_client(server, "auditor") as client:
        yield client


def acts_of(server: LiveServer, **filters: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - of a query
    with server.client("auditor") as api:
        items: list[dict[str, Any]] = api.get(
            "/v1/audit-events", params=filters | {"limit": 200, "order": "oldest"}
        ).json()["items"]
    return items


def places(text: str) -> list[int]:
    return [int(found) for found in re.findall(r'<details id="act-(\d+)"', text)]


def test_somebody_reads_who_proposed_which_limit_and_why(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "auditor")
    page.get_by_role("link", name="Audit").click()
    page.get_by_label("Action").fill("limit.*")
    page.get_by_role("button", name="Find").click()
    row = page.locator("#acts tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text(
        "proposed epsilon 3.5 at delta 1e-6 for stroke-registry/outcome-models, instead of epsilon 2.5 at delta 1e-6"
    )
    expect(row).to_contain_text("“The ethics board agreed on 12 November.”")
    expect(row.locator("pre").first).to_be_hidden()
    row.get_by_text("limit.proposed").click()
    expect(row.locator("pre").last).to_contain_text('"epsilon": 3.5')
    expect(row).to_contain_text(acts_of(server, action="limit.proposed")[0]["hash"])


def test_somebody_verifies_the_ledger_without_script(browser: Browser, server: LiveServer, sign_in: SignIn) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, server, "auditor")
    page.goto(f"{server.url}/audit")
    page.get_by_role("button", name="Verify now").click()
    health = page.locator("#health")
    expect(health.locator(".level").first).to_have_text("consistent")
    with server.client("auditor") as api:
        found = api.post("/v1/verifications").json()
    expect(health).to_contain_text(f"{found['accounts']} balances")
    page.goto(f"{server.url}/audit")
    expect(page.locator("#health")).to_contain_text(f"{found['accounts']} balances")
    context.close()


def test_a_page_that_verified_does_not_do_so_again_by_itself(auditor: httpx2.Client) -> None:
    def when() -> str:
        health = re.findall(r'id="health".*?</dl>', text, re.DOTALL)[0]
        return str(re.findall(r'<time datetime="([^"]+)"', health)[-1])

    text = auditor.get("/audit?verify=true").text
    first = when()
    text = auditor.get("/audit?verify=true", headers={"X-Part": "page"}).text
    assert when() == first
    text = auditor.get("/audit?verify=true").text
    assert when() > first


def test_no_other_site_lets_a_visitor_verify(auditor: httpx2.Client) -> None:
    assert auditor.get("/audit?verify=true", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert auditor.get("/audit", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_pages_go_from_the_newest_audit_event_to_the_first(server: LiveServer, auditor: httpx2.Client) -> None:
    with server.client("admin") as api:
        for _ in range(30):
            assert api.post("/v1/api-keys", json={"role": "viewer"}).status_code == 201
    text = auditor.get("/audit?since=2020-01-01").text
    seen = places(text)
    assert len(seen) == 50
    while older := re.findall(r'<a href="([^"]+)" rel="next"', text):
        text = auditor.get(older[0].replace("&amp;", "&")).text
        seen += places(text)
        assert "since=2020-01-01" in older[0]
    assert seen == [each["position"] for each in reversed(acts_of(server))]
    assert "created the organisation hospital" in text


def test_every_filter_of_the_api_filters_here(server: LiveServer, auditor: httpx2.Client, hospital: Hospital) -> None:
    trainer = server.key("trainer").partition(".")[0]
    middle = acts_of(server, action="run.created")[4]["created_at"]
    for filters in (
        {"action": "budget.created"},
        {"action": "run.*"},
        {"actor": trainer},
        {"subject": hospital.ids["imaging/denoising/baseline"]},
        {"until": middle, "action": "run.*"},
        {"since": middle, "actor": trainer},
    ):
        expected = [each["position"] for each in reversed(acts_of(server, **filters))]
        assert expected
        assert places(auditor.get("/audit", params=filters).text) == expected


def test_what_matches_nothing_says_so_and_lists_what_is_known(auditor: httpx2.Client) -> None:
    text = auditor.get("/audit?action=run.pausd").text
    assert "Unknown action <code>run.pausd</code>" in text
    assert 'href="/audit?action=run.paused"' in text
    text = auditor.get("/audit?subject=run_nowhere").text
    assert "matches all filters" in text
    assert 'href="/audit?action=run.%2A"' in text
    backwards = auditor.get("/audit?since=2026-11-22&until=2026-11-21").text
    assert "lies before `since`" in backwards
    assert "write a moment" in auditor.get("/audit?since=yesterday").text


@pytest.mark.parametrize("role", ["viewer", "trainer", "planner", "budget_admin"])
def test_it_is_for_those_who_audit(server: LiveServer, role: str) -> None:
    with browser_client(server, role) as client:
        reply = client.get("/audit")
        assert reply.status_code == 403
        assert "This needs one of the roles" in reply.text
        assert client.get("/audit?verify=true").status_code == 403
        assert 'href="/audit"' not in client.get("/").text


def test_who_is_bound_to_an_account_reads_the_audit_events_under_it(server: LiveServer, hospital: Hospital) -> None:
    with scoped_client(server, "auditor", hospital.ids["mimic"]) as client:
        text = client.get("/audit").text
        assert client.get("/audit?verify=true").status_code == 403
    assert "registered the run mimic/icu-team/lstm-mortality" in text
    assert "imaging" not in text
    assert "Verify now" not in text
    assert "<dt>Entries</dt>" not in text


def test_another_organisation_has_a_chain_of_its_own(server: LiveServer) -> None:
    with browser_client(server, "auditor", "clinic") as client:
        text = client.get("/audit").text
    assert "created the organisation clinic" in text
    assert "mimic" not in text


def test_every_action_has_a_sentence_and_those_put_together_are_actions() -> None:
    assert set(SENTENCES) == set(AuditAction)
    decided = [status for status in ProposalStatus if status is not ProposalStatus.OPEN]
    for kind in ProposalKind:
        for done in ("proposed", *decided):
            assert AuditAction(f"{kind}.{done}")
    for account in AccountKind:
        for done in ("created", "limit_changed"):
            assert AuditAction(f"{account}.{done}")


def test_an_audit_event_of_another_version_is_told_all_the_same() -> None:
    entry = AuditEntry("org_1", 0, "key_1", "moon.painted", "run_1", None, '{"colour":"red"}', None, None, Clock.now())
    assert describe_event(entry, {"run_1": "a/b"}) == "did moon.painted to a/b"
    bare = AuditEntry("org_1", 0, "key_1", "limit.proposed", "prp_1", None, None, None, None, Clock.now())
    assert describe_event(bare, {}).startswith("proposed no limit of its own for")


def test_a_refused_plan_is_told_although_its_limit_is_a_threshold() -> None:
    refusal = '{"binding_account": "bud_1", "limit": 3.25, "order": 7.5, "requested": 4.0, "spent": 0.0}'
    for action in ("run.refused", "reservation.refused", "experiment.refused"):
        entry = AuditEntry("org_1", 0, "key_1", action, "bud_1", None, refusal, None, None, Clock.now())
        assert describe_event(entry, {"bud_1": "a/b"})


def test_a_changed_policy_names_its_place_and_a_lowered_limit_what_it_revoked() -> None:
    changed = AuditEntry("org_1", 0, "key_1", "policy.replaced", "org_1", "{}", "{}", None, None, Clock.now())
    assert describe_event(changed, {}) == "changed the policy of the organisation"
    lowered = (
        '{"limit": {"epsilon": 1.5, "delta": 1e-05}, "revoked": ['
        '{"reservation": "res_1", "run": "run_1", "steps": {"a": 1200, "b": 30}},'
        '{"reservation": "res_2", "run": "run_2", "steps": {"a": 4}}]}'
    )
    before = '{"limit": {"epsilon": 3.0, "delta": 1e-05}}'
    entry = AuditEntry("org_1", 0, "key_1", "budget.limit_changed", "bud_1", before, lowered, None, None, Clock.now())
    assert describe_event(entry, {"bud_1": "a/b"}) == (
        "changed the limit of a/b from epsilon 3 at delta 1e-5 to epsilon 1.5 at delta 1e-5, "
        "which revoked 1\N{NARROW NO-BREAK SPACE}234 planned steps"
    )
