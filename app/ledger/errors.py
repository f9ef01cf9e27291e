"""Errors of the ledger's rules, each with a stable code.

A refused step is not an error: refusals are values that are returned and recorded (ADR 0002).
"""

from typing import ClassVar, TypeVar

T = TypeVar("T")


class LedgerError(Exception):
    """Base of the ledger's errors; `members` become members of the HTTP problem."""

    code: ClassVar[str]

    def __init__(self, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = members


class NotFoundError(LedgerError):
    """The caller's organisation has no such object."""

    code = "not_found"


def require_found(found: T | None, kind: str, reference: str) -> T:
    """Return what was found; NotFoundError: None was."""
    if found is None:
        raise NotFoundError(f"There is no {kind} {reference!r} in your organisation.")
    return found


class AuthenticationError(LedgerError):
    """The request has no key, or an unknown one."""

    code = "unauthenticated"


class InsufficientScopeError(LedgerError):
    """The key lacks permission or scope, or another person must approve."""

    code = "insufficient_scope"


class CsrfError(LedgerError):
    """The CSRF check failed: the browser's request came from another site."""

    code = "csrf_failed"


class PolicyViolationError(LedgerError):
    """A policy of the organisation or of an account forbids this."""

    code = "policy_violation"


class InvalidInputError(LedgerError):
    """A value is out of bounds."""

    code = "invalid_request"


class RequestTooLargeError(LedgerError):
    """The request is too large for one transaction."""

    code = "request_too_large"


class RateLimitedError(LedgerError):
    """The caller exceeded its rate; retry after `retry_after` seconds."""

    code = "rate_limited"


class NameTakenError(LedgerError):
    """A sibling, or another organisation, already has this name."""

    code = "name_taken"


class PreconditionRequiredError(LedgerError):
    """The request must name the version that it changes."""

    code = "precondition_required"


class PreconditionFailedError(LedgerError):
    """The object has changed since the caller read it."""

    code = "precondition_failed"


class ProposalClosedError(LedgerError):
    """The proposal is already closed."""

    code = "proposal_closed"


class SigningNotConfiguredError(LedgerError):
    """A signature is required, but the service has no signing key."""

    code = "signing_not_configured"


class LimitTooSmallError(LedgerError):
    """Under this limit no mechanism could ever be admitted."""

    code = "limit_too_small"


class DeltaTooLargeError(LedgerError):
    """A delta of 1/size or more allows the release of a whole record."""

    code = "delta_too_large"


class PrivacyUnitMismatchError(LedgerError):
    """The trainer protects another privacy unit than the population's."""

    code = "privacy_unit_mismatch"


class RelationMismatchError(LedgerError):
    """The trainer's mechanism uses another neighboring relation than the population."""

    code = "neighboring_relation_mismatch"


class BudgetClosedError(LedgerError):
    """The account's window has not opened yet, or has closed."""

    code = "budget_closed"


class RunStateConflictError(LedgerError):
    """The run's status does not allow this."""

    code = "run_state_conflict"


class AttemptSupersededError(LedgerError):
    """The fencing token is stale: the attempt is not the run's current one."""

    code = "attempt_superseded"

    def unnamed(self) -> "AttemptSupersededError":
        """Copy the error for a request that named no attempt."""
        current = self.members["current_attempt"]
        return AttemptSupersededError(
            f"The request named no `attempt`, which means 1; the current one is {current}. "
            f'Its trainer sends "attempt": {current}.',
            **self.members,
        )


class ReservationClosedError(LedgerError):
    """The reservation is already committed, voided or forfeited."""

    code = "reservation_closed"


class ReservationStateConflictError(LedgerError):
    """The state of the reservation or its run does not allow this."""

    code = "reservation_state_conflict"


class AccountQuarantinedError(LedgerError):
    """Verification could not prove an account's balance; charges stop until it can."""

    code = "account_quarantined"


class SequenceConflictError(LedgerError):
    """These steps were admitted before, with different content."""

    code = "sequence_conflict"


class SequenceGapError(LedgerError):
    """The steps do not follow the last admitted one."""

    code = "sequence_gap"


class WebhookStateConflictError(LedgerError):
    """The webhook is disabled, or there are too many."""

    code = "webhook_state_conflict"


class IdempotencyKeyReusedError(LedgerError):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"


class LedgerUnavailableError(LedgerError):
    """The database is unavailable; nothing was admitted, and a retry is safe."""

    code = "ledger_unavailable"
