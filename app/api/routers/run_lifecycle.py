"""Lifecycle, attempts and reservations of runs."""

from http import HTTPStatus

from fastapi import Request, Response

from app.api.idempotency import IdempotencyDep, as_response
from app.api.problems import COSTING_ERRORS, READ_ERRORS, WRITE_ERRORS, responses
from app.api.route import ContextDep, etag_response, router
from app.api.schemas.proposals import Proposal, RequestLimit
from app.api.schemas.reservations import (
    CommitReservation,
    CreateAttempt,
    CreatedReservation,
    CreateReservation,
    EndRun,
    Reservation,
    reservation_refused,
)
from app.api.schemas.runs import Run
from app.api.schemas.waiting import CancelReservation, PrioritizeReservation
from app.ledger.admission.admission import Refusal
from app.ledger.errors import AttemptSupersededError
from app.ledger.runs.run import RunAction
from app.service import reservations
from app.service.governance import limit_requests
from app.service.idempotency import StoredResponse
from app.service.queries.runs import RunRecord
from app.service.reservations import CreatedReservation as DomainCreatedReservation
from app.service.reservations import WaitingReservation
from app.service.runs import lifecycle
from app.service.scheduling import requests

routes = router()

_CHANGING = (*WRITE_ERRORS, "not_found", "run_state_conflict")
_ENDING = (*_CHANGING, "reservation_state_conflict", "account_quarantined")
_SETTLING = (
    *(*WRITE_ERRORS, "not_found", "reservation_closed", "account_quarantined"),
    "reservation_state_conflict",
)


@routes.change("/runs/{run_id}/pause", "Pause a run", *_CHANGING, tag="runs")
def pause_run(run_id: str, context: ContextDep) -> Run:
    """Pause a run: it takes no steps until it is resumed."""
    return Run.of(lifecycle.transition_run(context, run_id, RunAction.PAUSE))


@routes.change("/runs/{run_id}/resume", "Resume a run", *_CHANGING, tag="runs")
def resume_run(run_id: str, context: ContextDep) -> Run:
    """Resume a paused run."""
    return Run.of(lifecycle.transition_run(context, run_id, RunAction.RESUME))


@routes.change("/runs/{run_id}/complete", "Complete a run", *_ENDING, "attempt_superseded", tag="runs")
def complete_run(run_id: str, context: ContextDep, body: EndRun | None = None) -> Run:
    """Complete a run, which takes no more steps. An active reservation is committed with `steps_executed`."""
    return Run.of(_ended(context, run_id, RunAction.COMPLETE, body or EndRun()))


@routes.change("/runs/{run_id}/abort", "Abort a run", *_ENDING, "attempt_superseded", tag="runs")
def abort_run(run_id: str, context: ContextDep, body: EndRun | None = None) -> Run:
    """Abort a run after a failure: its spending is final, and it takes no more steps.

    An active reservation is committed with `steps_executed`, or else forfeited.
    """
    return Run.of(_ended(context, run_id, RunAction.ABORT, body or EndRun()))


