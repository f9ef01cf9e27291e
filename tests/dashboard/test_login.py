"""Signing in and out: the cookie, where one goes then, and what other sites cannot do."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from app.api.session_cookies import COOKIE
from app.commands.first_admin import LINK_PATH
from app.dashboard.login import own_path
from app.service.auth import sessions
from app.service.keys.first_admin import create_sign_in_link
from tests.asgi import AppClient
from tests.conftest import Ledger, open_ledger

BY_TLS = f"__Host-{COOKIE}"


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger for tests that leave nothing in it but sessions."""
    with open_ledger(tmp_path_factory.mktemp("signing-in")) as ledger:
        yield ledger


@pytest.fixture
def http(clinic: Ledger) -> AppClient:
    return clinic.http.browser()


def _sign_in(client: AppClient, ledger: Ledger, role: str = "viewer", **fields: str) -> httpx2.Response:
    reply: httpx2.Response = client.post("/sign-in", data={"key": ledger.keys["hospital", role]} | fields)
    return reply


def _csrf(client: AppClient) -> str:
    (cookie,) = (each.value for each in client.cookies.jar if COOKIE in each.name)
    return sessions.csrf_token(str(cookie))


@pytest.mark.parametrize(("scheme", "name"), [("http", COOKIE), ("https", BY_TLS)])
def test_cookie_is_bound_to_host_and_hidden_from_scripts(clinic: Ledger, scheme: str, name: str) -> None:
    client = clinic.http.browser(f"{scheme}://ledger.example")
    reply = _sign_in(client, clinic)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    value, *attributes = reply.headers.get_list("set-cookie")[0].split("; ")
    wanted = {"HttpOnly", "Path=/", "SameSite=lax"} | ({"Secure"} if scheme == "https" else set())
    assert set(attributes) == wanted  # no Domain, and no Max-Age: it ends with the browser
    assert value.startswith(f"{name}=ses_")
    for said in (reply.text, repr(reply.headers), client.get("/").text):
        assert clinic.keys["hospital", "viewer"] not in said
    assert client.get("/").status_code == 200


def test_sign_in_leads_back_to_the_page(clinic: Ledger, http: AppClient) -> None:
    reply = http.get("/approvals?account=mimic%2Ficu-team")
    assert reply.status_code == 303
    assert reply.headers["location"] == "/sign-in?next=%2Fapprovals%3Faccount%3Dmimic%252Ficu-team"
    form = http.get(reply.headers["location"])
    assert 'name="next" value="/approvals?account=mimic%2Ficu-team"' in form.text
    signed_in = _sign_in(http, clinic, next="/approvals?account=mimic%2Ficu-team")
    assert signed_in.headers["location"] == "/approvals?account=mimic%2Ficu-team"
    assert http.get("/approvals", headers={"X-Part": "page"}).status_code == 200
    http.cookies.clear()
    assert http.get("/approvals", headers={"X-Part": "page"}).status_code == 401


def test_foreign_address_is_not_followed_after_sign_in(clinic: Ledger, http: AppClient) -> None:
    for wanted in (
        *("https://evil.example/", "//evil.example/", "/\\evil.example/", "\\\\evil.example", "javascript:alert(1)"),
        *("evil.example", "", "/\tevil", "/\r\nSet-Cookie: a=b", "/%0d%0a\n", "\N{NO-BREAK SPACE}//evil.example"),
    ):
        assert own_path(wanted) == "/"
    assert _sign_in(http, clinic, next="//evil.example/").headers["location"] == "/"


TOKEN = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbmEifQ.c2lnbmF0dXJl"


def test_wrong_key_or_cookie_is_refused(http: AppClient) -> None:
    for key in ("", "nonsense", "key_nowhere.secret", "Bearer x.y", "ä", "key_0.\0", TOKEN):
        reply = http.post("/sign-in", data={"key": key})
        assert (reply.status_code, "set-cookie" in reply.headers) == (401, False), key
        assert 'role="alert"' in reply.text
        assert ("This is an access token" in reply.text) is (key == TOKEN)
    for cookie in ("x", "ses_nowhere.x", "ses_.", '"ses_\\000.x"', '"\\000"'):
        reply = http.get("/", headers={"Cookie": f"{COOKIE}={cookie}"})
        assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")


