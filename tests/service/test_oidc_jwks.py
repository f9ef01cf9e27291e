"""The keys of identity providers and clusters: fetched seldom and bounded, kept while one is down, given up with it."""

import base64
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from app.configuration.settings import Settings
from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.service.auth import credential_cache
from app.service.auth.oidc import jwks as provider_module
from app.service.auth.oidc.http_json import MOST_BYTES, RETRIED_SECONDS, FetchAccess
from app.service.auth.oidc.jwks import KEPT_SECONDS, PROVOKED_SECONDS, RENEWED_SECONDS, fetch_key_set
from app.service.auth.oidc.jwks import JwksCache as Keys
from app.service.auth.workload.config import WorkloadIssuer
from tests.certificates import server_context
from tests.conftest import Ledger
from tests.identity_provider import IdentityProvider, identity_provider, key_of, public
from tests.servers import QuietHandler, background_thread

Later = Callable[[float], None]


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as opened:
        yield opened


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Moves the clock by which keys are fetched."""
    passed = [0.0]

    def move(seconds: float) -> None:
        passed[0] += seconds

    monkeypatch.setattr(provider_module, "monotonic", lambda: monotonic() + passed[0])
    return move


def keys_of(provider: IdentityProvider, **changed: Any) -> Keys:  # noqa: ANN401 - settings
    terms: Any = Settings(**provider.settings(**changed)).openid
    return Keys(partial(fetch_key_set, terms))


def is_unavailable(keys: Keys, name: str = "RS256-0") -> bool:
    with pytest.raises(LedgerUnavailableError, match="are unavailable"):
        keys.find(name)
    return True


def test_keys_are_fetched_seldom_and_for_an_unknown_one_once_a_minute(provider: IdentityProvider, later: Later) -> None:
    keys = keys_of(provider)
    assert all(keys.find("RS256-0") for _ in range(100))
    later(RENEWED_SECONDS / 2)
    keys.renew()
    assert provider.fetches() == 1
    later(RENEWED_SECONDS)
    keys.renew()
    assert provider.fetches() == 2
    provider.publish("RS256", number=1)
    assert keys.find("RS256-1")
    assert keys.find("RS256-0") == ()
    assert [keys.find(f"made up {number}") for number in range(50)] == [()] * 50
    assert provider.fetches() == 3
    later(PROVOKED_SECONDS)
    assert keys.find("made up") == ()
    assert provider.fetches() == 4


def test_keys_are_kept_for_a_day_while_the_provider_is_down(provider: IdentityProvider, later: Later) -> None:
    keys = keys_of(provider)
    assert keys.find("RS256-0")
    provider.down = True
    later(KEPT_SECONDS - 60)
    keys.renew()
    assert keys.find("RS256-0")
    assert is_unavailable(keys, "unknown")
    later(61)
    assert is_unavailable(keys)
    assert not keys.publishes(key_of("RS256").thumbprint())
    fresh, asked = keys_of(provider), len(provider.asked)  # a start while it is down: not every request asks it
    assert all(is_unavailable(fresh) for _ in range(20))
    assert len(provider.asked) == asked + 1
    provider.down = False
    later(RETRIED_SECONDS)
    assert keys.find("RS256-0")
    assert keys.find("unknown") == ()
    assert fresh.find("RS256-0")


ODD: list[object] = [{"kty": "RSA", "kid": "RS256-0", "n": 1, "e": 2}, 7, None, {"kid": "RS256-0"}]
NO_KEY_SETS = [
    *(b"", b"no JSON", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000),
    b'{"keys": [' + b" " * MOST_BYTES + b"]}",
]
WITHDRAWN: list[list[object]] = [[], ODD, [{"kty": "oct", "kid": "RS256-0", "k": "c2VjcmV0"}]]


def test_answer_without_a_key_set_leaves_the_keys_as_they_were(provider: IdentityProvider, later: Later) -> None:
    keys = keys_of(provider, oidc_jwks_url=provider.jwks_url)
    assert keys.find("RS256-0")
    for fetches, provider.content in enumerate(NO_KEY_SETS, 2):
        later(RENEWED_SECONDS)
        keys.renew()
        assert (provider.fetches(), len(keys.find("RS256-0"))) == (fetches, 1), provider.content[:40]


@pytest.mark.parametrize("published", WITHDRAWN)
def test_key_set_without_usable_keys_withdraws_those_before(
    provider: IdentityProvider, later: Later, published: list[Any]
) -> None:
    keys = keys_of(provider)
    assert keys.find("RS256-0")
    provider.published = published
    later(RENEWED_SECONDS)
    keys.renew()
    assert keys.find("RS256-0") == ()
    assert not keys.publishes(key_of("RS256").thumbprint())
    provider.publish("RS256")
    later(RETRIED_SECONDS)
    keys.renew()
    assert keys.find("RS256-0"), "asked for again soon, in case it was a mistake"


def test_keys_too_weak_or_not_for_signing_do_not_count(provider: IdentityProvider) -> None:
    good, elliptic = key_of("RS256"), key_of("ES256")
    modulus = rsa.generate_private_key(65537, 1024).public_key().public_numbers().n.to_bytes(128, "big")  # noqa: S505
    provider.published = [
        {"kty": "RSA", "kid": "weak", "e": "AQAB", "n": base64.urlsafe_b64encode(modulus).decode().rstrip("=")},
        public(good, kid="for secrets", use="enc"),
        good.as_dict(private=True) | {"kid": "private"},
        public(good, kid="PS256 only", alg="PS256"),
        public(elliptic, kid="twice"),
        public(good, kid="twice"),
        public(good),
    ]
    provider.published[-1].pop("kid", None)
    keys = keys_of(provider)
    expected = {"weak": 0, "for secrets": 0, "private": 0, "PS256 only": 1, "twice": 2}
    assert {name: len(keys.find(name)) for name in expected} == expected


def test_configuration_of_another_issuer_or_a_redirect_is_refused(
    provider: IdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    odd: list[Any] = [{"jwks_uri": uri} for uri in (None, "file:///etc/passwd", "//x")]
    for changed in ({"issuer": "https://other.example"}, *odd):
        caplog.clear()
        answer = {"issuer": provider.issuer, "jwks_uri": provider.jwks_url} | changed
        provider.content = json.dumps(answer).encode()
        assert is_unavailable(keys_of(provider))
        assert "could not be fetched: ValueError" in caplog.text
    provider.location, asked = f"{provider.issuer}/elsewhere/keys", len(provider.asked)
    assert is_unavailable(keys_of(provider))
    assert (len(provider.asked), provider.fetches()) == (asked + 1, 0)


@pytest.fixture
def opened(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Ledger]:
    with provider.open_ledger(tmp_path_factory.mktemp("opened"), database_url=database_url) as ledger:
        yield ledger


def test_token_is_accepted_while_its_key_is_published(
    provider: IdentityProvider, opened: Ledger, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring: Any = opened.http.app.state.keys
    header = f"Bearer {provider.token()}"
    ring.authenticate(header)
    asked = [0.0]
    monkeypatch.setattr(credential_cache, "monotonic", lambda: monotonic() + asked[0])
    for _ in range(3):
        assert ring.find(header) is not None
        asked[0] += 0.9
        ring.refresh()
    provider.publish("ES256")
    later(RENEWED_SECONDS)
    ring.oidc.jwks.renew()
    ring.refresh()
    assert (ring.find(header), ring.was_known(header)) == (None, False)
    with pytest.raises(AuthenticationError, match="not signed"):
        ring.authenticate(header)
    ring.authenticate(f"Bearer {provider.token('ES256')}")


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[str]:
    """The URL of an issuer with TLS, which answers those with the token "mine"."""

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer mine"
            keys = {"keys": [public(key_of("RS256"), kid="one", use="sig")]}
            found = keys if self.path == "/keys" else {"issuer": url, "jwks_uri": f"{url}/keys"}
            self.answer(200 if allowed else 403, json.dumps(found).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = server_context(tmp_path)[0].wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    with background_thread(server):
        yield url


def test_cluster_gives_its_keys_to_its_own_pods(issuer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).write_text(f"{name}\n")

    def keys(authority: str | None, token: str | None) -> Keys:
        access = FetchAccess(authority and str(tmp_path / authority), token and str(tmp_path / token))
        made = WorkloadIssuer("cluster", issuer, "ledger", (), timedelta(hours=1), access=access)
        return Keys(made.key_set, "issuer 'cluster'")

    assert len(keys("root.pem", "mine").find("one")) == 1
    for authority, token in ((None, "mine"), ("root.pem", None), ("root.pem", "theirs"), ("root.pem", "nowhere")):
        caplog.clear()
        with pytest.raises(LedgerUnavailableError, match="issuer 'cluster'"):
            keys(authority, token).find("one")
        assert "The keys of the issuer 'cluster' could not be fetched" in caplog.text
        assert "theirs" not in caplog.text
