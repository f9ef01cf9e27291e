"""Signing in and out: the cookie, where one goes then, and what other sites cannot do."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest

from app.api.session_cookies import COOKIE
from app.dashboard.login import own_path
from app.service.auth import sessions
from app.settings import Settings
from tests.asgi import AppClient
from tests.conftest import Ledger, open_ledger
from tests.ledgers import quiet_app

BY_TLS = f"__Host-{COOKIE}"


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger for tests that leave nothing in it but sessions."""
    with open_ledger(tmp_path_factory.mktemp("signing-in")) as ledger:
        yield ledger


def browser(ledger: Ledger, scheme: str = "http") -> AppClient:
    """A browser of its own at the same application, which follows no redirects."""
    url = f"{scheme}://ledger.example"
    client = AppClient(ledger.http.app, url, portal=ledger.http.portal, follow_redirects=False)
    client.headers["Origin"] = f"{scheme}://ledger.example"
    return client


@pytest.fixture
def http(clinic: Ledger) -> AppClient:
    return browser(clinic)


def _sign_in(client: AppClient, ledger: Ledger, role: str = "viewer", **fields: str) -> httpx2.Response:
    reply: httpx2.Response = client.post("/sign-in", data={"key": ledger.keys["hospital", role]} | fields)
    return reply


def _csrf(client: AppClient) -> str:
    (cookie,) = (each.value for each in client.cookies.jar if COOKIE in each.name)
    return sessions.csrf_token(str(cookie))


@pytest.mark.parametrize(("scheme", "name"), [("http", COOKIE), ("https", BY_TLS)])
def test_the_cookie_is_for_this_host_and_for_no_script(clinic: Ledger, scheme: str, name: str) -> None:
    client = browser(clinic, scheme)
    reply = _sign_in(client, clinic)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    value, *attributes = reply.headers.get_list("set-cookie")[0].split("; ")
    wanted = {"HttpOnly", "Path=/", "SameSite=lax"} | ({"Secure"} if scheme == "https" else set())
    assert set(attributes) == wanted  # no Domain, and no Max-Age: it ends with the browser
    assert value.startswith(f"{name}=ses_")
    assert client.get("/").status_code == 200


def test_the_key_stands_on_no_page_and_in_no_address(clinic: Ledger, http: AppClient) -> None:
    reply = _sign_in(http, clinic)
    key = clinic.keys["hospital", "viewer"]
    assert key not in reply.text
    assert key not in repr(reply.headers)
    assert key not in http.get("/").text


def test_a_page_asks_who_is_there_and_leads_back(clinic: Ledger, http: AppClient) -> None:
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


@pytest.mark.parametrize(
    "wanted",
    [
        *("https://evil.example/", "//evil.example/", "/\\evil.example/", "\\\\evil.example", "javascript:alert(1)"),
        *("evil.example", "", "/\tevil", "/\r\nSet-Cookie: a=b", "/%0d%0a\n", "\N{NO-BREAK SPACE}//evil.example"),
    ],
)
def test_nobody_is_led_elsewhere(clinic: Ledger, http: AppClient, wanted: str) -> None:
    assert own_path(wanted) == "/"
    assert _sign_in(http, clinic, next=wanted).headers["location"] == "/"


@pytest.mark.parametrize("key", ["", "nonsense", "key_nowhere.secret", "Bearer x.y", "ä", "key_0.\0"])
def test_a_wrong_key_is_told_and_gives_no_cookie(http: AppClient, key: str) -> None:
    reply = http.post("/sign-in", data={"key": key})
    assert reply.status_code == 401
    assert 'role="alert"' in reply.text
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("cookie", ["x", "ses_nowhere.x", "ses_.", '"ses_\\000.x"', '"\\000"'])
def test_a_wrong_cookie_leads_to_the_sign_in(http: AppClient, cookie: str) -> None:
    reply = http.get("/", headers={"Cookie": f"{COOKIE}={cookie}"})
    assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")


def test_a_token_is_not_taken_for_a_key(http: AppClient) -> None:
    reply = http.post("/sign-in", data={"key": "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbmEifQ.c2lnbmF0dXJl"})
    assert reply.status_code == 401
    assert "This is an access token" in reply.text
    assert "set-cookie" not in reply.headers


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


@pytest.mark.parametrize("said", [*FOREIGN, {}], ids=str)
def test_another_site_signs_nobody_in(clinic: Ledger, http: AppClient, said: dict[str, str]) -> None:
    del http.headers["Origin"]
    reply = http.post("/sign-in", data={"key": clinic.keys["hospital", "admin"]}, headers=said)
    assert reply.status_code == 403
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    "said",
    [
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
        {"Origin": "http://ledger.example"},
    ],
    ids=str,
)
def test_our_own_page_signs_in(clinic: Ledger, http: AppClient, said: dict[str, str]) -> None:
    del http.headers["Origin"]
    assert http.post("/sign-in", data={"key": clinic.keys["hospital", "admin"]}, headers=said).status_code == 303


