"""Experiments: sweeps that are read as one."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.api.paging import After, PageLimit, cut, decode_cursor
from app.api.problems import OPENING, READING, WRITING, reads, responses
from app.api.route import Asked, IdempotencyKey, created, identity, router, tagged
from app.api.schemas.common import Nothing
from app.api.schemas.experiments import DeclaredOut, ExperimentIn, ExperimentOut, ExperimentPage, sweep_refused
from app.service import experiments
from app.service.experiments import ExperimentRecord

routes = router()


@routes.post(
    "/experiments",
    operation_id="declareExperiment",
    summary="Declare a sweep, charged run by run or all at once",
    tags=["experiments"],
    status_code=201,
    response_model=DeclaredOut,
    responses=responses(
        *OPENING,
        *("account_quarantined", "budget_exceeded", "budget_window", "name_taken", "not_found"),
        *("neighboring_relation_mismatch", "privacy_unit_mismatch"),
    ),
)
def declare_experiment(body: ExperimentIn, request: Request, call: Asked, key: IdempotencyKey = None) -> Response:
    """Open a budget for the runs of a sweep, or charge the whole sweep and learn how many trials it has."""
    asked = identity(request, body, key)
    if body.trials is not None:
        return created(experiments.create_sweep(call, body.sweep(), asked, _declared, sweep_refused))
    assert body.budget is not None, "it was checked"
    return created(experiments.create_experiment(call, body.budget, body.terms(), asked, _declared))


@routes.post(
    "/experiments/{experiment_id}/charge",
    operation_id="chargeExperiment",
    summary="Charge a sweep that was approved",
    tags=["experiments"],
    status_code=201,
    response_model=DeclaredOut,
    responses=responses(
        *WRITING,
        *("account_quarantined", "budget_exceeded", "budget_window", "idempotency_key_reused", "not_found"),
        *("policy_violation", "run_state_conflict"),
    ),
)
def charge_experiment(experiment_id: str, request: Request, call: Asked, key: IdempotencyKey = None) -> Response:
    """Charge a whole sweep that waited for another person's approval, and learn how many trials it has."""
    asked = identity(request, Nothing(), key)
    return created(experiments.charge_sweep(call, experiment_id, asked, _declared, sweep_refused))


@routes.get(
    "/experiments",
    operation_id="listExperiments",
    summary="List experiments",
    tags=["experiments"],
    response_model=ExperimentPage,
    responses=reads(*READING),
)
def list_experiments(
    request: Request,
    call: Asked,
    budget: Annotated[
        str | None,
        Query(max_length=2000, description="Only those beneath this population or budget (id or path)."),
    ] = None,
    limit: PageLimit = 50,
    after: After = None,
) -> Response:
    """Experiments within the caller's reach, in the order of their making."""
    found = experiments.list_experiments(call, beneath=budget, after=decode_cursor(after), limit=limit + 1)
    shown, following = cut(found, limit, lambda record: record.experiment.id)
    return tagged(request, ExperimentPage(items=[ExperimentOut.of(record) for record in shown], next=following))


@routes.get(
    "/experiments/{experiment_id}",
    operation_id="getExperiment",
    summary="Read an experiment",
    tags=["experiments"],
    response_model=ExperimentOut,
    responses=reads(*READING),
)
def get_experiment(experiment_id: str, request: Request, call: Asked) -> Response:
    """A sweep, and what was spent on all of it; its runs are those that charge its account."""
    return tagged(request, ExperimentOut.of(experiments.get_experiment(call, experiment_id)))


def _declared(record: ExperimentRecord, trials: int | None = None) -> str:
    return DeclaredOut.of(record, trials=trials).model_dump_json()
