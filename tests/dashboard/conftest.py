"""What the tests of the pages share: a hospital in the middle of its work, a server, and a browser."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser import NoBrowserError, browsing
from tests.conftest import LiveServer, open_ledger
from tests.dashboard.oidc_flow import OidcFlow, new_flow, settings_of
from tests.dashboard.sample_hospital import Hospital, build
from tests.identity_provider import IdentityProvider, identity_provider

NO_BROWSER = "needs a browser"

expect.set_options(timeout=20_000)  # what is expected comes at once, on a machine that has nothing else to do


@pytest.fixture(scope="session")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """One for all tests that leave it as it is."""
    return build(tmp_path_factory.mktemp("hospital"))


@pytest.fixture(scope="session")
def server(hospital: Hospital) -> Iterator[LiveServer]:
    """A server process on that hospital."""
    server = serving(hospital)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def changing(hospital: Hospital, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server on a copy of the hospital, in which something may happen."""
    folder = tmp_path_factory.mktemp("changing") / "hospital"
    copytree(hospital.folder, folder, ignore=lambda _, names: [name for name in names if name.endswith(".log")])
    server = serving(Hospital(folder, hospital.keys, hospital.ids))
    yield server
    server.stop()


def serving(hospital: Hospital) -> LiveServer:
    """A server process on a hospital's file, which knows its keys."""
    server = LiveServer(hospital.folder, hospital.database_url)
    server.keys |= {f"{organisation}/{role}": key for (organisation, role), key in hospital.keys.items()}
    server.start()
    return server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser; in CI its absence is a failure.

    For a module and no longer: while Playwright drives one, this thread has a running event loop, and tests of others
    that begin one of their own fail.
    """
    try:
        with browsing() as browser:
            yield browser
    except NoBrowserError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{NO_BROWSER}: {error}", pytrace=False)
        pytest.skip(f"{NO_BROWSER}: {error}")


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page of its own whose scripts, styles and requests must not fail, and which asks no other host."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    yield page
    assert complaints == []


SignIn = Callable[[Page, LiveServer, str], None]


@pytest.fixture
def sign_in() -> SignIn:
    """Sign in as a role on a server."""

    def sign_in(page: Page, server: LiveServer, role: str) -> None:
        page.goto(f"{server.url}/sign-in")
        page.get_by_label("API key").fill(server.key(role))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{server.url}/")

    return sign_in


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def flow(tmp_path: Path, provider: IdentityProvider) -> Iterator[OidcFlow]:
    with open_ledger(tmp_path, **settings_of(provider)) as ledger:
        provider.wait_for(ledger)  # while the keys are fetched for the first time, people are told to wait
        yield new_flow(ledger, provider)
