"""Bearer tokens of people: signed by the provider, for this service, at this time (RFC 7519, RFC 8725, RFC 9068)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import CompactSignature, JWSRegistry

from app.ledger.errors import AuthenticationError
from app.persistence.tables import ACTOR_LENGTH
from app.service.auth.oidc.config import OidcConfig
from app.service.auth.oidc.jwks import JwksCache, SigningKey
from app.service.foreign_json import read_object

ACTOR_PREFIX: Final = "oidc:"

LEEWAY_SECONDS: Final = 60
"""By how much the clocks of a provider and of this machine may differ where a token is too young."""

MOST_CHARACTERS: Final = 16_384
"""How long a token may be."""

KINDS: Final[Mapping[str, str]] = {
    "RS256": "RSA",
    "PS256": "RSA",
    "ES256": "P-256",
    "ES384": "P-384",
    "EdDSA": "Ed25519",
}
"""The algorithms that are taken, none of which shares a secret, and the one kind of key that goes with each."""

TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
ID_TYPES: Final = frozenset({"jwt", "application/jwt", ""})
"""Of what a provider answers at a sign-in: many leave it out, and a token for an API is none."""


class _Registry(JWSRegistry):
    """What the library checks while it reads a signature."""

    max_header_length = 4096
    max_payload_length = MOST_CHARACTERS

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - the library does not export its type
        """The algorithm of a name that is taken; EdDSA without the library's warning that RFC 9864 renames it."""
        if name not in KINDS:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


_REGISTRY: Final = _Registry(algorithms=list(KINDS), strict_check_header=False)


class TokenRefusedError(AuthenticationError):
    """A token that the provider signed opens nothing.

    Args:
        why: in a word, as chains keep it.
        told: a sentence for whoever sent it.
        claims: what it says, which the provider vouches for.
    """

    def __init__(self, why: str, told: str, claims: Mapping[str, object]) -> None:
        super().__init__(told)
        self.why = why
        self.claims = claims


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """What a provider vouches for.

    Args:
        claims: the token's content.
        thumbprint: of the key by which it is signed.
    """

    claims: Mapping[str, object]
    thumbprint: str


def token_in(authorization: str | None) -> str | None:
    """The token that a header holds; None: an API key, or something else.

    Args:
        authorization: the header's value.
    """
    scheme, _, bearer = (authorization or "").partition(" ")
    bearer = bearer.strip()
    # Header, content and signature; a key has one dot, and begins with its type.
    if scheme.lower() != "bearer" or bearer.startswith("key_") or bearer.count(".") != 2:  # noqa: PLR2004
        return None
    return bearer


def verify_token(token: str, provider: JwksCache, types: frozenset[str] = TYPES) -> VerifiedToken:
    """What a token says, if the provider signed it. Keys that it brings or points to itself are not looked at.

    Args:
        token: as it was sent.
        provider: whose keys count.
        types: that it may be of; the empty one stands for none.

    Raises:
        AuthenticationError: it cannot be read, or the provider did not sign it.
        LedgerUnavailableError: the provider's keys cannot be had.
    """
    if len(token) > MOST_CHARACTERS:
        raise AuthenticationError(f"The token is longer than {MOST_CHARACTERS} characters; let it list fewer groups.")
    content, algorithm, key_id = _opened(token, types)
    for each in provider.find(key_id):
        if _suits(each, algorithm) and _is_right(content, each):
            return VerifiedToken(_claims(content), each.thumbprint)
    raise AuthenticationError("The token is not signed by a key of the identity provider.")


