"""What tests of several pages look for there."""

import re
from typing import Final, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

Colours = Literal["light", "dark"]
COLOURS: Final[tuple[Colours, ...]] = ("light", "dark")

AXE: Final = Axe().axe_script
"""A page that is to be looked at several times has it from the start: to hand it over takes as long as some looks."""

# Only what is wrong is handed over, and nothing loaded anew for two rules about what no page has: both take seconds.
AXE_OPTIONS: Final = "{resultTypes: ['violations'], preload: false, selectors: false}"

OVERFLOWS: Final = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def hindrances(page: Page) -> list[str]:
    """Find what hinders people from using a page, however little, with axe-core; and whether it is too wide."""
    for canvas in page.locator("figure .canvas:not([hidden]) canvas").all():
        expect(canvas).to_have_attribute("data-drawn", re.compile(r"\d+"))
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE)
    found = page.evaluate(f"axe.run({AXE_OPTIONS}).then(found => found.violations)")
    faults = [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]
    return faults + (["it is wider than the screen"] if page.evaluate(OVERFLOWS) else [])
