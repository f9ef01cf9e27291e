"""Nothing is cut off: the navigation fits its line, and on a telephone times keep their zone."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.sample_hospital import Hospital
from tests.soak import thinned

LONG_NAME = "Dr. Katharina von Habsburg-Lothringen, Office of Data Protection"
LINE = 60
"""Pixels of a header with one line."""

CUT = """
[...document.querySelectorAll("table[role=table] time, .facts time, .facts .tag")].filter((each) => {
  const own = each.getBoundingClientRect(), box = each.closest("td, th, dd, .scroll").getBoundingClientRect();
  return own.width && (own.right > box.right + 1 || own.right > document.documentElement.clientWidth);
}).map((each) => each.outerHTML)
"""


def _page(browser: Browser, server: LiveServer, role: str, width: int) -> Page:
    """A page whose key has a long name, in a zone with a name of its own."""
    with server.client("admin") as api:
        key = api.post("/v1/api-keys", json={"role": role, "name": LONG_NAME}).json()["key"]
    context = browser.new_context(viewport={"width": width, "height": 800}, timezone_id="America/New_York")
    page = context.new_page()
    page.goto(f"{server.url}/sign-in")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{server.url}/")
    return page


@pytest.mark.parametrize("role", ["admin", "privacy_officer"])
def test_the_navigation_is_one_line_at_1280_pixels(browser: Browser, changing: LiveServer, role: str) -> None:
    page = _page(browser, changing, role, 1280)
    expect(page.locator("#nav-approvals .badge")).to_be_visible()
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    assert {"Runs", "Experiments", "Approvals", "Alerts"} <= {
        re.split(r"\s", each)[0] for each in links.all_inner_texts()
    }
    assert page.evaluate("document.querySelector('.top').offsetHeight") < LINE
    name = page.locator(".who .actor")
    expect(name).to_have_attribute("title", re.compile(rf"^{re.escape(LONG_NAME)}, key_"))
    assert name.evaluate("each => each.offsetWidth") > LINE, "enough of the name is there"
    expect(page.get_by_role("button", name="Sign out", exact=True)).to_be_in_viewport(ratio=1)
    page.context.close()


@pytest.fixture(scope="module")
def telephone(browser: Browser, changing: LiveServer) -> Iterator[Page]:
    page = _page(browser, changing, "admin", 400)
    yield page
    page.context.close()


def test_every_page_is_reached_on_a_telephone(telephone: Page, changing: LiveServer) -> None:
    telephone.goto(changing.url)
    for link in telephone.get_by_role("navigation", name="Pages").get_by_role("link").all():
        expect(link).to_be_in_viewport(ratio=1)
    expect(telephone.get_by_role("heading", level=1)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize(
    "path", thinned(["/", "/runs", "/decisions", "/audit", "/keys", "/approvals", "{refused}", "{imaging}"], 3)
)
def test_times_keep_their_zone_on_a_telephone(
    telephone: Page, changing: LiveServer, hospital: Hospital, path: str
) -> None:
    known = {"{refused}": f"/runs/{hospital.refused}", "{imaging}": f"/accounts/{hospital.ids['imaging']}"}
    telephone.goto(changing.url + known.get(path, path))
    expect(telephone.locator("time").first).to_have_text(re.compile(r" E[SD]T$"))
    assert telephone.evaluate(CUT) == []
