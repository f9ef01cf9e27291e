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

# Only what is wrong is handed over: to write down all that is well takes as long as to look for both. Nothing is loaded
# anew for the two rules that want it, of orientation locks, which is off by default, and of media, of which no page has
# any; and nobody reads axe-core's selectors.
AXE_OPTIONS: Final = "{resultTypes: ['violations'], preload: false, selectors: false}"


@contextmanager
def browser_client(
    server: LiveServer, role: str = "viewer", organisation: str = "hospital", *, key: str = ""
) -> Iterator[httpx2.Client]:
    """A client that is signed in as a browser is, without script: with the key of a role, or another one."""
    headers = {"Origin": server.url}
    with httpx2.Client(base_url=server.url, timeout=30, trust_env=False, headers=headers) as client:
        assert client.post("/sign-in", data={"key": key or server.key(role, organisation)}).status_code == 303
        yield client


@contextmanager
def scoped_client(server: LiveServer, role: str, scope: str) -> Iterator[httpx2.Client]:
    """A client that is signed in with a key of its own for an account, which is revoked afterwards.

    Other tests on the same server count the keys that there are.
    """
    with server.client("admin") as api:
        made = api.post("/v1/api-keys", json={"role": role, "scope": scope}).json()
        with browser_client(server, key=made["key"]) as client:
            yield client
        assert api.post(f"/v1/api-keys/{made['id']}/revoke").is_success


def faults_of(page: Page) -> list[str]:
    """What keeps or hinders somebody from using a page, as axe-core finds it, however little."""
    page.evaluate(Axe().axe_script)
    found = page.evaluate(f"axe.run({AXE_OPTIONS}).then(found => found.violations)")
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]
