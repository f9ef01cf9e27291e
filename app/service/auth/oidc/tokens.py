"""Verify the bearer tokens of people (RFC 7519, RFC 8725, RFC 9068)."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any, Final, Protocol

from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jws import CompactSignature, JWSRegistry
from joserfc.util import urlsafe_b64decode

from app.ledger.errors import AuthenticationError
from app.ledger.names import ACTOR_LENGTH, is_line, is_subject
from app.service.auth.oidc.config import ACTOR_PREFIX, OidcConfig
from app.service.auth.oidc.errors import TokenRefusedError
from app.service.auth.oidc.jwks import JwksCache, SigningKey
from app.service.json_values import read_object

LEEWAY_SECONDS: Final = 60
"""Tolerated clock difference for tokens that are not valid yet."""

MOST_CHARACTERS: Final = 16_384
"""Length limit of a token."""

KINDS: Final[Mapping[str, str]] = {
    "RS256": "RSA",
    "PS256": "RSA",
    "ES256": "P-256",
    "ES384": "P-384",
    "EdDSA": "Ed25519",
}
"""Accepted algorithms, all asymmetric, with the one key type of each."""

TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
ID_TYPES: Final = frozenset({"jwt", "application/jwt", ""})
"""Accepted `typ` of ID tokens: many providers omit it, and access tokens are refused."""


class _Registry(JWSRegistry):
    """Algorithms and size limits for the library's signature checks."""

    max_header_length = 4096
    max_payload_length = MOST_CHARACTERS

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - the library does not export its type
        """Get an accepted algorithm; EdDSA without the library's warning that RFC 9864 renames it."""
        if name not in KINDS:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


_REGISTRY: Final = _Registry(algorithms=list(KINDS), strict_check_header=False)


class TokenTerms(Protocol):
    """What a token must name: its issuer, exactly, and this service as the audience."""

    @property
    def issuer(self) -> str:
        """The URL of the issuer."""

    @property
    def audience(self) -> str:
        """The audience of this service."""


def verify_token(token: str, provider: JwksCache, types: frozenset[str]) -> tuple[Mapping[str, object], str]:
    """Verify a token's signature and `typ`; keys in or referenced by its header are ignored.

    Returns:
        Its claims, and the thumbprint of the key that signed it.

    Raises:
        AuthenticationError: the token is malformed, or not signed by the provider.
        LedgerUnavailableError: the provider's keys are not available.
    """
    content, algorithm, key_id = _opened(token, types)
    for each in provider.find(key_id):
        if _suits(each, algorithm) and _is_right(content, each):
            return _claims(content), each.thumbprint
    raise AuthenticationError("The token is not signed by a key of the identity provider.")


def unverified_claims(token: str, types: frozenset[str]) -> Mapping[str, object]:
    """Read the claims of a token whose signature is not checked yet, to learn whose keys check it.

    Raises:
        AuthenticationError: the token is malformed.
    """
    return _claims(_opened(token, types)[0])


def validate_claims(terms: TokenTerms, claims: Mapping[str, object], now: datetime) -> datetime:
    """Check that a signed token is for this service and valid now; return its expiry.

    Raises:
        AuthenticationError: another issuer.
        TokenRefusedError: another audience, expired, not valid yet, or malformed.
    """
    if claims.get("iss") != terms.issuer:
        # Not recorded: a provider may use the same keys for many tenants, and others could fill the audit log.
        raise AuthenticationError("The token is from another issuer than this service takes.")
    audience = claims.get("aud")
    if terms.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenRefusedError("wrong_audience", "The token is made out to another audience than this one.")
    ends = _moment(claims, "exp")
    if ends is None:
        raise TokenRefusedError("malformed", "The token does not say when it expires; it needs `exp`.")
    if now >= ends:
        raise TokenRefusedError("expired", "The token has expired; get a new one.")
    for name in ("nbf", "iat"):
        begins = _moment(claims, name)
        if begins is not None and begins.timestamp() > now.timestamp() + LEEWAY_SECONDS:
            raise TokenRefusedError("not_yet_valid", "The token is not valid yet; compare the clocks.")
    return ends


def check_sign_in(claims: Mapping[str, object], client_id: str, nonce: str) -> None:
    """Check that an ID token belongs to a login at this service (OpenID Connect Core, 3.1.3.7).

    Raises:
        TokenRefusedError: it belongs to another login, or to several clients.
    """
    claimed = claims.get("nonce")
    if not isinstance(claimed, str) or not compare_digest(claimed.encode(), nonce.encode()):
        raise TokenRefusedError("wrong_nonce", "The provider's answer belongs to another sign-in.")
    audience = claims.get("aud")
    several = isinstance(audience, list) and len(audience) > 1
    if claims.get("azp", None if several else client_id) != client_id:
        raise TokenRefusedError("wrong_audience", "The provider's answer is made out to another service.")


def actor(terms: OidcConfig, claims: Mapping[str, object]) -> str | None:
    """Get the actor of a token's subject; None: missing, too long or not readable."""
    subject = claims.get(terms.subject_claim)
    if not isinstance(subject, str) or len(subject) > ACTOR_LENGTH - len(ACTOR_PREFIX) or not is_subject(subject):
        return None
    return f"{ACTOR_PREFIX}{subject}"


def display_name(claims: Mapping[str, object]) -> str | None:
    """Get the name of a token's person, as in the claim `name` or `preferred_username`; None: not told."""
    for claim in ("name", "preferred_username"):
        named = claims.get(claim)
        if isinstance(named, str) and len(named.strip()) <= ACTOR_LENGTH and is_line(named):
            return named.strip()
    return None


def _opened(token: str, types: frozenset[str]) -> tuple[CompactSignature, str, str]:
    """Parse a token; return it with its algorithm and key id."""
    if len(token) > MOST_CHARACTERS:
        raise AuthenticationError(f"The token is longer than {MOST_CHARACTERS} characters; let it list fewer groups.")
    try:
        content = jws.extract_compact(token.encode("ascii"), registry=_REGISTRY)
        header = read_object(urlsafe_b64decode(content.segments["header"]))  # the library takes repeated names
    except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
        raise AuthenticationError("This is no token that can be read.") from None
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
            "The token's content is no JSON object, names a claim twice, or holds half a surrogate pair, which is no "
            "character."
        ) from None


def _moment(claims: Mapping[str, object], name: str) -> datetime | None:
    """Get a time of the claims; None: missing."""
    seconds = claims.get(name)
    if name not in claims:
        return None
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        try:
            if math.isfinite(seconds):
                return datetime.fromtimestamp(seconds, UTC)
        except (OverflowError, OSError, ValueError):
            pass
    raise TokenRefusedError("malformed", f"The token's `{name}` is no moment.")
