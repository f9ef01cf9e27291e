"""Policies, keys, receivers and alerts as their pages show them, and which forms a role is offered where."""

import re
from typing import Any

from tests.conftest import Ledger
from tests.dashboard.page_visitor import Page, scoped_visitor, text_of, visitor
from tests.dashboard.sample_hospital import Hospital
from tests.ledgers import schedule_blocks

OFFICER = "privacy_officer"


def cells(page: Page, words: str) -> list[str]:
    """The cells of the row in which these words stand, but for its head."""
    found = next(each for each in page.root.iter("tr") if words in text_of(each))
    return [text_of(each) for each in found.iter("td")]


def test_own_proposal_can_only_be_withdrawn(own_sample: Ledger, hospital: Hospital) -> None:
    proposal = own_sample.set_limit(hospital.ids["imaging/denoising"], 2.5, OFFICER, 1e-6).json()["id"]
    page = visitor(own_sample, OFFICER).open("/approvals")
    card = page.article("imaging/denoising")
    assert "You proposed this yourself. Another privacy officer or admin decides." in card
    assert "Epsilon from 2 to 2.5 , delta stays 1e-6" in card
    assert "The limit of imaging is epsilon 10 at delta 1e-6." in card
    assert "Approve imaging/denoising" not in page.forms()
    assert page.forms()["Withdraw imaging/denoising"].get("data-call") == f"POST /v1/proposals/{proposal}/reject"
    form = visitor(own_sample, "admin").open("/approvals").forms()["Approve imaging/denoising"]
    said = "The limit of imaging/denoising becomes epsilon 2.5 at delta 1e-6, immediately."
    assert form.get("data-confirm", "").startswith(said)
    approved = {"reason": "The board's minutes of 12 November."}
    assert own_sample.post(f"/v1/proposals/{proposal}/approve", approved).is_success
    page = visitor(own_sample).open("/approvals")
    assert page.article("imaging/denoising") == ""
    assert re.search(f"approved .*{approved['reason']}", " ".join(cells(page, "imaging/denoising")))


def test_run_that_needs_approval_is_shown_with_its_plan(sample: Ledger) -> None:
    card = visitor(sample, "admin").open("/approvals").article("foundation-model")
    assert "foundation-model plans to spend epsilon 6.565; above 1 another person" in card
    assert "Plans to spend epsilon 6.565 at delta 1e-6. It has no limit of its own" in card
    assert "The limit of imaging is epsilon 10 at delta 1e-6." in card


def test_new_key_is_listed_with_its_rights(own_sample: Ledger) -> None:
    body = {"name": "scans", "role": "trainer", "scope": "mimic/icu-team", "single_use": True}
    made = own_sample.post("/v1/api-keys", body | {"expires_at": "2099-01-01T00:00:00Z"}, OFFICER).json()
    page = visitor(own_sample, OFFICER).open("/keys")
    said = " ".join(cells(page, "scans"))
    for words in ("trainer one run", "mimic/icu-team", "2099-01-01 00:00 UTC", "(privacy officer)"):
        assert words in said
    assert made["key"] not in page.reply.text
    assert page.has(f"change-{made['id']}")
    assert own_sample.post(f"/v1/api-keys/{made['id']}/revoke", {}).is_success
    page = visitor(own_sample, OFFICER).open("/keys")
    assert "revoked" in cells(page, "scans")[4]
    assert not page.has(f"change-{made['id']}")
    offered = [each.get("value") for each in page.get("key-role").iter("option")]
    assert ("admin" in offered, "trainer" in offered) == (False, True)


def _options(page: Page, rule: str) -> list[str]:
    """What the form of a policy offers for a rule."""
    [select] = [each for each in page.root.iter("select") if each.get("name") == f"policy.{rule}"]
    return [text_of(each) for each in select.iter("option")]


