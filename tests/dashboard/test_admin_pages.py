"""Approvals, policies, keys and receivers: what the API can do, a person does here."""

import re
from collections.abc import Callable, Iterator
from shutil import copytree

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn, serving
from tests.dashboard.page_actions import browser_client, scoped_client
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned

PAGES = (
    "/approvals?account=mimic/icu-team",
    "/policies?account=imaging/segmentation",
    "/keys",
    "/alerts?account=mimic",
)


@pytest.fixture(scope="module")
def own_server(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server on a copy of the hospital, in which people decide."""
    folder = tmp_path_factory.mktemp("own_server") / "hospital"
    copytree(hospital.folder, folder, ignore=lambda _, names: [name for name in names if name.endswith(".log")])
    server = serving(Hospital(folder, hospital.keys, hospital.ids))
    yield server
    server.stop()


Enter = Callable[[str, str], Page]


@pytest.fixture
def enter(browser: Browser, own_server: LiveServer, sign_in: SignIn) -> Iterator[Enter]:
    """Sign in as a role, each in a browser of its own, and go to a page."""
    contexts: list[BrowserContext] = []

    def enter(role: str, path: str) -> Page:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        sign_in(page, own_server, role)
        page.goto(own_server.url + path)
        return page

    yield enter
    for context in contexts:
        context.close()


def _confirm(page: Page, button: str, reason: str | None = None) -> None:
    dialog = page.get_by_role("dialog")
    if reason is not None:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=button, exact=True).click()


def test_alerts_about_proposals_name_what_is_proposed(enter: Enter) -> None:
    """The first of this file, since the page shows the latest alerts, and other tests raise further ones."""
    page = enter("privacy_officer", "/alerts")
    waits = page.get_by_role("row").filter(has_text="run waits for an approval (run)").first
    expect(waits).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="proposal opened (limit)").first).to_be_visible()


def test_two_people_raise_a_limit(enter: Enter, own_server: LiveServer, hospital: Hospital) -> None:
    planner = enter("planner", "/approvals?account=mimic/icu-team")
    words = planner.locator("[data-change]")
    expect(words).to_have_text("This is the present limit.")
    planner.get_by_label("Epsilon").fill("2")
    expect(words).to_contain_text("lowers the limit, which needs the role budget admin, privacy officer or admin.")
    planner.get_by_label("Epsilon").fill("4.5")
    change = (
        "Epsilon rises from 3 to 4.5, delta stays 1e-6. This raises the limit, which needs another person's approval."
    )
    expect(words).to_have_text(change)
    planner.get_by_label("Reason, recorded").fill("The study goes on for a year.")
    planner.get_by_role("button", name="Propose it").click()
    expect(planner.get_by_role("dialog")).to_contain_text(f"mimic/icu-team: {change}")
    _confirm(planner, "Propose it")
    expect(planner.locator("#message")).to_have_text("Proposed. Another person must approve it.")
    own = planner.get_by_role("article", name="mimic/icu-team")
    expect(own).to_contain_text("Epsilon from 3 to 4.5, delta stays 1e-6")
    expect(own).to_contain_text("56.3 % of the 8 that mimic has; now it is 37.5 %")
    expect(own).to_contain_text("Another privacy officer or admin decides.")
    expect(own.get_by_role("button", name="Approve")).to_have_count(0)

    officer = enter("privacy_officer", "/approvals")
    waiting = officer.get_by_role("article", name="mimic/icu-team")
    expect(waiting).to_contain_text("The study goes on for a year.")
    waiting.get_by_role("button", name="Approve").click()
    expect(officer.get_by_role("dialog")).to_contain_text("The limit of mimic/icu-team becomes epsilon 4.5")
    _confirm(officer, "Approve", "The board's minutes of 12 November.")
    expect(officer.locator("#message")).to_have_text("Approved.")
    expect(waiting).to_have_count(0)
    row = officer.get_by_role("row", name="mimic/icu-team")
    expect(row).to_contain_text("approved")
    expect(row).to_contain_text("The board's minutes of 12 November.")
    with own_server.client("viewer") as api:
        limit = api.get(f"/v1/accounts/{hospital.ids['mimic/icu-team']}/limit").json()
    assert limit["limit"]["epsilon"] == 4.5


def test_who_proposed_is_told_before_they_try_to_approve(
    enter: Enter, own_server: LiveServer, hospital: Hospital
) -> None:
    path = f"/v1/accounts/{hospital.ids['imaging/denoising']}/limit"
    with own_server.client("privacy_officer") as api:
        body = {"limit": {"epsilon": 2.5, "delta": 1e-6}, "reason": "Another year."}
        proposed = api.post(path, json=body, headers={"If-Match": "*"})
    assert proposed.status_code == 201, proposed.text
    page = enter("privacy_officer", "/approvals")
    own = page.get_by_role("article", name="imaging/denoising")
    expect(own).to_contain_text("You proposed this yourself. Another privacy officer or admin decides.")
    expect(own.get_by_role("button", name="Approve")).to_have_count(0)
    own.get_by_role("button", name="Withdraw").click()
    _confirm(page, "Withdraw", "It was too early.")
    expect(page.locator("#message")).to_have_text("Withdrawn.")


def test_a_run_that_waits_is_rejected_with_a_reason(enter: Enter) -> None:
    page = enter("admin", "/approvals")
    waiting = page.get_by_role("article", name="foundation-model")
    expect(waiting).to_contain_text("foundation-model plans to spend epsilon 6.565; above 1 another person")
    expect(waiting).to_contain_text("Plans to spend epsilon 6.565 at delta 1e-6. It has no limit of its own")
    expect(waiting).to_contain_text("65.7 % of the 10 that imaging has")
    waiting.get_by_role("button", name="Reject").click()
    _confirm(page, "Reject", "Plan less.")
    expect(page.locator("#message")).to_have_text("Rejected.")
    expect(page.get_by_role("row", name=re.compile("foundation-model"))).to_contain_text("Plan less.")


def test_a_lower_limit_holds_at_once_and_an_old_page_overwrites_nothing(enter: Enter) -> None:
    old = enter("budget_admin", "/approvals?account=mimic/readmission")
    page = enter("budget_admin", "/approvals?account=mimic/readmission")
    for each, epsilon in ((page, "3.5"), (old, "3.6")):
        each.get_by_label("Epsilon").fill(epsilon)
        each.get_by_label("Reason, recorded").fill("Less is enough.")
        each.get_by_role("button", name="Lower the limit").click()
        _confirm(each, "Lower the limit")
        if each is page:
            expect(each.locator("#message")).to_have_text("Limit changed.")
    expect(old.get_by_role("dialog").get_by_role("alert")).to_contain_text("Reload the page")


def test_a_double_click_makes_one_key_which_is_shown_once_and_can_be_withdrawn(
    enter: Enter, own_server: LiveServer
) -> None:
    page = enter("privacy_officer", "/keys")
    roles = page.get_by_label("Role").locator("option").all_inner_texts()
    assert "admin" not in roles
    assert "trainer" in roles
    page.get_by_label("Name").fill("scans")
    page.get_by_label("Role").select_option("trainer")
    page.get_by_label("Scope").fill("mimic/icu-team")
    page.get_by_label("Expires").fill("2099-01-01T00:00")
    page.get_by_role("button", name="Create a key").click()
    page.get_by_role("dialog").get_by_role("button", name="Create the key").evaluate(
        "button => { button.click(); button.click(); }"
    )
    dialog = page.get_by_role("dialog", name="The new key")
    key = dialog.get_by_label("The new key").input_value()
    with httpx2.Client(base_url=own_server.url, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as own:
        assert own.get("/v1/runs").status_code == 200
    dialog.get_by_role("button", name="I have saved it").click()
    row = page.get_by_role("row", name=re.compile("scans"))
    expect(row).to_have_count(1)
    expect(row).to_contain_text("mimic/icu-team")
    assert key not in page.content()
    row.get_by_text("Change scans").click()
    row.get_by_role("button", name="Revoke").click()
    _confirm(page, "Revoke", "It was a try.")
    expect(row).to_contain_text("revoked")


def test_a_key_for_one_run_needs_a_scope_and_an_end(enter: Enter) -> None:
    page = enter("admin", "/keys")
    page.get_by_label("Name").fill("job 17")
    page.get_by_label("Role").select_option("trainer")
    page.get_by_label("For one run").check()
    for field, value in (("Scope", "imaging/denoising"), ("Expires (UTC)", "2099-01-01T00:00")):
        page.get_by_role("button", name="Create a key").click()
        _confirm(page, "Create the key")
        expect(page.get_by_label(field)).to_be_focused()
        expect(page.get_by_label(field)).to_have_accessible_description(re.compile("A key with `single_use` needs"))
        page.get_by_label(field).fill(value)
    page.get_by_role("button", name="Create a key").click()
    _confirm(page, "Create the key")
    page.get_by_role("dialog", name="The new key").get_by_role("button", name="I have saved it").click()
    expect(page.get_by_role("row", name=re.compile("job 17"))).to_contain_text("one run")


def test_a_key_for_one_run_is_a_trainer_s(enter: Enter) -> None:
    page = enter("admin", "/keys")
    page.get_by_label("Role").select_option("viewer")
    page.get_by_label("For one run").check()
    page.get_by_role("button", name="Create a key").click()
    _confirm(page, "Create the key")
    expect(page.get_by_label("For one run")).to_have_accessible_description(re.compile("is for the role trainer"))


def test_a_key_is_changed_for_a_new_one(enter: Enter, own_server: LiveServer) -> None:
    with own_server.client("admin") as api:
        assert api.post("/v1/api-keys", json={"role": "viewer", "name": "screen"}).status_code == 201
    page = enter("admin", "/keys")
    row = page.get_by_role("row", name=re.compile("screen")).first
    row.get_by_text("Change screen").click()
    row.get_by_label("Old key works for").select_option("1 hour")
    row.get_by_role("button", name="Rotate").click()
    _confirm(page, "Rotate")
    page.get_by_role("dialog", name="The new key").get_by_role("button", name="I have saved it").click()
    expect(page.get_by_role("row", name=re.compile("screen"))).to_have_count(2)


def test_what_is_wrong_with_a_key_is_told_in_place(enter: Enter) -> None:
    page = enter("admin", "/keys")
    page.get_by_label("Name").fill("bud_looks-like-an-id")
    page.get_by_role("button", name="Create a key").click()
    _confirm(page, "Create the key")
    expect(page.get_by_label("Name")).to_be_focused()
    expect(page.get_by_label("Name")).to_have_accessible_description(re.compile("must not look like an id"))


def test_a_policy_is_changed_rule_by_rule_and_says_where_each_comes_from(enter: Enter) -> None:
    page = enter("privacy_officer", "/policies?account=imaging/denoising")
    rules = page.get_by_role("region", name="Rules")
    expect(rules.get_by_role("row", name=re.compile("approval_above_epsilon"))).to_contain_text("imaging")
    expect(rules.get_by_role("row", name=re.compile("approvers_to_raise_limit"))).to_contain_text("by default")
    page.get_by_label("Largest epsilon of a run").fill("1.5")
    page.get_by_label("The plan of a run").select_option("must be declared")
    page.get_by_label("gaussian", exact=True).check()
    page.get_by_label("add or remove one").check()
    page.get_by_label("Steps that differ").select_option("are refused")
    page.get_by_label("Reason").fill("The board of 12 November.")
    page.get_by_role("button", name="Change the policy").click()
    _confirm(page, "Change the policy")
    expect(page.locator("#message")).to_have_text("Policy changed.")
    for rule, said in (
        ("max_epsilon", "1.5"),
        ("require_plan", "declare"),
        ("mechanisms", "gaussian"),
        ("neighboring_relations", "add or remove one"),
        ("deviations", "refuse"),
    ):
        row = rules.get_by_role("row", name=re.compile(rule))
        expect(row.locator("td").nth(0)).to_have_text(said)
        expect(row.locator("td").nth(2)).to_have_text("imaging/denoising")
    expect(page.get_by_label("Largest epsilon of a run")).to_have_value("1.5")
    page.get_by_label("Runs above this epsilon").fill("5")
    page.get_by_label("Reason").fill("Nobody has to wait.")
    page.get_by_role("button", name="Change the policy").click()
    _confirm(page, "Change the policy")  # looser than above: it is kept, and changes nothing
    expect(page.locator("#message")).to_have_text("Policy changed.")
    row = rules.get_by_role("row", name=re.compile("approval_above_epsilon"))
    expect(row.locator("td").nth(0)).to_have_text("5")
    expect(row.locator("td").nth(1)).to_have_text("1")


def test_a_policy_is_loosened_by_two_persons(enter: Enter) -> None:
    page = enter("privacy_officer", "/policies?account=imaging")
    warnings = page.get_by_role("region", name="Rules with limited effect")
    expect(warnings).to_contain_text("approval_above_epsilon can be bypassed: without require_limit a run")
    expect(warnings.locator("code").first).to_have_text("require_limit")
    page.get_by_label("Runs above this epsilon").fill("5")
    page.get_by_label("Reason").fill("Nobody has to wait.")
    page.get_by_role("button", name="Change the policy").click()
    _confirm(page, "Change the policy")
    expect(page.locator("#message")).to_contain_text("Proposed, because it loosens a rule.")
    expect(page.get_by_role("region", name="Change the policy of imaging")).to_contain_text(
        "A looser policy is proposed"
    )
    other = enter("admin", "/approvals")
    waiting = other.get_by_role("article").filter(has_text="Its policy would change")
    cells = waiting.get_by_role("row", name=re.compile("approval_above_epsilon")).locator("td")
    expect(cells).to_have_text(["1", "5", "loosened"])
    waiting.get_by_role("button", name="Approve").click()
    _confirm(other, "Approve", "So be it.")
    expect(other.locator("#message")).to_have_text("Approved.")
    page.reload()
    row = page.get_by_role("region", name="Rules", exact=True).get_by_role("row", name=re.compile("approval_above"))
    expect(row.locator("td").nth(0)).to_have_text("5")


def test_a_population_is_opened_by_two_persons(enter: Enter) -> None:
    page = enter("privacy_officer", "/policies")
    page.get_by_label("People needed to create a population").select_option("two")
    page.get_by_label("Reason").fill("Nobody begins anew alone.")
    page.get_by_role("button", name="Change the policy").click()
    _confirm(page, "Change the policy")
    expect(page.locator("#message")).to_have_text("Policy changed.")
    page.goto(page.url.replace("/policies", "/"))
    page.get_by_text("Create a population").first.click()
    form = page.locator('form[data-call="POST /v1/populations"]')
    form.get_by_label("Name").fill("eicu")
    form.get_by_label("Who is protected").fill("patient")
    form.get_by_label("Limit: epsilon").fill("2")
    form.get_by_label("Limit: delta").fill("1e-6")
    form.get_by_role("button").click()
    _confirm(page, "Create")
    page.wait_for_url("**/approvals#prp_*")
    expect(page.get_by_role("article", name="eicu")).to_contain_text("epsilon 2 at delta")
    other = enter("admin", "/approvals")
    other.get_by_role("article", name="eicu").get_by_role("button", name="Approve").click()
    _confirm(other, "Approve", "Other people.")
    expect(other.locator("#message")).to_have_text("Approved.")
    expect(other.get_by_role("row", name=re.compile("eicu"))).to_contain_text("Other people.")


def test_what_is_wrong_with_a_policy_is_told_at_its_field(enter: Enter) -> None:
    page = enter("admin", "/policies")
    page.get_by_label("Largest delta of a run").evaluate("field => { field.max = ''; field.value = '0.7'; }")
    page.get_by_label("Reason").fill("Why not.")
    page.get_by_role("button", name="Change the policy").click()
    _confirm(page, "Change the policy")
    field = page.get_by_label("Largest delta of a run")
    expect(field).to_be_focused()
    expect(field).to_have_accessible_description("must be less than 0.5")


def test_a_receiver_is_made_tried_given_a_new_secret_disabled_enabled_and_deleted(enter: Enter) -> None:
    page = enter("privacy_officer", "/alerts")
    page.get_by_label("Address", exact=True).fill("https://receiver.example/alerts")
    page.get_by_label("run over its limit").check()
    page.get_by_role("button", name="Create a receiver").click()
    _confirm(page, "Create the receiver")
    dialog = page.get_by_role("dialog", name="The receiver's secret")
    secret = dialog.get_by_label("The receiver's secret").input_value()
    assert secret.startswith("whsec_")
    dialog.get_by_role("button", name="I have saved it").click()
    hook = page.get_by_role("article", name="https://receiver.example/alerts")
    expect(hook).to_contain_text("Receives run.overdrawn about everything")
    hook.get_by_role("button", name="Send a test event").click()
    _confirm(page, "Send a test event")
    expect(hook.get_by_role("row", name=re.compile("test event"))).to_be_visible()
    hook.get_by_role("button", name="Rotate the secret").click()
    _confirm(page, "Rotate the secret")
    dialog = page.get_by_role("dialog", name="The new secret")
    assert dialog.get_by_label("new secret").input_value() not in {secret, ""}
    dialog.get_by_role("button", name="I have saved it").click()
    expect(hook).to_contain_text("The previous secret is used until")
    hook.get_by_role("button", name="Disable").click()
    _confirm(page, "Disable")
    expect(hook).to_contain_text("disabled since")
    expect(hook.get_by_role("button", name="Send a test event")).to_have_count(0)
    hook.get_by_role("button", name="Enable").click()
    _confirm(page, "Enable")
    expect(hook).not_to_contain_text("disabled since")
    expect(hook.get_by_role("button", name="Send a test event")).to_be_visible()
    hook.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete this receiver?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(hook).to_be_visible()
    hook.get_by_role("button", name="Delete").click()
    _confirm(page, "Delete")
    expect(hook).to_have_count(0)


def test_the_form_asks_for_what_a_kind_of_receiver_needs(enter: Enter) -> None:
    page = enter("privacy_officer", "/alerts")
    address, mails = page.get_by_label("Address", exact=True), page.get_by_label("Mail addresses")
    expect(address).to_be_visible()
    expect(mails).to_be_hidden()
    page.get_by_label("Kind").select_option("Slack")
    address.fill("https://hooks.slack.example/services/T0/B0/secretsecret")
    page.get_by_role("button", name="Create a receiver").click()
    _confirm(page, "Create the receiver")
    slack = page.get_by_role("article", name="https://hooks.slack.example/…cret")
    expect(slack).to_contain_text("Slack")
    expect(slack.get_by_role("button", name="Rotate the secret")).to_have_count(0)
    assert "secretsecret" not in page.content()
    page.get_by_label("Kind").select_option("E-mail")
    expect(address).to_be_hidden()
    expect(page.get_by_text("This service has no SMTP server")).to_be_visible()
    mails.fill("office@hospital.example, board@hospital.example")
    page.get_by_role("button", name="Create a receiver").click()
    page.get_by_role("dialog").get_by_role("button", name="Create the receiver").click()
    expect(page.get_by_text("ask its operator to set EPSILON_LEDGER_SMTP_HOST")).to_be_visible()


def test_an_account_is_told_of_what_it_tells(enter: Enter, own_server: LiveServer, hospital: Hospital) -> None:
    page = enter("privacy_officer", "/alerts?account=mimic/readmission")
    page.get_by_label("Shares of the limit").fill("0.25, 0.75")
    page.get_by_label("Forecast, in days").fill("14")
    page.get_by_role("button", name="Change").click()
    _confirm(page, "Change")
    expect(page.locator("#message")).to_have_text("Alert settings changed.")
    expect(page.get_by_label("Shares of the limit")).to_have_value("0.25, 0.75")
    with own_server.client("viewer") as api:
        answer = api.get(f"/v1/accounts/{hospital.ids['mimic/readmission']}/alert-settings").json()
    assert answer == {"thresholds": [0.25, 0.75], "forecast_days": 14}


@pytest.mark.parametrize(
    ("role", "shown", "hidden"),
    [
        ("viewer", {"/approvals": 0, "/policies": 0}, ("/keys", "/alerts")),
        ("trainer", {"/approvals": 1, "/policies": 0}, ("/keys", "/alerts")),  # it withdraws the run that waits
        ("planner", {"/approvals?account=mimic": 2, "/policies": 0}, ("/keys", "/alerts")),
        ("budget_admin", {"/approvals?account=mimic": 1, "/policies": 0}, ("/alerts",)),
        ("privacy_officer", {"/approvals?account=mimic": 5, "/policies": 1}, ()),
        ("auditor", {"/approvals?account=mimic": 0, "/policies": 0}, ("/keys", "/alerts")),
    ],
)
def test_a_page_shows_only_forms_that_the_role_may_use(
    server: LiveServer, role: str, shown: dict[str, int], hidden: tuple[str, ...]
) -> None:
    with browser_client(server, role) as client:
        for path, calls in shown.items():
            reply = client.get(path)
            assert reply.status_code == 200
            assert reply.text.count("data-call=") == calls, path
        for path in hidden:
            reply = client.get(path)
            assert reply.status_code == 403
            assert "Your role" in reply.text or "yours is" in reply.text
            assert f'href="{path}"' not in reply.text


def test_a_team_lead_changes_the_keys_that_are_theirs_to_lend(server: LiveServer, hospital: Hospital) -> None:
    with scoped_client(server, "budget_admin", hospital.ids["mimic"]) as client:
        text = client.get("/keys").text
    assert re.findall(r'<option value="(\w+)">[\w ]+</option>', text.split('name="role"')[1].split("</select>")[0]) == [
        *("viewer", "trainer", "planner"),
    ]
    assert re.findall(r'<option value="([\w/-]+)"></option>', text) == [
        *("mimic", "mimic/icu-team", "mimic/readmission", "mimic/readmission/sweep"),
    ]
    assert text.count("/rotate") == 1  # its own


def test_another_organisation_sees_none_of_it(server: LiveServer, hospital: Hospital) -> None:
    with browser_client(server, "admin", "clinic") as client:
        for path in ("/approvals", "/policies", "/keys", "/alerts"):
            reply = client.get(path)
            assert reply.status_code == 200
            said = reply.text.replace('placeholder="mimic/icu-team"', "")
            assert not re.search("mimic/|imaging|stroke|alerts.example", said)
        for path in ("/approvals", "/policies", "/alerts"):
            for account in ("mimic", hospital.ids["mimic"]):
                reply = client.get(path, params={"account": account})
                assert "There is no population or budget" in reply.text


@pytest.mark.parametrize("path", thinned(PAGES, 2))
def test_it_is_read_without_script(browser: Browser, server: LiveServer, sign_in: SignIn, path: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, server, "admin")
    page.goto(server.url + path)
    assert "Changes need JavaScript" in page.locator("noscript p").first.inner_text()
    button = page.locator("form[data-call] button").last
    button.click()  # it sends nothing, least of all in an address
    assert page.url == server.url + path
    context.close()


@pytest.mark.parametrize("path", PAGES)
def test_a_poll_with_nothing_new_costs_a_304(server: LiveServer, path: str) -> None:
    with browser_client(server, "admin") as client:
        for _ in range(3):  # a minute may end in between, and the first use of the key is written once
            tag = client.get(path, headers={"X-Part": "page"}).headers["etag"]
            same = client.get(path, headers={"X-Part": "page", "If-None-Match": tag})
            if same.status_code == 304:
                break
        assert same.status_code == 304


def test_a_run_and_a_limit_are_changed_where_they_are_looked_at(server: LiveServer, hospital: Hospital) -> None:
    account, run = hospital.ids["mimic/icu-team"], hospital.ids["mimic/icu-team/lstm-mortality"]
    for role, limits, acts, requests in (
        ("viewer", 0, 0, 0),
        ("planner", 1, 0, 0),
        ("trainer", 0, 3, 1),
        ("privacy_officer", 1, 3, 1),
    ):
        with browser_client(server, role) as client:
            assert client.get(f"/accounts/{account}").text.count('/limit" data-if-match=') == limits, role
            calls = re.findall(rf'data-call="POST /v1/runs/{run}/([a-z-]+)"', client.get(f"/runs/{run}").text)
            assert (len(calls) - requests, calls.count("limit-requests")) == (acts, requests), role
