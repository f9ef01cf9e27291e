"""Everybody can use every page: with a screen reader, with the keyboard, on a telephone, by day and by night.

To add a page, add it to `PAGES`; a state of one that looks differently, to `STATES`.
"""

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect

from app.dashboard.tables import labelled
from tests.conftest import LiveServer, open_ledger
from tests.dashboard.conftest import SLOWEST, Enter, server_of, session_cookie
from tests.dashboard.page_actions import AXE, COLOURS, Colours, hindrances
from tests.dashboard.sample_hospital import Hospital
from tests.soak import in_turns, thinned
from tests.waiting_reservations import allocate, ask

BY_BATCH = "sampling=batch&batch=64&size=6400&steps=50"
SLOW = {"type": "over_time", "over_seconds": 86_400_000, "parts": 1000}
"""A thousandth each day: nothing is granted while a test looks."""

Look = tuple[int, Colours]
LOOKS: Final[list[Look]] = list(product((400, 1280), COLOURS))
"""Widths and themes: pages have them in turn in `make test`, and all of them in `make soak`."""

PAGES: Final = {
    "sign-in": "/sign-in",
    "sign-in link": "/sign-in/link",
    "overview": "/",
    "population": "/accounts/{imaging}",
    "account with plans that wait": "/accounts/{registry}",
    "run": "/runs/{refused}",
    "runs": "/runs",
    "planner": f"/planner?{BY_BATCH}",
    "decisions": "/decisions",
    "decision": "/decisions/{refused}/{position}",
    "audit, verified": "/audit?verify=true",
    "approvals": "/approvals?account=mimic/icu-team",
    "policies": "/policies?account=imaging/segmentation",
    "experiments": "/experiments",
    "keys": "/keys",
    "alerts": "/alerts?account=mimic",
    "nowhere": "/nowhere",
    "statement of a run": "/v1/runs/{refused}/statement.html",
}
"""The address of every page; braces name ids of the hospital."""
STATES: Final = {
    "overview without a match": "/?find=nobody",
    "budget, limited by the one above": "/accounts/{mimic/readmission/sweep}",
    "run whose plan waits": "/runs/{first}",
    "budget, nearly exhausted": "/accounts/{stroke-registry/outcome-models}",
    "run with a reservation": "/runs/{mimic/readmission/gradient-boosting}",
    "run over its limit": "/runs/{staff-survey/burnout/logistic-regression}",
    "runs without a match": "/runs?archived=true",
    "runs with a fault": "/runs?within=nowhere&label=team:icu",
    "planner with a fault": f"/planner?noise=0&{BY_BATCH}",
    "decisions with a fault": "/decisions?account=nobody",
    "audit without a match": "/audit?action=nothing",
    "audit with a fault": "/audit?since=x",
    "policies of the organisation": "/policies",
    "statement of a population": "/v1/populations/{imaging}/statement.html",
}
OTHERS = [pytest.param(name, look, marks=pytest.mark.soak) for name in STATES for look in LOOKS]
"""Their states that look differently, for `make soak`."""

DIALOGS: Final = {
    "confirm an approval": ("/approvals", "button:has-text('Approve')"),
    "create a key": ("/keys", "button:text-is('Create a key')"),
    "disable a receiver": ("/alerts", "button:has-text('Disable')"),
}

OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
SHORTEN = """document.querySelectorAll("table").forEach((table) => {
  [...table.querySelectorAll("tbody tr")].slice(4).forEach((row) => row.remove());
})"""
"""Rows that are like those above them take most of the time; `make soak` looks at the others in other looks."""

READ_TABLES = """() => [...document.querySelectorAll("main table:has(thead)")].map((table) => ({
  name: table.closest("[aria-label]")?.getAttribute("aria-label"),
  heads: [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim()),
  rows: [...table.querySelectorAll("tbody tr")].filter((row) => !row.querySelector("[colspan]")).map((row) =>
    [...row.cells].map((cell) => {
      const before = getComputedStyle(cell, "::before"), box = cell.getBoundingClientRect();
      const shown = cell.checkVisibility() && before.display !== "none" && parseFloat(before.width) > 40;
      return [before.content.replace(/^"|"$/g, ""), shown && box.left >= 0 && box.right <= innerWidth];
    })),
}))"""
CUT = """
[...document.querySelectorAll("table[role=table] time, .facts time, .facts .tag")].filter((each) => {
  const own = each.getBoundingClientRect(), box = each.closest("td, th, dd, .scroll").getBoundingClientRect();
  return own.width && (own.right > box.right + 1 || own.right > document.documentElement.clientWidth);
}).map((each) => each.outerHTML)
"""

Pages = Callable[[Look], Page]


NAMES: dict[str, str] = {}
"""What stands for the names in braces."""


