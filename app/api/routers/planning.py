"""Stateless planning: what a plan would cost, and what would fit.

A plan may take a second of a processor: it is computed by another process, and organisations take turns.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from app.api.problems import PRICING, SENDING, responses
from app.api.route import router
from app.api.schemas.plan_answers import (
    DeltaOut,
    EpsilonOut,
    LaplaceOut,
    MostStepsOut,
    NoiseMultiplierOut,
    SamplingProbabilityOut,
    TrajectoryOut,
)
from app.api.schemas.planning import (
    DeltaIn,
    EpsilonIn,
    LaplaceIn,
    MostStepsIn,
    NoiseMultiplierIn,
    SamplingProbabilityIn,
    TrajectoryIn,
)
from app.service.asking.access import Caller
from app.service.calculating.calculators import CALCULATORS, Calculation
from app.service.planning.costs import plan_delta, plan_epsilon, plan_trajectory
from app.service.planning.laplace import plan_laplace
from app.service.planning.solving import largest_sampling, most_steps, smallest_noise

routes = router()

Found = TypeVar("Found")


@routes.post(
    "/accounting/epsilon",
    operation_id="planEpsilon",
    summary="The epsilon of a plan at a delta",
    tags=["accounting"],
    response_model=EpsilonOut,
    responses=responses(*SENDING, *PRICING),
)
async def epsilon(request: Request, body: EpsilonIn) -> Response:
    """What the events cost together if all of them are fixed in advance; nothing is stored."""
    found = await _planned(request, lambda: Calculation(plan_epsilon, (body.steps(), body.delta, body.setting())))
    return _answer(EpsilonOut.of(found))


@routes.post(
    "/accounting/delta",
    operation_id="planDelta",
    summary="The delta of a plan at an epsilon",
    tags=["accounting"],
    response_model=DeltaOut,
    responses=responses(*SENDING, *PRICING),
)
async def delta(request: Request, body: DeltaIn) -> Response:
    """The smallest delta that the events prove together at this epsilon if all of them are fixed in advance."""
    found = await _planned(request, lambda: Calculation(plan_delta, (body.steps(), body.epsilon, body.setting())))
    return _answer(DeltaOut.of(found))


@routes.post(
    "/accounting/trajectory",
    operation_id="planTrajectory",
    summary="The epsilon of a plan after each of its steps",
    tags=["accounting"],
    response_model=TrajectoryOut,
    responses=responses(*SENDING, *PRICING),
)
async def trajectory(request: Request, body: TrajectoryIn) -> Response:
    """How the cost of a plan that is fixed in advance grows, in the order of its events: for a plot."""
    found = await _planned(
        request,
        lambda: Calculation(plan_trajectory, (body.steps(), body.delta, body.max_points, body.setting())),
    )
    return _answer(TrajectoryOut.of(found))


@routes.post(
    "/accounting/noise-multiplier",
    operation_id="planNoiseMultiplier",
    summary="The least noise with which a plan meets an epsilon and a delta",
    tags=["accounting"],
    response_model=NoiseMultiplierOut,
    responses=responses(*SENDING, *PRICING),
)
async def noise_multiplier(request: Request, body: NoiseMultiplierIn) -> Response:
    """How much noise `count` repetitions of an event need beside what else is planned: on the safe side, and least."""
    found = await _planned(request, lambda: Calculation(smallest_noise, body.question()))
    return _answer(NoiseMultiplierOut.of(found, body.delta))


@routes.post(
    "/accounting/steps",
    operation_id="planSteps",
    summary="How many steps meet an epsilon and a delta",
    tags=["accounting"],
    response_model=MostStepsOut,
    responses=responses(*SENDING, *PRICING),
)
async def steps(request: Request, body: MostStepsIn) -> Response:
    """The largest number of repetitions, and of whole epochs, that does not break the target: one more would."""
    found = await _planned(request, lambda: Calculation(most_steps, body.question()))
    return _answer(MostStepsOut.of(found, body.delta))


@routes.post(
    "/accounting/sampling-probability",
    operation_id="planSamplingProbability",
    summary="The most sampling with which a plan meets an epsilon and a delta",
    tags=["accounting"],
    response_model=SamplingProbabilityOut,
    responses=responses(*SENDING, *PRICING),
)
async def sampling_probability(request: Request, body: SamplingProbabilityIn) -> Response:
    """How large a Poisson sample `count` repetitions of an event may use beside what else is planned."""
    found = await _planned(request, lambda: Calculation(largest_sampling, body.question()))
    return _answer(SamplingProbabilityOut.of(found, body.delta))


@routes.post(
    "/accounting/laplace",
    operation_id="planLaplace",
    summary="What Laplace noise of a certain size costs",
    tags=["accounting"],
    response_model=LaplaceOut,
    responses=responses(*SENDING),
)
async def laplace(body: LaplaceIn) -> Response:
    """From "with this probability the noise is below that bound" to scale and epsilon, or from the scale back to it."""
    return _answer(LaplaceOut.of(plan_laplace(body.noise(), body.releases, body.delta)))


async def _planned(request: Request, ask: Callable[[], Calculation[Found]]) -> Found:
    """Let another process calculate; a long body is made a plan by a thread."""
    calculation = await asyncio.to_thread(ask)
    caller: Caller = request.state.caller
    return await asyncio.wrap_future(CALCULATORS.submit(f"plans {caller.organisation_id}", calculation))


def _answer(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), 200, media_type="application/json")
