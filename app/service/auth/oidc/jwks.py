"""Cache the signing keys of an OpenID Connect provider, also while it is down."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key

from app.service.auth.oidc.config import OidcConfig, check_url
from app.service.auth.oidc.errors import ProviderUnavailableError
from app.service.auth.oidc.http_json import FAILURES, RETRIED_SECONDS, configuration_of, fetched_from, said
from app.service.background import run_detached

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
    """Cached keys of a provider, for threads that may wait for a network.

    Args:
        fetch: reads the key set; it raises one of FAILURES if there is none.
        whose: names the provider in messages.
    """

    def __init__(self, fetch: Callable[[], dict[str, object]], whose: str = "identity provider") -> None:
        self._fetch_key_set = fetch
        self._whose = whose
        self._keys: Mapping[str, tuple[SigningKey, ...]] | None = None
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._provoked_at = float("-inf")
        self._failed = False
        self._fetching = Lock()

    def find(self, key_id: str) -> tuple[SigningKey, ...]:
        """Get the keys with a `kid`; empty if the provider has none.

        Raises:
            ProviderUnavailableError: the provider does not answer, or another thread fetches the keys.
        """
        current = self._current()
        if current is not None and key_id in current:
            return current[key_id]
        if not current:
            self.renew()
        elif monotonic() - self._provoked_at >= PROVOKED_SECONDS:
            self._fetch(provoked=True)
        asking = self._fetching.locked()  # read before its result is
        current = self._current()
        found = () if current is None else current.get(key_id, ())
        if not found and (current is None or self._failed or asking):
            raise ProviderUnavailableError(f"The keys of the {self._whose} are unavailable. Retry the request shortly.")
        return found

    def publishes(self, thumbprint: str) -> bool:
        """Whether the cached key set has a key."""
        return any(each.thumbprint == thumbprint for keys in (self._current() or {}).values() for each in keys)

    def renew(self) -> None:
        """Fetch the keys if they are due."""
        pause = RENEWED_SECONDS if self._current() else RETRIED_SECONDS
        if monotonic() - self._tried_at >= pause:
            self._fetch()

    async def run_renewal(self) -> None:
        """Fetch the keys whenever they are due, until cancelled."""
        while True:
            try:
                await run_detached(self.renew)
            except ProviderUnavailableError:  # a request fetches them already
                pass
            except Exception:
                _logger.exception("The keys of the %s could not be fetched", self._whose)
            await asyncio.sleep(RETRIED_SECONDS)

    def _current(self) -> Mapping[str, tuple[SigningKey, ...]] | None:
        """Get the keys by `kid`; empty: the provider has withdrawn all; None: they are unknown, or too old."""
        return self._keys if monotonic() - self._fetched_at < KEPT_SECONDS else None

    def _fetch(self, *, provoked: bool = False) -> None:
        """Fetch the keys, `provoked` by a token with an unknown key.

        Raises:
            ProviderUnavailableError: another thread fetches them. Waiting would let a silent provider take every
                thread.
        """
        if not self._fetching.acquire(blocking=False):
            raise ProviderUnavailableError(
                f"The keys of the {self._whose} are being fetched. Retry the request shortly."
            )
        try:
            self._tried_at = asked = monotonic()
            if provoked:
                self._provoked_at = asked
            self._keys = _signing_keys(self._fetch_key_set())
            self._fetched_at = asked  # last: keys that are too old are never taken for new ones
            self._failed = False
            if not self._keys:
                _logger.warning("The %s publishes no key that could sign: all its tokens are refused", self._whose)
        except FAILURES as error:
            self._failed = True
            _logger.warning("The keys of the %s could not be fetched: %s", self._whose, said(error))
        finally:
            self._fetching.release()


def fetch_key_set(terms: OidcConfig) -> dict[str, object]:
    """Fetch the key set of an OpenID Connect provider.

    Raises:
        OSError, ValueError: there is none.
    """
    return fetched_from(terms.jwks_url or check_url(str(configuration_of(terms.issuer).get("jwks_uri")), terms.issuer))


def _signing_keys(key_set: dict[str, object]) -> dict[str, tuple[SigningKey, ...]]:
    """Select the signing keys of a set; RFC 7517 asks to skip the others.

    Raises:
        ValueError: it is no key set. One without a usable key is: it withdraws those before.
    """
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
