"""The description of the API follows the colours of the browser, from the first paint on."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.conftest import LiveServer
from tests.dashboard.page_actions import Colours

BRIGHTNESS = """
() => Math.max(...getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))
"""
FIRST = """
new MutationObserver(() => {
  if (document.body && globalThis.first === undefined)
    globalThis.first = document.documentElement.classList.contains("dark-mode");
}).observe(document, { childList: true, subtree: true });
"""
"""Notes how the page is when it gets its body: before that, nothing is painted."""


def open_docs(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/docs")
    expect(page.locator(".opblock").first).to_be_visible()


@pytest.mark.parametrize("colours", [pytest.param("light", marks=pytest.mark.soak), "dark"])
def test_it_has_the_colours_of_the_browser_at_once(browser: Browser, server: LiveServer, colours: Colours) -> None:
    context = browser.new_context(color_scheme=colours)
    context.add_init_script(FIRST)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    open_docs(page, server)
    assert page.evaluate("first") is (colours == "dark")
    if colours == "dark":
        assert page.evaluate(BRIGHTNESS) < 64
    assert complaints == []
    context.close()


def test_it_follows_when_the_colours_change(browser: Browser, server: LiveServer) -> None:
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    open_docs(page, server)
    html = page.locator("html")
    expect(html).not_to_have_class(re.compile("dark-mode"))
    page.emulate_media(color_scheme="dark")
    expect(html).to_have_class(re.compile("dark-mode"))
    assert page.evaluate(BRIGHTNESS) < 64
    context.close()
