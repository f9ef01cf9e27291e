"""What can go wrong between a trainer and the ledger.

* LedgerError
  + ConfigurationError            no address or key, or one that cannot be sent
  + LedgerUnavailableError        no answer within the tries and the time that were allowed
  + UnexpectedResponseError       an answer came, but not one of this API
  + RequestInDoubtError           an unanswered step is pending and another one was asked for
  + StepsAlreadyTakenError        another process holds these very steps
  + ApprovalRequiredError         a policy has another person approve first; the proposal waits
  + TrialExceededError            a trial wants more than its sweep has declared and paid for
  + ProblemError                  the ledger said no; also raised for codes that this version does not know
    · BudgetExceededError         budget_exceeded
    · BudgetClosedError           budget_closed
    · SequenceConflictError       sequence_conflict
    · SequenceGapError            sequence_gap
    · RunStateConflictError       run_state_conflict
    · AttemptSupersededError      attempt_superseded
    · ReservationStateConflictError    reservation_state_conflict
    · ReservationClosedError    reservation_closed
    · AccountQuarantinedError     account_quarantined
    · IdempotencyKeyReusedError   idempotency_key_reused
    · NameTakenError              name_taken
    · InvalidRequestError         invalid_request, and any other 400 or 422
      - UnsupportedEventError     unsupported_event
    · RequestTooLargeError        request_too_large
    · AuthenticationError         401
    · PermissionDeniedError       insufficient_scope
      - PolicyViolationError      policy_violation
    · NotFoundError               404

Only the return of `Run.authorize` allows a noisy release: every exception here means "do not release".
"""


class LedgerError(Exception):
    """The base of everything that this client raises about the ledger."""


class ConfigurationError(LedgerError):
    """The ledger's address or the API key is missing or cannot be used."""


class LedgerUnavailableError(LedgerError):
    """The ledger did not answer within the tries and the time that were allowed.

    Args:
        message: what was tried, for a person.
        attempts: tries made, at least 1.
        elapsed: seconds from the first try to the end of the last.
        retry_after: seconds that the ledger asked to wait for, or None.
        in_doubt: True if one of the tries may have reached the ledger, whose outcome is then unknown.
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
    """Something answered, but not as this API answers: a proxy's page or another service, perhaps.

    Args:
        message: what was wrong, for a person.
        status: HTTP status of the answer.
    """

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RequestInDoubtError(LedgerError):
    """An earlier step is still unanswered, and another one was asked for: settle the earlier one first.

    Args:
        message: which step, for a person.
        first_step: number of the first step that is in doubt.
    """

    def __init__(self, message: str, *, first_step: int = 0) -> None:
        super().__init__(message)
        self.first_step = first_step


class StepsAlreadyTakenError(LedgerError):
    """The ledger had admitted these very steps before this process asked: their noise may be out already.

    Args:
        message: which steps and what to do, for a person.
        run: id of the run.
        first_step: number of the first of these steps.
        next_step: number of the first step that the earlier admission left free.
    """

    def __init__(self, message: str, *, run: str = "", first_step: int = 0, next_step: int = 0) -> None:
        super().__init__(message)
        self.run = run
        self.first_step = first_step
        self.next_step = next_step


class ApprovalRequiredError(LedgerError):
    """A policy of the organisation has another person approve first: nothing exists yet, and a proposal waits.

    Args:
        message: which proposal and what to do, for a person.
        proposal: id of the proposal.
    """

    def __init__(self, message: str, *, proposal: str = "") -> None:
        super().__init__(message)
        self.proposal = proposal


class TrialExceededError(LedgerError):
    """A trial of a sweep wants to do more than was declared for it, and paid.

    Args:
        message: what and how much, for a person.
        run: id of the run that pays for the sweep.
    """

    def __init__(self, message: str, *, run: str = "") -> None:
        super().__init__(message)
        self.run = run
