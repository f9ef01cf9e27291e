"""Cache the signing keys of an OpenID Connect provider, also while it is down."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key

from app.ledger.errors import LedgerUnavailableError
from app.service.auth.oidc.config import OidcConfig, check_url
from app.service.auth.oidc.http_json import FAILURES, RETRIED_SECONDS, configuration_of, fetched_from, said

RENEWED_SECONDS: Final = 300.0
"""Interval of the background refresh: a revoked key can be accepted for this long."""

PROVOKED_SECONDS: Final = 60.0
"""Shortest interval of fetches that tokens with an unknown key cause, because anyone can make up such tokens."""

KEPT_SECONDS: Final = 86_400.0
"""Lifetime of keys while the provider does not answer."""

MOST_KEYS: Final = 1000

LEAST_RSA_BITS: Final = 2048

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key of a provider, for one algorithm or any of its type; its thumbprint identifies it, not its `kid`."""

    key: Key
    algorithm: str | None
    thumbprint: str


class JwksCache:
    """Cached keys of a provider, for threads that may wait for a network."""

    def __init__(self, terms: OidcConfig) -> None:
        self._terms = terms
        self._keys: Mapping[str, tuple[SigningKey, ...]] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._provoked_at = float("-inf")
        self._failed = False
        self._fetching = Lock()

    def find(self, key_id: str) -> tuple[SigningKey, ...]:
        """Get the keys with a `kid`; empty if the provider has none.

        Raises:
            LedgerUnavailableError: the provider does not answer, or another thread fetches the keys.
        """
        current = self._current()
        if key_id in current:
            return current[key_id]
        if not current:
            self.renew()
        elif monotonic() - self._provoked_at >= PROVOKED_SECONDS:
            self._fetch(provoked=True)
        asking = self._fetching.locked()  # read before its result is
        current = self._current()
        found = current.get(key_id, ())
        if not found and (not current or self._failed or asking):
            raise LedgerUnavailableError(
                "The keys of the identity provider are unavailable. Retry the request shortly."
            )
        return found

    def publishes(self, thumbprint: str) -> bool:
        """Whether the cached key set has a key."""
        return any(each.thumbprint == thumbprint for keys in self._current().values() for each in keys)

    def renew(self) -> None:
        """Fetch the keys if they are due."""
        pause = RENEWED_SECONDS if self._current() else RETRIED_SECONDS
        if monotonic() - self._tried_at >= pause:
            self._fetch()

    def _current(self) -> Mapping[str, tuple[SigningKey, ...]]:
        """Get the keys by `kid`; empty if there are none that may still be used."""
        return self._keys if monotonic() - self._fetched_at < KEPT_SECONDS else {}

    def _fetch(self, *, provoked: bool = False) -> None:
        """Fetch the keys, `provoked` by a token with an unknown key.

        Raises:
            LedgerUnavailableError: another thread fetches them. Waiting would let a silent provider take every thread.
        """
        if not self._fetching.acquire(blocking=False):
            raise LedgerUnavailableError(
                "The keys of the identity provider are being fetched. Retry the request shortly."
            )
        try:
            self._tried_at = asked = monotonic()
            if provoked:
                self._provoked_at = asked
            self._keys = _signing_keys(fetched_from(self._jwks_url()))
            self._fetched_at = asked  # last: keys that are too old are never taken for new ones
            self._failed = False
        except FAILURES as error:
            self._failed = True
            _logger.warning("The keys of the identity provider could not be fetched: %s", said(error))
        finally:
            self._fetching.release()

    def _jwks_url(self) -> str:
        terms = self._terms
        return terms.jwks_url or check_url(str(configuration_of(terms).get("jwks_uri")), terms.issuer)


def _signing_keys(key_set: dict[str, object]) -> dict[str, tuple[SigningKey, ...]]:
    """Select the signing keys of a set; RFC 7517 asks to skip the others."""
    listed = key_set.get("keys")
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise ValueError(f"its key set has no list `keys`, or one of more than {MOST_KEYS}")
    by_id: dict[str, tuple[SigningKey, ...]] = {}
    for each in listed:
        key_id = each.get("kid") if isinstance(each, dict) and each.get("use", "sig") == "sig" else None
        key = _public(each) if isinstance(key_id, str) else None
        if isinstance(key_id, str) and key is not None:
            algorithm = each.get("alg")
            named = algorithm if isinstance(algorithm, str) else None
            by_id[key_id] = (*by_id.get(key_id, ()), SigningKey(key, named, key.thumbprint()))
    if not by_id:
        raise ValueError("its key set has no key with a `kid` that could sign")
    return by_id


def _public(jwk: dict[str, object]) -> Key | None:
    """Import a public key that can sign; None: another kind, or malformed."""
    if jwk.get("kty") not in {"RSA", "EC", "OKP"} or "d" in jwk:
        return None
    given = {name: jwk.get(name) for name in ("kty", "n", "e", "crv", "x", "y")}
    if given["kty"] == "RSA" and len(str(given["n"])) * 6 < LEAST_RSA_BITS:
        return None  # the library would log a warning
    try:
        key = import_key({name: value for name, value in given.items() if isinstance(value, str)})
        if isinstance(key, RSAKey):
            return key if key.public_key.key_size >= LEAST_RSA_BITS else None
        return key if isinstance(key, ECKey | OKPKey) else None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
