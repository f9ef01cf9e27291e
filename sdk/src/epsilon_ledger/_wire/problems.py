"""Problems from the ledger, and the refusal of a budget; `errors` shows the whole tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from epsilon_ledger._wire.decoding import members
from epsilon_ledger._wire.errors import LedgerError


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem+json response (RFC 9457).

    Args:
        status: HTTP status.
        code: stable name of the problem, or empty.
        title: of this kind of problem.
        detail: of this occurrence.
        members: all members of the response.
    """

    status: int
    code: str
    title: str
    detail: str
    members: Mapping[str, object]


class ProblemError(LedgerError):
    """The ledger answered with a problem; `problem.members` has all its members.

    Args:
        problem: the response.
    """

    codes: ClassVar[tuple[str, ...]] = ()
    statuses: ClassVar[tuple[int, ...]] = ()

    def __init__(self, problem: Problem) -> None:
        # A single argument keeps the exception picklable, for multi-process trainers.
        super().__init__(problem)
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.detail = problem.detail

    def __str__(self) -> str:
        """Format the detail, status and code."""
        what = self.problem.detail or self.problem.title or "the ledger gave no reason"
        return f"{what} ({self.status} {self.code or 'no code'})"


@dataclass(frozen=True, slots=True)
class LatestLimitChange:
    """Latest change of a limit: previous values, time by the ledger's clock, and actor."""

    epsilon_before: float
    delta_before: float
    changed_at: datetime
    actor: str


@dataclass(frozen=True, slots=True)
class RdpComparison:
    """The comparison that decided, in nats at one Rényi order (`math.inf`: pure epsilons)."""

    order: float
    spent: float
    held: float
    requested: float
    limit: float


@dataclass(frozen=True, slots=True)
class PlanUsage:
    """The steps of a plan that a limit allows, and how many are used and left."""

    steps: int
    steps_used: int
    steps_left: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    run: str | None
    first_step: int | None
    count: int
    binding_account: str
    binding_account_path: str
    epsilon: float
    epsilon_requested: float
    epsilon_limit: float
    delta: float
    rdp: RdpComparison
    delta_requested: float
    delta_left: float
    plan: PlanUsage | None
    max_count_that_fits: int
    noise_multiplier_that_fits: float | None
    limit_change: LatestLimitChange | None
    dry_run: bool | None


class BudgetExceededError(ProblemError):
    """The steps do not fit into a budget: nothing was charged, release nothing.

    Args:
        problem: the response.

    Raises:
        MalformedError: the response lacks a member of a refusal.
    """

    codes = ("budget_exceeded",)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        refusal = _Refusal(**members(_Refusal, problem.members))
        # None if a plan is refused together with the registration of its run.
        self.run = refusal.run
        self.first_step = refusal.first_step
        self.count = refusal.count
        self.dry_run = refusal.dry_run is True
        # The exhausted account and its epsilon at its own delta.
        self.binding_account = refusal.binding_account
        self.binding_account_path = refusal.binding_account_path
        self.epsilon = refusal.epsilon
        self.epsilon_requested = refusal.epsilon_requested
        self.epsilon_limit = refusal.epsilon_limit
        self.delta = refusal.delta
        self.rdp = refusal.rdp
        # What the events' mechanisms take of delta by a delta of their own, and what is left for that.
        self.delta_requested = refusal.delta_requested
        self.delta_left = refusal.delta_left
        # The binding account's plan, if it covers all charges before.
        self.plan = refusal.plan
        # What would have been admitted instead.
        self.max_count_that_fits = refusal.max_count_that_fits
        self.noise_multiplier_that_fits = refusal.noise_multiplier_that_fits
        # Latest change of the binding account's limit, or None.
        self.limit_change = refusal.limit_change

    def __str__(self) -> str:
        """Format the exhausted account, the excess and the steps that would fit."""
        if self.first_step is None:
            what = f"a plan of {self.count} steps was"
        elif self.count == 1:
            what = f"step {self.first_step} of {self.run}"
        else:
            what = f"{self.count} steps from {self.first_step} of {self.run}"
        fits = []
        if self.max_count_that_fits:
            fits.append(f"at most {self.max_count_that_fits} such step{'s' * (self.max_count_that_fits > 1)}")
        if self.noise_multiplier_that_fits is not None:
            whole = "" if self.count == 1 else "all of them with "
            fits.append(f"{whole}a noise multiplier of {self.noise_multiplier_that_fits:.6g} or more")
        spent, limit, requested = _epsilon_texts(self.epsilon, self.epsilon_limit, self.epsilon_requested)
        then = f"this would make it {requested}"
        if self.plan is not None:
            then = f"{self.plan.steps_left} of the {self.plan.steps} steps of its plan are left"
        still = ", or ".join(fits) or "nothing of this kind"
        return (
            f"{what} refused: {self.binding_account_path} has spent epsilon {spent} of {limit} at delta "
            f"{self.delta:g}, and {then}. What still fits: {still}.{self._changed()}"
        )

    def _changed(self) -> str:
        change = self.limit_change
        if change is None:
            return ""
        return (
            f" The limit was changed from epsilon {change.epsilon_before:g} "
            f"at {change.changed_at:%Y-%m-%d %H:%M:%S %Z} by {change.actor}."
        )


def _epsilon_texts(spent: float, limit: float, requested: float) -> tuple[str, str, str]:
    """Format the epsilons of a refusal with enough digits that rounding changes no comparison."""
    texts = (repr(spent), repr(requested))
    for digits in range(6, 11):
        rounded = (f"{spent:.{digits}g}", f"{requested:.{digits}g}")
        if _comparisons(float(rounded[0]), limit, float(rounded[1])) == _comparisons(spent, limit, requested):
            texts = rounded
            break
    return texts[0], repr(limit).removesuffix(".0"), texts[1]


def _comparisons(*numbers: float) -> list[bool]:
    return [one < other for one in numbers for other in numbers]