FOREIGN = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://ledger.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "https://ledger.example"},
    {"Origin": "http://ledger.example:8000"},
    {"Origin": "http://ledger.example.evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
)
"""What browsers send with a request of another site's page; without Fetch Metadata to a host that they do not trust."""
OWN = (
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
    {"Origin": "http://ledger.example"},
)


def test_sign_in_is_taken_from_own_pages_only(clinic: Ledger, http: AppClient) -> None:
    del http.headers["Origin"]
    for said in (*FOREIGN, {}, *OWN):
        reply = http.post("/sign-in", data={"key": clinic.keys["hospital", "admin"]}, headers=said)
        assert (reply.status_code, "set-cookie" in reply.headers) == ((303, True) if said in OWN else (403, False)), (
            said
        )
        http.cookies.clear()


def test_public_address_is_own_address(tmp_path: Path) -> None:
    """A proxy that does not say by which address it was asked."""
    with open_ledger(tmp_path, public_url="https://ledger.hospital.example") as ledger:
        http = ledger.http.browser()
        http.headers["Origin"] = "https://ledger.hospital.example"
        assert _sign_in(http, ledger).status_code == 303


def test_sign_out_by_another_site_is_refused(clinic: Ledger, http: AppClient) -> None:
    _sign_in(http, clinic)
    right = {"csrf": _csrf(http)}
    for said in FOREIGN:
        assert http.post("/sign-out", data=right, headers=said).status_code == 403, said
    for wrong in ({}, {"csrf": "x"}, {"csrf": "ä"}):
        assert http.post("/sign-out", data=wrong).status_code == 403
    assert http.get("/").status_code == 200
    assert http.post("/sign-out", data=right).status_code == 303


def test_sign_out_ends_the_session_and_its_cookie(clinic: Ledger, http: AppClient) -> None:
    _sign_in(http, clinic)
    kept = {"Cookie": f"{COOKIE}={http.cookies[COOKIE]}"}
    assert clinic.http.browser().get("/", headers=kept).status_code == 200
    reply = http.post("/sign-out", data={"csrf": _csrf(http)})
    assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")
    assert COOKIE not in http.cookies
    assert clinic.http.browser().get("/", headers=kept).status_code == 303
    assert http.post("/sign-out").status_code == 303  # twice is as good as once


def test_sign_out_everywhere_ends_other_sessions(clinic: Ledger, http: AppClient) -> None:
    left = clinic.http.browser()
    for client in (left, http):
        _sign_in(client, clinic, "auditor")
    assert "Sign out everywhere" in http.get("/").text
    wrong = {"csrf": _csrf(left), "everywhere": "yes"}
    assert http.post("/sign-out", data=wrong).status_code == 403
    assert http.post("/sign-out", data={"csrf": _csrf(http), "everywhere": "yes"}).status_code == 303
    assert left.get("/").status_code == 303


def test_malformed_form_is_refused(http: AppClient) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for content, status in ((b"key=\xff", 422), (b"a=b&" * 50, 422), (b"key=" + b"x" * (2 << 20), 413)):
        assert http.post("/sign-in", content=content, headers=headers).status_code == status


def test_link_is_used_up_by_sign_in_only(clinic: Ledger, http: AppClient) -> None:
    token = create_sign_in_link(clinic.database, "hospital", clinic.database.clock.now()).token
    for _ in range(2):
        shown = http.get(LINK_PATH)
        assert (shown.status_code, "set-cookie" in shown.headers) == (200, False)
    for said in (*FOREIGN, {}):
        stranger = clinic.http.browser()
        del stranger.headers["Origin"]
        reply = stranger.post(LINK_PATH, data={"token": token}, headers=said)
        assert (reply.status_code, "set-cookie" in reply.headers) == (403, False), said
    pasted = f" http://ledger.example{LINK_PATH}#{token}\n"
    reply = http.post(LINK_PATH, data={"token": pasted})
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    assert http.get("/keys").status_code == 200
    again = clinic.http.browser().post(LINK_PATH, data={"token": token})
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "sign-in-link --org" in again.text


def test_guessed_links_are_limited_like_keys(tmp_path: Path) -> None:
    with open_ledger(tmp_path, rate_limit_anonymous_per_second=0.001, rate_limit_sign_ins_per_minute=2) as ledger:
        http = ledger.http.browser()
        statuses = [http.post(LINK_PATH, data={"token": f"lnk_{number}.x"}).status_code for number in range(3)]
        assert statuses == [401, 429, 429]
