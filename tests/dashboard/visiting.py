"""What tests of several pages do there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import httpx2
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.conftest import LiveServer

Colours = Literal["light", "dark"]
COLOURS: Final[tuple[Colours, ...]] = ("light", "dark")


@contextmanager
def browser_client(
    server: LiveServer, role: str = "viewer", organisation: str = "hospital", *, key: str = ""
) -> Iterator[httpx2.Client]:
    """A client that is signed in as a browser is, without script: with the key of a role, or another one."""
    headers = {"Origin": server.url}
    with httpx2.Client(base_url=server.url, timeout=30, trust_env=False, headers=headers) as client:
        assert client.post("/sign-in", data={"key": key or server.key(role, organisation)}).status_code == 303
        yield client


def faults_of(page: Page) -> list[str]:
    """What keeps or hinders somebody from using a page, as axe-core finds it, however little."""
    page.evaluate(Axe().axe_script)
    # Only what is wrong is handed over: to write down all that is well takes as long as to look for both.
    found = page.evaluate("axe.run({resultTypes: ['violations']}).then(found => found.violations)")
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]
