"""Authenticate workloads by tokens of their cluster or CI, before these are exchanged for keys (RFC 8693)."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from app.ledger.audit import AuditAction, canonical
from app.ledger.errors import AuthenticationError, LedgerError
from app.ledger.names import ACTOR_LENGTH, is_subject
from app.persistence.database import error_summary
from app.service import metrics
from app.service.auth.authentication import WORKLOAD_PREFIX, FailedAttempt, FailedAttemptLog
from app.service.auth.circuit_breaker import CircuitBreaker
from app.service.auth.lookup import find_organisation, find_scope
from app.service.auth.oidc import tokens
from app.service.auth.oidc.errors import TokenRefusedError
from app.service.auth.oidc.jwks import JwksCache
from app.service.auth.workload.config import WorkloadIssuer, WorkloadRule

UNKNOWN_ISSUER: Final = "unknown"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkloadIdentity:
    """An authenticated workload.

    Args:
        actor: "workload:", the issuer's name and the token's subject.
        claims: of the token, which the rule is about.
        scope: id of the account that bounds its keys; None: the whole organisation.
        expires_at: end of the token.
        token_hash: of a token that is exchanged once only, else None.
    """

    organisation_id: str
    actor: str
    issuer: WorkloadIssuer
    rule: WorkloadRule
    claims: Mapping[str, str]
    scope: str | None
    expires_at: datetime
    token_hash: bytes | None


class WorkloadAuthenticator:
    """Authenticate workloads of several issuers, and record refused tokens."""

    def __init__(self, issuers: Sequence[WorkloadIssuer], breaker: CircuitBreaker, failures: FailedAttemptLog) -> None:
        self._issuers: Final = {each.issuer: each for each in issuers}
        self.key_sets: Final = {each.name: JwksCache(each.key_set, f"issuer {each.name!r}") for each in issuers}
        self._breaker = breaker
        self._failures = failures

    def authenticate(self, token: str, request_id: str | None = None) -> WorkloadIdentity:
        """Authenticate a token; it may call the issuer and read the database.

        Raises:
            AuthenticationError: the token is refused. Only those that an issuer signed learn more than that.
            LedgerUnavailableError, SQLAlchemyError: the issuer or the database does not answer.
        """
        issuer = None
        try:
            issuer = self._issuer_of(token)
            claims, _ = tokens.verify_token(token, self.key_sets[issuer.name], tokens.ID_TYPES)
            return self._identity(issuer, token, claims, request_id)
        except AuthenticationError:
            metrics.count_token_exchange(UNKNOWN_ISSUER if issuer is None else issuer.name, issued=False)
            raise

    def refuse(self, identity: WorkloadIdentity, error: TokenRefusedError, request_id: str | None) -> None:
        """Record that a token was refused when it was exchanged."""
        metrics.count_token_exchange(identity.issuer.name, issued=False)
        self._note(identity.issuer, identity.organisation_id, identity.actor, error.why, request_id)

    def _issuer_of(self, token: str) -> WorkloadIssuer:
        """Find the issuer that a token names, before its signature is checked with the keys of this one."""
        named = tokens.unverified_claims(token, tokens.ID_TYPES).get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise AuthenticationError("The token is from an issuer whose tokens this service does not exchange.")
        return issuer

    def _identity(
        self, issuer: WorkloadIssuer, token: str, claims: Mapping[str, object], request_id: str | None
    ) -> WorkloadIdentity:
        rule, matched = _rule_for(issuer, claims)
        try:
            ends = tokens.validate_claims(issuer, claims, self._breaker.db.clock.now())
            actor, rule = _require_subject(issuer, claims), _require_rule(issuer, rule)
            organisation_id, scope = self._find(rule)
        except TokenRefusedError as error:
            self._note_refused(issuer, rule, _actor(issuer, claims), error.why, request_id)
            raise
        used = _token_hash(token, claims) if issuer.single_use_tokens else None
        return WorkloadIdentity(organisation_id, actor, issuer, rule, matched, scope, ends, used)

    def _find(self, rule: WorkloadRule) -> tuple[str, str | None]:
        """Find the ids of the organisation and the scope of a rule."""
        organisation_id = find_organisation(self._breaker, rule.organisation)
        if organisation_id is None:
            raise TokenRefusedError("no_organisation", "The rule for this token names an unknown organisation.")
        scope = None if rule.scope is None else find_scope(self._breaker, organisation_id, rule.scope)
        if rule.scope is not None and scope is None:
            raise TokenRefusedError("no_scope", f"The rule for this token names no account: {rule.scope!r}.")
        return organisation_id, scope

    def _note_refused(
        self, issuer: WorkloadIssuer, rule: WorkloadRule | None, actor: str | None, why: str, request_id: str | None
    ) -> None:
        """Record a signed token in the audit log of the rule's organisation, if a rule is about it."""
        if rule is None:
            _logger.warning("A token of the issuer %s was refused: %s (%s)", issuer.name, why, actor)
            return
        try:
            organisation_id = find_organisation(self._breaker, rule.organisation)
        except (SQLAlchemyError, LedgerError) as failure:
            _logger.warning("A refused token could not be noted (%s): %s", why, error_summary(failure))
            return
        if organisation_id is not None:
            self._note(issuer, organisation_id, actor or f"{WORKLOAD_PREFIX}{issuer.name}:", why, request_id)

    def _note(self, issuer: WorkloadIssuer, organisation_id: str, actor: str, why: str, request_id: str | None) -> None:
        facts = {"issuer": issuer.issuer}
        tried = FailedAttempt(AuditAction.WORKLOAD_TOKEN_AUTHENTICATION_FAILED, organisation_id, actor, facts)
        self._failures.note(tried, why, request_id)


def _rule_for(issuer: WorkloadIssuer, claims: Mapping[str, object]) -> tuple[WorkloadRule | None, Mapping[str, str]]:
    """Find the first rule that matches a token's claims, and these."""
    for rule in issuer.rules:
        matched = rule.matched(claims)
        if matched is not None:
            return rule, matched
    return None, {}


def _require_rule(issuer: WorkloadIssuer, rule: WorkloadRule | None) -> WorkloadRule:
    if rule is None:
        compared = ", ".join(sorted({name for each in issuer.rules for name in each.claims}))
        raise TokenRefusedError(
            "no_rule",
            f"No rule of this service matches the token. The rules of its issuer compare the claims {compared}.",
        )
    return rule


def _require_subject(issuer: WorkloadIssuer, claims: Mapping[str, object]) -> str:
    actor = _actor(issuer, claims)
    if actor is None:
        raise TokenRefusedError("malformed", "The token's `sub` is missing, too long or not readable.")
    return actor


def _actor(issuer: WorkloadIssuer, claims: Mapping[str, object]) -> str | None:
    """Get the actor of a token's subject; None: missing, too long or not readable."""
    subject, prefix = claims.get("sub"), f"{WORKLOAD_PREFIX}{issuer.name}:"
    if not isinstance(subject, str) or len(subject) > ACTOR_LENGTH - len(prefix) or not is_subject(subject):
        return None
    return f"{prefix}{subject}"


def _token_hash(token: str, claims: Mapping[str, object]) -> bytes:
    """Hash what identifies a token: its `jti`, or what was signed.

    The signature is left out, because some algorithms allow further valid signatures to be derived from one.
    """
    named = claims.get("jti")
    same = ["jti", named] if isinstance(named, str) and named else ["token", token.rpartition(".")[0]]
    return hashlib.sha256(canonical([claims.get("iss"), *same]).encode()).digest()