@pytest.fixture(scope="module")
def server(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server on the hospital, with a population that two teams share, and plans that wait."""
    copy = hospital.copy(tmp_path_factory.mktemp("server"))
    with open_ledger(copy.folder) as ledger:
        limit = {"epsilon": 3.0, "delta": 1e-5}
        NAMES["registry"] = str(ledger.population("registry", limit=limit)["id"])
        for name in ("icu-team", "er-team"):
            ledger.budget(name, "registry", limit=limit)
        shares = [{"account": "registry/icu-team", "minimum": 0.25, "weight": 2.0}]
        allocate(ledger, NAMES["registry"], rule="first_come", unlock=SLOW, shares=shares)
        for name in ("first", "second"):
            made = ask(ledger, name, 800, owner="Dr. Osei", budget="registry/icu-team")
            NAMES[name] = str(made.json()["id"])
        query = f"/v1/decisions?run={hospital.refused}&decision=refused"
        NAMES["position"] = str(ledger.get(query).json()["items"][0]["position"])
    NAMES.update(hospital.ids | {"refused": hospital.refused})
    with server_of(copy) as server:
        yield server


@pytest.fixture(scope="module")
def pages(browser: Browser, server: LiveServer) -> Iterator[Pages]:
    """One page for all tests of a width and a theme."""
    opened: dict[Look, Page] = {}

    def page_of(look: Look) -> Page:
        if look not in opened:
            width, colours = look
            viewport: Any = {"width": width, "height": 800}
            zone = "America/New_York"  # whose names are longer than UTC
            context = browser.new_context(color_scheme=colours, viewport=viewport, timezone_id=zone)
            context.add_cookies([session_cookie(server, "admin")])
            context.set_default_timeout(SLOWEST)
            context.add_init_script(AXE)
            opened[look] = context.new_page()
        return opened[look]

    yield page_of
    for page in opened.values():
        page.context.close()


def address(server: LiveServer, path: str) -> str:
    return server.url + re.sub(r"{([^}]+)}", lambda found: NAMES[found[1]], path)


def _words(value: str | Look) -> str:
    return value if isinstance(value, str) else "-".join(map(str, value))


@pytest.mark.parametrize(("name", "look"), [*in_turns(PAGES, LOOKS), *OTHERS], ids=_words)
def test_page_is_accessible(pages: Pages, server: LiveServer, name: str, look: Look) -> None:
    page = pages(look)
    page.goto(address(server, (PAGES | STATES)[name]))
    page.evaluate(OPEN)
    if look[0] == 400:
        page.wait_for_timeout(100)  # of charts, which take their width from the page
        # On a telephone a table is a list of cards, in which no column is missing and no time is cut off.
        for table in page.evaluate(READ_TABLES):
            for row in table["rows"]:
                assert row == [[head, True] for head in table["heads"]], table["name"]
        assert page.evaluate(CUT) == []
    page.evaluate(SHORTEN)
    assert hindrances(page) == []


@pytest.mark.parametrize(("name", "look"), thinned(list(product(DIALOGS, LOOKS)), 12), ids=_words)
def test_dialog_is_accessible(pages: Pages, server: LiveServer, name: str, look: Look) -> None:
    page, (path, opener) = pages(look), DIALOGS[name]
    page.goto(address(server, path))
    page.locator(opener).first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate(SHORTEN)
    assert hindrances(page) == []


def test_statement_is_styled_under_its_own_policy(pages: Pages, server: LiveServer) -> None:
    page = pages(LOOKS[-1])
    reply = page.goto(address(server, PAGES["statement of a run"]))
    assert reply is not None
    policy = reply.headers["content-security-policy"]
    assert "script-src" not in policy
    assert "unsafe" not in policy
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "896px"


def test_navigation_with_a_long_name_fits_its_line(enter: Enter, server: LiveServer) -> None:
    long_name = "Dr. Katharina von Habsburg-Lothringen, Office of Data Protection"
    with server.client("admin") as api:
        server.keys["hospital/long"] = api.post("/v1/api-keys", json={"role": "admin", "name": long_name}).json()["key"]
    page = enter("long", viewport={"width": 1280, "height": 800})
    expect(page.locator("#nav-approvals .badge")).to_be_visible()
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    found = {re.split(r"\s", each)[0] for each in links.all_inner_texts()}
    assert {"Runs", "Experiments", "Approvals", "Alerts"} <= found
    line = 60  # pixels of a header with one line
    assert page.evaluate("document.querySelector('.top').offsetHeight") < line
    name = page.locator(".who .actor")
    expect(name).to_have_attribute("title", re.compile(rf"^{re.escape(long_name)}, key_"))
    assert name.evaluate("each => each.offsetWidth") > line, "enough of the name is there"
    expect(page.get_by_role("button", name="Sign out", exact=True)).to_be_in_viewport(ratio=1)
    cell = page.locator("#runs tbody td").first
    style = "(cell) => [getComputedStyle(cell, '::before').content, getComputedStyle(cell).display]"
    assert cell.evaluate(style) == ["none", "table-cell"], "a wide screen has tables"
    page.set_viewport_size({"width": 400, "height": 800})
    for link in links.all():
        expect(link).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport(ratio=1)


def test_cells_are_labelled_with_their_columns() -> None:
    head = '<thead><tr><th scope="col">A &amp; <em>b</em></th><th scope="col" class="number">N</th></tr></thead>'
    body = '<tbody><tr><th scope="row">x</th><td class="number">1</td></tr><tr><td colspan="2">why</td></tr></tbody>'
    assert labelled(head + body) == (
        '<thead><tr role="row"><th scope="col" role="columnheader">A &amp; <em>b</em></th>'
        '<th scope="col" class="number" role="columnheader">N</th></tr></thead>'
        '<tbody><tr role="row"><th scope="row" role="rowheader" data-label="A &amp; b">x</th>'
        '<td class="number" role="cell" data-label="N">1</td></tr>'
        '<tr role="row"><td colspan="2" role="cell">why</td></tr></tbody>'
    )
