"""Log in by authorization code and PKCE (OpenID Connect Core, 3.1; RFC 7636, 9700)."""

import base64
import hashlib
import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hmac import compare_digest
from pathlib import Path
from threading import BoundedSemaphore, Lock
from time import monotonic
from typing import Final, Self
from urllib.parse import quote_plus, urlencode

from app.ledger.errors import AuthenticationError, InvalidInputError
from app.service.auth.oidc.config import OidcConfig, check_url
from app.service.auth.oidc.errors import ProviderUnavailableError
from app.service.auth.oidc.http_json import (
    FAILURES,
    RETRIED_SECONDS,
    HttpStatusError,
    configuration_of,
    fetch_json,
    said,
)
from app.service.egress.http_client import HttpRequest
from app.service.json_values import read_object

CONFIGURED_SECONDS: Final = 3600.0
"""Lifetime of the provider's cached configuration."""

MOST_AT_ONCE: Final = 8
"""Concurrent token requests: a silent provider must not take every thread."""

MOST_CHARACTERS: Final = 4000
"""Length limit of input from a browser or a provider. Browsers keep cookies of 4096 bytes, with their names."""

FIRST_PAGE: Final = "/"

_DOWN: Final = "The identity provider does not answer. Try again shortly, or sign in with a key."
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoginState:
    """State of a login in progress; only the browser that began it has this.

    Args:
        state: returned with the code, and binds the response to this browser.
        nonce: returned in the ID token, and binds it to this login.
        verifier: the PKCE code verifier.
        target: the page to open after the login.
        silent: whether the login sends `prompt=none`.
    """

    state: str
    nonce: str
    verifier: str
    target: str
    silent: bool

    @classmethod
    def begin(cls, target: str, *, silent: bool) -> Self:
        """Begin a login that leads to a page of this service; to the first one if a cookie cannot hold the target."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        begun = cls(state, nonce, verifier, target, silent)
        return begun if len(begun.to_cookie()) <= MOST_CHARACTERS else replace(begun, target=FIRST_PAGE)

    @classmethod
    def from_cookie(cls, cookie: str | None) -> Self | None:
        """Parse the login state of a cookie; None: missing or malformed."""
        if not cookie or len(cookie) > MOST_CHARACTERS:
            return None
        try:
            kept = read_object(base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4)))
        except ValueError:
            return None
        names = ("state", "nonce", "verifier", "target")
        texts = {name: text for name in names if isinstance(text := kept.get(name), str) and text}
        silent = kept.get("silent")
        if kept.keys() != {*names, "silent"} or len(texts) < len(names) or not isinstance(silent, bool):
            return None
        return cls(**texts, silent=silent)

    def to_cookie(self) -> str:
        """Serialize for a cookie."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class _Endpoints:
    authorization: str
    token: str
    secret_in_body: bool
    names_itself: bool
    read_at: float


def secret_in(file: str) -> str:
    """Read the client secret from a file, without white space around it.

    Raises:
        InvalidInputError: the file cannot be read, or is empty.
    """
    try:
        secret = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"EPSILON_LEDGER_OIDC_CLIENT_SECRET_FILE cannot be read: {error}") from None
    if not secret:
        raise InvalidInputError(f"EPSILON_LEDGER_OIDC_CLIENT_SECRET_FILE names {file}, which is empty.")
    return secret


