"""The keys of an identity provider: fetched seldom and bounded, kept while it is down, and given up with it."""

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, Thread, get_ident
from time import monotonic
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from app.ledger.errors import AuthenticationError, LedgerUnavailableError
from app.service.auth import credential_cache
from app.service.auth.credential_cache import Authenticator
from app.service.auth.oidc import jwks as provider_module
from app.service.auth.oidc.http_json import MOST_BYTES, RETRIED_SECONDS
from app.service.auth.oidc.jwks import KEPT_SECONDS, PROVOKED_SECONDS, RENEWED_SECONDS, fetch_key_set
from app.service.auth.oidc.jwks import JwksCache as Keys
from app.settings import Settings
from tests.conftest import Ledger, open_ledger
from tests.identity_provider import IdentityProvider, identity_provider, key_of, public

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


def _keys(provider: IdentityProvider, **changed: Any) -> Keys:  # noqa: ANN401 - settings
    terms = Settings(**provider.settings(**changed)).openid
    assert terms is not None
    return Keys(partial(fetch_key_set, terms))


def test_keys_are_fetched_once_for_many_tokens(provider: IdentityProvider, later: Later) -> None:
    keys = _keys(provider)
    assert all(keys.find("RS256-0") for _ in range(100))
    assert provider.fetches() == 1
    later(RENEWED_SECONDS / 2)
    keys.renew()
    assert provider.fetches() == 1
    later(RENEWED_SECONDS)
    keys.renew()
    assert provider.fetches() == 2


def test_an_unknown_key_causes_a_fetch_at_most_once_a_minute(provider: IdentityProvider, later: Later) -> None:
    keys = _keys(provider)
    assert keys.find("RS256-0")
    provider.publish("RS256", number=1)
    assert keys.find("RS256-1")
    assert keys.find("RS256-0") == ()
    assert [keys.find(f"made up {number}") for number in range(50)] == [()] * 50
    assert provider.fetches() == 2
    later(PROVOKED_SECONDS)
    assert keys.find("made up") == ()
    assert provider.fetches() == 3


def test_keys_are_kept_for_a_day_while_the_provider_is_down(provider: IdentityProvider, later: Later) -> None:
    keys = _keys(provider)
    assert keys.find("RS256-0")
    provider.down = True
    later(KEPT_SECONDS - 60)
    keys.renew()
    assert keys.find("RS256-0")
    with pytest.raises(LedgerUnavailableError, match="are unavailable"):
        keys.find("unknown")  # who knows?
    later(61)
    with pytest.raises(LedgerUnavailableError, match="are unavailable"):
        keys.find("RS256-0")
    assert not keys.publishes(key_of("RS256").thumbprint())
    provider.down = False
    later(RETRIED_SECONDS)
    assert keys.find("RS256-0")
    assert keys.find("unknown") == ()


def test_a_provider_that_is_down_from_the_start_is_not_asked_by_every_request(
    provider: IdentityProvider, later: Later
) -> None:
    provider.down = True
    keys = _keys(provider)
    for _ in range(20):
        with pytest.raises(LedgerUnavailableError):
            keys.find("RS256-0")
    assert len(provider.asked) == 1
    provider.down = False
    later(RETRIED_SECONDS)
    assert keys.find("RS256-0")


def test_nobody_waits_for_a_fetch_of_another_one(provider: IdentityProvider) -> None:
    provider.silent = Event()
    keys = _keys(provider)
    first = Thread(target=keys.renew)
    first.start()
    while not provider.asked:
        pass
    with pytest.raises(LedgerUnavailableError):
        keys.find("RS256-0")
    provider.silent.set()
    first.join()
    assert keys.find("RS256-0")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b"[" * 100_000,
        b'{"keys": [' + b" " * MOST_BYTES + b"]}",
        json.dumps({"keys": [{"kty": "oct", "kid": "RS256-0", "k": "c2VjcmV0"}]}).encode(),
        json.dumps({"keys": [{"kty": "RSA", "kid": "RS256-0", "n": 1, "e": 2}, 7, None, {"kid": "RS256-0"}]}).encode(),
    ],
    ids=lambda content: content[:40],
)
def test_an_answer_that_is_no_key_set_leaves_the_keys_as_they_were(
    provider: IdentityProvider, later: Later, content: bytes
) -> None:
    keys = _keys(provider, oidc_jwks_url=provider.jwks_url)
    assert keys.find("RS256-0")
    provider.content = content
    later(RENEWED_SECONDS)
    keys.renew()
    assert provider.fetches() == 2
    assert keys.find("RS256-0")


def test_keys_that_are_not_for_signing_or_too_weak_do_not_count(provider: IdentityProvider) -> None:
    good, elliptic = key_of("RS256"), key_of("ES256")
    modulus = rsa.generate_private_key(65537, 1024).public_key().public_numbers().n.to_bytes(128, "big")  # noqa: S505
    weak = {"kty": "RSA", "kid": "weak", "e": "AQAB", "n": base64.urlsafe_b64encode(modulus).decode().rstrip("=")}
    provider.published = [
        weak,
        public(good, kid="for secrets", use="enc"),
        good.as_dict(private=True) | {"kid": "private"},
        public(good, kid="PS256 only", alg="PS256"),
        public(elliptic, kid="twice"),
        public(good, kid="twice"),
        public(good),
    ]
    provider.published[-1].pop("kid", None)
    keys = _keys(provider)
    found = {name: len(keys.find(name)) for name in ("weak", "for secrets", "private", "PS256 only", "twice")}
    assert found == {"weak": 0, "for secrets": 0, "private": 0, "PS256 only": 1, "twice": 2}


