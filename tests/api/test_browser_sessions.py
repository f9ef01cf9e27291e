"""The cookie of a session at the API: it opens what its key opens, and no other site can make use of it."""

from app.api.session_cookies import COOKIE, TOKEN_HEADER
from app.service.auth import sessions
from tests.api.conftest import SeededLedger
from tests.api.operations import GUARDED, READS, valid_body, valid_headers

UNSAFE = [operation for operation in GUARDED if operation.method != "GET"]


def _headers(cookie: str, **more: str) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={cookie}", **more}


def _with_token(cookie: str, **more: str) -> dict[str, str]:
    return _headers(cookie) | {TOKEN_HEADER: sessions.csrf_token(cookie)} | more


def test_request_of_a_foreign_page_changes_nothing(shared: SeededLedger) -> None:
    cookie, other = (shared.ledger.cookie() for _ in range(2))
    before = shared.rows()
    ways = {
        "no token": _headers(cookie),
        "an empty token": _headers(cookie) | {TOKEN_HEADER: ""},
        "the token of another session": _headers(cookie) | {TOKEN_HEADER: sessions.csrf_token(other)},
        "the cookie for a token": _headers(cookie) | {TOKEN_HEADER: cookie},
        "another site": _with_token(cookie) | {"Sec-Fetch-Site": "cross-site"},
        "a neighbour": _with_token(cookie) | {"Sec-Fetch-Site": "same-site"},
        "another site, which the browser says otherwise": _with_token(cookie) | {"Origin": "http://evil.example"},
        "a page that has no origin": _with_token(cookie) | {"Origin": "null"},
        "no token, and a form's type": _headers(cookie) | {"Content-Type": "text/plain"},
    }
    for operation in UNSAFE:
        path, body = operation.at(**shared.ids()), valid_body(operation)
        for name in ways if operation.id in {"authorizeSteps", "createRun"} else ("no token", "another site"):
            headers = valid_headers(operation) | ways[name]
            reply = shared.ledger.http.request(operation.method, path, json=body, headers=headers)
            assert (reply.status_code, reply.json()["code"]) == (403, "csrf_failed"), (operation.id, name)
    assert shared.rows() == before


def test_request_of_an_own_page_reaches_the_operation(shared: SeededLedger) -> None:
    cookie = shared.ledger.cookie("viewer")
    sites: tuple[dict[str, str], ...] = ({}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://testserver"})
    for place, operation in enumerate(UNSAFE):
        headers = valid_headers(operation) | _with_token(cookie) | sites[place % 3]
        path, body = operation.at(**shared.ids()), valid_body(operation)
        reply = shared.ledger.http.request(operation.method, path, json=body, headers=headers)
        assert (reply.status_code != 401, reply.json().get("code") != "csrf_failed") == (True, True), operation.id


def test_reading_takes_the_cookie_alone_before_which_a_key_in_the_header_counts(shared: SeededLedger) -> None:
    cookie = shared.ledger.cookie()
    for operation in READS[1::5]:
        path = operation.at(**shared.ids())
        assert shared.ledger.http.get(path, headers=_headers(cookie)).status_code == 200, operation.id
    assert shared.ledger.http.get("/v1/runs", headers=_headers("ses_nowhere.secret")).status_code == 401
    headers = _headers(shared.ledger.cookie("admin")) | shared.ledger.headers("viewer")
    assert shared.ledger.http.post("/v1/api-keys", json={"role": "viewer"}, headers=headers).status_code == 403
    headers["Authorization"] = "Bearer key_nowhere.x"
    assert shared.ledger.http.get("/v1/runs", headers=headers).status_code == 401


def test_session_is_no_key_and_opens_its_own_organisation_and_scheme_alone(shared: SeededLedger) -> None:
    cookie, key = shared.ledger.cookie(), shared.ledger.keys["hospital", "admin"]
    assert shared.ledger.http.get("/v1/runs", headers=_headers(cookie)).status_code == 200, "and is cached"
    for header in (f"Session {cookie}", f"Bearer {cookie}", cookie):
        assert shared.ledger.http.get("/v1/runs", headers={"Authorization": header}).status_code == 401, header
    assert shared.ledger.http.get("/v1/runs", headers=_headers(key)).status_code == 401
    headers = _headers(shared.ledger.cookie("admin", "clinic"))
    assert shared.ledger.http.get(f"/v1/runs/{shared.run}", headers=headers).status_code == 404
    assert shared.ledger.http.get("/v1/populations", headers=headers).json()["items"] == []
    cookie = shared.ledger.cookie()
    for name, status in ((COOKIE, 401), (f"__Host-{COOKIE}", 200)):
        headers = {"Cookie": f"{name}={cookie}"}
        reply = shared.ledger.http.get("https://testserver/v1/runs", headers=headers)
        assert reply.status_code == status, name
