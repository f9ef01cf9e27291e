"""Exceptions for the ledger's problems; `errors` shows the whole tree."""

from dataclasses import dataclass

from epsilon_ledger._wire.decoding import members
from epsilon_ledger._wire.problems import BudgetExceededError, Problem, ProblemError


@dataclass(frozen=True, slots=True)
class _Gap:
    expected_step: int


@dataclass(frozen=True, slots=True)
class _WrongState:
    run_status: str


@dataclass(frozen=True, slots=True)
class _Superseded:
    attempt: int
    current_attempt: int


@dataclass(frozen=True, slots=True)
class _Ended:
    reservation_status: str


@dataclass(frozen=True, slots=True)
class _Closed:
    account_path: str
    opens_at: str | None
    closes_at: str | None


@dataclass(frozen=True, slots=True)
class _ReservationsOnly:
    account_path: str


class AccountClosedError(ProblemError):
    """A budget is not open yet, or no longer: nothing was charged, release nothing.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks the budget or its window.
    """

    codes = ("account_closed",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        closed = _Closed(**members(_Closed, problem.members))
        self.account_path = closed.account_path
        # ISO 8601 timestamps, or None.
        self.opens_at = closed.opens_at
        self.closes_at = closed.closes_at


class ReservationRequiredError(ProblemError):
    """An account shares out its budget among reservations, and these steps belong to none: nothing was charged.

    Create the run with `reserve`, or call `Run.reserve`.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks the account.
    """

    codes = ("reservation_required",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.account_path: str = members(_ReservationsOnly, problem.members)["account_path"]


class ReservationsWaitingError(ProblemError):
    """The reservation fits, but others wait for the same budget and are served before it: nothing was reserved.

    Ask again later, or give `wait` to wait for its turn.
    """

    codes = ("reservations_waiting",)


class SequenceConflictError(ProblemError):
    """Other events were admitted under these step numbers: another process uses this run."""

    codes = ("sequence_conflict",)


class SequenceGapError(ProblemError):
    """Steps were skipped; `expected_step` is the ledger's next step.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks the expected step.
    """

    codes = ("sequence_gap",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.expected_step: int = members(_Gap, problem.members)["expected_step"]


class RunStateConflictError(ProblemError):
    """The run's status does not allow the request.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks the status.
    """

    codes = ("run_state_conflict",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.run_status: str = members(_WrongState, problem.members)["run_status"]


class AttemptSupersededError(ProblemError):
    """A later attempt has started: another process has taken over the run, this one must stop.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks the attempts.
    """

    codes = ("attempt_superseded",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        found = members(_Superseded, problem.members)
        self.attempt: int = found["attempt"]
        self.current_attempt: int = found["current_attempt"]


class ReservationStateConflictError(ProblemError):
    """The run has another reservation, or the request contradicts the used steps."""

    codes = ("reservation_state_conflict",)


class ReservationClosedError(ProblemError):
    """The reservation is closed.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks the reservation's status.
    """

    codes = ("reservation_closed",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.reservation_status: str = members(_Ended, problem.members)["reservation_status"]


class AccountQuarantinedError(ProblemError):
    """Verification found a discrepancy in an account: it cannot be charged until it is restored."""

    codes = ("account_quarantined",)


class AccountArchivedError(ProblemError):
    """The account or one above it is archived, and so read-only."""

    codes = ("account_archived",)


class AccountStateConflictError(ProblemError):
    """A run under the account has not ended, so that it cannot be archived."""

    codes = ("account_state_conflict",)


class IdempotencyKeyReusedError(ProblemError):
    """The idempotency key was used for another request."""

    codes = ("idempotency_key_reused",)


class NameTakenError(ProblemError):
    """A sibling already has this name."""

    codes = ("name_taken",)


class PreconditionFailedError(ProblemError):
    """Another person has changed the limit or policy since it was read: read it again, and decide anew."""

    codes = ("precondition_failed",)


class ProposalClosedError(ProblemError):
    """The proposal was already decided, or replaced by another one."""

    codes = ("proposal_closed",)


class ReceiverStateConflictError(ProblemError):
    """The receiver is disabled, or the organisation has as many as it may."""

    codes = ("receiver_state_conflict",)


class SigningNotConfiguredError(ProblemError):
    """The ledger has no signing key, so that it signs no statements and checkpoints."""

    codes = ("signing_not_configured",)


class InvalidRequestError(ProblemError):
    """The request is invalid or contradicts the ledger.

    Args:
        problem: the response.
    """

    codes = ("invalid_request",)
    statuses = (400, 422)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        errors = problem.members.get("errors")
        # One object with "field" and "message" for each invalid member.
        self.errors: tuple[object, ...] = tuple(errors) if isinstance(errors, list) else ()


class UnsupportedEventError(InvalidRequestError):
    """The ledger has no sound bound for this event."""

    codes = ("unsupported_event",)


class RequestTooLargeError(ProblemError):
    """The request has too many events or bytes."""

    codes = ("request_too_large",)
    statuses = (413,)


class AuthenticationError(ProblemError):
    """The API key is unknown."""

    statuses = (401,)


class PermissionDeniedError(ProblemError):
    """The API key lacks the permission."""

    codes = ("permission_denied",)
    statuses = (403,)


class PolicyViolationError(PermissionDeniedError):
    """A policy of the organisation forbids the request; `members` has policy, rule and value."""

    codes = ("policy_violation",)


class NotFoundError(ProblemError):
    """The object does not exist, or belongs to another organisation."""

    codes = ("not_found",)
    statuses = (404,)


_KINDS: tuple[type[ProblemError], ...] = (
    BudgetExceededError,
    AccountClosedError,
    ReservationRequiredError,
    ReservationsWaitingError,
    SequenceConflictError,
    SequenceGapError,
    RunStateConflictError,
    AttemptSupersededError,
    ReservationStateConflictError,
    ReservationClosedError,
    AccountQuarantinedError,
    AccountArchivedError,
    AccountStateConflictError,
    IdempotencyKeyReusedError,
    NameTakenError,
    PreconditionFailedError,
    ProposalClosedError,
    ReceiverStateConflictError,
    SigningNotConfiguredError,
    InvalidRequestError,
    PolicyViolationError,
    UnsupportedEventError,
    RequestTooLargeError,
    AuthenticationError,
    PermissionDeniedError,
    NotFoundError,
)
_BY_CODE = {code: kind for kind in _KINDS for code in kind.codes}
_BY_STATUS = {status: kind for kind in _KINDS for status in vars(kind).get("statuses", ())}


def problem_error(problem: Problem) -> ProblemError:
    """Create the exception for a problem: by code, else by status, else the base class.

    Raises:
        MalformedError: the response lacks a member of its code.
    """
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, ProblemError)
    return kind(problem)
