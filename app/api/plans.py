"""The planner's operations: what they are asked and answer, for this process and those that calculate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from app.accounting.work import spend
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
from app.service.planning.calibration import largest_sampling, most_steps, smallest_noise
from app.service.planning.costs import plan_delta, plan_epsilon, plan_trajectory
from app.service.planning.laplace import plan_laplace
from app.service.worker_pool.pool import Job

Asked = TypeVar("Asked", bound=Body)

BYTES_PER_MICROSECOND: Final = 2
"""So many are read at the least: parsed, validated, made events. Measured: 2.5 of many short events, 4 of long ones."""


@dataclass(frozen=True)
class Plan(Generic[Asked]):
    """An operation of the planner.

    Args:
        body: what it is asked.
        calculation: what that is to the planner; it raises PlanTooExpensiveError.
        answer: is made of the calculation's result and of what was asked.
    """

    body: type[Asked]
    calculation: Callable[[Asked], Job[Any]]
    answer: Callable[[Any, Asked], Output]

    def result(self, body: Asked) -> str:
        """Calculate here and now; returns the answer as JSON."""
        return self.answer(self.calculation(body).result(), body).model_dump_json()


PLANS: Final[dict[str, Plan[Any]]] = {
    "computeEpsilon": Plan(
        ComputeEpsilon,
        lambda body: Job(plan_epsilon, (body.steps(), body.delta, body.setting())),
        lambda found, _: EpsilonEstimate.of(found),
    ),
    "computeDelta": Plan(
        ComputeDelta,
        lambda body: Job(plan_delta, (body.steps(), body.epsilon, body.setting())),
        lambda found, _: DeltaEstimate.of(found),
    ),
    "computeEpsilonTrajectory": Plan(
        ComputeEpsilonTrajectory,
        lambda body: Job(plan_trajectory, (body.steps(), body.delta, body.max_points, body.setting())),
        lambda found, _: EpsilonTrajectory.of(found),
    ),
    "findNoiseMultiplier": Plan(
        FindNoiseMultiplier,
        lambda body: Job(smallest_noise, body.question()),
        lambda found, body: NoiseMultiplierEstimate.of(found, body.delta),
    ),
    "findMaxSteps": Plan(
        FindMaxSteps,
        lambda body: Job(most_steps, body.question()),
        lambda found, body: MaxStepsEstimate.of(found, body.delta),
    ),
    "findSamplingProbability": Plan(
        FindSamplingProbability,
        lambda body: Job(largest_sampling, body.question()),
        lambda found, body: SamplingProbabilityEstimate.of(found, body.delta),
    ),
    "computeLaplaceCost": Plan(
        ComputeLaplaceCost,
        lambda body: Job(plan_laplace, (body.noise(), body.releases, body.delta)),
        lambda found, _: LaplaceCost.of(found),
    ),
}
"""By operation id."""


def answer_plan(operation: str, content: bytes) -> str:
    """Read a body, calculate, and write the answer.

    Args:
        operation: a key of PLANS.
        content: the body as it was sent.

    Returns:
        JSON.

    Raises:
        InvalidInputError: the body is not what the operation takes.
        PlanTooExpensiveError: to read it and to calculate is more work than one request may make.
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
