"""The overview, in a real browser and without script."""

import re

from playwright.sync_api import Browser, Page, expect

from app.dashboard.formatting import spent
from tests.conftest import Ledger, LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.html_reader import visit, words
from tests.dashboard.page_actions import browser_client, scoped_client
from tests.dashboard.sample_hospital import Hospital, dp_sgd
from tests.login_helpers import signed_in
from tests.service.tampering import TEAM, set_account, tampering


def test_trees_stand_by_urgency_with_the_numbers_of_the_api(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    assert page.locator(".population > .account-status .name a").all_inner_texts() == [
        *("stroke-registry", "mimic", "imaging", "staff-survey"),
    ]
    with server.client("viewer") as api:
        for found in api.get("/v1/populations").json()["items"]:
            row = page.locator(".population > .account-status", has_text=found["name"])
            expect(row).to_contain_text(f"{spent(found['epsilon'])} of {found['limit']['epsilon']:g}")
    team = page.locator(".tree .account-status", has_text="outcome-models")
    expect(team).to_contain_text("nearly exhausted")
    expect(team).to_contain_text(re.compile(r"% a day: \d+ (minutes|hours) left"))
    readmission, sweep = page.locator(".tree .account-status", has_text="readmission").all()
    expect(readmission).to_contain_text("reserved")
    expect(sweep).to_contain_text("0.954 free: limited by mimic/readmission")
    refused = page.get_by_role("region", name="Latest refusals").get_by_role("row", name="transformer").first
    expect(refused).to_contain_text("9\N{NARROW NO-BREAK SPACE}000")
    expect(refused.get_by_role("link").first).to_have_attribute("href", re.compile(r"^/decisions/run_\w+/\d+$"))
    expect(page.get_by_role("region", name="Unfinished runs").get_by_text("pending", exact=True)).to_be_visible()


def test_what_happens_appears_while_somebody_looks(page: Page, changing: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, changing, "viewer")
    region = page.get_by_role("region", name="Unfinished runs")
    first = region.locator("tbody tr").first
    link = first.get_by_role("link")
    expect(link).to_have_text("foundation-model")
    link.focus()
    find = page.get_by_label("Find")
    find.fill("not sent yet")
    with changing.client("trainer") as trainer:
        run = trainer.post(
            "/v1/runs", json={"name": "new-run", "budget": "mimic/readmission", "event": dp_sgd(2.0, 0.01)}
        ).json()
        assert trainer.post(f"/v1/runs/{run['id']}/steps", json={"count": 25}).status_code == 200
    expect(first).to_contain_text("new-run")
    expect(first).to_contain_text("25")
    expect(find).to_have_value("not sent yet")
    assert find.evaluate("element => element === document.activeElement")


def test_a_poll_with_nothing_new_costs_a_304(server: LiveServer) -> None:
    with browser_client(server, "viewer") as client:
        whole = client.get("/")
        tag = re.findall(r'data-tag="([^"]+)"', whole.text)[0].replace("&#34;", '"')
        same = client.get("/", headers={"X-Part": "page", "If-None-Match": tag})
        if same.status_code != 304:  # a minute ended in between
            same = client.get("/", headers={"X-Part": "page", "If-None-Match": same.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        assert client.get("/", headers={"X-Part": "page", "If-None-Match": '"another"'}).status_code == 200
        assert client.get("/?find=mimic", headers={"X-Part": "page", "If-None-Match": tag}).status_code == 200
    with browser_client(server, "auditor") as another:
        assert another.get("/", headers={"X-Part": "page", "If-None-Match": tag}).status_code == 200


def test_a_page_that_is_answered_by_a_problem_does_not_call_itself_up_to_date(
    browser: Browser, server: LiveServer, sign_in: SignIn
) -> None:
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, server, "viewer")
    page.route(f"{server.url}/", lambda route: route.fulfill(status=403, content_type="text/html", body="<p>No.</p>"))
    expect(page.locator("#live")).to_contain_text("may be out of date")
    context.close()


def test_a_part_of_the_page_is_what_stands_in_it(server: LiveServer) -> None:
    with browser_client(server, "viewer") as client:
        whole, part = client.get("/").text, client.get("/", headers={"X-Part": "page"}).text
    assert "<html" not in part
    changing, link, rest = part.partition('<a href="/approvals" id="nav-approvals"')
    for each in (changing, link + rest):
        assert re.sub(r"\s+", " ", each).strip() in re.sub(r"\s+", " ", whole)


def test_it_is_read_without_script(browser: Browser, server: LiveServer, sign_in: SignIn) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, server, "viewer")
    page.get_by_label("Find").fill("ICU")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".population > .account-status .name a")).to_have_text(["mimic"])
    page.get_by_label("Find").fill("nobody")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("main")).to_contain_text("No visible path contains “nobody”")
    context.close()


