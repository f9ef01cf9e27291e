"""An OpenID Connect provider in a thread, which signs whatever a test wants."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from joserfc import jws
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import JWSRegistry

from tests.ledgers import Ledger, open_ledger
from tests.polling import await_true
from tests.servers import QuietHandler, background_thread

AUDIENCE = "https://ledger.example"
ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "EdDSA")


class _AnyHeader(JWSRegistry):
    max_header_length = max_payload_length = 1 << 20

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - as the service's own
        return self.algorithms[name]


REGISTRY = _AnyHeader(algorithms=[*ALGORITHMS, "RS512"], strict_check_header=False)


def key_of(algorithm: str, number: int = 0) -> Key:
    """A key for an algorithm; made once, since RSA takes its time."""
    return _key_of(algorithm, number)


@cache
def _key_of(algorithm: str, _: int) -> Key:
    kinds: dict[str, Any] = {"EdDSA": ("OKP", "Ed25519"), "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384")}
    return JWKRegistry.generate_key(*kinds.get(algorithm, ("RSA", 2048)))


def signed(key: Key, header: dict[str, Any], claims: object) -> str:
    """A token with exactly this header and these claims."""
    return jws.serialize_compact(header, json.dumps(claims), key, registry=REGISTRY)


def public(key: Key, **more: str) -> dict[str, Any]:
    """A key as a provider publishes it."""
    return key.as_dict(private=False) | more


def challenge_of(verifier: str) -> str:
    """What a client sends of its verifier beforehand (RFC 7636, 4.2)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


@dataclass
class IdentityProvider:
    """A provider; what it publishes can be changed at any moment."""

    issuer: str = ""
    published: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    down: bool = False
    content: bytes | None = None
    location: str | None = None
    silent: Event | None = None
    configured: dict[str, object] = field(default_factory=dict)
    answered: dict[str, str] | None = None
    said: dict[str, object] = field(default_factory=dict)
    headed: dict[str, object] = field(default_factory=dict)
    known: bool = True
    secret: str | None = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    redeemed: list[dict[str, str]] = field(default_factory=list)

    def configuration(self) -> dict[str, object]:
        """What it says about itself."""
        places = {"authorization_endpoint": f"{self.issuer}/authorize", "token_endpoint": f"{self.issuer}/token"}
        return {"issuer": self.issuer, "jwks_uri": self.jwks_url} | places | self.configured

    def authorize(self, query: dict[str, str]) -> str:
        """Where somebody is sent back to who came to sign in: with `answered` if that is set, or else with a code.

        Whoever is not `known` has to be asked, which `prompt=none` forbids.
        """
        answer = {"error": "login_required"}
        if self.answered is not None:
            answer = self.answered
        elif query.get("prompt") != "none" or self.known:
            code = secrets.token_urlsafe(16)
            self.codes[code] = query
            answer = {"code": code, "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode({'state': query['state']} | answer)}"

    def redeem(self, fields: dict[str, str], authorization: str | None) -> tuple[int, dict[str, object]]:
        """The answer to a code, which is taken once: a token, if all is as it was asked for."""
        self.redeemed.append(fields)
        asked = self.codes.pop(fields.get("code", ""), None)
        shown = fields.get("client_secret")
        if authorization is not None:
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            shown = unquote_plus(pair.partition(":")[2])  # RFC 6749, 2.3.1
        challenge = challenge_of(fields.get("code_verifier", ""))
        wanted = {"redirect_uri": fields["redirect_uri"], "code_challenge_method": "S256", "code_challenge": challenge}
        if asked is None or asked | wanted != asked or shown != self.secret:
            return 400, {"error": "invalid_grant"}
        claims: dict[str, Any] = {"aud": asked["client_id"], "nonce": asked["nonce"], "exp": int(time.time()) + 60}
        token = self.token(header=self.headed, **claims | self.said)
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": token}

    @property
    def jwks_url(self) -> str:
        return f"{self.issuer}/keys"

    def fetches(self) -> int:
        """How often its keys were asked for."""
        return len([path for path in self.asked if path.endswith("/keys")])

    def publish(self, *algorithms: str, number: int = 0) -> None:
        """Publish a key for each of these algorithms, and no other one; its id is the algorithm and the number."""
        keys = {algorithm: key_of(algorithm, number) for algorithm in algorithms}
        self.published = [public(key, kid=f"{algorithm}-{number}", use="sig") for algorithm, key in keys.items()]

    def claims(self, **changed: object) -> dict[str, object]:
        """What a token says by default; a claim that is None is left out."""
        now = int(time.time())
        times = {"iss": self.issuer, "aud": AUDIENCE, "iat": now, "exp": now + 600}
        person = {"sub": "marie", "email": "marie.curie@hospital.example", "groups": ["officers"]}
        return {name: value for name, value in (times | person | changed).items() if value is not None}

    def token(self, algorithm: str = "RS256", number: int = 0, header: object = None, **changed: object) -> str:
        """A token; with other claims, and with another header, if they are given."""
        head: dict[str, Any] = {"alg": algorithm, "kid": f"{algorithm}-{number}", "typ": "JWT"}
        head |= header if isinstance(header, dict) else {}
        kept = {name: value for name, value in head.items() if value is not None}
        return signed(key_of(algorithm, number), kept, self.claims(**changed))

    @contextmanager
    def open_ledger(self, folder: Path, **changed: object) -> Iterator[Ledger]:
        """A ledger that knows people by this provider, and has its keys: it fetches them when it starts."""
        with open_ledger(folder, **self.settings() | changed) as ledger:
            jwks = ledger.http.app.state.keys.oidc.jwks
            await_true(lambda: jwks.publishes(key_of("RS256").thumbprint()), pause=0.01, seconds=10)
            yield ledger

    def settings(self, **changed: object) -> dict[str, Any]:
        """The service's settings for it."""
        roles = {"officers": {"role": "privacy_officer"}, "planners": {"role": "planner"}}
        chosen = {"oidc_issuer": self.issuer, "oidc_audience": AUDIENCE, "oidc_organisation": "hospital"}
        return chosen | {"oidc_roles": json.dumps(roles)} | changed


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    provider: ClassVar[IdentityProvider]

    def do_GET(self) -> None:
        provider, address = self.provider, urlsplit(self.path)
        provider.asked.append(self.path)
        if address.path.endswith("/authorize"):
            self._answer(302, b"", provider.authorize(dict(parse_qsl(address.query))))
            return
        is_configuration = self.path.endswith("/.well-known/openid-configuration")
        said = provider.configuration() if is_configuration else {"keys": provider.published}
        content = provider.content if provider.content is not None else json.dumps(said).encode()
        self._answer(503 if provider.down else 302 if provider.location else 200, content, provider.location)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status, said = self.provider.redeem(dict(parse_qsl(content)), self.headers["Authorization"])
        self._answer(503 if self.provider.down else status, json.dumps(said).encode())

    def _answer(self, status: int, content: bytes, location: str | None = None) -> None:
        if self.provider.silent is not None:
            self.provider.silent.wait(30)
        self.answer(status, content, **({"Location": location} if location else {}))


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """A provider with a key for each algorithm, for a while."""
    provider = IdentityProvider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    provider.issuer = f"http://127.0.0.1:{server.server_port}/realms/hospital"
    provider.publish(*ALGORITHMS)
    with background_thread(server):
        yield provider
