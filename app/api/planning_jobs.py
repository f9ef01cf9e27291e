"""The planner's operations, for this process and the worker processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from app.accounting.pricing_effort import use_effort
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
class PlannerJob(Generic[Asked]):
    """An operation of the planner.

    Args:
        path: under /v1/accounting.
        summary: of the operation.
        description: of the operation.
        body: class of the request.
        answer: class of the response, which is read from the job's result.
        calculation: makes the request's job; it raises PlanTooExpensiveError.
    """

    path: str
    summary: str
    description: str
    body: type[Asked]
    answer: type[Output]
    calculation: Callable[[Asked], Job[Any]]

    def result(self, body: Asked) -> str:
        """Run the job in this process, and return the response as JSON."""
        return self.answer.of(self.calculation(body).result()).model_dump_json()


PLANNER_JOBS: Final[dict[str, PlannerJob[Any]]] = {
    "computeEpsilon": PlannerJob(
        *("epsilon", "Compute the epsilon of a plan"),
        "Compute the epsilon of the events together, and the limit that an account needs for them; nothing is stored.",
        *(ComputeEpsilon, EpsilonEstimate),
        lambda body: Job(plan_epsilon, (body.steps(), body.delta, body.setting())),
    ),
    "computeDelta": PlannerJob(
        *("delta", "Compute the delta of a plan"),
        "Compute the delta of the events together at this epsilon, and the limit that an account needs for them.",
        *(ComputeDelta, DeltaEstimate),
        lambda body: Job(plan_delta, (body.steps(), body.epsilon, body.setting())),
    ),
    "computeEpsilonTrajectory": PlannerJob(
        *("trajectory", "Compute the epsilon trajectory of a plan"),
        "Compute the epsilon after the steps of a plan, and the limit that the steps so far need, for a plot.",
        *(ComputeEpsilonTrajectory, EpsilonTrajectory),
        lambda body: Job(plan_trajectory, (body.steps(), body.delta, body.max_points, body.setting())),
    ),
    "findNoiseMultiplier": PlannerJob(
        *("noise-multiplier", "Find the minimum noise multiplier"),
        "Find the minimum noise with which a limit admits `count` repetitions of an event beside other events.",
        *(FindNoiseMultiplier, NoiseMultiplierEstimate),
        lambda body: Job(smallest_noise, body.question()),
    ),
    "findMaxSteps": PlannerJob(
        *("steps", "Find the maximum number of steps"),
        "Find the maximum number of repetitions of an event, and of whole epochs, that a limit admits.",
        *(FindMaxSteps, MaxStepsEstimate),
        lambda body: Job(most_steps, body.question()),
    ),
    "findSamplingProbability": PlannerJob(
        *("sampling-probability", "Find the maximum sampling probability"),
        "Find the maximum Poisson sampling with which a limit admits `count` repetitions of an event.",
        *(FindSamplingProbability, SamplingProbabilityEstimate),
        lambda body: Job(largest_sampling, body.question()),
    ),
    "computeLaplaceCost": PlannerJob(
        *("laplace", "Compute the cost of Laplace noise"),
        "Compute scale and epsilon from a bound that the noise keeps with a probability, or the bound from the scale.",
        *(ComputeLaplaceCost, LaplaceCost),
        lambda body: Job(plan_laplace, (body.noise(), body.releases, body.delta)),
    ),
}
"""By operation id."""


def run_planner_job(operation: str, content: bytes) -> str:
    """Parse a body, calculate, and return the response as JSON.

    Raises:
        InvalidInputError: the body is invalid.
        PlanTooExpensiveError: parsing and calculation exceed the work limit of a request.
    """
    job = PLANNER_JOBS[operation]
    use_effort(len(content) // BYTES_PER_MICROSECOND)
    given = strict_loads(content)
    try:
        body = job.body.model_validate(given, from_attributes=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise refusal_of([{**each, "loc": ("body", *each["loc"])} for each in errors], job.body) from None
    return job.result(body)
