"""Configuration of the issuers whose tokens workloads exchange, and the rules for their claims."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from app.ledger.permissions import Role
from app.service.auth.oidc.config import check_url
from app.service.auth.oidc.http_json import SYSTEM_TRUST, FetchAccess, configuration_of, fetched_from
from app.service.json_values import read_object

ANY_REST = "*"
"""At the end of a rule's value: the claim begins with what is before."""


@dataclass(frozen=True, slots=True)
class WorkloadRule:
    """A rule: the workloads whose tokens have all these claims get keys with this role.

    Args:
        claims: values by the name of the claim, or by its path such as "kubernetes.io/namespace". A value that ends in
            `*` is a prefix.
        organisation: id or name.
        role: of the keys.
        scope: id or path of the account that bounds them; None: the whole organisation.
        single_use: whether each key is for one run.
    """

    claims: Mapping[str, str]
    organisation: str
    role: Role
    scope: str | None
    single_use: bool

    def matched(self, claims: Mapping[str, object]) -> dict[str, str] | None:
        """Get the claims of a token that the rule is about; None: it does not match."""
        found = {name: claim_at(claims, name) for name in self.claims}
        texts = {name: value for name, value in found.items() if isinstance(value, str)}
        matches = len(texts) == len(found) and all(_fits(texts[name], due) for name, due in self.claims.items())
        return texts if matches else None


@dataclass(frozen=True, slots=True)
class WorkloadIssuer:
    """An issuer of tokens.

    Args:
        name: short, for audit events and metrics.
        issuer: its URL, exactly as in tokens.
        audience: required in tokens for this service.
        rules: the first one that matches counts.
        key_lifetime: of the keys, which also end with the token.
        single_use_tokens: whether a token is exchanged once only.
        jwks_url: of its keys; None: from its configuration.
        jwks_file: with its keys, instead of a URL.
        access: how its addresses are fetched.
    """

    name: str
    issuer: str
    audience: str
    rules: tuple[WorkloadRule, ...]
    key_lifetime: timedelta
    single_use_tokens: bool = False
    jwks_url: str | None = None
    jwks_file: str | None = None
    access: FetchAccess = SYSTEM_TRUST

    def key_set(self) -> dict[str, object]:
        """Read or fetch the key set.

        Raises:
            OSError, ValueError: there is none.
        """
        if self.jwks_file is not None:
            return read_object(Path(self.jwks_file).read_bytes())
        url = self.jwks_url
        if url is None:
            url = check_url(str(configuration_of(self.issuer, self.access).get("jwks_uri")), self.issuer)
        return fetched_from(url, self.access)


def claim_at(claims: Mapping[str, object], name: str) -> object:
    """Get a claim by its name, or by its path of names with slashes; None: missing."""
    if name in claims:
        return claims[name]
    at: object = claims
    for part in name.split("/"):
        if not isinstance(at, Mapping):
            return None
        at = at.get(part)
    return at


def _fits(value: str, due: str) -> bool:
    return value.startswith(due.removesuffix(ANY_REST)) if due.endswith(ANY_REST) else value == due