class OidcClient:
    """OpenID Connect client, public if it has no secret; safe to use from any thread that may wait for a network."""

    def __init__(self, terms: OidcConfig, client_id: str, secret: str | None, scopes: str) -> None:
        self.issuer: Final = terms.issuer
        self.client_id: Final = client_id
        self._terms = terms
        self._secret = secret
        self._scopes = scopes
        self._endpoints: _Endpoints | None = None
        self._failed_at = float("-inf")
        self._reading = Lock()
        self._asking = BoundedSemaphore(MOST_AT_ONCE)

    def address(self, flow: LoginState, return_to: str) -> str:
        """Build the URL of the provider's login page, which redirects to `return_to`.

        Raises:
            ProviderUnavailableError: the provider's configuration cannot be read.
        """
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": return_to,
            "scope": self._scopes,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        if flow.silent:
            asked["prompt"] = "none"
        address = self._read().authorization
        return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"

    def require_ours(self, flow: LoginState | None, answer: Mapping[str, str]) -> LoginState:
        """Check that an authorization response belongs to this browser's login.

        Raises:
            AuthenticationError: it belongs to another login, or to another issuer (RFC 9207).
            ProviderUnavailableError: the provider's configuration cannot be read.
        """
        state = answer.get("state", "")
        if flow is None or not compare_digest(flow.state.encode(), state.encode()):
            raise AuthenticationError("This sign-in was not begun in this browser, or too long ago; begin again.")
        named = answer.get("iss")
        if named != self.issuer and (named is not None or self._read().names_itself):
            raise AuthenticationError("The answer is from another identity provider than this service asked.")
        return flow

    def redeem(self, code: str, flow: LoginState, return_to: str) -> str:
        """Exchange a code for an ID token, which is not yet verified.

        Raises:
            AuthenticationError: the provider refuses the code.
            ProviderUnavailableError: the provider does not answer properly.
        """
        endpoints = self._read()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": return_to,
            "code_verifier": flow.verifier,
            "client_id": self.client_id,
        }
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if self._secret is not None and endpoints.secret_in_body:
            fields["client_secret"] = self._secret
        elif self._secret is not None:
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self._secret)}"  # RFC 6749, 2.3.1
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        request = HttpRequest("POST", endpoints.token, headers, urlencode(fields).encode())
        token = self._asked(request).get("id_token")
        if not isinstance(token, str):
            raise AuthenticationError("The identity provider answered without an ID token; is `openid` a scope?")
        return token

    def _asked(self, request: HttpRequest) -> dict[str, object]:
        if not self._asking.acquire(blocking=False):
            raise ProviderUnavailableError(_DOWN)
        try:
            return fetch_json(request)
        except HttpStatusError as error:
            why = said(error)
            _logger.warning("The identity provider did not take a code: %s", why)
            if error.status in {400, 401, 403}:
                raise AuthenticationError("The identity provider did not take its own code; begin again.") from None
            raise ProviderUnavailableError(_DOWN) from None
        except FAILURES as error:
            _logger.warning("The identity provider did not answer a code: %s", said(error))
            raise ProviderUnavailableError(_DOWN) from None
        finally:
            self._asking.release()

    def _read(self) -> _Endpoints:
        """Get the provider's endpoints; one thread fetches them, and the others do not wait.

        After a failure nobody asks for a while: anyone can open the page that does.
        """
        current = self._endpoints
        if current is not None and monotonic() - current.read_at < CONFIGURED_SECONDS:
            return current
        paused = monotonic() - self._failed_at < RETRIED_SECONDS
        if paused or not self._reading.acquire(blocking=False):
            if current is not None:
                return current
            raise ProviderUnavailableError(_DOWN)
        try:
            self._endpoints = _endpoints(self._terms)
        except FAILURES as error:
            self._failed_at = monotonic()
            _logger.warning("The identity provider did not say where people sign in: %s", said(error))
            if current is None:
                raise ProviderUnavailableError(_DOWN) from None
            return current
        else:
            return self._endpoints
        finally:
            self._reading.release()


def _endpoints(terms: OidcConfig) -> _Endpoints:
    configuration = configuration_of(terms.issuer)
    methods = configuration.get("token_endpoint_auth_methods_supported")
    basic = not isinstance(methods, list) or "client_secret_basic" in methods
    return _Endpoints(
        authorization=check_url(str(configuration.get("authorization_endpoint")), terms.issuer),
        token=check_url(str(configuration.get("token_endpoint")), terms.issuer),
        secret_in_body=not basic,
        names_itself=configuration.get("authorization_response_iss_parameter_supported") is True,
        read_at=monotonic(),
    )
