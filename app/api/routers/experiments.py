"""Experiments: sweeps of runs."""

from fastapi import Request, Response

from app.api.idempotency import IdempotencyDep
from app.api.lists import ListEndpoint, add_list
from app.api.problems import CHARGING, OPENING, READ_ERRORS, WRITE_ERRORS
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.experiments import CreatedExperiment, CreateExperiment, Experiment, sweep_refused
from app.ledger.experiments import ExperimentFilter
from app.ledger.runs.decisions import Decision
from app.service import experiments
from app.service.experiments import NewExperiment
from app.service.idempotency import StoredResponse

routes = router("experiments")


@routes.create(
    "/experiments", "Create an experiment", CreatedExperiment, *OPENING, *CHARGING, "name_taken", "reservation_required"
)
def create_experiment(body: CreateExperiment, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create a budget for the runs of a sweep, or charge the whole sweep and draw its number of trials."""
    if body.trials is not None:
        return idempotency.respond(experiments.create_sweep.effect(context, body.sweep()), _created, body, private=True)
    assert body.budget is not None, "it was checked"
    return idempotency.respond(experiments.create_experiment.effect(context, body.budget, body.terms()), _created, body)


@routes.create(
    "/experiments/{experiment_id}/charge",
    "Charge an approved experiment",
    CreatedExperiment,
    *WRITE_ERRORS,
    *("account_quarantined", "budget_exceeded", "account_closed", "idempotency_key_reused", "not_found"),
    *("reservation_required", "policy_violation", "run_state_conflict"),
)
def charge_experiment(experiment_id: str, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Charge a whole sweep after its approval, and draw its number of trials."""
    return idempotency.respond(experiments.charge_sweep.effect(context, experiment_id), _created, private=True)


EXPERIMENTS = add_list(routes, ListEndpoint("experiments", ExperimentFilter, experiments.list_experiments, Experiment))


@routes.read("/experiments/{experiment_id}", "Get an experiment", Experiment, *READ_ERRORS)
def get_experiment(experiment_id: str, request: Request, context: ContextDep) -> Response:
    """Get a sweep and its total cost; its runs are those that charge its account."""
    return etag_response(request, Experiment.of(experiments.get_experiment(context, experiment_id)))


def _created(result: NewExperiment | Decision) -> CreatedExperiment | StoredResponse:
    if isinstance(result, Decision):
        return sweep_refused(result)
    return CreatedExperiment.of(result.record, trials=result.trials)