def test_policy_names_the_source_of_each_rule(own_sample: Ledger, hospital: Hospital) -> None:
    rules: dict[str, Any] = {"max_epsilon": 1.5, "require_plan": "declare", "deviations": "refuse"}
    rules |= {"mechanisms": ["gaussian"], "neighboring_relations": ["add_or_remove_one"], "approval_above_epsilon": 5}
    assert own_sample.set_policy(rules, hospital.ids["imaging/denoising"], OFFICER).status_code == 200
    page = visitor(own_sample, OFFICER).open("/policies?account=imaging/denoising")
    shown = {**rules, "mechanisms": "gaussian", "neighboring_relations": "add or remove one"}
    for rule, said in shown.items():
        found = cells(page, f" {rule}")
        assert found[0] == str(said), rule
        assert found[2] == ("imaging" if rule == "approval_above_epsilon" else "imaging/denoising"), rule
    assert cells(page, " approval_above_epsilon")[1] == "1", "stricter above: it changes nothing"
    assert "by default" in cells(page, "approvers_to_raise_limit")[2]
    options = _options(page, "approvers_to_raise_limit")
    assert options == ["not set", "two"], "one person is the organisation's to allow"
    organisation = visitor(own_sample, OFFICER).open("/policies")
    assert cells(organisation, "approvers_to_raise_limit") == ["2 by default"]
    assert cells(organisation, "deviations") == ["flag by default"]
    assert _options(organisation, "approvers_to_raise_limit") == ["not set: two", "two", "one"]
    assert page.fields("Change the policy")["policy.max_epsilon"] == "1.5"


def test_looser_policy_is_shown_as_proposal(own_sample: Ledger, hospital: Hospital) -> None:
    warnings = visitor(own_sample, OFFICER).open("/policies?account=imaging").region("Rules with limited effect")
    assert "approval_above_epsilon can be bypassed: without require_limit a run" in text_of(warnings)
    assert own_sample.set_policy({"approval_above_epsilon": 5}, hospital.ids["imaging"], OFFICER).status_code == 201
    page = visitor(own_sample, OFFICER).open("/policies?account=imaging")
    assert "A looser policy is proposed" in text_of(page.region("Change the policy of imaging"))
    page = visitor(own_sample, "admin").open("/approvals")
    [card] = [each for each in page.root.iter("article") if "Its policy would change" in text_of(each)]
    [change] = [each for each in card.iter("tr") if "approval_above_epsilon" in text_of(each)]
    assert [text_of(each) for each in change.iter("td")] == ["1", "5", "loosened"]
    assert "Approve imaging" in page.forms()


def test_receiver_is_shown_in_each_of_its_states(own_sample: Ledger) -> None:
    address = "https://receiver.example/alerts"
    receiver = own_sample.post("/v1/receivers", {"url": address, "types": ["run.overdrawn"]}).json()["id"]
    officer = visitor(own_sample, OFFICER)

    def do(action: str) -> Page:
        assert own_sample.post(f"/v1/receivers/{receiver}/{action}", None, OFFICER).is_success, action
        return officer.open("/alerts")

    assert "Receives run.overdrawn about everything" in officer.open("/alerts").article(address)
    assert "test event" in do("test").article(address)
    assert "The previous secret is used until" in do("rotate").article(address)
    for action, disabled in (("disable", True), ("enable", False)):
        page = do(action)
        assert ("disabled since" in page.article(address)) is disabled
        assert (f"Send a test event {address}" in page.forms()) is not disabled
    secret = {"kind": "slack", "url": "https://hooks.slack.example/services/T0/B0/secretsecret"}
    assert own_sample.post("/v1/receivers", secret).status_code == 201
    page = officer.open("/alerts")
    assert "Slack" in page.article("https://hooks.slack.example/…cret")
    assert "Rotate the secret https://hooks.slack.example/…cret" not in page.forms()
    assert "secretsecret" not in page.reply.text
    assert "This service has no SMTP server" in page.words


def test_alerts_and_their_settings_are_shown(own_sample: Ledger, hospital: Hospital) -> None:
    settings = {"thresholds": [0.25, 0.75], "forecast_days": 14}
    path = f"/v1/accounts/{hospital.ids['mimic/readmission']}/alert-settings"
    assert own_sample.put(path, settings, OFFICER, None).is_success
    page = visitor(own_sample, OFFICER).open("/alerts?account=mimic/readmission")
    assert page.fields("Change") == {"thresholds": "0.25, 0.75", "forecast_days": "14"}
    for words in ("run waits for an approval (run)", "proposal opened (limit)"):
        assert cells(page, words)


def test_page_has_only_forms_that_the_role_may_send(sample: Ledger) -> None:
    for role, approvals, policies, hidden in (
        ("viewer", 0, 0, ("/keys", "/alerts")),
        ("trainer", 1, 0, ("/keys", "/alerts")),  # it withdraws the run that waits
        ("planner", 2, 0, ("/keys", "/alerts")),
        ("budget_admin", 1, 0, ("/alerts",)),
        (OFFICER, 5, 1, ()),
        ("auditor", 0, 0, ("/keys", "/alerts")),
    ):
        person = visitor(sample, role)
        for path, calls in {"/approvals?account=mimic": approvals, "/policies": policies}.items():
            page = person.open(path)
            assert (page.status, page.reply.text.count("data-call=")) == (200, calls), (role, path)
        for path in hidden:
            page = person.open(path)
            assert page.status == 403
            assert "Your role" in page.words or "yours is" in page.words
            assert path not in page.links()


