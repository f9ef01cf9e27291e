"""The page of a one-time sign-in link."""

from pathlib import Path

import pytest

from app.commands.first_admin import LINK_PATH
from app.service.governance.first_admin import create_sign_in_link
from tests.conftest import Ledger, open_ledger
from tests.dashboard.test_login import FOREIGN, browser


def _link(ledger: Ledger) -> str:
    return create_sign_in_link(ledger.database, "hospital", ledger.database.clock.now()).token


def test_link_is_used_up_by_sign_in_only(tmp_path: Path) -> None:
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


def test_pasted_link_is_taken(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        pasted = f" http://ledger.example{LINK_PATH}#{_link(ledger)}\n"
        assert browser(ledger).post(LINK_PATH, data={"token": pasted}).status_code == 303


@pytest.mark.parametrize("said", [*FOREIGN, {}], ids=str)
def test_link_sent_by_another_site_is_refused_and_stays(tmp_path: Path, said: dict[str, str]) -> None:
    with open_ledger(tmp_path) as ledger:
        token, http = _link(ledger), browser(ledger)
        del http.headers["Origin"]
        reply = http.post(LINK_PATH, data={"token": token}, headers=said)
        assert reply.status_code == 403
        assert "set-cookie" not in reply.headers
        assert browser(ledger).post(LINK_PATH, data={"token": token}).status_code == 303


def test_guessed_links_are_limited_like_keys(tmp_path: Path) -> None:
    with open_ledger(tmp_path, rate_limit_anonymous_per_second=0.001, rate_limit_sign_ins_per_minute=2) as ledger:
        http = browser(ledger)
        statuses = [http.post(LINK_PATH, data={"token": f"lnk_{number}.x"}).status_code for number in range(3)]
        assert statuses == [401, 429, 429]
