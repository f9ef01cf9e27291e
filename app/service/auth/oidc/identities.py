"""Map people with a token to an organisation, a role and a scope."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import AuditAction
from app.ledger.errors import LedgerError
from app.persistence.database import error_summary
from app.service.auth.authentication import FailedAttempt, FailedAttemptLog, Principal
from app.service.auth.circuit_breaker import CircuitBreaker
from app.service.auth.lookup import find_organisation, find_scope
from app.service.auth.oidc import tokens
from app.service.auth.oidc.config import ACTOR_PREFIX, OidcConfig, RoleMapping, granted
from app.service.auth.oidc.errors import TokenRefusedError
from app.service.auth.oidc.jwks import JwksCache, fetch_key_set

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OidcIdentity:
    """An authenticated person, the thumbprint of the key that signed the token, and the person's name, if told.

    `nonce` is that of the login whose ID token this was; None: an access token.
    """

    caller: Principal
    thumbprint: str
    name: str | None = None
    nonce: str | None = None


class OidcAuthenticator:
    """Authenticate people by tokens, and record refused ones."""

    def __init__(self, terms: OidcConfig, breaker: CircuitBreaker, failures: FailedAttemptLog) -> None:
        self.jwks: Final = JwksCache(partial(fetch_key_set, terms))
        self._terms = terms
        self._breaker = breaker
        self._failures = failures

    def authenticate(
        self, token: str, request_id: str | None = None, login: tuple[str, str] | None = None
    ) -> OidcIdentity:
        """Authenticate a bearer token, or with `login` the ID token of a login with this client id and nonce.

        It may call the provider and read the database.

        Raises:
            AuthenticationError: the token is refused.
            LedgerUnavailableError, SQLAlchemyError: the provider or the database does not answer.
        """
        claims, thumbprint = tokens.verify_token(token, self.jwks, tokens.TYPES if login is None else tokens.ID_TYPES)
        terms = self._terms if login is None else replace(self._terms, audience=login[0])
        try:
            caller = self._caller(claims, self._breaker.db.clock.now(), terms)
            if login is not None:
                tokens.check_sign_in(claims, *login)
        except TokenRefusedError as error:
            self._note(error.why, claims, request_id)
            raise
        nonce = None if login is None else login[1]
        return OidcIdentity(caller, thumbprint, tokens.display_name(claims), nonce)

    def _caller(self, claims: Mapping[str, object], now: datetime, terms: OidcConfig) -> Principal:
        ends = tokens.validate_claims(terms, claims, now)
        actor = tokens.actor(terms, claims)
        if actor is None:
            raise TokenRefusedError(
                "malformed", f"The token's `{terms.subject_claim}` is missing, too long or not readable."
            )
        grant = granted(terms, _groups(terms, claims))
        if grant is None:
            raise TokenRefusedError(
                "no_role",
                f"None of the groups in the token's `{terms.groups_claim}` has a role in this service; ask its "
                "administrator, or the provider's, for one.",
            )
        organisation_id = self._organisation(claims)
        if organisation_id is None:
            raise TokenRefusedError("no_organisation", "The token is of no organisation in this service.")
        scope = self._scope(organisation_id, grant)
        return Principal(organisation_id, actor, grant.role, scope, ends)

    def _organisation(self, claims: Mapping[str, object]) -> str | None:
        """Find the id of the organisation of a token; None: unknown."""
        terms = self._terms
        named = terms.organisation if terms.organisation_claim is None else claims.get(terms.organisation_claim)
        return find_organisation(self._breaker, named)

    def _scope(self, organisation_id: str, grant: RoleMapping) -> str | None:
        """Get the id of the account that bounds a role; None: unbounded."""
        if grant.scope is None:
            return None
        found = find_scope(self._breaker, organisation_id, grant.scope)
        if found is None:
            raise TokenRefusedError(
                "no_scope", f"Your role is bound to the account {grant.scope!r}, which is not there."
            )
        return found

    def _note(self, why: str, claims: Mapping[str, object], request_id: str | None) -> None:
        """Record a refused token; only tokens that the provider signed reach the audit log."""
        action = AuditAction.OIDC_TOKEN_AUTHENTICATION_FAILED
        try:
            organisation_id = self._organisation(claims)
        except (SQLAlchemyError, LedgerError) as failure:
            _logger.warning("A %s could not be noted (%s): %s", action, why, error_summary(failure))
            return
        if organisation_id is not None:
            subject = tokens.actor(self._terms, claims) or ACTOR_PREFIX
            tried = FailedAttempt(action, organisation_id, subject, {"issuer": self._terms.issuer})
            self._failures.note(tried, why, request_id)


def _groups(terms: OidcConfig, claims: Mapping[str, object]) -> list[str]:
    listed = claims.get(terms.groups_claim)
    distributed = claims.get("_claim_names")  # OpenID Connect Core, 5.6.2; Entra uses them from 200 groups on
    if listed is None and isinstance(distributed, dict) and terms.groups_claim in distributed:
        raise TokenRefusedError(
            "too_many_groups",
            "The provider left your groups out of the token, for there are too many; let it list only those that are "
            "assigned to this service.",
        )
    if isinstance(listed, str):
        return [listed]
    return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
