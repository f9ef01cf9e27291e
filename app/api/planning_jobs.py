"""The planner's operations, for this process and the worker processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from app.accounting.pricing_effort import spend
from app.api.schemas.common import Body, Output
from app.api.schemas.planning_requests import (
    ComputeDelta,
    ComputeEpsilon,
    ComputeEpsilonTrajectory,
    ComputeLaplaceCost,
    FindMaxSteps,
    FindNoiseMultiplier,
    FindSamplingProbability,
)
from app.api.schemas.planning_responses import (
    DeltaEstimate,
    EpsilonEstimate,
    EpsilonTrajectory,
    LaplaceCost,
    MaxStepsEstimate,
    NoiseMultiplierEstimate,
    SamplingProbabilityEstimate,
)
from app.api.strict_json import strict_loads
from app.api.validation_errors import refusal_of
from app.planning.calibration import largest_sampling, most_steps, smallest_noise
from app.planning.costs import plan_delta, plan_epsilon, plan_laplace
from app.planning.trajectories import plan_trajectory
from app.service.worker_pool import Job

Asked = TypeVar("Asked", bound=Body)

BYTES_PER_MICROSECOND: Final = 2
"""Lower bound of the parsing speed. Measured: 2.5 with many short events, 4 with long ones."""


@dataclass(frozen=True)
class Plan(Generic[Asked]):
    """An operation of the planner.

    Args:
        body: class of the request.
        answer: class of the response, which is read from the job's result.
        calculation: makes the request's job; it raises PlanTooExpensiveError.
    """

    body: type[Asked]
    answer: type[Output]
    calculation: Callable[[Asked], Job[Any]]

    def result(self, body: Asked) -> str:
        """Run the job in this process, and return the response as JSON."""
        return self.answer.of(self.calculation(body).result()).model_dump_json()


PLANS: Final[dict[str, Plan[Any]]] = {
    "computeEpsilon": Plan(
        ComputeEpsilon,
        EpsilonEstimate,
        lambda body: Job(plan_epsilon, (body.steps(), body.delta, body.setting())),
    ),
    "computeDelta": Plan(
        ComputeDelta,
        DeltaEstimate,
        lambda body: Job(plan_delta, (body.steps(), body.epsilon, body.setting())),
    ),
    "computeEpsilonTrajectory": Plan(
        ComputeEpsilonTrajectory,
        EpsilonTrajectory,
        lambda body: Job(plan_trajectory, (body.steps(), body.delta, body.max_points, body.setting())),
    ),
    "findNoiseMultiplier": Plan(
        FindNoiseMultiplier, NoiseMultiplierEstimate, lambda body: Job(smallest_noise, body.question())
    ),
    "findMaxSteps": Plan(FindMaxSteps, MaxStepsEstimate, lambda body: Job(most_steps, body.question())),
    "findSamplingProbability": Plan(
        FindSamplingProbability, SamplingProbabilityEstimate, lambda body: Job(largest_sampling, body.question())
    ),
    "computeLaplaceCost": Plan(
        ComputeLaplaceCost, LaplaceCost, lambda body: Job(plan_laplace, (body.noise(), body.releases, body.delta))
    ),
}
"""By operation id."""


def answer_plan(operation: str, content: bytes) -> str:
    """Parse a body, calculate, and return the response as JSON.

    Raises:
        InvalidInputError: the body is invalid.
        PlanTooExpensiveError: parsing and calculation exceed the work limit of a request.
    """
    plan = PLANS[operation]
    spend(len(content) // BYTES_PER_MICROSECOND)
    given = strict_loads(content)
    try:
        body = plan.body.model_validate(given, from_attributes=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise refusal_of([{**each, "loc": ("body", *each["loc"])} for each in errors], plan.body) from None
    return plan.result(body)
