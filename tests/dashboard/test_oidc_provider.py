"""The identity provider at which people sign in: how it is told, and what if it fails, or says something odd."""

from pathlib import Path
from threading import Event

import httpx2
import pytest

from app.api.session_cookies import COOKIE
from app.configuration.settings import Settings
from app.ledger.errors import InvalidInputError
from app.service.auth.oidc import http_json
from tests.conftest import open_ledger
from tests.dashboard.oidc_flow import CLIENT, HOME, OidcFlow, open_flow, refused
from tests.identity_provider import IdentityProvider


def test_issuer_is_required_when_provider_promises_it(tmp_path: Path, provider: IdentityProvider) -> None:
    provider.configured = {"authorization_response_iss_parameter_supported": True}
    with open_flow(tmp_path, provider) as flow:
        refused(flow, flow.come_back(iss=None), "from another identity provider")
        assert flow.come_back().status_code == 303
        provider.configured = {}
        flow.ledger.http.app.state.oidc_client._endpoints = None
        assert flow.come_back(iss=None).status_code == 303, "it need not name itself otherwise"


@pytest.mark.parametrize("methods", [["client_secret_post"], None])
def test_client_secret_is_sent_by_the_provider_s_method(
    tmp_path: Path, provider: IdentityProvider, methods: list[str] | None
) -> None:
    provider.secret = "s3cret:&%"
    provider.configured = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
    file = tmp_path / "secret"
    file.write_text("s3cret:&%\n")
    with open_flow(tmp_path, provider, oidc_client_secret_file=str(file)) as flow:
        assert flow.come_back().status_code == 303
        assert ("client_secret" in provider.redeemed[-1]) is (methods == ["client_secret_post"])


def test_wrong_settings_stop_the_start(tmp_path: Path, provider: IdentityProvider) -> None:
    (tmp_path / "empty").write_text("\n")
    for name in ("empty", "nowhere"):
        settings = Settings(**provider.settings(oidc_client_id=CLIENT, oidc_client_secret_file=str(tmp_path / name)))
        with pytest.raises(InvalidInputError, match="EPSILON_LEDGER_OIDC_CLIENT_SECRET_FILE"):
            settings.oidc_client()
    for url in ("http://ledger.example", "https://ledger.example/x", "https://u:p@ledger.example", "x"):
        with pytest.raises(ValueError, match="public_url"):
            Settings(public_url=url)
    for scopes in ("", "profile", "openid ", 'openid "x"', "openid\nprofile"):
        with pytest.raises(ValueError, match="oidc_scopes"):
            Settings(**provider.settings(oidc_client_id=CLIENT, oidc_scopes=scopes))
    assert (
        Settings(**provider.settings(oidc_client_id=CLIENT, oidc_scopes="openid groups")).oidc_scopes == "openid groups"
    )


def unavailable(reply: httpx2.Response) -> bool:
    return reply.status_code == 503 and "does not answer" in reply.text


def test_provider_with_wrong_configuration_is_not_asked(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_flow(tmp_path, provider) as flow:
        for name, value in (
            ("authorization_endpoint", "javascript:alert(1)"),
            ("token_endpoint", "file:///etc/passwd"),
            ("token_endpoint", None),
            ("issuer", "https://evil.example"),
        ):
            provider.configured = {name: value}
            flow.ledger.http.app.state.oidc_client._failed_at = float("-inf")
            assert unavailable(OidcFlow(flow.ledger, provider).browser.get("/sign-in/openid")), value


def test_provider_that_is_down_or_silent_is_named(flow: OidcFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "FETCH_SECONDS", 0.2)
    link = flow.back(flow.begin())
    flow.provider.down = True
    assert unavailable(flow.browser.get(link))
    assert COOKIE not in flow.browser.cookies
    flow.provider.down = False
    link = flow.back(flow.begin())
    flow.provider.silent = Event()
    assert unavailable(flow.browser.get(link))
    flow.provider.silent.set()


def test_sign_in_without_provider_is_not_found(tmp_path: Path, provider: IdentityProvider) -> None:
    for settings in ({}, provider.settings()):
        folder = tmp_path / str(len(settings))
        folder.mkdir()
        with open_ledger(folder, **settings) as ledger:
            client = ledger.http.browser(HOME)
            assert "Sign in with" not in client.get("/sign-in").text
            for path in ("/sign-in/openid", "/sign-in/openid/return?code=x&state=y"):
                assert client.get(path).status_code == 404


def test_requests_of_strangers_to_provider_are_limited(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_flow(tmp_path, provider, rate_limit_anonymous_per_second=0.1) as flow:
        statuses = [flow.come_back(code="made-up").status_code for _ in range(3)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert len(provider.redeemed) < 3


def test_provider_that_is_down_is_asked_seldom(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_flow(tmp_path, provider) as flow:
        provider.down, asked = True, len(provider.asked)
        assert all(unavailable(flow.browser.get("/sign-in/openid")) for _ in range(20))
        assert len(provider.asked) == asked + 1


def test_redirect_uri_has_the_public_address(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_flow(tmp_path, provider, public_url="https://ledger.hospital.example/") as flow:
        asked = flow.begin()
    assert asked["redirect_uri"] == "https://ledger.hospital.example/sign-in/openid/return"
