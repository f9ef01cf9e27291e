"""What can go wrong by the ledger's rules.

::

    LedgerError
     ├─ NotFoundError                 not_found
     ├─ AuthenticationError           unauthenticated
     ├─ InsufficientScopeError        insufficient_scope
     ├─ PolicyViolationError          policy_violation
     ├─ InvalidInputError             invalid_request
     ├─ RequestTooLargeError          request_too_large
     ├─ RateLimitedError              rate_limited
     ├─ NameTakenError                name_taken
     ├─ PreconditionRequiredError     precondition_required
     ├─ PreconditionFailedError          precondition_failed
     ├─ ProposalClosedError          proposal_closed
     ├─ SigningNotConfiguredError     signing_not_configured
     ├─ LimitTooSmallError            limit_too_small
     ├─ DeltaTooLargeError            delta_too_large
     ├─ PrivacyUnitMismatchError      privacy_unit_mismatch
     ├─ RelationMismatchError         neighboring_relation_mismatch
     ├─ BudgetClosedError             budget_closed
     ├─ RunStateConflictError         run_state_conflict
     ├─ AttemptSupersededError        attempt_superseded
     ├─ ReservationClosedError      reservation_closed
     ├─ ReservationStateConflictError      reservation_state_conflict
     ├─ AccountQuarantinedError       account_quarantined
     ├─ SequenceConflictError         sequence_conflict
     ├─ SequenceGapError              sequence_gap
     ├─ WebhookStateConflictError          webhook_state_conflict
     ├─ IdempotencyKeyReusedError     idempotency_key_reused
     └─ LedgerUnavailableError        ledger_unavailable

A refused step is not here: a refusal is a value that is returned and recorded (ADR 0002).
"""

from typing import ClassVar


class LedgerError(Exception):
    """A rule of the ledger says no.

    Args:
        detail: a sentence for a person: what is wrong and what would be right.
        **members: facts for a program, by name; they become members of the HTTP problem.
    """

    code: ClassVar[str]

    def __init__(self, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.members = members


class NotFoundError(LedgerError):
    """There is no such object in the caller's organisation."""

    code = "not_found"


class AuthenticationError(LedgerError):
    """The request carries no key, or none that this ledger knows."""

    code = "unauthenticated"


class InsufficientScopeError(LedgerError):
    """The key's role or reach does not allow this, or it takes another person."""

    code = "insufficient_scope"


class CsrfError(LedgerError):
    """Somebody's browser asks, and no page of this service has made it ask."""

    code = "csrf_failed"


class PolicyViolationError(LedgerError):
    """A policy of the organisation, or of a part of its trees, does not allow this."""

    code = "policy_violation"


class InvalidInputError(LedgerError):
    """A value is outside what the ledger takes."""

    code = "invalid_request"


class RequestTooLargeError(LedgerError):
    """The request holds more than one transaction should."""

    code = "request_too_large"


class RateLimitedError(LedgerError):
    """The caller asks more often than one may; `retry_after` says in how many seconds it may again."""

    code = "rate_limited"


class NameTakenError(LedgerError):
    """A sibling, or another organisation, already has this name."""

    code = "name_taken"


class PreconditionRequiredError(LedgerError):
    """The request must say which version it means to change."""

    code = "precondition_required"


class PreconditionFailedError(LedgerError):
    """What the request means to change is not what the asker has seen."""

    code = "precondition_failed"


class ProposalClosedError(LedgerError):
    """The proposal was approved, rejected or withdrawn, and stays so."""

    code = "proposal_closed"


class SigningNotConfiguredError(LedgerError):
    """Something is to be signed, and the service has no key."""

    code = "signing_not_configured"


class LimitTooSmallError(LedgerError):
    """Under this limit no mechanism could ever be admitted."""

    code = "limit_too_small"


class DeltaTooLargeError(LedgerError):
    """A delta of 1/size or more allows the release of a whole record."""

    code = "delta_too_large"


class PrivacyUnitMismatchError(LedgerError):
    """The trainer protects another unit than the population's."""

    code = "privacy_unit_mismatch"


class RelationMismatchError(LedgerError):
    """The trainer's mechanism is calibrated for another neighboring relation than the population's."""

    code = "neighboring_relation_mismatch"


class BudgetClosedError(LedgerError):
    """An account is not open yet, or not any more."""

    code = "budget_closed"


class RunStateConflictError(LedgerError):
    """The run is in a state that does not allow this."""

    code = "run_state_conflict"


class AttemptSupersededError(LedgerError):
    """The trainer speaks for an attempt that is not the run's current one: its fencing token is stale."""

    code = "attempt_superseded"

    def unnamed(self) -> "AttemptSupersededError":
        """The same, said to a trainer that named no attempt."""
        current = self.members["current_attempt"]
        return AttemptSupersededError(
            f"The request named no `attempt`, which means 1; the current one is {current}. "
            f'Its trainer sends "attempt": {current}.',
            **self.members,
        )


class ReservationClosedError(LedgerError):
    """The reservation was committed, voided or forfeited, and stays so."""

    code = "reservation_closed"


class ReservationStateConflictError(LedgerError):
    """The reservation, or the run that it is for, does not allow this now."""

    code = "reservation_state_conflict"


class AccountQuarantinedError(LedgerError):
    """Verification found an account's balance unproven; nothing is charged to it until it is sound again."""

    code = "account_quarantined"


class SequenceConflictError(LedgerError):
    """These steps were admitted before, with another content."""

    code = "sequence_conflict"


class SequenceGapError(LedgerError):
    """The steps do not follow the last admitted one."""

    code = "sequence_gap"


class WebhookStateConflictError(LedgerError):
    """A webhook is disabled, or there are too many."""

    code = "webhook_state_conflict"


class IdempotencyKeyReusedError(LedgerError):
    """The key was used before, for another request."""

    code = "idempotency_key_reused"


class LedgerUnavailableError(LedgerError):
    """The database is in doubt; nothing was admitted and the request is safe to repeat."""

    code = "ledger_unavailable"