def test_an_organisation_without_anything_is_told_how_to_begin(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/sign-in")
    page.get_by_label("API key").fill(server.key("viewer", "clinic"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("main")).to_contain_text("No populations yet")
    expect(page.locator("main")).to_contain_text("No unfinished runs")
    expect(page.locator("main")).to_contain_text("No refusals")
    expect(page.locator("main")).not_to_contain_text("icu-team")


def test_who_is_bound_to_an_account_sees_what_lies_under_it(server: LiveServer, hospital: Hospital) -> None:
    with scoped_client(server, "viewer", hospital.ids["mimic/readmission"]) as client:
        text = client.get("/").text
    shown = re.findall(r'title="(mimic[^"]*|imaging[^"]*|st[^"]*)"', text)
    assert shown == ["mimic/readmission", "mimic/readmission/sweep"]
    assert "gradient-boosting" in text
    assert not re.search("icu-team|imaging|stroke", text)


def test_paths_are_text_and_nothing_else(changing: LiveServer, page: Page, sign_in: SignIn) -> None:
    name = "<img src=x onerror=alert(1)>&lt;"
    with changing.client("admin") as api:
        body = {"name": name, "privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
        made = api.post("/v1/populations", json=body | {"limit": {"epsilon": 1.0, "delta": 1e-6}})
    assert made.status_code == 201, made.text
    sign_in(page, changing, "viewer")
    expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


def test_an_account_whose_row_is_damaged_hides_no_other(ledger: Ledger) -> None:
    population, team = str(ledger.population()["id"]), str(ledger.budget()["id"])
    other = str(ledger.population("imaging")["id"])
    assert ledger.post(f"/v1/runs/{ledger.run()}/steps", {}, "trainer").is_success
    with tampering(ledger.database) as tx:
        set_account(tx, TEAM, uncompacted_charges="[1")
    cookie = signed_in(ledger, "admin")
    answer = words(visit(ledger, "/", cookie))
    assert "1 over the limit, quarantined or damaged" in answer
    assert re.search("icu-team damaged row: verify the ledger unreadable", answer)
    assert re.search("imaging ε 0.000 of 3, 3.000 free", answer)
    for path in (f"/accounts/{other}", f"/accounts/{population}", "/planner", "/approvals", "/policies", "/keys"):
        assert visit(ledger, path, cookie).status_code == 200, path
    answer = words(visit(ledger, f"/accounts/{population}", cookie))
    assert re.search(r"icu-team budget \d\.\d % unreadable", answer)
    assert "verify the ledger unreadable" in answer
    page = visit(ledger, f"/accounts/{team}", cookie)
    assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "The row of mimic/icu-team is damaged" in words(page)


def test_what_somebody_is_about_to_answer_stays_and_is_brought_up_to_date_afterwards(
    page: Page, changing: LiveServer, sign_in: SignIn
) -> None:
    sign_in(page, changing, "viewer")
    region = page.locator("#runs")
    expect(region).to_be_visible()
    page.evaluate(
        "document.getElementById('runs').insertAdjacentHTML('beforeend', '<dialog id=\"asked\">Sure?</dialog>');"
        "document.getElementById('asked').showModal()"
    )
    with changing.client("trainer") as trainer:
        made = trainer.post(
            "/v1/runs", json={"name": "later", "budget": "mimic/readmission", "event": dp_sgd(2.0, 0.01)}
        )
    assert made.status_code == 201, made.text
    expect(page.locator("#live")).to_contain_text("Up to date")
    page.wait_for_timeout(4500)
    expect(page.locator("#asked")).to_be_visible()
    expect(region).not_to_contain_text("later")
    page.evaluate("document.getElementById('asked').close()")
    expect(region).to_contain_text("later", timeout=10_000)
