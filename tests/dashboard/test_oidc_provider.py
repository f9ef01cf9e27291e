"""The identity provider at which people sign in: how it is told, and what if it fails, or says something odd."""

from pathlib import Path
from threading import Event

import pytest

from app.api.session_cookies import COOKIE
from app.ledger.errors import InvalidInputError
from app.service.auth.oidc import http_json
from app.settings import Settings
from tests.asgi import AppClient
from tests.conftest import open_ledger
from tests.dashboard.oidc_flow import HOME, OidcFlow, new_flow, refused, settings_of
from tests.identity_provider import IdentityProvider


def test_issuer_is_required_when_provider_promises_it(tmp_path: Path, provider: IdentityProvider) -> None:
    provider.configured = {"authorization_response_iss_parameter_supported": True}
    with open_ledger(tmp_path, **settings_of(provider)) as ledger:
        flow = new_flow(ledger, provider)
        refused(flow, flow.come_back(iss=None), "from another identity provider")
        assert flow.come_back().status_code == 303
        provider.configured = {}
        ledger.http.app.state.oidc_client._endpoints = None
        assert flow.come_back(iss=None).status_code == 303, "it need not name itself otherwise"


@pytest.mark.parametrize("methods", [["client_secret_basic"], ["client_secret_post"], None])
def test_client_secret_is_sent_by_the_provider_s_method(
    tmp_path: Path, provider: IdentityProvider, methods: list[str] | None
) -> None:
    provider.secret = "s3cret:&%"
    provider.configured = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
    file = tmp_path / "secret"
    file.write_text("s3cret:&%\n")
    with open_ledger(tmp_path, **settings_of(provider, oidc_client_secret_file=str(file))) as ledger:
        flow = new_flow(ledger, provider)
        assert flow.come_back().status_code == 303
        assert ("client_secret" in provider.redeemed[-1]) is (methods == ["client_secret_post"])


def test_unreadable_client_secret_stops_the_start(tmp_path: Path, provider: IdentityProvider) -> None:
    (tmp_path / "empty").write_text("\n")
    for name in ("empty", "nowhere"):
        settings = Settings(**settings_of(provider, oidc_client_secret_file=str(tmp_path / name)))
        with pytest.raises(InvalidInputError, match="EPSILON_LEDGER_OIDC_CLIENT_SECRET_FILE"):
            settings.oidc_client()


def test_redirect_uri_has_the_public_address(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_ledger(tmp_path, **settings_of(provider, public_url="https://ledger.hospital.example/")) as ledger:
        asked = new_flow(ledger, provider).begin()
    assert asked["redirect_uri"] == "https://ledger.hospital.example/sign-in/openid/return"


@pytest.mark.parametrize(
    "url", ["http://ledger.example", "https://ledger.example/x", "https://u:p@ledger.example", "x"]
)
def test_wrong_public_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="public_url"):
        Settings(public_url=url)


@pytest.mark.parametrize("scopes", ["", "profile", "openid ", 'openid "x"', "openid\nprofile"])
def test_scopes_without_openid_are_refused(provider: IdentityProvider, scopes: str) -> None:
    with pytest.raises(ValueError, match="oidc_scopes"):
        Settings(**settings_of(provider, oidc_scopes=scopes))
    assert Settings(**settings_of(provider, oidc_scopes="openid groups")).oidc_scopes == "openid groups"


@pytest.mark.parametrize(
    "configured",
    [
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": "file:///etc/passwd"},
        {"token_endpoint": None},
        {"issuer": "https://evil.example"},
    ],
)
def test_provider_with_wrong_configuration_is_not_asked(
    tmp_path: Path, provider: IdentityProvider, configured: dict[str, object]
) -> None:
    provider.configured = configured
    with open_ledger(tmp_path, **settings_of(provider)) as ledger:
        reply = new_flow(ledger, provider).browser.get("/sign-in/openid")
    assert reply.status_code == 503
    assert "does not answer" in reply.text


def test_provider_that_is_down_is_named(flow: OidcFlow) -> None:
    asked = flow.begin()
    link = flow.back(asked)
    flow.provider.down = True
    reply = flow.browser.get(link)
    assert reply.status_code == 503
    assert "does not answer" in reply.text
    assert COOKIE not in flow.browser.cookies


def test_provider_that_is_silent_is_not_waited_for(flow: OidcFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "FETCH_SECONDS", 0.2)
    link = flow.back(flow.begin())
    flow.provider.silent = Event()
    reply = flow.browser.get(link)
    flow.provider.silent.set()
    assert reply.status_code == 503


def test_sign_in_without_provider_is_not_found(tmp_path: Path, provider: IdentityProvider) -> None:
    for settings in ({}, provider.settings()):
        folder = tmp_path / str(len(settings))
        folder.mkdir()
        with open_ledger(folder, **settings) as ledger:
            client = AppClient(ledger.http.app, base_url=HOME, portal=ledger.http.portal, follow_redirects=False)
            assert "Sign in with" not in client.get("/sign-in").text
            for path in ("/sign-in/openid", "/sign-in/openid/return?code=x&state=y"):
                assert client.get(path).status_code == 404


def test_requests_of_strangers_to_provider_are_limited(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_ledger(tmp_path, **settings_of(provider), rate_limit_anonymous_per_second=0.1) as ledger:
        flow = new_flow(ledger, provider)
        statuses = [flow.come_back(code="made-up").status_code for _ in range(3)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert len(provider.redeemed) < 3
