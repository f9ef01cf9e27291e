"""Stateless planning: what a plan would cost, and what would fit.

A plan may take a second of a processor: it is computed by another process, and organisations take turns. A long body
is read there as well.
"""

import asyncio
from typing import Final, TypeVar

from fastapi import Request, Response

from app.api.plans import PLANS, answer_plan
from app.api.problems import COSTING_ERRORS, SENDING, responses
from app.api.route import AuthenticatedRoute, Handler, StrictJsonRequest, router
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
from app.service.auth.authentication import Principal
from app.service.worker_pool.pool import WORKER_POOL, Job

Found = TypeVar("Found")

MOST_READ_HERE: Final = 16_384
"""Bytes of a body: to read them takes this process some milliseconds, in which nobody's step is decided."""


class PlanRoute(AuthenticatedRoute):
    """A route whose long bodies are read by the process that calculates: one of an organisation at a time."""

    async def answer(self, request: StrictJsonRequest, handle: Handler) -> Response:
        """Answer the request."""
        content = await request.body()
        if len(content) <= MOST_READ_HERE:
            return await super().answer(request, handle)
        assert self.operation_id is not None, "every operation has a name"
        return _json(await _calculated(request, Job(answer_plan, (self.operation_id, content))))


routes = router(PlanRoute)


@routes.post(
    "/accounting/epsilon",
    operation_id="computeEpsilon",
    summary="Compute the epsilon of a plan",
    tags=["accounting"],
    response_model=EpsilonEstimate,
    responses=responses(*SENDING, *COSTING_ERRORS),
)
async def compute_epsilon(request: Request, body: ComputeEpsilon) -> Response:
    """What the events cost together if all of them are fixed in advance; nothing is stored."""
    return await _planned(request, body)


@routes.post(
    "/accounting/delta",
    operation_id="computeDelta",
    summary="Compute the delta of a plan",
    tags=["accounting"],
    response_model=DeltaEstimate,
    responses=responses(*SENDING, *COSTING_ERRORS),
)
async def compute_delta(request: Request, body: ComputeDelta) -> Response:
    """The smallest delta that the events prove together at this epsilon if all of them are fixed in advance."""
    return await _planned(request, body)


@routes.post(
    "/accounting/trajectory",
    operation_id="computeEpsilonTrajectory",
    summary="Compute the epsilon trajectory of a plan",
    tags=["accounting"],
    response_model=EpsilonTrajectory,
    responses=responses(*SENDING, *COSTING_ERRORS),
)
async def compute_epsilon_trajectory(request: Request, body: ComputeEpsilonTrajectory) -> Response:
    """How the cost of a plan that is fixed in advance grows, in the order of its events: for a plot."""
    return await _planned(request, body)


@routes.post(
    "/accounting/noise-multiplier",
    operation_id="findNoiseMultiplier",
    summary="Find the minimum noise multiplier",
    tags=["accounting"],
    response_model=NoiseMultiplierEstimate,
    responses=responses(*SENDING, *COSTING_ERRORS),
)
async def find_noise_multiplier(request: Request, body: FindNoiseMultiplier) -> Response:
    """How much noise `count` repetitions of an event need beside what else is planned: on the safe side, and least."""
    return await _planned(request, body)


@routes.post(
    "/accounting/steps",
    operation_id="findMaxSteps",
    summary="Find the maximum number of steps",
    tags=["accounting"],
    response_model=MaxStepsEstimate,
    responses=responses(*SENDING, *COSTING_ERRORS),
)
async def find_max_steps(request: Request, body: FindMaxSteps) -> Response:
    """The largest number of repetitions, and of whole epochs, that does not break the target: one more would."""
    return await _planned(request, body)


@routes.post(
    "/accounting/sampling-probability",
    operation_id="findSamplingProbability",
    summary="Find the maximum sampling probability",
    tags=["accounting"],
    response_model=SamplingProbabilityEstimate,
    responses=responses(*SENDING, *COSTING_ERRORS),
)
async def find_sampling_probability(request: Request, body: FindSamplingProbability) -> Response:
    """How large a Poisson sample `count` repetitions of an event may use beside what else is planned."""
    return await _planned(request, body)


@routes.post(
    "/accounting/laplace",
    operation_id="computeLaplaceCost",
    summary="Compute the cost of Laplace noise",
    tags=["accounting"],
    response_model=LaplaceCost,
    responses=responses(*SENDING),
)
async def compute_laplace_cost(body: ComputeLaplaceCost) -> Response:
    """From "with this probability the noise is below that bound" to scale and epsilon, or from the scale back to it."""
    return _json(PLANS["computeLaplaceCost"].result(body))


async def _planned(request: Request, body: Body) -> Response:
    """Let another process calculate; a plan of many events is made of its body by a thread."""
    plan = PLANS[request.scope["route"].operation_id]
    calculation = await asyncio.to_thread(plan.calculation, body)
    return _json(plan.answer(await _calculated(request, calculation), body).model_dump_json())


async def _calculated(request: Request, calculation: Job[Found]) -> Found:
    caller: Principal = request.state.principal
    return await asyncio.wrap_future(WORKER_POOL.submit(f"plans {caller.organisation_id}", calculation))


def _json(content: str) -> Response:
    return Response(content, 200, media_type="application/json")
