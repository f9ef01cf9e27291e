"""The flow of a person's browser to the identity provider and back."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2

from app.api.session_cookies import COOKIE, FLOW_COOKIE
from tests.asgi import AppClient
from tests.conftest import Ledger
from tests.identity_provider import IdentityProvider

CLIENT = "ledger-pages"
HOME = "http://ledger.example"


@dataclass
class OidcFlow:
    """A service, the provider, and a browser at both."""

    ledger: Ledger
    provider: IdentityProvider
    browser: AppClient

    def begin(self, path: str = "/sign-in/openid?next=/approvals") -> dict[str, str]:
        """Be sent to the provider; what it is asked."""
        reply = self.browser.get(path)
        assert reply.status_code == 303, reply.text
        address = reply.headers["location"]
        assert address.startswith(f"{self.provider.issuer}/authorize?")
        return dict(parse_qsl(urlsplit(address).query))

    def back(self, asked: dict[str, str]) -> str:
        """The address to which the provider sends the browser back."""
        address = urlsplit(self.provider.authorize(asked))
        assert f"{address.scheme}://{address.netloc}" == HOME
        return f"{address.path}?{address.query}"

    def come_back(self, **changed: str | None) -> httpx2.Response:
        """Sign in, and hand over the provider's answer, or another one."""
        address = urlsplit(self.back(self.begin()))
        answer = {**dict(parse_qsl(address.query)), **changed}
        kept = {name: value for name, value in answer.items() if value is not None}
        reply: httpx2.Response = self.browser.get(f"{address.path}?{urlencode(kept)}")
        return reply


def new_flow(ledger: Ledger, provider: IdentityProvider) -> OidcFlow:
    """A browser of its own at a service and a provider."""
    browser = AppClient(ledger.http.app, base_url=HOME, portal=ledger.http.portal, follow_redirects=False)
    browser.headers["Origin"] = HOME
    return OidcFlow(ledger, provider, browser)


def settings_of(provider: IdentityProvider, **more: object) -> dict[str, Any]:
    """What a service is told of the provider, at which its pages are a client."""
    return provider.settings(oidc_client_id=CLIENT, **more)


def refused(flow: OidcFlow, reply: httpx2.Response, words: str) -> None:
    """Hold that nobody was signed in, and that this was said."""
    assert reply.status_code == 401, reply.text
    assert words in reply.text
    assert COOKIE not in flow.browser.cookies
    assert FLOW_COOKIE not in flow.browser.cookies
    assert flow.browser.get("/approvals", headers={"X-Part": "page"}).status_code == 401
