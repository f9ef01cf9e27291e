"""What can go wrong between a trainer and the ledger.

* LedgerError
  + ConfigurationError            no address or key, or one that cannot be sent
  + LedgerUnavailableError        no answer within the tries and the time that were allowed
  + UnexpectedResponseError       an answer came, but not one of this API
  + RequestInDoubtError           an unanswered step is pending and another one was asked for
  + StepsAlreadyTakenError        another process holds these very steps
  + ApprovalRequiredError         a policy has another person approve first; the proposal waits
  + ReservationNotGrantedError           a reservation has waited in vain, or was cancelled
  + TrialExceededError            a trial wants more than its sweep has declared and paid for
  + ChargeExceededError           a training or an epoch wants more steps than its charge covers
  + AmbiguousPathError            several runs have this path
  + InvalidSignatureError         a document is not signed by this key
  + ProblemError                  the ledger said no; also raised for codes that this version does not know
    · BudgetExceededError         budget_exceeded
    · AccountClosedError           account_closed
    · ReservationRequiredError           reservation_required
    · ReservationsWaitingError           reservations_waiting
    · SequenceConflictError       sequence_conflict
    · SequenceGapError            sequence_gap
    · RunStateConflictError       run_state_conflict
    · AttemptSupersededError      attempt_superseded
    · ReservationStateConflictError    reservation_state_conflict
    · ReservationClosedError    reservation_closed
    · AccountQuarantinedError     account_quarantined
    · AccountArchivedError        account_archived
    · AccountStateConflictError   account_state_conflict
    · IdempotencyKeyReusedError   idempotency_key_reused
    · NameTakenError              name_taken
    · PreconditionFailedError     precondition_failed
    · ProposalClosedError         proposal_closed
    · ReceiverStateConflictError  receiver_state_conflict
    · SigningNotConfiguredError   signing_not_configured
    · InvalidRequestError         invalid_request, and any other 400 or 422
      - UnsupportedEventError     unsupported_event
    · RequestTooLargeError        request_too_large
    · AuthenticationError         401
    · PermissionDeniedError       permission_denied
      - PolicyViolationError      policy_violation
    · NotFoundError               404

Only the return of `Run.authorize` allows a noisy release: every exception here means "do not release".
"""

from datetime import datetime

from epsilon_ledger._wire.reservation_models import Waiting


class LedgerError(Exception):
    """Base of all errors of this client about the ledger."""


class ConfigurationError(LedgerError):
    """The ledger's address or the API key is missing or invalid."""


class LedgerUnavailableError(LedgerError):
    """The ledger did not answer within the allowed attempts and time.

    Args:
        message: for display.
        attempts: made, at least 1.
        elapsed: seconds since the first attempt.
        retry_after: seconds requested by the ledger, or None.
        in_doubt: whether an attempt may have reached the ledger, so that its effect is unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        attempts: int = 1,
        elapsed: float = 0.0,
        retry_after: float | None = None,
        in_doubt: bool = True,
    ) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.elapsed = elapsed
        self.retry_after = retry_after
        self.in_doubt = in_doubt


class UnexpectedResponseError(LedgerError):
    """The response is not one of this API, perhaps a proxy's or another service's.

    Args:
        message: for display.
        status: HTTP status.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RequestInDoubtError(LedgerError):
    """An earlier step is unanswered, and another one was requested: settle the earlier one first.

    Args:
        message: for display.
        first_step: number of the first unanswered step.
    """

    def __init__(self, message: str, *, first_step: int = 0) -> None:
        super().__init__(message)
        self.first_step = first_step


class StepsAlreadyTakenError(LedgerError):
    """The ledger had admitted these steps before this process's request: their noise may be released.

    Args:
        message: for display.
        run: id of the run.
        first_step: number of the first of these steps.
        next_step: number of the first free step.
    """

    def __init__(self, message: str, *, run: str = "", first_step: int = 0, next_step: int = 0) -> None:
        super().__init__(message)
        self.run = run
        self.first_step = first_step
        self.next_step = next_step


class ApprovalRequiredError(LedgerError):
    """A policy requires another person's approval: only a proposal was created.

    Args:
        message: for display.
        proposal: id of the proposal.
    """

    def __init__(self, message: str, *, proposal: str = "") -> None:
        super().__init__(message)
        self.proposal = proposal


class ReservationNotGrantedError(LedgerError):
    """A reservation was not granted to this process: release nothing.

    It has waited in vain, was cancelled, or its lease ended before this process claimed it.

    Args:
        message: for display.
        run: id of the run. If it has waited for it since its registration, it is aborted.
        reservation: id of the reservation; None: unknown.
        reservation_status: "expired" or "cancelled"; "voided", if it was granted and never claimed; None: unknown.
        wait_until: until when it waited, or would have waited.
        waiting: what it waited for when it was last seen to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        run: str = "",
        reservation: str | None = None,
        reservation_status: str | None = None,
        wait_until: datetime | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        super().__init__(message)
        self.run = run
        self.reservation = reservation
        self.reservation_status = reservation_status
        self.wait_until = wait_until
        self.waiting = waiting


class TrialExceededError(LedgerError):
    """A trial exceeds the declaration of its sweep.

    Args:
        message: for display.
        run: id of the run that pays for the sweep.
    """

    def __init__(self, message: str, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class ChargeExceededError(LedgerError):
    """Steps exceed what the charge of a training or an epoch covers.

    Args:
        message: for display.
        run: id of the run.
    """

    def __init__(self, message: str, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class AmbiguousPathError(LedgerError):
    """Several runs have this path: names of runs are not unique.

    Args:
        message: for display; names the runs with their creation times.
        path: of the runs.
        ids: of the newest of them.
    """

    def __init__(self, message: str, *, path: str = "", ids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.ids = ids


class InvalidSignatureError(LedgerError):
    """A document is not signed by this key, or was changed afterwards."""