def test_a_redirect_is_not_followed(provider: IdentityProvider) -> None:
    provider.location = f"{provider.issuer}/elsewhere/keys"
    with pytest.raises(LedgerUnavailableError):
        _keys(provider).find("RS256-0")
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    "changed",
    [{"issuer": "https://other.example"}, {"jwks_uri": None}, {"jwks_uri": "file:///etc/passwd"}, {"jwks_uri": "//x"}],
    ids=str,
)
def test_a_configuration_of_somebody_else_is_not_believed(
    provider: IdentityProvider, changed: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    answer = {"issuer": provider.issuer, "jwks_uri": provider.jwks_url} | changed
    provider.content = json.dumps(answer).encode()
    with pytest.raises(LedgerUnavailableError):
        _keys(provider).find("RS256-0")
    assert provider.fetches() == 0
    assert "could not be fetched: ValueError" in caplog.text


@pytest.fixture
def opened(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[Ledger]:
    with open_ledger(tmp_path_factory.mktemp("opened"), database_url, **provider.settings()) as ledger:
        provider.wait_for(ledger)
        yield ledger


def _ring(ledger: Ledger) -> Authenticator:
    ring: Authenticator = ledger.http.app.state.keys
    return ring


def test_a_token_is_believed_while_its_key_is_published(
    provider: IdentityProvider, opened: Ledger, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, header = _ring(opened), f"Bearer {provider.token()}"
    ring.authenticate(header)
    asked = [0.0]
    monkeypatch.setattr(credential_cache, "monotonic", lambda: monotonic() + asked[0])
    for _ in range(3):
        assert ring.find(header) is not None
        asked[0] += 0.9
        ring.refresh()
    provider.publish("ES256")
    later(RENEWED_SECONDS)
    assert ring.oidc is not None
    ring.oidc.jwks.renew()
    ring.refresh()
    assert (ring.find(header), ring.was_known(header)) == (None, False)
    with pytest.raises(AuthenticationError, match="not signed"):
        ring.authenticate(header)
    ring.authenticate(f"Bearer {provider.token('ES256')}")


def test_a_person_who_asks_no_more_is_forgotten_and_no_use_is_written(
    provider: IdentityProvider, opened: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, header = _ring(opened), f"Bearer {provider.token()}"
    ring.authenticate(header)
    monkeypatch.setattr(credential_cache, "USE_WRITTEN_SECONDS", -1.0)
    monkeypatch.setattr(
        "app.persistence.repositories.api_keys.save_last_used", lambda *_: pytest.fail("a use was written")
    )
    ring.refresh()
    monkeypatch.setattr(credential_cache, "IDLE_SECONDS", -1.0)
    ring.refresh()
    assert ring._known == {}


def test_a_flood_of_refused_tokens_is_a_number(provider: IdentityProvider, opened: Ledger) -> None:
    ring = _ring(opened)
    for number in range(5):
        with pytest.raises(AuthenticationError, match="expired"):
            ring.authenticate(f"Bearer {provider.token(exp=1, jti=str(number))}")
    ring.close()
    audit_events = opened.get("/v1/audit-events?order=oldest&subject=oidc:marie", "auditor").json()["items"]
    assert [audit_event["after"]["times"] for audit_event in audit_events] == [{"expired": 1}, {"expired": 4}]


def test_the_provider_is_never_asked_on_the_event_loop(
    provider: IdentityProvider, opened: Ledger, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched_in, loops = set(), set()
    fetch, find = Keys._fetch, Authenticator.find

    def watched_fetch(keys: Keys, *, provoked: bool = False) -> None:
        fetched_in.add(get_ident())
        fetch(keys, provoked=provoked)

    def watched_find(ring: Authenticator, authorization: str | None) -> object:
        loops.add(get_ident())
        return find(ring, authorization)

    monkeypatch.setattr(Keys, "_fetch", watched_fetch)
    monkeypatch.setattr(Authenticator, "find", watched_find)
    later(KEPT_SECONDS)
    headers = {"Authorization": f"Bearer {provider.token()}"}
    before = len(provider.asked)
    assert opened.http.get("/v1/runs", headers=headers).status_code == 200
    once = len(provider.asked)
    assert once > before
    later(KEPT_SECONDS)
    provider.down = True
    assert opened.http.get("/v1/runs", headers=headers).status_code == 200  # as it was a moment ago
    assert len(provider.asked) == once
    assert fetched_in
    assert not fetched_in & loops


def test_a_provider_that_is_down_is_a_503_for_people_and_nothing_for_machines(
    provider: IdentityProvider, opened: Ledger, later: Later
) -> None:
    later(KEPT_SECONDS)
    provider.down = True
    reply = opened.http.get("/v1/runs", headers={"Authorization": f"Bearer {provider.token()}"})
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable")
    assert "identity provider" in reply.json()["detail"]
    assert opened.get("/v1/runs").status_code == 200
