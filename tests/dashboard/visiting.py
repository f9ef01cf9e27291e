"""What tests of several pages do there."""

from typing import Final, Literal

import httpx2
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.conftest import LiveServer

Colours = Literal["light", "dark"]
COLOURS: Final[tuple[Colours, ...]] = ("light", "dark")


def browser_client(server: LiveServer, role: str, organisation: str = "hospital") -> httpx2.Client:
    """A client that is signed in as a browser is, without script."""
    client = httpx2.Client(base_url=server.url, timeout=30, trust_env=False)
    assert client.post("/sign-in", data={"key": server.key(role, organisation)}).status_code == 303
    return client


def grave(page: Page) -> list[str]:
    """What keeps somebody from using a page, as axe-core finds it."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in {"serious", "critical"}]
