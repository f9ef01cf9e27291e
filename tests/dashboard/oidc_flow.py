"""The flow of a person's browser to the identity provider and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
    """A service, the provider, and a browser of its own at both."""

    ledger: Ledger
    provider: IdentityProvider
    browser: AppClient = field(init=False)

    def __post_init__(self) -> None:
        self.browser = self.ledger.http.browser(HOME)

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


@contextmanager
def open_flow(folder: Path, provider: IdentityProvider, **more: object) -> Iterator[OidcFlow]:
    """A browser at a new service, whose pages are a client of a provider."""
    with provider.open_ledger(folder, oidc_client_id=CLIENT, **more) as ledger:
        yield OidcFlow(ledger, provider)


def refused(flow: OidcFlow, reply: httpx2.Response, words: str) -> None:
    """Hold that nobody was signed in, and that this was said."""
    assert reply.status_code == 401, reply.text
    assert words in reply.text
    assert COOKIE not in flow.browser.cookies
    assert FLOW_COOKIE not in flow.browser.cookies
    assert flow.browser.get("/approvals", headers={"X-Part": "page"}).status_code == 401
