"""Errors of the ledger's rules, each with a stable code.

A refused step is not an error: refusals are values that are returned and recorded (ADR 0002).
"""

from typing import ClassVar, TypeVar

T = TypeVar("T")


class LedgerError(Exception):
    """Base of the ledger's errors; `members` become members of the HTTP problem."""

    code: ClassVar[str]

    def __init_subclass__(cls, code: str | None = None) -> None:
        """Set the code, if it is not that of the base."""
        if code is not None:
            cls.code = code

    def __init__(self, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = members


class NotFoundError(LedgerError, code="not_found"):
    """The caller's organisation has no such object."""


def require_found(found: T | None, kind: str, reference: str) -> T:
    """Return what was found; NotFoundError: None was."""
    if found is None:
        raise NotFoundError(f"There is no {kind} {reference!r} in your organisation.")
    return found


class AuthenticationError(LedgerError, code="unauthenticated"):
    """The request has no key, or an unknown one."""


class PermissionDeniedError(LedgerError, code="permission_denied"):
    """The key lacks permission or scope, or another person must approve."""


class CsrfError(LedgerError, code="csrf_failed"):
    """The CSRF check failed: the browser's request came from another site."""


class PolicyViolationError(LedgerError, code="policy_violation"):
    """A policy of the organisation or of an account forbids this."""


class InvalidInputError(LedgerError, code="invalid_request"):
    """A value is out of bounds."""


class RequestTooLargeError(LedgerError, code="request_too_large"):
    """The request is too large for one transaction."""


class RateLimitedError(LedgerError, code="rate_limited"):
    """The caller exceeded its rate; retry after `retry_after` seconds."""


class NameTakenError(LedgerError, code="name_taken"):
    """A sibling, or another organisation, already has this name."""


class PreconditionRequiredError(LedgerError, code="precondition_required"):
    """The request must name the version that it changes."""


class PreconditionFailedError(LedgerError, code="precondition_failed"):
    """The object has changed since the caller read it."""


class ProposalClosedError(LedgerError, code="proposal_closed"):
    """The proposal is already closed."""


class SigningNotConfiguredError(LedgerError, code="signing_not_configured"):
    """A signature is required, but the service has no signing key."""


class LimitTooSmallError(LedgerError, code="limit_too_small"):
    """Under this limit no mechanism could ever be admitted."""


class DeltaTooLargeError(LedgerError, code="delta_too_large"):
    """A delta of 1/size or more allows the release of a whole record."""


class PrivacyUnitMismatchError(LedgerError, code="privacy_unit_mismatch"):
    """The trainer protects another privacy unit than the population's."""


class RelationMismatchError(LedgerError, code="neighboring_relation_mismatch"):
    """The trainer's mechanism uses another neighboring relation than the population."""


class AccountClosedError(LedgerError, code="account_closed"):
    """The account's window has not opened yet, or has closed."""


class AccountArchivedError(LedgerError, code="account_archived"):
    """The account, or one above it, is archived: it is read-only."""


class AccountStateConflictError(LedgerError, code="account_state_conflict"):
    """The state of the account, or of runs under it, does not allow this."""


class ReservationRequiredError(LedgerError, code="reservation_required"):
    """An account of the path admits reserved steps only."""


class ReservationsWaitingError(LedgerError, code="reservations_waiting"):
    """The reservation fits, but others that wait are served first."""


class RunStateConflictError(LedgerError, code="run_state_conflict"):
    """The run's status does not allow this."""


class AttemptSupersededError(LedgerError, code="attempt_superseded"):
    """The fencing token is stale: the attempt is not the run's current one."""

    def unnamed(self) -> "AttemptSupersededError":
        """Copy the error for a request that named no attempt."""
        current = self.members["current_attempt"]
        return AttemptSupersededError(
            f"The request named no `attempt`, which means 1; the current one is {current}. "
            f'Its trainer sends "attempt": {current}.',
            **self.members,
        )


class ReservationClosedError(LedgerError, code="reservation_closed"):
    """The reservation is already committed, voided or forfeited."""


class ReservationStateConflictError(LedgerError, code="reservation_state_conflict"):
    """The state of the reservation or its run does not allow this."""


class AccountQuarantinedError(LedgerError, code="account_quarantined"):
    """Verification could not prove an account's balance; charges stop until it can."""


class SequenceConflictError(LedgerError, code="sequence_conflict"):
    """These steps were admitted before, with different content."""


class SequenceGapError(LedgerError, code="sequence_gap"):
    """The steps do not follow the last admitted one."""


class ReceiverStateConflictError(LedgerError, code="receiver_state_conflict"):
    """The receiver is disabled, or too many are active."""


class IdempotencyKeyReusedError(LedgerError, code="idempotency_key_reused"):
    """The idempotency key was used for another request."""


class LedgerUnavailableError(LedgerError, code="ledger_unavailable"):
    """The database is unavailable; nothing was admitted, and a retry is safe."""