def validate_claims(terms: OidcConfig, claims: Mapping[str, object], now: datetime) -> datetime:
    """Make sure that a signed token is for this service and for this moment.

    Args:
        terms: what is agreed with the provider.
        claims: the token's content.
        now: in UTC.

    Returns:
        When it expires.

    Raises:
        AuthenticationError: it is from another issuer.
        TokenRefusedError: it is not.
    """
    if claims.get("iss") != terms.issuer:
        # Noted nowhere: a provider may sign for many with the same keys, and the others could fill the chain.
        raise AuthenticationError("The token is from another issuer than this service takes.")
    audience = claims.get("aud")
    if terms.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenRefusedError("wrong_audience", "The token is made out to another audience than this one.", claims)
    ends = _moment(claims, "exp")
    if ends is None:
        raise TokenRefusedError("malformed", "The token does not say when it expires; it needs `exp`.", claims)
    if now >= ends:
        raise TokenRefusedError("expired", "The token has expired; sign in again.", claims)
    for name in ("nbf", "iat"):
        begins = _moment(claims, name)
        if begins is not None and begins.timestamp() > now.timestamp() + LEEWAY_SECONDS:
            raise TokenRefusedError("not_yet_valid", "The token is not valid yet; compare the clocks.", claims)
    return ends


def check_sign_in(claims: Mapping[str, object], client_id: str, nonce: str) -> None:
    """Make sure that a token was made for one sign-in at this service (OpenID Connect Core, 3.1.3.7).

    Args:
        claims: the token's content, whose audience holds the client.
        client_id: as the provider knows this service.
        nonce: that this sign-in sent.

    Raises:
        TokenRefusedError: it was made for another one, or for several clients.
    """
    told = claims.get("nonce")
    if not isinstance(told, str) or not compare_digest(told.encode(), nonce.encode()):
        raise TokenRefusedError("wrong_nonce", "The provider's answer belongs to another sign-in.", claims)
    audience = claims.get("aud")
    several = isinstance(audience, list) and len(audience) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise TokenRefusedError("wrong_audience", "The provider's answer is made out to another service.", claims)


def actor(terms: OidcConfig, claims: Mapping[str, object]) -> str | None:
    """Who a token speaks for, as chains name people; None: it does not say so in a way that could be kept."""
    subject = claims.get(terms.subject_claim)
    fits = isinstance(subject, str) and 0 < len(subject) <= ACTOR_LENGTH - len(ACTOR_PREFIX)
    return f"{ACTOR_PREFIX}{subject}" if fits and isinstance(subject, str) and subject.isprintable() else None


def _opened(token: str, types: frozenset[str]) -> tuple[CompactSignature, str, str]:
    """A token's parts, and the names of its algorithm and its key."""
    try:
        content = jws.extract_compact(token.encode("ascii"), registry=_REGISTRY)
        header = content.headers()
    except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
        raise AuthenticationError("The Authorization header holds no token that can be read.") from None
    if not isinstance(header, dict):
        raise AuthenticationError("The Authorization header holds no token that can be read.")
    algorithm, key_id, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(algorithm, str) or algorithm not in KINDS:
        raise AuthenticationError(f"The token must be signed by one of {', '.join(KINDS)}.")
    if not isinstance(key_id, str):
        raise AuthenticationError("The token does not name the key that signed it; it needs `kid`.")
    if not isinstance(kind, str) or kind.lower() not in types:
        raise AuthenticationError("The token's `typ` must be JWT or at+jwt.")
    if "crit" in header or "b64" in header:
        raise AuthenticationError("The token asks for extensions that this service does not know.")
    return content, algorithm, key_id


def _suits(signing: SigningKey, algorithm: str) -> bool:
    if signing.algorithm not in {None, algorithm}:
        return False
    return KINDS[algorithm] in {signing.key.key_type, getattr(signing.key, "curve_name", None)}


def _is_right(content: CompactSignature, signing: SigningKey) -> bool:
    try:
        return jws.validate_compact(content, signing.key, registry=_REGISTRY)
    except (JoseError, ValueError):
        return False


def _claims(content: CompactSignature) -> Mapping[str, object]:
    try:
        return read_object(content.payload or b"")
    except ValueError:
        raise AuthenticationError(
            "The token's content is no JSON object, or holds half a surrogate pair, which is no character."
        ) from None


def _moment(claims: Mapping[str, object], name: str) -> datetime | None:
    """A moment that a token names; None: it does not."""
    seconds = claims.get(name)
    if name not in claims:
        return None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        try:
            if math.isfinite(seconds):
                return datetime.fromtimestamp(seconds, UTC)
        except (OverflowError, OSError, ValueError):
            pass
    raise TokenRefusedError("malformed", f"The token's `{name}` is no moment.", claims)
