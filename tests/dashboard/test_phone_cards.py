"""On a phone a table is a list of cards, in which no column is missing."""

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from app.dashboard.tables import labelled
from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned

PHONE: ViewportSize = {"width": 400, "height": 800}
READ_TABLES = """() => [...document.querySelectorAll("main table")].map((table) => ({
  name: table.closest("[aria-label]")?.getAttribute("aria-label"),
  heads: [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim()),
  rows: [...table.querySelectorAll("tbody tr")].filter((row) => !row.querySelector("[colspan]")).map((row) =>
    [...row.cells].map((cell) => {
      const before = getComputedStyle(cell, "::before"), box = cell.getBoundingClientRect();
      const shown = cell.checkVisibility() && before.display !== "none" && parseFloat(before.width) > 40;
      return [before.content.replace(/^"|"$/g, ""), shown && box.left >= 0 && box.right <= innerWidth];
    })),
}))"""


@pytest.fixture(scope="module")
def phone(browser: Browser, server: LiveServer) -> Page:
    """A phone on which an admin has signed in."""
    page = browser.new_context(viewport=PHONE).new_page()
    page.goto(f"{server.url}/sign-in")
    page.get_by_label("API key").fill(server.key("admin"))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{server.url}/")
    return page


PAGES = [
    "/",
    "/planner",
    "/experiments",
    "/decisions",
    "/audit",
    "/approvals?account=mimic",
    "/policies?account=mimic",
    "/keys",
]


@pytest.mark.parametrize("path", thinned([*PAGES, "/alerts?account=mimic", "account", "run"], 3))
def test_every_column_is_beside_its_name_and_nothing_is_too_wide(
    path: str, phone: Page, server: LiveServer, hospital: Hospital
) -> None:
    places = {"account": f"/accounts/{hospital.ids['imaging/segmentation']}", "run": f"/runs/{hospital.refused}"}
    phone.goto(server.url + places.get(path, path))
    phone.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    phone.wait_for_timeout(100)  # of charts, which take their width from the page
    tables = phone.evaluate(READ_TABLES)
    assert any(table["rows"] for table in tables) or path in {"/planner", "/experiments"}, "there is something to see"
    for table in tables:
        for row in table["rows"]:
            assert row == [[head, True] for head in table["heads"]], table["name"]
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_wide_screen_has_tables(page: Page, server: LiveServer, sign_in: SignIn) -> None:
    sign_in(page, server, "viewer")
    cell = page.locator("#runs tbody td").first
    assert cell.evaluate("(cell) => getComputedStyle(cell, '::before').content") == "none"
    assert cell.evaluate("(cell) => getComputedStyle(cell).display") == "table-cell"


def test_labels_are_those_of_the_columns() -> None:
    head = '<thead><tr><th scope="col">A &amp; <em>b</em></th><th scope="col" class="number">N</th></tr></thead>'
    body = '<tbody><tr><th scope="row">x</th><td class="number">1</td></tr><tr><td colspan="2">why</td></tr></tbody>'
    assert labelled(head + body) == (
        '<thead><tr role="row"><th scope="col" role="columnheader">A &amp; <em>b</em></th>'
        '<th scope="col" class="number" role="columnheader">N</th></tr></thead>'
        '<tbody><tr role="row"><th scope="row" role="rowheader" data-label="A &amp; b">x</th>'
        '<td class="number" role="cell" data-label="N">1</td></tr>'
        '<tr role="row"><td colspan="2" role="cell">why</td></tr></tbody>'
    )
