"""Everybody can use every page: with a screen reader, with the keyboard, on a telephone, by day and by night.

To add a page, add it to `PAGES`; a page that must be opened first, or a part of one, to `OPENED`.
"""

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.page_actions import COLOURS, Colours, faults_of
from tests.dashboard.sample_hospital import Hospital
from tests.soak import in_turns, thinned

OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
BY_BATCH = "sampling=batch&batch=64&size=6400"

Look = tuple[int, Colours]
LOOKS: Final[list[Look]] = list(product((400, 1280), COLOURS))
"""Widths and themes: pages have them in turn in `make test`, and all of them in `make soak`."""

PAGES: Final = {
    "overview": "/",
    "overview without a match": "/?find=nobody",
    "population": "/accounts/{imaging}",
    "budget, nearly exhausted": "/accounts/{stroke-registry/outcome-models}",
    "budget, limited by the one above": "/accounts/{mimic/readmission/sweep}",
    "run": "/runs/{refused}",
    "run with a reservation": "/runs/{mimic/readmission/gradient-boosting}",
    "run over its limit": "/runs/{staff-survey/burnout/logistic-regression}",
    "runs": "/runs",
    "runs without a match": "/runs?archived=true",
    "runs with a fault": "/runs?within=nowhere&label=team:icu",
    "planner": f"/planner?{BY_BATCH}",
    "planner with a fault": f"/planner?noise=0&{BY_BATCH}",
    "decisions": "/decisions",
    "decisions with a fault": "/decisions?account=nobody",
    "decision": "/decisions/{refused}/{position}",
    "audit, verified": "/audit?verify=true",
    "audit without a match": "/audit?action=nothing",
    "audit with a fault": "/audit?since=x",
    "approvals": "/approvals?account=mimic/icu-team",
    "policies": "/policies?account=imaging/segmentation",
    "policies of the organisation": "/policies",
    "experiments": "/experiments",
    "keys": "/keys",
    "alerts": "/alerts?account=mimic",
    "nowhere": "/nowhere",
    "description of the API": "/docs",
}
"""The address of every page, in those of its states that look differently; braces name ids of the hospital."""

OPENED: Final = {
    "create a population": ("/", "text=Create a population"),
    "create a child budget": ("/accounts/{imaging}", "text=Create a child budget"),
    "details of a population": ("/accounts/{mimic}", "text=Rename, edit details or archive"),
    "a chart's table": ("/accounts/{imaging}", "text=Show as a table"),
    "register a run": ("/accounts/{mimic/icu-team}", "text=Register a run"),
    "details of a run": ("/runs/{refused}", "text=Rename, edit details or archive"),
    "confirm an approval": ("/approvals", "button:has-text('Approve')"),
    "create a key": ("/keys", "button:text-is('Create a key')"),
    "change a key": ("/keys", "summary:has-text('Change')"),
    "disable a receiver": ("/alerts", "button:has-text('Disable')"),
    "details of an audit entry": ("/audit", "#acts summary"),
}
"""Parts of pages that open: the page, and what is clicked there."""


def hindrances(page: Page) -> list[str]:
    """What keeps somebody from using a page as it is now."""
    for canvas in page.locator("figure .canvas:not([hidden]) canvas").all():
        expect(canvas).to_have_attribute("data-drawn", re.compile(r"\d+"))
    return faults_of(page) + (["it is wider than the screen"] if page.evaluate(OVERFLOWS) else [])


Pages = Callable[[int, Colours], Page]


@pytest.fixture(scope="module")
def signed_in_page(browser: Browser, server: LiveServer) -> Iterator[Pages]:
    """One page for all tests of a width and a theme."""
    opened: dict[tuple[int, Colours], Page] = {}

    def page_of(width: int, colours: Colours) -> Page:
        if (width, colours) not in opened:
            context = browser.new_context(color_scheme=colours, viewport={"width": width, "height": 800})
            page = opened[width, colours] = context.new_page()
            page.goto(f"{server.url}/sign-in")
            page.get_by_label("API key").fill(server.key("admin"))
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(f"{server.url}/")
        return opened[width, colours]

    yield page_of
    for page in opened.values():
        page.context.close()


@pytest.fixture(scope="module")
def names(server: LiveServer, hospital: Hospital) -> dict[str, str]:
    """What stands for the names in braces."""
    with server.client("viewer") as api:
        refused = api.get("/v1/decisions", params={"run": hospital.refused, "decision": "refused"}).json()["items"][0]
    return {**hospital.ids, "refused": hospital.refused, "position": str(refused["position"])}


def address(server: LiveServer, path: str, names: dict[str, str]) -> str:
    return server.url + re.sub(r"{([^}]+)}", lambda found: names[found[1]], path)


def _words(value: str | Look) -> str:
    return value if isinstance(value, str) else "-".join(map(str, value))


@pytest.mark.parametrize(("name", "look"), in_turns(PAGES, LOOKS), ids=_words)
def test_everybody_can_use_every_page(
    signed_in_page: Pages, server: LiveServer, names: dict[str, str], name: str, look: Look
) -> None:
    page = signed_in_page(*look)
    page.goto(address(server, PAGES[name], names))
    if PAGES[name] == "/docs":
        expect(page.locator(".opblock").first).to_be_visible()
    assert hindrances(page) == []


@pytest.mark.parametrize(("name", "look"), in_turns(OPENED, LOOKS), ids=_words)
def test_everybody_can_use_what_opens(
    signed_in_page: Pages, server: LiveServer, names: dict[str, str], name: str, look: Look
) -> None:
    page, (path, opener) = signed_in_page(*look), OPENED[name]
    page.goto(address(server, path, names))
    page.locator(opener).first.click()
    assert hindrances(page) == []


@pytest.mark.parametrize(("width", "colours"), thinned(LOOKS, 4))
def test_everybody_can_sign_in(browser: Browser, server: LiveServer, colours: Colours, width: int) -> None:
    context = browser.new_context(color_scheme=colours, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(f"{server.url}/sign-in")
    assert hindrances(page) == []
    context.close()
