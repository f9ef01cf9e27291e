"""Everybody can use every page: with a screen reader, with the keyboard, on a telephone, by day and by night."""

import re
from itertools import product

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.conftest import SignIn
from tests.dashboard.page_actions import COLOURS, Colours, faults_of
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned

OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
BY_BATCH = "sampling=batch&batch=64&size=6400"


def states_of(hospital: Hospital, refusal: str) -> dict[str, str]:
    """The address of every page, in those of its states that look differently, by a name."""
    return {
        "overview": "/",
        "population": f"/accounts/{hospital.ids['imaging']}",
        "run": f"/runs/{hospital.refused}",
        "planner": f"/planner?{BY_BATCH}",
        "planner with a fault": f"/planner?noise=0&{BY_BATCH}",
        "decisions": "/decisions",
        "decisions with a fault": "/decisions?account=nobody",
        "decision": refusal,
        "audit, verified": "/audit?verify=true",
        "audit without a match": "/audit?action=nothing",
        "audit with a fault": "/audit?since=x",
        "approvals": "/approvals?account=mimic/icu-team",
        "policies": "/policies?account=imaging/segmentation",
        "keys": "/keys",
        "alerts": "/alerts?account=mimic",
        "nowhere": "/nowhere",
    }


def hindrances(page: Page) -> list[str]:
    """What keeps somebody from using a page as it is now."""
    return faults_of(page) + (["it is wider than the screen"] if page.evaluate(OVERFLOWS) else [])


@pytest.mark.parametrize(("width", "colours"), thinned(list(product((390, 1280), COLOURS)), 4))
def test_everybody_can_use_every_page(
    browser: Browser, server: LiveServer, hospital: Hospital, sign_in: SignIn, colours: Colours, width: int
) -> None:
    context = browser.new_context(color_scheme=colours, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(f"{server.url}/sign-in")
    found = {"sign-in": hindrances(page)}
    sign_in(page, server, "admin")
    with server.client("viewer") as api:
        refused = api.get("/v1/decisions", params={"run": hospital.refused, "decision": "refused"}).json()["items"][0]
    for name, path in states_of(hospital, f"/decisions/{hospital.refused}/{refused['position']}").items():
        page.goto(f"{server.url}{path}")
        for canvas in page.locator("figure .canvas:not([hidden]) canvas").all():
            expect(canvas).to_have_attribute("data-drawn", re.compile(r"\d+"))
        found[name] = hindrances(page)
    for path, opener in (
        ("/", page.get_by_text("Create a population", exact=True)),
        (f"/accounts/{hospital.ids['imaging']}", page.get_by_text("Create a child budget", exact=True)),
        ("/keys", page.get_by_role("button", name="Create a key")),
        ("/alerts", page.get_by_role("button", name="Disable")),
    ):
        page.goto(f"{server.url}{path}")
        opener.click()
        found[f"{path}, opened"] = hindrances(page)
    context.close()
    assert {name: each for name, each in found.items() if each} == {}