def test_forms_on_pages_of_accounts_and_runs_depend_on_role(sample: Ledger, hospital: Hospital) -> None:
    account, run = hospital.ids["mimic/icu-team"], hospital.ids["mimic/icu-team/lstm-mortality"]
    for role, limits, acts, requests, creates in (
        ("viewer", 0, 0, 0, False),
        ("planner", 1, 0, 0, False),
        ("trainer", 0, 3, 1, False),
        (OFFICER, 1, 3, 1, True),
    ):
        person = visitor(sample, role)
        page = person.open(f"/accounts/{account}")
        assert page.reply.text.count('/limit" data-if-match=') == limits, role
        assert page.has("open-budget") is person.open("/").has("open-population") is creates, role
        calls = re.findall(rf'data-call="POST /v1/runs/{run}/([a-z-]+)"', person.open(f"/runs/{run}").reply.text)
        assert (len(calls) - requests, calls.count("limit-requests")) == (acts, requests), role
    assert "Changes need JavaScript" in text_of(next(page.root.iter("noscript")))


def test_key_of_account_lends_keys_under_it(own_sample: Ledger, hospital: Hospital) -> None:
    page = scoped_visitor(own_sample, "budget_admin", hospital.ids["mimic"]).open("/keys")
    roles, scopes = ([each.get("value") for each in page.get(name).iter("option")] for name in ("key-role", "scopes"))
    assert roles == ["viewer", "trainer", "planner"]
    assert scopes == ["mimic", "mimic/icu-team", "mimic/readmission", "mimic/readmission/sweep"]
    assert page.reply.text.count("/rotate") == 1, "its own"


def test_account_of_another_organisation_is_not_found(sample: Ledger, hospital: Hospital) -> None:
    stranger = visitor(sample, "admin", "clinic")
    for path in ("/approvals", "/policies", "/alerts"):
        for account in ("mimic", hospital.ids["mimic"]):
            assert "There is no population or budget" in stranger.open(f"{path}?account={account}").words


def test_blocks_and_windows_are_shown_on_account_page(ledger: Ledger) -> None:
    parts = {"composition": "parallel", "max_partitions_per_unit": 3, "attestation": "Each visit has one date."}
    top = ledger.population("visits", **parts)["id"]
    blocks = {"period": "month", "start": "2026-03-01", "count": 2, "limit": {"epsilon": 1.0, "delta": 1e-7}}
    made = ledger.post(f"/v1/accounts/{top}/blocks", blocks).json()["items"]
    assert schedule_blocks(ledger, str(top), prefix="v-").is_success
    page = visitor(ledger, OFFICER).open(f"/accounts/{top}")
    assert "one patient is in at most 3 of them: Each visit has one date." in page.part("facts")
    assert "A data block for each month opens by itself when it begins" in page.part("facts")
    assert "2026-04" in page.part("children")
    assert page.fields("Set the block schedule")["schedule.prefix"] == "v-"
    assert "Remove the block schedule" in page.forms()
    shown = visitor(ledger).open(f"/accounts/{made[1]['id']}").part("facts")
    assert "Covers the data of 2026-04: 2026-04-01 to 2026-04-30 (UTC dates)." in shown
    closing = ledger.budget("site", "visits", closes_at="2099-01-01T00:00:00Z")["id"]
    assert "Closes 2099-01-01 00:00 UTC" in visitor(ledger).open(f"/accounts/{closing}").part("facts")


def test_experiments_are_found_by_account_and_charged_by_trainers_only(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    body = {"name": "widths", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    assert ledger.post("/v1/experiments", body, "trainer").status_code == 201
    found = visitor(ledger, OFFICER).open("/experiments?budget=mimic")
    assert "widths mimic/icu-team each run 0" in found.words
    assert "the whole sweep" not in found.reply.text
    assert "the whole sweep" in visitor(ledger, "trainer").open("/experiments").reply.text
    assert "There is no population or budget" in visitor(ledger).open("/experiments?budget=x").words
    assert "Create an experiment" not in visitor(ledger).open("/experiments").words
