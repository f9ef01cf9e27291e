"""What the tests of the pages share: a hospital in the middle of its work, a server, and a browser."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from app.api.session_cookies import COOKIE
from tests.browser import NoBrowserError, browsing
from tests.conftest import Ledger, LiveServer, open_ledger, signing_key
from tests.dashboard.oidc_flow import OidcFlow, open_flow
from tests.dashboard.sample_hospital import Hospital, build
from tests.identity_provider import IdentityProvider, identity_provider

SLOWEST = 120_000
"""Milliseconds: what is waited for comes at once, on a machine that has nothing else to do."""
expect.set_options(timeout=SLOWEST)


@pytest.fixture(scope="session")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """One for all tests, which take copies of it."""
    return build(tmp_path_factory.mktemp("hospital"))


@pytest.fixture(scope="module")
def sample(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """The hospital in an application in this process, for tests that change nothing that others count."""
    with open_ledger(hospital.copy(tmp_path_factory.mktemp("sample")).folder) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def own_sample(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Another one, for tests that change it, each something else."""
    with open_ledger(hospital.copy(tmp_path_factory.mktemp("own")).folder) as ledger:
        yield ledger


@pytest.fixture(scope="package")
def server(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server process on the hospital, for tests that need a browser; each makes what it changes."""
    with server_of(hospital.copy(tmp_path_factory.mktemp("server"))) as server:
        yield server


def server_of(hospital: Hospital) -> LiveServer:
    """A server of a hospital's file that knows its keys, and is not started."""
    signs = {"EPSILON_LEDGER_SIGNING_KEY_FILE": str(signing_key()[0])}
    server = LiveServer(hospital.folder, environment=signs)
    server.keys |= {f"{organisation}/{role}": key for (organisation, role), key in hospital.keys.items()}
    return server


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A real browser, no longer than a package: tests of others begin an event loop of their own in this thread."""
    try:
        with browsing() as browser:
            yield browser
    except NoBrowserError as error:
        if os.environ.get("CI"):
            pytest.fail(f"needs a browser: {error}", pytrace=False)
        pytest.skip(f"needs a browser: {error}")


Enter = Callable[..., Page]
"""Open a page for a role in a browser of its own: `role`, `path`, and options as of `watched_page`."""


@contextmanager
def watched_page(browser: Browser, *, fails: bool = False, **options: Any) -> Iterator[Page]:  # noqa: ANN401
    """A page whose scripts, styles and requests must not fail; requests may, if it `fails`."""
    context = browser.new_context(**options)
    context.set_default_timeout(SLOWEST)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" and not fails else None)
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with watched_page(browser) as page:
        yield page


@pytest.fixture
def enter(browser: Browser, server: LiveServer) -> Iterator[Enter]:
    with ExitStack() as opened:

        def enter(role: str, path: str = "/", *, fails: bool = False, **options: Any) -> Page:  # noqa: ANN401
            page = opened.enter_context(watched_page(browser, fails=fails, **options))
            if role:
                page.context.add_cookies([session_cookie(server, role)])
            page.goto(server.url + path)
            return page

        yield enter


def session_cookie(server: LiveServer, role: str) -> Any:  # noqa: ANN401 - a private type of Playwright's
    """Sign in without a browser, and return what a browser would keep."""
    with httpx2.Client(base_url=server.url, headers={"Origin": server.url}, trust_env=False, timeout=60) as client:
        assert client.post("/sign-in", data={"key": server.key(role)}).status_code == 303
        return {"name": COOKIE, "value": client.cookies[COOKIE], "url": server.url}


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def flow(tmp_path: Path, provider: IdentityProvider) -> Iterator[OidcFlow]:
    with open_flow(tmp_path, provider) as flow:
        yield flow
