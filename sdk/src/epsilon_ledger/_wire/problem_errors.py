"""One exception for each of the ledger's other problems, and the choice among them; `errors` draws the whole tree."""

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


class BudgetClosedError(ProblemError):
    """A budget is not open yet, or not any more: nothing was charged, and nothing may be released.

    Args:
        problem: the answer.

    Raises:
        MalformedError: the answer does not say whose window it is.
    """

    codes = ("budget_closed",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        closed = _Closed(**members(_Closed, problem.members))
        self.account_path = closed.account_path
        # Moments in ISO 8601; None where the window has no such end.
        self.opens_at = closed.opens_at
        self.closes_at = closed.closes_at


class SequenceConflictError(ProblemError):
    """Other events were admitted under these step numbers: another process is using this run."""

    codes = ("sequence_conflict",)


class SequenceGapError(ProblemError):
    """Steps were skipped: the ledger expects another step next.

    Args:
        problem: the answer.

    Raises:
        MalformedError: the answer lacks the expected step.
    """

    codes = ("sequence_gap",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.expected_step: int = members(_Gap, problem.members)["expected_step"]


class RunStateConflictError(ProblemError):
    """The run's state does not allow this: it is paused, completed or aborted.

    Args:
        problem: the answer.

    Raises:
        MalformedError: the answer lacks the run's state.
    """

    codes = ("run_state_conflict",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.run_status: str = members(_WrongState, problem.members)["run_status"]


class AttemptSupersededError(ProblemError):
    """A later attempt of this run has begun: another process has taken over, this one must stop.

    Args:
        problem: the answer.

    Raises:
        MalformedError: the answer lacks the attempts.
    """

    codes = ("attempt_superseded",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        told = members(_Superseded, problem.members)
        self.attempt: int = told["attempt"]
        self.current_attempt: int = told["current_attempt"]


class ReservationStateConflictError(ProblemError):
    """The run has another reservation, or what is asked does not go with what was used of it."""

    codes = ("reservation_state_conflict",)


class ReservationClosedError(ProblemError):
    """The reservation has ended, and stays as it is.

    Args:
        problem: the answer.

    Raises:
        MalformedError: the answer does not say how it ended.
    """

    codes = ("reservation_closed",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.reservation_status: str = members(_Ended, problem.members)["reservation_status"]


class AccountQuarantinedError(ProblemError):
    """Verification found an account's balance wrong; nothing is charged to it until it is restored."""

    codes = ("account_quarantined",)


class IdempotencyKeyReusedError(ProblemError):
    """The ledger knows this idempotency key with another request."""

    codes = ("idempotency_key_reused",)


class NameTakenError(ProblemError):
    """A sibling already has this name."""

    codes = ("name_taken",)


class InvalidRequestError(ProblemError):
    """The request breaks the API's rules or contradicts what the ledger knows.

    Args:
        problem: the answer.
    """

    codes = ("invalid_request",)
    statuses = (400, 422)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        errors = problem.members.get("errors")
        # One object for each wrong member, with its "field" and a "message"; the detail names the first ones.
        self.errors: tuple[object, ...] = tuple(errors) if isinstance(errors, list) else ()


class UnsupportedEventError(InvalidRequestError):
    """The ledger has no sound accounting for this event."""

    codes = ("unsupported_event",)


class RequestTooLargeError(ProblemError):
    """The request has too many events or bytes."""

    codes = ("request_too_large",)
    statuses = (413,)


class AuthenticationError(ProblemError):
    """The ledger does not know this API key."""

    statuses = (401,)


class PermissionDeniedError(ProblemError):
    """The API key's role does not allow this."""

    codes = ("insufficient_scope",)
    statuses = (403,)


class PolicyViolationError(PermissionDeniedError):
    """A policy of the organisation does not allow this; `members` name the policy, the rule and the value."""

    codes = ("policy_violation",)


class NotFoundError(ProblemError):
    """There is no such object, or it belongs to another organisation."""

    codes = ("not_found",)
    statuses = (404,)


_KINDS: tuple[type[ProblemError], ...] = (
    BudgetExceededError,
    BudgetClosedError,
    SequenceConflictError,
    SequenceGapError,
    RunStateConflictError,
    AttemptSupersededError,
    ReservationStateConflictError,
    ReservationClosedError,
    AccountQuarantinedError,
    IdempotencyKeyReusedError,
    NameTakenError,
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
    """Choose the exception for a problem: by its code, else by its status, else the base class.

    Args:
        problem: the ledger's answer.

    Returns:
        The exception, not raised yet.

    Raises:
        MalformedError: the answer lacks a member that its code promises.
    """
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, ProblemError)
    return kind(problem)