@routes.create("/runs/{run_id}/attempts", "Create an attempt", Run, *_ENDING, "idempotency_key_reused", tag="runs")
def create_attempt(run_id: str, body: CreateAttempt, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Create an attempt, which fences off the previous trainer (412); send its `attempt` with the steps.

    Spending is final: steps repeated after the checkpoint are charged again.
    """
    effect = lifecycle.start_attempt.effect(context, run_id, body.first_step, body.steps_executed)
    return idempotency.respond(effect, Run.of, body)


@routes.post(
    "/runs/{run_id}/reservations",
    summary="Create a reservation",
    tags=["reservations"],
    status_code=201,
    response_model=CreatedReservation,
    responses={
        202: {"model": Reservation, "description": "The reservation waits until it fits"},
        **responses(
            *(*_ENDING, *COSTING_ERRORS, "budget_exceeded", "account_closed", "attempt_superseded"),
            *("idempotency_key_reused", "reservations_waiting", "policy_violation", "reservation_closed"),
        ),
    },
)
def create_reservation(
    run_id: str, body: CreateReservation, context: ContextDep, idempotency: IdempotencyDep
) -> Response:
    """Reserve steps on the run and all accounts above; they then write only the run's rows.

    A trainer that reserves ahead lets each reservation continue the previous one: one request for many steps. With
    `wait_until`, one that does not fit now waits (202) and is granted as a whole the moment that it fits.
    """

    def render(
        result: DomainCreatedReservation | WaitingReservation | Refusal,
    ) -> CreatedReservation | StoredResponse:
        if isinstance(result, Refusal):
            return reservation_refused(result, body.events, run_id)
        if isinstance(result, WaitingReservation):
            waiting = Reservation.with_detail(result.reservation, result.detail)
            return as_response(waiting, HTTPStatus.ACCEPTED)
        return CreatedReservation.of(result)

    try:
        return idempotency.respond(reservations.create_reservation.effect(context, body.request(run_id)), render, body)
    except AttemptSupersededError as error:
        raise error if "attempt" in body.model_fields_set else error.unnamed() from None


@routes.create(
    "/runs/{run_id}/limit-requests",
    "Request a higher limit",
    Proposal,
    *(*WRITE_ERRORS, "not_found", "delta_too_large", "limit_too_small", "idempotency_key_reused"),
    *("computation_limit_exceeded", "policy_violation", "account_archived", "run_state_conflict"),
    tag="limits",
)
def request_limit(run_id: str, body: RequestLimit, context: ContextDep, idempotency: IdempotencyDep) -> Response:
    """Request a higher limit of an account that the run charges; a person with the right decides the proposal.

    A refusal names the limits with which all steps would fit (`higher_limit`). The account may lie above the scope of
    the caller's key.
    """
    effect = limit_requests.request_limit.effect(context, run_id, body.account, body.limit.domain(), body.reason)
    return idempotency.respond(effect, Proposal.of, body)


@routes.read("/reservations/{reservation_id}", "Get a reservation", Reservation, *READ_ERRORS, tag="reservations")
def get_reservation(reservation_id: str, request: Request, context: ContextDep) -> Response:
    """Get a reservation: its events, their use, the end of its lease, and what it waits for."""
    return etag_response(request, Reservation.with_detail(*reservations.get_reservation(context, reservation_id)))


@routes.change("/reservations/{reservation_id}/commit", "Commit a reservation", *_SETTLING, tag="reservations")
def commit_reservation(reservation_id: str, body: CommitReservation, context: ContextDep) -> Reservation:
    """Commit a reservation: executed steps are spent, individually authorized or not, and the rest is returned."""
    return Reservation.of(reservations.commit_reservation(context, reservation_id, body.steps_executed))


@routes.change("/reservations/{reservation_id}/void", "Void a reservation", *_SETTLING, tag="reservations")
def void_reservation(reservation_id: str, context: ContextDep) -> Reservation:
    """Void a reservation: all of it is returned."""
    return Reservation.of(reservations.void_reservation(context, reservation_id))


@routes.change("/reservations/{reservation_id}/claim", "Claim a granted reservation", *_SETTLING, tag="reservations")
def claim_reservation(reservation_id: str, context: ContextDep) -> Reservation:
    """Claim a reservation that was granted after it had waited: its lease starts, and its steps may be executed.

    A repeated claim renews the lease. One that still waits gets 409 `reservation_state_conflict`.
    """
    return Reservation.of(reservations.claim_reservation(context, reservation_id))


@routes.change("/reservations/{reservation_id}/renew", "Renew a reservation", *_SETTLING, tag="reservations")
def renew_reservation(reservation_id: str, context: ContextDep) -> Reservation:
    """Renew the lease of a reservation.

    One that was granted and not claimed, or whose last steps were removed by a lowered limit, cannot be renewed: 409
    `reservation_state_conflict`.
    """
    return Reservation.of(reservations.renew_reservation(context, reservation_id))


@routes.change(
    "/reservations/{reservation_id}/cancel",
    "Cancel a waiting reservation",
    *(*WRITE_ERRORS, "not_found", "reservation_state_conflict"),
    tag="reservations",
)
def cancel_reservation(reservation_id: str, body: CancelReservation, context: ContextDep) -> Reservation:
    """Cancel a reservation that waits; a run that has waited for it since its registration is aborted."""
    return Reservation.of(requests.cancel_waiting(context, reservation_id, body.reason))


@routes.change(
    "/reservations/{reservation_id}/prioritize",
    "Prioritize a waiting reservation",
    *(*WRITE_ERRORS, "not_found", "reservation_state_conflict"),
    tag="reservations",
)
def prioritize_reservation(reservation_id: str, body: PrioritizeReservation, context: ContextDep) -> Reservation:
    """Let a waiting reservation be served before all with a lower priority, or after all with a higher one."""
    return Reservation.of(requests.prioritize_waiting(context, reservation_id, body.priority, body.reason))


def _ended(context: ContextDep, run_id: str, action: RunAction, body: EndRun) -> RunRecord:
    return lifecycle.transition_run(
        context, run_id, action, body.steps_executed, attempt=body.attempt, reason=body.reason
    )