def test_the_address_that_people_know_is_our_own(tmp_path: Path) -> None:
    """A proxy that does not say by which address it was asked."""
    with open_ledger(tmp_path, public_url="https://ledger.hospital.example") as ledger:
        http = browser(ledger)
        http.headers["Origin"] = "https://ledger.hospital.example"
        assert _sign_in(http, ledger).status_code == 303


def test_another_site_signs_nobody_out(clinic: Ledger, http: AppClient) -> None:
    _sign_in(http, clinic)
    right = {"csrf": _csrf(http)}
    for said in FOREIGN:
        assert http.post("/sign-out", data=right, headers=said).status_code == 403, said
    for wrong in ({}, {"csrf": "x"}, {"csrf": "ä"}):
        assert http.post("/sign-out", data=wrong).status_code == 403
    assert http.get("/").status_code == 200
    assert http.post("/sign-out", data=right).status_code == 303


def test_signing_out_ends_the_session_and_not_only_the_cookie(clinic: Ledger, http: AppClient) -> None:
    _sign_in(http, clinic)
    kept = {"Cookie": f"{COOKIE}={http.cookies[COOKIE]}"}
    assert browser(clinic).get("/", headers=kept).status_code == 200
    reply = http.post("/sign-out", data={"csrf": _csrf(http)})
    assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")
    assert COOKIE not in http.cookies
    assert browser(clinic).get("/", headers=kept).status_code == 303
    assert http.post("/sign-out").status_code == 303  # twice is as good as once


def test_signing_out_everywhere_ends_what_was_left_open_elsewhere(clinic: Ledger, http: AppClient) -> None:
    left = browser(clinic)
    for client in (left, http):
        _sign_in(client, clinic, "auditor")
    assert "Sign out everywhere" in http.get("/").text
    wrong = {"csrf": _csrf(left), "everywhere": "yes"}
    assert http.post("/sign-out", data=wrong).status_code == 403
    assert http.post("/sign-out", data={"csrf": _csrf(http), "everywhere": "yes"}).status_code == 303
    _until(lambda: left.get("/").status_code == 303)


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"key=\xff", 422), (b"&".join(b"a=b" for _ in range(50)), 422), (b"key=" + b"x" * (2 << 20), 413)],
)
def test_what_is_no_form_is_told_and_opens_nothing(http: AppClient, content: bytes, status: int) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.post("/sign-in", content=content, headers=headers).status_code == status


def test_pages_load_nothing_from_elsewhere_and_are_kept_nowhere(clinic: Ledger, http: AppClient) -> None:
    _sign_in(http, clinic)
    for path in ("/", "/approvals", "/policies", "/sign-in", "/keys"):
        headers = http.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-frame-options"] == "DENY"
        assert "Cookie" in headers["vary"]


def _until(what: Callable[[], bool]) -> None:
    until = datetime.now(UTC) + timedelta(seconds=20)
    while not what():
        assert datetime.now(UTC) < until
        time.sleep(0.05)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[Ledger, AppClient]]:
    """A ledger, and a browser at another replica of the same service."""
    with open_ledger(tmp_path) as ledger:
        app = quiet_app(Settings(database_url=f"sqlite:///{tmp_path / 'ledger.db'}"))
        with AppClient(app, base_url="http://ledger.example", follow_redirects=False) as other:
            yield ledger, other


def test_who_signs_out_is_signed_out_on_every_replica(replicas: tuple[Ledger, AppClient]) -> None:
    ledger, other = replicas
    client = browser(ledger)
    _sign_in(client, ledger)
    kept = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    assert other.get("/", headers=kept).status_code == 200
    client.post("/sign-out", data={"csrf": _csrf(client)})
    _until(lambda: other.get("/", headers=kept).status_code == 303)


def test_a_revoked_key_ends_its_sessions_on_every_replica(replicas: tuple[Ledger, AppClient]) -> None:
    ledger, other = replicas
    client = browser(ledger)
    _sign_in(client, ledger, "planner")
    kept = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    assert other.get("/", headers=kept).status_code == 200
    key_id = ledger.keys["hospital", "planner"].partition(".")[0]
    assert ledger.post(f"/v1/api-keys/{key_id}/revoke", {}).status_code == 200
    _until(lambda: other.get("/", headers=kept).status_code == 303)
    _until(lambda: client.get("/").status_code == 303)
