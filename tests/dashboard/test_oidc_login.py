"""People sign in at their identity provider: there and back, and nobody in their place."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from app.api.session_cookies import COOKIE, FLOW_COOKIE, RENEWED_COOKIE
from app.service.auth.oidc.authorization_code import LoginState
from tests.conftest import LiveServer
from tests.dashboard.oidc_flow import CLIENT, HOME, OidcFlow, new_flow, refused, settings_of
from tests.identity_provider import IdentityProvider, challenge_of, key_of, public


def test_somebody_signs_in_there_and_is_who_the_provider_says(flow: OidcFlow) -> None:
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


def test_what_belongs_to_the_sign_in_is_for_this_browser_and_gone_afterwards(flow: OidcFlow) -> None:
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


def test_the_session_outlives_the_token_and_ends_by_itself(flow: OidcFlow) -> None:
    flow.come_back()
    (audit_event,) = flow.ledger.get("/v1/audit-events?order=oldest&action=session.created", "auditor").json()["items"]
    lasting = datetime.fromisoformat(audit_event["after"]["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=55) < lasting <= timedelta(minutes=60)


@pytest.mark.parametrize("state", [None, "", "another", "ä"])
def test_an_answer_that_this_browser_has_not_asked_for_is_not_taken(flow: OidcFlow, state: str | None) -> None:
    refused(flow, flow.come_back(state=state), "was not begun in this browser")
    assert flow.provider.redeemed == []


def test_nobody_is_signed_in_as_somebody_else_by_a_link(flow: OidcFlow) -> None:
    """Login CSRF: an attacker's answer is opened in a browser that began no sign-in, or another one."""
    attacker = new_flow(flow.ledger, flow.provider)
    link = attacker.back(attacker.begin())
    refused(flow, flow.browser.get(link), "was not begun in this browser")
    flow.begin()
    refused(flow, flow.browser.get(link), "was not begun in this browser")


def test_an_answer_is_taken_once(flow: OidcFlow) -> None:
    link = flow.back(flow.begin())
    assert flow.browser.get(link).status_code == 303
    flow.browser.cookies.clear()
    refused(flow, flow.browser.get(link), "was not begun in this browser")
    assert len(flow.provider.redeemed) == 1


def test_a_code_that_was_redeemed_is_told_in_words(flow: OidcFlow) -> None:
    link = flow.back(flow.begin())
    flow.provider.codes.clear()
    refused(flow, flow.browser.get(link), "did not take its own code")


def test_another_provider_s_answer_is_not_taken(flow: OidcFlow) -> None:
    refused(flow, flow.come_back(iss="https://evil.example"), "from another identity provider")
    assert flow.provider.redeemed == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"nonce": "another"}, "belongs to another sign-in"),
        ({"nonce": None}, "belongs to another sign-in"),
        ({"nonce": 7}, "belongs to another sign-in"),
        ({"aud": "another-client"}, "made out to another audience"),
        ({"aud": [CLIENT, "another"]}, "made out to another service"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "made out to another service"),
        ({"azp": "another"}, "made out to another service"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "needs `exp`"),
        ({"groups": ["visitors"]}, "None of the groups"),
        ({"sub": None}, "is missing or empty"),
    ],
)
def test_what_the_provider_says_must_be_for_this_sign_in(flow: OidcFlow, said: dict[str, object], words: str) -> None:
    flow.provider.said = said
    refused(flow, flow.come_back(), words)


@pytest.mark.parametrize(("header", "status"), [({"typ": None}, 303), ({"typ": "JWT"}, 303), ({"typ": "at+jwt"}, 401)])
def test_a_token_for_an_api_signs_nobody_in(flow: OidcFlow, header: dict[str, object], status: int) -> None:
    flow.provider.headed = header
    assert flow.come_back().status_code == status


def test_a_token_of_another_key_signs_nobody_in(flow: OidcFlow) -> None:
    flow.provider.wait_for(flow.ledger)
    flow.provider.published = [public(key_of("RS256", 9), kid="RS256-0", use="sig")]
    flow.ledger.http.app.state.keys.oidc.jwks._fetch()
    refused(flow, flow.come_back(), "not signed by a key of the identity provider")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": "access_denied"}, "was declined"),
        ({"error": "access_denied", "error_description": "Ask the desk."}, "It says: Ask the desk."),
        ({"error": "server_error"}, "has failed"),
        ({"error": "odd<b>"}, "answered &#39;odd&lt;b&gt;&#39;"),
        ({"error": "access_denied", "error_description": "<script>"}, "&lt;script&gt;"),
    ],
)
def test_what_the_provider_refuses_is_told_in_words(flow: OidcFlow, answer: dict[str, str], words: str) -> None:
    flow.provider.answered = answer
    refused(flow, flow.browser.get(flow.back(flow.begin())), words)


