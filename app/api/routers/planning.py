"""Stateless planning: costs of a plan, and parameters that fit a limit.

A plan may take a second of processor time: worker processes compute it, organisations take turns, and long bodies are
parsed there too.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from app.api.planning_jobs import PLANS, answer_plan
from app.api.problems import COSTING_ERRORS, SENDING, responses
from app.api.route import AuthenticatedRoute, Endpoint, Handler, router
from app.api.schemas.common import Body
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
from app.api.strict_json import StrictJsonRequest
from app.service.auth.authentication import Principal
from app.service.worker_pool import WORKER_POOL, Job

Found = TypeVar("Found")

MOST_READ_HERE: Final = 16_384
"""Bytes of a body parsed in this process: some milliseconds, which delay steps."""


class PlanRoute(AuthenticatedRoute):
    """Route whose long bodies are parsed by a worker process, one at a time for each organisation."""

    async def answer(self, request: StrictJsonRequest, handle: Handler) -> Response:
        """Answer the request."""
        content = await request.body()
        if len(content) <= MOST_READ_HERE:
            return await super().answer(request, handle)
        return _json(await _calculated(request, Job(answer_plan, (self.unique_id, content))))


routes = router("accounting", PlanRoute)


def _operation(path: str, summary: str, schema: type[BaseModel], *problems: str) -> Callable[[Endpoint], Endpoint]:
    """Add a POST route that stores nothing."""
    return routes.post(path, summary=summary, response_model=schema, responses=responses(*SENDING, *problems))


@_operation("/accounting/epsilon", "Compute the epsilon of a plan", EpsilonEstimate, *COSTING_ERRORS)
async def compute_epsilon(request: Request, body: ComputeEpsilon) -> Response:
    """Compute the epsilon of the events together, and of the limit that admits them; nothing is stored."""
    return await _planned(request, body)


@_operation("/accounting/delta", "Compute the delta of a plan", DeltaEstimate, *COSTING_ERRORS)
async def compute_delta(request: Request, body: ComputeDelta) -> Response:
    """Compute the smallest delta of the events together at this epsilon, and of the limit that admits them."""
    return await _planned(request, body)


@_operation("/accounting/trajectory", "Compute the epsilon trajectory of a plan", EpsilonTrajectory, *COSTING_ERRORS)
async def compute_epsilon_trajectory(request: Request, body: ComputeEpsilonTrajectory) -> Response:
    """Compute the epsilon after the steps of a plan, and of the limit that admits the steps so far, for a plot."""
    return await _planned(request, body)


@_operation(
    "/accounting/noise-multiplier", "Find the minimum noise multiplier", NoiseMultiplierEstimate, *COSTING_ERRORS
)
async def find_noise_multiplier(request: Request, body: FindNoiseMultiplier) -> Response:
    """Find the minimum noise with which a limit admits `count` planned repetitions of an event beside other events."""
    return await _planned(request, body)


@_operation("/accounting/steps", "Find the maximum number of steps", MaxStepsEstimate, *COSTING_ERRORS)
async def find_max_steps(request: Request, body: FindMaxSteps) -> Response:
    """Find the maximum number of planned repetitions, and of whole epochs, that a limit admits."""
    return await _planned(request, body)


@_operation(
    "/accounting/sampling-probability",
    "Find the maximum sampling probability",
    SamplingProbabilityEstimate,
    *COSTING_ERRORS,
)
async def find_sampling_probability(request: Request, body: FindSamplingProbability) -> Response:
    """Find the maximum Poisson sampling with which a limit admits `count` planned repetitions of an event."""
    return await _planned(request, body)


@_operation("/accounting/laplace", "Compute the cost of Laplace noise", LaplaceCost)
async def compute_laplace_cost(body: ComputeLaplaceCost) -> Response:
    """Compute scale and epsilon from a bound that the noise keeps with a probability, or the bound from the scale."""
    return _json(PLANS["computeLaplaceCost"].result(body))


async def _planned(request: Request, body: Body) -> Response:
    """Run the plan's job in a worker process; a thread builds it from the body."""
    plan = PLANS[request.scope["route"].unique_id]
    calculation = await asyncio.to_thread(plan.calculation, body)
    return _json(plan.answer.of(await _calculated(request, calculation)).model_dump_json())


async def _calculated(request: Request, calculation: Job[Found]) -> Found:
    caller: Principal = request.state.principal
    return await asyncio.wrap_future(WORKER_POOL.submit(f"plans {caller.organisation_id}", calculation))


def _json(content: str) -> Response:
    return Response(content, 200, media_type="application/json")
