"""People sign in at their identity provider: there and back, and nobody in their place."""

import re
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from app.api.session_cookies import COOKIE, FLOW_COOKIE, RENEWED_COOKIE
from app.service.auth.oidc.authorization_code import LoginState
from tests.dashboard.conftest import SLOWEST
from tests.dashboard.oidc_flow import CLIENT, HOME, OidcFlow, refused
from tests.identity_provider import IdentityProvider, challenge_of, key_of, public
from tests.servers import LiveServer


def test_person_signs_in_as_provider_says(flow: OidcFlow) -> None:
    form = flow.browser.get("/sign-in?next=/approvals").text
    host = urlsplit(flow.provider.issuer).netloc
    assert f'href="/sign-in/openid?next=/approvals">Sign in with {host}</a>' in form
    asked = flow.begin()
    assert asked | {"state": "", "nonce": "", "code_challenge": ""} == {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": f"{HOME}/sign-in/openid/return",
        "scope": "openid",
        "state": "",
        "nonce": "",
        "code_challenge": "",
        "code_challenge_method": "S256",
    }
    reply = flow.browser.get(flow.back(asked))
    assert (reply.status_code, reply.headers["location"]) == (303, "/approvals")
    page = flow.browser.get("/approvals")
    assert "oidc:marie" in page.text
    assert "privacy officer" in page.text
    (audit_event,) = flow.ledger.get("/v1/audit-events?order=oldest&action=session.created", "auditor").json()["items"]
    assert audit_event["actor"] == "oidc:marie"
    lasting = datetime.fromisoformat(audit_event["after"]["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=55) < lasting <= timedelta(minutes=60)


def test_person_signs_in_from_address_that_no_cookie_holds(flow: OidcFlow) -> None:
    near = "/runs?q=" + "x" * 2000
    for wanted in (near, "/" + "x" * 3999, "/" + "\N{HOT BEVERAGE}" * 999, "/" + "x" * 5000):
        asked = flow.begin(f"/sign-in/openid?{urlencode({'next': wanted})}")
        reply = flow.browser.get(flow.back(asked))
        assert (reply.status_code, reply.headers["location"]) == (303, wanted if wanted == near else "/")
        assert flow.browser.get(f"/sign-in?{urlencode({'next': wanted})}").status_code == 200


def test_state_of_sign_in_is_bound_to_browser_and_removed_afterwards(flow: OidcFlow) -> None:
    reply = flow.browser.get("/sign-in/openid")
    attributes = set(reply.headers["set-cookie"].split("; ")[1:])
    assert attributes == {"HttpOnly", "Max-Age=600", "Path=/", "SameSite=lax"}
    asked = dict(parse_qsl(urlsplit(reply.headers["location"]).query))
    state = LoginState.from_cookie(flow.browser.cookies[FLOW_COOKIE])
    assert state is not None
    assert state.verifier not in reply.headers["location"]
    assert len({state.state, state.nonce, state.verifier}) == 3
    flow.browser.get(flow.back(asked))
    assert FLOW_COOKIE not in flow.browser.cookies
    by_tls = flow.browser.get("https://ledger.example/sign-in/openid")
    assert by_tls.headers["set-cookie"].startswith(f"__Host-{FLOW_COOKIE}=")
    assert "Secure" in by_tls.headers["set-cookie"]


def test_answer_to_another_sign_in_is_refused(flow: OidcFlow) -> None:
    """Login CSRF: an attacker's answer is opened in a browser that began no sign-in, or another one."""
    for state in (None, "", "another", "ä"):
        refused(flow, flow.come_back(state=state), "was not begun in this browser")
    refused(flow, flow.come_back(iss="https://evil.example"), "from another identity provider")
    assert flow.provider.redeemed == []
    attacker = OidcFlow(flow.ledger, flow.provider)
    link = attacker.back(attacker.begin())
    refused(flow, flow.browser.get(link), "was not begun in this browser")
    flow.begin()
    refused(flow, flow.browser.get(link), "was not begun in this browser")


def test_answer_is_taken_once(flow: OidcFlow) -> None:
    link = flow.back(flow.begin())
    assert flow.browser.get(link).status_code == 303
    flow.browser.cookies.clear()
    refused(flow, flow.browser.get(link), "was not begun in this browser")
    assert len(flow.provider.redeemed) == 1
    link = flow.back(flow.begin())
    flow.provider.codes.clear()
    refused(flow, flow.browser.get(link), "did not take its own code")


def test_login_opens_one_session_even_with_another_code(flow: OidcFlow) -> None:
    asked = flow.begin()
    kept = flow.browser.cookies[FLOW_COOKIE]
    assert flow.browser.get(flow.back(asked)).status_code == 303
    for _ in range(2):
        flow.browser.cookies.clear()
        flow.browser.cookies.set(FLOW_COOKIE, kept)
        again = flow.browser.get(flow.back(asked))
        assert (again.status_code, COOKIE in again.cookies, "used already" in again.text) == (401, False, True)


WRONG: tuple[tuple[Mapping[str, object], str], ...] = (
    *(({"nonce": nonce}, "belongs to another sign-in") for nonce in ("another", None, 7)),
    ({"aud": "another-client"}, "made out to another audience"),
    ({"aud": [CLIENT, "another"]}, "made out to another service"),
    ({"aud": [CLIENT, "another"], "azp": "another"}, "made out to another service"),
    ({"azp": "another"}, "made out to another service"),
    ({"iss": "https://evil.example"}, "another issuer"),
    ({"exp": 1}, "has expired"),
    ({"exp": None}, "needs `exp`"),
    ({"groups": ["visitors"]}, "None of the groups"),
    ({"sub": None}, "is missing, too long or not readable"),
)
"""What a token says, and why it is refused."""


def test_token_for_another_purpose_is_refused(flow: OidcFlow) -> None:
    for said, words in WRONG:
        flow.provider.said = dict(said)
        refused(flow, flow.come_back(), words)
    flow.provider.said = {}
    for kind, status in (("at+jwt", 401), (None, 303), ("JWT", 303)):
        flow.provider.headed = {"typ": kind}
        assert flow.come_back().status_code == status
    flow.browser.cookies.clear()
    flow.provider.published = [public(key_of("RS256", 9), kid="RS256-0", use="sig")]
    flow.ledger.http.app.state.keys.oidc.jwks._fetch()
    refused(flow, flow.come_back(), "not signed by a key of the identity provider")


def test_error_of_provider_is_named(flow: OidcFlow) -> None:
    for error, description, words in (
        ("access_denied", None, "was declined"),
        ("access_denied", "Ask the desk.", "It says: Ask the desk."),
        ("server_error", None, "has failed"),
        ("odd<b>", None, "answered &#39;odd&lt;b&gt;&#39;"),
        ("access_denied", "<script>", "&lt;script&gt;"),
    ):
        flow.provider.answered = {"error": error} | ({"error_description": description} if description else {})
        refused(flow, flow.browser.get(flow.back(flow.begin())), words)
    strange = flow.browser.get("/sign-in/openid/return?error=access_denied&error_description=Call+a+stranger&state=x")
    assert strange.status_code == 401
    assert "Call a stranger" not in strange.text, "words of strangers are not shown"


def test_foreign_address_is_not_followed_after_oidc_sign_in(flow: OidcFlow) -> None:
    wanted = "//evil.example"
    asked = flow.begin(f"/sign-in/openid?{urlencode({'next': wanted})}")
    assert flow.browser.get(flow.back(asked)).headers["location"] == "/"
    forged = LoginState.begin(wanted, silent=False)  # as if the cookie were another one's work
    flow.browser.cookies.set(FLOW_COOKIE, forged.to_cookie())
    shown = {"nonce": forged.nonce, "code_challenge": challenge_of(forged.verifier)}
    flow.provider.codes["code"] = asked | shown
    reply = flow.browser.get(f"/sign-in/openid/return?code=code&state={forged.state}")
    assert (reply.status_code, reply.headers["location"]) == (303, "/")


def test_malformed_state_cookie_is_no_state() -> None:
    for cookie in ("", "x", "e30", "bnVsbA", "W10", "a" * 5000, "eyJzdGF0ZSI6MX0"):
        assert LoginState.from_cookie(cookie) is None
    state = LoginState("s", "n", "v", "/approvals?account=ü", silent=True)
    assert LoginState.from_cookie(state.to_cookie()) == state


def end_session(flow: OidcFlow) -> str:
    """Let the session end, and return where the person is sent then."""
    flow.browser.cookies.delete(COOKIE)
    return str(flow.browser.get("/approvals?account=mimic").headers["location"])


def test_ended_session_is_renewed_silently(flow: OidcFlow) -> None:
    flow.come_back()
    location = end_session(flow)
    assert location == "/sign-in/openid?silent=true&next=%2Fapprovals%3Faccount%3Dmimic"
    asked = flow.begin(location)
    assert asked["prompt"] == "none"
    assert flow.browser.get(flow.back(asked)).headers["location"] == "/approvals?account=mimic"


def test_refused_renewal_leads_to_sign_in_once(flow: OidcFlow) -> None:
    flow.come_back()
    flow.provider.known = False
    reply = flow.browser.get(flow.back(flow.begin(end_session(flow))))
    assert reply.status_code == 200
    assert "Sign in with" in reply.text
    assert 'role="alert"' not in reply.text
    assert RENEWED_COOKIE not in flow.browser.cookies
    assert flow.browser.get("/").headers["location"] == "/sign-in"


def test_session_is_not_renewed_after_sign_out_or_sign_in_with_a_key(flow: OidcFlow) -> None:
    flow.come_back()
    csrf = re.findall(r'name="csrf" value="(\w+)"', flow.browser.get("/approvals").text)[0]
    assert flow.browser.post("/sign-out", data={"csrf": csrf}).status_code == 303
    assert flow.browser.get("/").headers["location"] == "/sign-in"
    flow.come_back()
    assert flow.browser.post("/sign-in", data={"key": flow.ledger.keys["hospital", "viewer"]}).status_code == 303
    flow.browser.cookies.delete(COOKIE)
    assert flow.browser.get("/").headers["location"] == "/sign-in"


def test_oidc_session_is_renewed_in_a_real_browser(
    browser: Browser, provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in provider.settings(oidc_client_id=CLIENT).items():
        monkeypatch.setenv(f"EPSILON_LEDGER_{name.upper()}", str(value))
    server = LiveServer(tmp_path)
    server.key("viewer")
    with server, closing(browser.new_context().new_page()) as page:
        page.set_default_timeout(SLOWEST)
        page.goto(f"{server.url}/approvals")
        page.get_by_role("link", name="Sign in with").click()
        page.wait_for_url(f"{server.url}/approvals")
        person = page.locator("header").get_by_title("oidc:marie")
        expect(person).to_have_text("marie")
        expect(page.locator("header")).to_contain_text("privacy officer")
        page.context.clear_cookies(name=COOKIE)
        page.goto(f"{server.url}/policies")
        page.wait_for_url(f"{server.url}/policies")
        expect(person).to_have_text("marie")
        assert parse_qs(urlsplit([each for each in provider.asked if "authorize" in each][-1]).query)["prompt"] == [
            "none"
        ]
        page.get_by_role("button", name="Sign out", exact=True).click()
        page.goto(f"{server.url}/policies")
        expect(page.get_by_role("link", name="Sign in with")).to_be_visible()
