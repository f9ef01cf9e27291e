"""Configuration of an OpenID Connect provider, and the roles of its groups."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from app.ledger.permissions import PERMISSIONS, Role
from app.service.json_values import read_object

RIGHT: Final = 'write {"GROUP": {"role": "privacy_officer"}, "ANOTHER": {"role": "trainer", "scope": "mimic/icu-team"}}'

ACTOR_PREFIX: Final = "oidc:"
"""Before the subject in the name of an actor."""

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class RoleMapping:
    """Role of a group's members; `scope` is the id or path of the account that bounds it."""

    role: Role
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """Configuration of a provider.

    Args:
        issuer: its URL, exactly as in tokens.
        audience: required in tokens for this service.
        organisation: id or name of the one organisation; None: `organisation_claim` has it.
        roles: by group, in the order of configuration.
        jwks_url: None: taken from the provider's configuration.
        subject_claim: the claim that identifies a person, never reused for another one.
    """

    issuer: str
    audience: str
    organisation: str | None
    organisation_claim: str | None
    roles: Mapping[str, RoleMapping]
    jwks_url: str | None = None
    groups_claim: str = "groups"
    subject_claim: str = "sub"


def granted(terms: OidcConfig, groups: list[str]) -> RoleMapping | None:
    """Choose the role of a person by their groups.

    The organisation-wide role with the most permissions wins. Without one, the first mapping with a scope does. The
    order of configuration decides between equals. None: no group has a role.
    """
    member = set(groups)
    held = [grant for group, grant in terms.roles.items() if group in member]
    everywhere = [grant for grant in held if grant.scope is None]
    if everywhere:
        return max(everywhere, key=lambda grant: len(PERMISSIONS[grant.role]))
    return held[0] if held else None


def check_url(url: str, issuer: str | None = None) -> str:
    """Check an address before it is fetched, and return it.

    Plain HTTP is allowed only if the issuer, by default the address itself, is on this machine.

    Raises:
        ValueError: it is no https URL with a host, or has credentials or a fragment.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("it is no URL") from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a URL has printable ASCII characters only, and no space")
    schemes = {"https", "http"} if urlsplit(issuer or url).hostname in _LOCAL else {"https"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError("it must begin with https://HOST; without TLS only a provider on localhost is asked")
    if parts.fragment or parts.username is not None or parts.password is not None:
        raise ValueError("it must hold no user, password or fragment")
    return url


def check_issuer(url: str) -> str:
    """Check the URL of an issuer like `check_url`, and refuse a query."""
    if urlsplit(check_url(url)).query:
        raise ValueError("an issuer has no query")
    return url


def check_origin(url: str) -> str:
    """Check the URL of an origin like `check_url`, refuse a path or query, and return it without a trailing slash."""
    parts = urlsplit(check_url(url))
    if parts.query or parts.path not in {"", "/"}:
        raise ValueError("it must hold a host and no path")
    return url.rstrip("/")


def read_roles(given: object) -> object:
    """Parse role mappings from JSON text with unique names; other values are returned unchanged."""
    if not isinstance(given, str):
        return given
    try:
        groups = read_object(given.encode())
    except json.JSONDecodeError:
        raise ValueError(f"it is no JSON; {RIGHT}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {RIGHT}") from None
    if not groups:
        raise ValueError(f"it is no JSON object of groups; {RIGHT}")
    return {group: _grant(group, terms) for group, terms in groups.items()}


def _grant(group: str, terms: object) -> RoleMapping:
    if not isinstance(terms, dict) or not {"role"} <= terms.keys() <= {"role", "scope"}:
        raise ValueError(f"the group {group!a} needs a role, may have a scope, and has nothing else; {RIGHT}")
    if terms["role"] not in list(Role):
        raise ValueError(f"the group {group!a} has a role that is none; there are {', '.join(Role)}")
    scope = terms.get("scope")
    if scope is not None and (not isinstance(scope, str) or not scope):
        raise ValueError(f"the scope of the group {group!a} is the id or the path of an account")
    return RoleMapping(Role(terms["role"]), scope)
