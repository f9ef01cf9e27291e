"""Stateless planning: costs of a plan, and parameters that fit a limit.

A plan may take a second of processor time: worker processes compute it, organisations take turns, and long bodies are
parsed there too.
"""

import asyncio
from typing import Any, Final, TypeVar

from fastapi import Request, Response

from app.api.planning_jobs import PLANNER_JOBS, PlannerJob, run_planner_job
from app.api.problems import COSTING_ERRORS, SENDING, responses
from app.api.route import AuthenticatedRoute, Handler, router
from app.api.schemas.common import Body
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
        return _json(await _calculated(request, Job(run_planner_job, (self.unique_id, content))))


routes = router("accounting", PlanRoute)


def _add(operation: str, job: PlannerJob[Any]) -> None:
    """Add the route of an operation, which stores nothing."""

    async def compute(request: Request, body: Body) -> Response:
        calculation = await asyncio.to_thread(job.calculation, body)
        return _json(job.answer.of(await _calculated(request, calculation)).model_dump_json())

    compute.__annotations__["body"] = job.body
    routes.post(
        f"/accounting/{job.path}",
        operation_id=operation,
        summary=job.summary,
        description=job.description,
        response_model=job.answer,
        responses=responses(*SENDING, *COSTING_ERRORS),
    )(compute)


for _operation, _job in PLANNER_JOBS.items():
    _add(_operation, _job)


async def _calculated(request: Request, calculation: Job[Found]) -> Found:
    caller: Principal = request.state.principal
    return await asyncio.wrap_future(WORKER_POOL.submit(f"plans {caller.organisation_id}", calculation))


def _json(content: str) -> Response:
    return Response(content, 200, media_type="application/json")
