"""Audit: every audit event in words, from the newest to the first, and the chain's state of health."""

import re
from datetime import UTC, datetime
from typing import Any

from app.dashboard.audit_messages import describe_event
from app.ledger.accounts.account import AccountKind
from app.ledger.audit import AuditAction, AuditEntry
from app.ledger.governance.proposals import ProposalKind, ProposalStatus
from tests.conftest import Ledger
from tests.dashboard.page_visitor import Page, scoped_visitor, text_of, visitor
from tests.dashboard.sample_hospital import Hospital


def events_of(ledger: Ledger, query: str = "") -> list[dict[str, Any]]:
    """The newest audit events of the API first."""
    items: list[dict[str, Any]] = ledger.get(f"/v1/audit-events?limit=200&{query}", "auditor").json()["items"]
    return items


def positions(page: Page) -> list[int]:
    return [int(found) for found in re.findall(r'<details id="act-(\d+)"', page.reply.text)]


def verified_at(page: Page) -> str:
    """When the last verification ended."""
    return [each.get("datetime", "") for each in next(page.get("health").iter("dl")).iter("time")][-1]


def test_proposal_is_told_with_reason_and_content(sample: Ledger) -> None:
    page = visitor(sample, "auditor").open("/audit?action=limit.*")
    [row] = [each for each in page.get("acts").iter("tr") if each.find(".//details") is not None]
    said = text_of(row)
    change = "epsilon 3.5 at delta 1e-6 for stroke-registry/outcome-models, instead of epsilon 2.5 at delta 1e-6"
    assert f"proposed {change}" in said
    assert "“The ethics board agreed on 12 November.”" in said
    assert '"epsilon": 3.5' in text_of(list(row.iter("pre"))[-1])
    assert events_of(sample, "action=limit.proposed")[0]["hash"] in said


def test_ledger_is_verified_once_by_a_form_without_script(sample: Ledger) -> None:
    auditor = visitor(sample, "auditor")
    [form] = [each for each in auditor.open("/audit").root.iter("form") if "Verify now" in text_of(each)]
    fields = "&".join(f"{each.get('name')}={each.get('value')}" for each in form.iter() if each.get("name"))
    assert (form.get("method"), f"{form.get('action')}?{fields}") == ("get", "/audit?verify=true")
    page = auditor.open("/audit?verify=true")
    first = verified_at(page)
    found = sample.post("/v1/verifications", None, "auditor").json()
    for shown in (page, auditor.open("/audit")):
        assert "consistent" in shown.part("health")
        assert f"{found['accounts']} balances" in shown.part("health")
    first = verified_at(auditor.open("/audit?verify=true"))
    assert verified_at(auditor.open("/audit?verify=true", X_Part="page")) == first, "a poll verifies nothing"
    assert verified_at(auditor.open("/audit?verify=true")) > first


def test_verification_is_refused_when_another_site_or_role_asks(sample: Ledger) -> None:
    auditor, viewer = visitor(sample, "auditor"), visitor(sample, "viewer")
    assert auditor.open("/audit?verify=true", Sec_Fetch_Site="cross-site").status == 403
    assert auditor.open("/audit", Sec_Fetch_Site="cross-site").status == 200
    assert "This needs one of the roles" in viewer.open("/audit").words
    assert viewer.open("/audit?verify=true").status == 403


def test_pages_go_from_the_newest_event_to_the_first(own_sample: Ledger) -> None:
    for _ in range(30):
        assert own_sample.post("/v1/api-keys", {"role": "viewer"}).status_code == 201
    auditor = visitor(own_sample, "auditor")
    page = auditor.open("/audit?since=2020-01-01")
    seen = positions(page)
    assert len(seen) == 50
    while older := [each.get("href", "") for each in page.root.iter("a") if each.get("rel") == "next"]:
        assert "since=2020-01-01" in older[0]
        page = auditor.open(older[0])
        seen += positions(page)
    assert seen == [each["position"] for each in events_of(own_sample)]
    assert "created the organisation hospital" in page.words


