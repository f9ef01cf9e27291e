"""Problems from the ledger, and the refusal of a budget; `errors` shows the whole tree."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import ClassVar

from epsilon_ledger._wire.decoding import ABSENT, members
from epsilon_ledger._wire.errors import LedgerError
from epsilon_ledger._wire.models import Limit, PlanDifference


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
    """Latest change of a limit: previous limit, time by the ledger's clock, and actor."""

    before: Limit
    changed_at: datetime
    actor: str


@dataclass(frozen=True, slots=True)
class PlanUsage:
    """The steps of a plan that a limit allows, how many are used and left, and why it does not cover the request.

    Without `differences` the steps are planned, but more than are left.
    """

    steps: int
    steps_used: int
    steps_remaining: int
    differences: tuple[PlanDifference, ...]


@dataclass(frozen=True, slots=True)
class RaisedLimit:
    """A higher limit of an account that the run charges, as in `Limit`."""

    account: str
    account_path: str
    epsilon: float = field(default=inf, metadata={ABSENT: inf})
    delta: float = field(default=0.0, metadata={ABSENT: 0.0})
    rho: float = field(default=inf, metadata={ABSENT: inf})
    mu: float = field(default=inf, metadata={ABSENT: inf})

    @property
    def limit(self) -> Limit:
        """The limit itself."""
        return Limit(self.epsilon, self.delta, self.rho, self.mu)


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative to a refused request, which admits `steps` of those that the training still needs.

    `type` is "same_noise", "more_noise" (with its `noise_multiplier`) or "higher_limit" (with all `limits` to raise).
    """

    type: str
    steps: int
    noise_multiplier: float | None
    limits: tuple[RaisedLimit, ...] | None


@dataclass(frozen=True, slots=True)
class UnavailableAlternative:
    """An alternative that is not offered, and the reason."""

    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Refusal:
    run: str | None
    first_step: int | None
    count: int
    binding_account: str
    binding_account_path: str
    epsilon: float | None
    delta: float | None
    used: float
    used_including_reserved: float
    used_requested: float
    limit: Limit
    delta_requested: float
    delta_left: float
    plan: PlanUsage | None
    max_steps_that_fit: int
    steps_needed: int
    exhausted: bool
    alternatives: tuple[Alternative, ...]
    unavailable_alternatives: tuple[UnavailableAlternative, ...]
    url: str | None
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
        # None if a reservation is refused together with the registration of its run.
        self.run = refusal.run
        self.first_step = refusal.first_step
        self.count = refusal.count
        self.dry_run = refusal.dry_run is True
        # Of what was charged to the run so far; None if a reservation is refused.
        self.epsilon = refusal.epsilon
        self.delta = refusal.delta
        # The account that refuses, its limit, and shares of its capacity: what is spent, with what is reserved, and
        # with the request, which is more than 1.
        self.binding_account = refusal.binding_account
        self.binding_account_path = refusal.binding_account_path
        self.limit = refusal.limit
        self.used = refusal.used
        self.used_including_reserved = refusal.used_including_reserved
        self.used_requested = refusal.used_requested
        # What the events' mechanisms take of delta by a delta of their own, and what is left for that.
        self.delta_requested = refusal.delta_requested
        self.delta_left = refusal.delta_left
        # The binding account's plan, if it covers all charges before.
        self.plan = refusal.plan
        # How many of the requested steps would have been admitted.
        self.max_steps_that_fit = refusal.max_steps_that_fit
        # Steps that the training still needs, and the alternatives for all or some of them; exhausted: fewer than 1 %
        # of them fit even at ten times the noise.
        self.steps_needed = refusal.steps_needed
        self.exhausted = refusal.exhausted
        self.alternatives = refusal.alternatives
        self.unavailable_alternatives = refusal.unavailable_alternatives
        # The run's page; None if the run was not created.
        self.url = refusal.url
        # Latest change of the binding account's limit, or None.
        self.limit_change = refusal.limit_change

    def __str__(self) -> str:
        """Return the ledger's own sentences, and where the run's page is."""
        return self.detail if self.url is None else f"{self.detail} See {self.url}"

    @property
    def same_noise(self) -> Alternative | None:
        """The steps that still fit as they are, if any."""
        return self._alternative("same_noise")

    @property
    def more_noise(self) -> Alternative | None:
        """The noise with which all steps that the training still needs fit, if it is offered."""
        return self._alternative("more_noise")

    @property
    def higher_limit(self) -> Alternative | None:
        """The limits with which these steps fit as they are, if they are offered; see `run.request_limit`."""
        return self._alternative("higher_limit")

    def _alternative(self, kind: str) -> Alternative | None:
        return next((each for each in self.alternatives if each.type == kind), None)
