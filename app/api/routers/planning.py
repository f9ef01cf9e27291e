"""Stateless planning: what a plan would cost."""

from fastapi import Response

from app.accounting.events import NeighboringRelation
from app.api.problems import PRICING, SENDING, responses
from app.api.route import router
from app.api.schemas.common import step_events_of
from app.api.schemas.planning import EpsilonIn, EpsilonOut
from app.service.planning import plan_epsilon

routes = router()


@routes.post(
    "/accounting/epsilon",
    operation_id="planEpsilon",
    summary="The epsilon of a plan at a delta",
    tags=["accounting"],
    response_model=EpsilonOut,
    responses=responses(*SENDING, *PRICING),
)
def plan(body: EpsilonIn) -> Response:
    """What the events cost together if all of them are fixed in advance; nothing is stored."""
    cost = plan_epsilon(step_events_of(body.events), body.delta, NeighboringRelation(body.neighboring_relation))
    return Response(EpsilonOut.of(cost).model_dump_json(), 200, media_type="application/json")