def test_every_filter_of_api_filters_the_page(sample: Ledger, hospital: Hospital) -> None:
    trainer = sample.keys["hospital", "trainer"].partition(".")[0]
    middle = events_of(sample, "action=run.created")[-5]["created_at"].replace("+", "%2B")
    for query in (
        "action=budget.created",
        "action=run.*",
        f"actor={trainer}",
        f"subject={hospital.ids['imaging/denoising/baseline']}",
        f"until={middle}&action=run.*",
        f"since={middle}&actor={trainer}",
    ):
        expected = [each["position"] for each in events_of(sample, query)]
        assert expected
        assert positions(visitor(sample, "auditor").open(f"/audit?{query}")) == expected[:50], query


def test_search_without_a_match_lists_what_is_known(sample: Ledger) -> None:
    auditor = visitor(sample, "auditor")
    page = auditor.open("/audit?action=run.pausd")
    assert "Unknown action run.pausd" in page.words
    assert "/audit?action=run.paused" in page.links()
    page = auditor.open("/audit?subject=run_nowhere")
    assert "matches all filters" in page.words
    assert "/audit?action=run.%2A" in page.links()
    assert "lies before `since`" in auditor.open("/audit?since=2026-11-22&until=2026-11-21").words
    assert "write a moment" in auditor.open("/audit?since=yesterday").words


def test_key_of_account_reads_the_events_under_it(own_sample: Ledger, hospital: Hospital) -> None:
    bound = scoped_visitor(own_sample, "auditor", hospital.ids["mimic"])
    page = bound.open("/audit")
    assert bound.open("/audit?verify=true").status == 403
    assert "registered the run mimic/icu-team/lstm-mortality" in page.words
    for hidden in ("imaging", "Verify now", "<dt>Entries</dt>"):
        assert hidden not in page.reply.text


def test_composed_actions_are_actions() -> None:
    decided = [status for status in ProposalStatus if status is not ProposalStatus.OPEN]
    for kind in ProposalKind:
        for done in ("proposed", *decided):
            assert AuditAction(f"{kind}.{done}")
    for account in AccountKind:
        for done in ("created", "limit_changed"):
            assert AuditAction(f"{account}.{done}")


def entry(action: str, subject: str, before: str | None = None, after: str | None = None) -> AuditEntry:
    return AuditEntry("org_1", 0, "key_1", action, subject, before, after, None, None, datetime.now(UTC))


LOWERED = (
    '{"limit": {"epsilon": 1.5, "delta": 1e-05}, "revoked": ['
    '{"reservation": "res_1", "run": "run_1", "steps": {"a": 1200, "b": 30}},'
    '{"reservation": "res_2", "run": "run_2", "steps": {"a": 4}}]}'
)
REFUSAL = '{"binding_account": "bud_1", "limit": 3.25, "order": 7.5, "requested": 4.0, "spent": 0.0}'


def test_event_of_any_content_has_a_sentence() -> None:
    for event, sentence in (
        (entry("moon.painted", "run_1", None, '{"colour":"red"}'), "did moon.painted to a/b"),
        (entry("limit.proposed", "prp_1"), "proposed no limit of its own for"),
        (entry("policy.replaced", "org_1", "{}", "{}"), "changed the policy of the organisation"),
        (
            entry("budget.limit_changed", "run_1", '{"limit": {"epsilon": 3.0, "delta": 1e-05}}', LOWERED),
            "changed the limit of a/b from epsilon 3 at delta 1e-5 to epsilon 1.5 at delta 1e-5, which revoked 1 234",
        ),
        *((entry(f"{each}.refused", "run_1", None, REFUSAL), "") for each in ("run", "reservation", "experiment")),
    ):
        said = describe_event(event, {"run_1": "a/b"})
        assert said
        assert " ".join(said.split()).startswith(sentence)