def test_words_of_strangers_are_not_shown(flow: OidcFlow) -> None:
    reply = flow.browser.get("/sign-in/openid/return?error=access_denied&error_description=Call+555&state=x")
    assert reply.status_code == 401
    assert "555" not in reply.text


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x"])
def test_nobody_is_led_elsewhere(flow: OidcFlow, wanted: str) -> None:
    asked = flow.begin(f"/sign-in/openid?{urlencode({'next': wanted})}")
    assert flow.browser.get(flow.back(asked)).headers["location"] == "/"
    forged = LoginState.begin(wanted, silent=False)  # as if the cookie were another one's work
    flow.browser.cookies.set(FLOW_COOKIE, forged.to_cookie())
    flow.provider.codes["code"] = {
        **asked,
        "nonce": forged.nonce,
        "code_challenge": challenge_of(forged.verifier),
    }
    reply = flow.browser.get(f"/sign-in/openid/return?code=code&state={forged.state}")
    assert (reply.status_code, reply.headers["location"]) == (303, "/")


@pytest.mark.parametrize("cookie", ["", "x", "e30", "bnVsbA", "W10", "a" * 5000, "eyJzdGF0ZSI6MX0"])
def test_a_cookie_that_is_none_begins_nothing(cookie: str) -> None:
    assert LoginState.from_cookie(cookie) is None


def test_a_cookie_is_read_as_it_was_written() -> None:
    state = LoginState("s", "n", "v", "/approvals?account=ü", silent=True)
    assert LoginState.from_cookie(state.to_cookie()) == state


def test_who_was_signed_in_there_is_so_again_without_a_word(flow: OidcFlow) -> None:
    flow.come_back()
    flow.browser.cookies.delete(COOKIE)  # as if the session had ended
    reply = flow.browser.get("/approvals?account=mimic")
    assert reply.headers["location"] == "/sign-in/openid?silent=true&next=%2Fapprovals%3Faccount%3Dmimic"
    asked = flow.begin(reply.headers["location"])
    assert asked["prompt"] == "none"
    assert flow.browser.get(flow.back(asked)).headers["location"] == "/approvals?account=mimic"


def test_who_is_dismissed_is_asked_for_a_sign_in_and_goes_in_no_circle(flow: OidcFlow) -> None:
    flow.come_back()
    flow.browser.cookies.delete(COOKIE)
    flow.provider.known = False
    reply = flow.browser.get(flow.back(flow.begin(flow.browser.get("/").headers["location"])))
    assert reply.status_code == 200
    assert "Sign in with" in reply.text
    assert 'role="alert"' not in reply.text
    assert RENEWED_COOKIE not in flow.browser.cookies
    assert flow.browser.get("/").headers["location"] == "/sign-in"


def test_who_signs_out_is_not_signed_in_again_without_a_word(flow: OidcFlow) -> None:
    flow.come_back()
    csrf = re.findall(r'name="csrf" value="(\w+)"', flow.browser.get("/approvals").text)[0]
    assert flow.browser.post("/sign-out", data={"csrf": csrf}).status_code == 303
    assert flow.browser.get("/").headers["location"] == "/sign-in"


def test_who_signs_in_with_a_key_is_not_taken_for_a_person_when_that_ends(flow: OidcFlow) -> None:
    flow.come_back()
    assert flow.browser.post("/sign-in", data={"key": flow.ledger.keys["hospital", "viewer"]}).status_code == 303
    flow.browser.cookies.delete(COOKIE)
    assert flow.browser.get("/").headers["location"] == "/sign-in"


def test_it_works_in_a_real_browser(
    browser: Browser, provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings_of(provider).items():
        monkeypatch.setenv(f"EPSILON_LEDGER_{name.upper()}", str(value))
    server = LiveServer(tmp_path)
    server.key("viewer")
    server.start()
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(f"{server.url}/approvals")
    page.get_by_role("link", name="Sign in with").click()
    page.wait_for_url(f"{server.url}/approvals")
    expect(page.locator("header").get_by_title("oidc:marie")).to_have_text("marie")
    expect(page.locator("header")).to_contain_text("privacy officer")
    page.goto(f"{server.url}/keys")
    page.get_by_label("Name").fill("by-marie")
    page.get_by_role("button", name="Create a key").click()
    page.get_by_role("dialog").get_by_role("button", name="Create the key").click()
    page.get_by_role("dialog", name="The new key").get_by_role("button", name="I have saved it").click()
    expect(page.get_by_role("row", name=re.compile("by-marie"))).to_contain_text("by marie (privacy officer)")
    context.clear_cookies(name=COOKIE)
    page.goto(f"{server.url}/policies")
    page.wait_for_url(f"{server.url}/policies")
    expect(page.locator("header").get_by_title("oidc:marie")).to_have_text("marie")
    assert parse_qs(urlsplit([each for each in provider.asked if "authorize" in each][-1]).query)["prompt"] == ["none"]
    page.get_by_role("button", name="Sign out", exact=True).click()
    page.goto(f"{server.url}/policies")
    expect(page.get_by_role("link", name="Sign in with")).to_be_visible()
    context.close()
    server.stop()
