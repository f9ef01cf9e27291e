"""The line before a budget and its allocation, changed by hand, and usable by everybody."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import LiveServer, open_ledger
from tests.dashboard.conftest import SignIn, serving
from tests.dashboard.page_actions import COLOURS, faults_of
from tests.dashboard.sample_hospital import Hospital
from tests.dashboard.test_accessibility import OVERFLOWS
from tests.waiting_plans import allocate, ask

SLOW = {"type": "over_time", "over_seconds": 86_400_000, "parts": 1000}
"""A thousandth each day: nothing is granted while a test looks."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Hospital]]:
    """A server with a population that two teams share, and plans that wait."""
    folder = tmp_path_factory.mktemp("shared")
    with open_ledger(folder) as ledger:
        hospital = Hospital(folder, ledger.keys)
        hospital.ids["mimic"] = str(ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
        for name in ("icu-team", "er-team"):
            hospital.ids[name] = str(ledger.budget(name, limit={"epsilon": 3.0, "delta": 1e-5})["id"])
        shares = [{"account": "mimic/icu-team", "minimum": 0.25, "weight": 2.0}]
        allocate(ledger, hospital.ids["mimic"], rule="first_come", unlock=SLOW, shares=shares)
        for name in ("first", "second", "third"):
            hospital.ids[name] = str(ask(ledger, name, 800, owner="Dr. Osei").json()["id"])
    server = serving(hospital)
    yield server, hospital
    server.stop()


@pytest.mark.parametrize("name", ["mimic", "first"])
def test_everybody_can_use_the_pages_of_waiting_plans(
    browser: Browser, shared: tuple[LiveServer, Hospital], name: str
) -> None:
    server, hospital = shared
    kind = "accounts" if name == "mimic" else "runs"
    for width, colours in ((400, COLOURS[0]), (1280, COLOURS[1])):
        context = browser.new_context(color_scheme=colours, viewport={"width": width, "height": 800})
        page = context.new_page()
        page.goto(f"{server.url}/sign-in?next=/{kind}/{hospital.ids[name]}")
        page.get_by_label("API key").fill(server.key("admin"))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{server.url}/{kind}/*")
        for summary in page.locator("#change-allocation > summary, #queue summary").all():
            summary.click()
        expect(page.locator("#queue, #waits").first).to_contain_text("locked")
        assert faults_of(page) == []
        assert not page.evaluate(OVERFLOWS)
        context.close()


def test_the_line_is_changed_from_the_page(page: Page, shared: tuple[LiveServer, Hospital], sign_in: SignIn) -> None:
    server, hospital = shared
    sign_in(page, server, "privacy_officer")
    page.goto(f"{server.url}/accounts/{hospital.ids['mimic']}")
    rows = page.get_by_role("region", name="Plans that wait").locator("tbody tr")
    expect(rows).to_have_count(3)
    third = rows.filter(has_text="third")
    third.locator("summary").click()
    third.get_by_label("Priority").fill("5")
    third.get_by_role("button", name="Prioritize").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("gets the priority 5")
    dialog.get_by_label("Reason, recorded in the audit log").fill("The study ends.")
    dialog.get_by_role("button", name="Prioritize").click()
    expect(rows.first).to_contain_text("third")
    rows.first.get_by_role("button", name="Cancel the plan of").click()
    dialog.get_by_label("Reason, recorded in the audit log").fill("Not needed.")
    dialog.get_by_role("button", name="Cancel", exact=True).first.click()
    expect(rows).to_have_count(2)
    with server.client("auditor") as api:
        said = {
            each["action"]: each["reason"] for each in api.get("/v1/audit-events?action=reservation.*").json()["items"]
        }
    assert said["reservation.prioritized"] == "The study ends."
    assert said["reservation.cancelled"] == "Not needed."


def test_an_allocation_is_replaced_from_the_page(
    page: Page, shared: tuple[LiveServer, Hospital], sign_in: SignIn
) -> None:
    server, hospital = shared
    path = f"/v1/accounts/{hospital.ids['mimic']}/allocation"
    with server.client("viewer") as api:
        before = api.get(path).json()
        sign_in(page, server, "privacy_officer")
        page.goto(f"{server.url}/accounts/{hospital.ids['mimic']}")
        page.locator("#change-allocation > summary").click()
        _send(page, "As it is.")
        assert api.get(path).json() == before, "an unchanged form changes nothing"
        page.locator("#change-allocation > summary").click()
        page.get_by_label("Served first").select_option("most_packed")
        page.get_by_label("Days until a plan is overtaken no more").fill("1.5")
        other = page.get_by_role("group", name="er-team")
        other.get_by_label("Minimum").fill("33.3")
        other.get_by_label("Maximum").fill("60")
        _send(page, "Fewer, larger plans.")
        after = api.get(path).json()
    assert (after["rule"], after["aging_seconds"], after["revision"]) == (
        "most_packed",
        129_600,
        before["revision"] + 1,
    )
    assert after["unlock"] == before["unlock"]
    shares = {each["account_path"]: (each["minimum"], each["maximum"], each["weight"]) for each in after["shares"]}
    assert shares == {"mimic/icu-team": (0.25, 1.0, 2.0), "mimic/er-team": (0.333, 0.6, 1.0)}
    expect(page.get_by_role("region", name="Shares")).to_contain_text("33.3")


def test_a_budget_is_shared_out_and_no_more_from_the_page(
    page: Page, shared: tuple[LiveServer, Hospital], sign_in: SignIn
) -> None:
    server, hospital = shared
    budget = hospital.ids["er-team"]
    sign_in(page, server, "privacy_officer")
    page.goto(f"{server.url}/accounts/{budget}")
    expect(page.locator("#sharing")).to_contain_text("It has no allocation")
    page.get_by_text("Share it out among plans").click()
    page.get_by_label("The limit", exact=True).select_option("by_plans")
    page.get_by_label("Runs that unlock all of it").fill("4")
    _send(page, "Four studies.")
    expect(page.locator("#sharing")).to_contain_text("0 of 4")
    with server.client("viewer") as api:
        found = api.get(f"/v1/accounts/{budget}/allocation").json()
    assert (found["plans_only"], found["rule"], found["shares"]) == (True, None, [])
    assert found["unlock"]["plans"] == 4
    page.locator("#change-allocation > summary").click()
    page.get_by_role("button", name="Remove the allocation").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason, recorded in the audit log").fill("All at once.")
    dialog.get_by_role("button", name="Remove it").click()
    expect(page.get_by_text("Proposed. Another person approves it.")).to_be_visible()
    with server.client("admin") as api:
        [proposal] = api.get("/v1/proposals?status=open").json()["items"]
        assert api.post(f"/v1/proposals/{proposal['id']}/approve", json={}).status_code == 200
    page.goto(f"{server.url}/accounts/{budget}")
    expect(page.locator("#sharing")).to_contain_text("It has no allocation")


def _send(page: Page, reason: str) -> None:
    page.locator("#allocation-reason").fill(reason)
    page.get_by_role("button", name="Replace the allocation").click()
    with page.expect_navigation():
        page.get_by_role("dialog").get_by_role("button", name="Replace it").click()
    expect(page.get_by_text("Allocation replaced.")).to_be_visible()
