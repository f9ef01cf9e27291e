"""The page of a one-time sign-in link."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from app.commands.first_admin import LINK_PATH
from app.service.governance.first_admin import create_sign_in_link
from tests.conftest import Ledger, LiveServer, open_ledger
from tests.dashboard.test_login import FOREIGN, browser
from tests.servers import INIT


def _link(ledger: Ledger) -> str:
    return create_sign_in_link(ledger.database, "hospital", ledger.database.clock.now()).token


def test_looking_at_a_link_does_not_use_it_up(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        token, http = _link(ledger), browser(ledger)
        for _ in range(3):
            shown = http.get(LINK_PATH)
            assert shown.status_code == 200
            assert "set-cookie" not in shown.headers
        reply = http.post(LINK_PATH, data={"token": token})
        assert (reply.status_code, reply.headers["location"]) == (303, "/")
        assert http.get("/keys").status_code == 200
        again = browser(ledger).post(LINK_PATH, data={"token": token})
        assert again.status_code == 401
        assert "sign-in-link --org" in again.text
        assert "set-cookie" not in again.headers


def test_a_whole_link_that_was_pasted_is_understood(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        pasted = f" http://ledger.example{LINK_PATH}#{_link(ledger)}\n"
        assert browser(ledger).post(LINK_PATH, data={"token": pasted}).status_code == 303


@pytest.mark.parametrize("said", [*FOREIGN, {}], ids=str)
def test_a_page_of_another_site_signs_nobody_in_and_the_link_stays(tmp_path: Path, said: dict[str, str]) -> None:
    with open_ledger(tmp_path) as ledger:
        token, http = _link(ledger), browser(ledger)
        del http.headers["Origin"]
        reply = http.post(LINK_PATH, data={"token": token}, headers=said)
        assert reply.status_code == 403
        assert "set-cookie" not in reply.headers
        assert browser(ledger).post(LINK_PATH, data={"token": token}).status_code == 303


def test_links_are_guessed_as_slowly_as_keys(tmp_path: Path) -> None:
    with open_ledger(tmp_path, rate_limit_anonymous_per_second=0.001, rate_limit_sign_ins_per_minute=2) as ledger:
        http = browser(ledger)
        statuses = [http.post(LINK_PATH, data={"token": f"lnk_{number}.x"}).status_code for number in range(3)]
        assert statuses == [401, 429, 429]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that was started on nothing, as a newcomer does."""
    server = LiveServer(tmp_path_factory.mktemp("empty"), environment={INIT: "true"})
    server.start()
    yield server
    server.stop()


def test_a_newcomer_opens_the_printed_link(page: Page, empty: LiveServer) -> None:
    [link] = [line.strip() for line in empty.log().splitlines() if LINK_PATH in line]
    token = link.partition("#")[2]
    page.goto(link)
    expect(page).to_have_url(f"{empty.url}{LINK_PATH}")  # the token is in no history
    page.get_by_role("button", name="Sign in as an admin").click()
    page.wait_for_url(f"{empty.url}/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert httpx2.get(f"{empty.url}/", trust_env=False).status_code == 303
    assert empty.log().count(token) == 1
