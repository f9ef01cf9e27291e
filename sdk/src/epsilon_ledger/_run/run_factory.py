"""Opening of runs: create, get or resume."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack

from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.provenance import provenance
from epsilon_ledger._run.reservation_waits import OnWait, ReservationWait, wait_end
from epsilon_ledger._run.run_properties import RunStateDict, parse_state
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.endpoints.runs import get_run as read_run
from epsilon_ledger._wire.errors import UnexpectedResponseError
from epsilon_ledger._wire.events import Event, EventCount, PlannedEvents
from epsilon_ledger._wire.members import wire_budgets, wire_events, wire_limit, wire_planned
from epsilon_ledger._wire.metadata import Metadata, wire_metadata
from epsilon_ledger._wire.models import Limit, NeighboringRelation, RunState
from epsilon_ledger._wire.origins import OriginReference, wire_origins
from epsilon_ledger._wire.references import find_run, find_run_id
from epsilon_ledger._wire.requests import Call, RequestFlow, path, post


@dataclass(frozen=True, slots=True)
class RunSetup:
    """A run to open.

    Args:
        flow: flow that gets it from the ledger.
        prefetch: prefetching of grants.
        step: training steps taken before; None if unknown.
        with_reservation: whether its active reservation belongs to this trainer.
        begins_attempt: whether the flow begins an attempt for this trainer.
    """

    flow: RequestFlow[RunState]
    prefetch: PrefetchConfig
    step: int | None
    with_reservation: bool
    begins_attempt: bool


def create_run(  # noqa: PLR0913 - the members of the request, by name
    name: str,
    *,
    budget: str | None = None,
    budgets: Sequence[str] | None = None,
    event: Event | None = None,
    limit: Limit | None = None,
    planned: PlannedEvents | None = None,
    privacy_unit: str | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    reserve: Sequence[EventCount] | None = None,
    expected_steps: int | None = None,
    declared_steps_per_hour: float | None = None,
    starts_from: Sequence[OriginReference] | None = None,
    prefetch: int = 1,
    prefetch_in_background: bool = False,
    schedule: Callable[[int], Event] | None = None,
    lease_seconds: int | None = None,
    wait: timedelta | None = None,
    on_wait: OnWait | None = None,
    collect_metadata: bool | None = None,
    **metadata: Unpack[Metadata],
) -> RunSetup:
    """Create a training run, which charges one or several budgets and all accounts above.

    Args:
        name: for display; it need not be unique.
        budget: id or path of the budget, or of a population.
        budgets: ids or paths of several instead, of one or several populations: each step is charged to all of
            them or to none.
        event: of a step, unless `authorize` overrides it.
        limit: the run's own limit, if any.
        planned: the plan of the run's own limit: events in order, each with a count, such as `[(event, 1000)]`. The
            last one may be a bare event: as many as the limit allows. None: `event` is the plan, without a count.
        privacy_unit: that the trainer protects; the ledger refuses the run if the population's differs.
        neighboring_relation: of the trainer's noise; checked like `privacy_unit`.
        reserve: events with their counts to reserve at once; if they do not fit, no run is created, unless they may
            `wait`.
        expected_steps: number of all steps of the training: a refusal answers for the rest of them, and more of them
            are flagged as a deviation. None: those of `reserve` or `planned`, if they have an end.
        declared_steps_per_hour: maximum pace; a faster run is flagged. None: any.
        starts_from: what the training starts from, at most 16: other runs (a run, its id or path, or what a checkpoint
            has of it, `state_dict()`) and outside models (`ModelOrigin`). Empty: from nothing that was trained before.
            None: not declared.
        prefetch: steps granted by one request. Unused ones are returned when the run is completed, and forfeited
            if it ends otherwise or this process dies.
        prefetch_in_background: request the next grant while the last one is in use.
        schedule: event of step t, from 0, instead of `event`; for decaying noise, for instance.
        lease_seconds: maximum silence before reserved steps are forfeited; by default 3,600 for a reservation and 600
            for grants.
        wait: how long `reserve` may wait for budget, up to 366 days, if it does not fit now or others are served first;
            the call returns when it is granted. Ctrl-C, another exception or a cancelled task meanwhile cancels the
            reservation, if the ledger answers, and so aborts the run. If this process dies, it goes on waiting: take
            it up with `get_run` and `Run.wait_for_reservation`. None: it is reserved at once or refused.
        on_wait: called with what the reservation waits for, first and whenever that changes; None: the log has it.
        collect_metadata: label the run with its git commit, its job and its run of MLflow or Weights & Biases, and link
            the latter; None: unless EPSILON_LEDGER_COLLECT_METADATA is 0.
        metadata: for people, as in `Metadata`.

    Returns:
        The run; keep its `state_dict()` to resume it.

    Raises:
        BudgetExceededError: `reserve` does not fit; with `wait`, it never would.
        ReservationsWaitingError: `reserve` fits, but others are served first, and it may not wait.
        ReservationNotGrantedError: the reservation has waited in vain, or was cancelled; the run is aborted.
        LedgerError: it was not created, or no response arrived.
        TypeError: there is no such argument.
        ValueError: the arguments about grants contradict each other, or there is nothing to reserve and wait for.
    """
    if wait is not None and not reserve:
        raise ValueError(
            "Only a reservation can wait: give `reserve`, the events with their counts, or leave `wait` out."
        )
    described = provenance(collect=collect_metadata).merge(wire_metadata(metadata))
    body = {
        "name": name,
        "budget": budget,
        "budgets": wire_budgets(budgets),
        "event": event,
        "limit": wire_limit(limit),
        "planned": wire_planned(planned),
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
        "reserve": None if reserve is None else wire_events(reserve, "reserve"),
        "expected_steps": None if expected_steps is None else whole("expected_steps", expected_steps),
        "declared_steps_per_hour": declared_steps_per_hour,
        "starts_from": wire_origins(starts_from),
        "lease_seconds": lease_seconds if reserve else None,
        "wait_until": wait_end(wait),
        **described,
    }
    config = PrefetchConfig.of(prefetch, prefetch_in_background, schedule, None if reserve else lease_seconds)
    config.require_none(has_reservation=bool(reserve))
    flow = Call(post("v1/runs", body), RunState).flow()
    if wait is not None:
        flow = _wait_for_reservation(flow, on_wait)
    return RunSetup(flow, config, 0, with_reservation=True, begins_attempt=True)


def _wait_for_reservation(creation: RequestFlow[RunState], on_wait: OnWait | None) -> RequestFlow[RunState]:
    """Create a run, and wait for its reservation if that waits."""
    state = yield from creation
    if state.waiting_reservation is None:
        return state
    release = post(f"{path('runs', state.id)}/abort", {"attempt": state.attempt, "steps_executed": 0})
    state, _ = yield from ReservationWait(state.id, state.waiting_reservation, on_wait).claim_or_give_up(release)
    return state


def get_run(
    run: str,
    *,
    prefetch: int = 1,
    prefetch_in_background: bool = False,
    schedule: Callable[[int], Event] | None = None,
    lease_seconds: int | None = None,
    with_reservation: bool = False,
    step: int | None = None,
) -> RunSetup:
    """Get a run at its next step in its current attempt; `resume_run` starts a new one.

    Args:
        run: its id, or its path if no other run has the same.
        prefetch: as in `create_run`.
        prefetch_in_background: as in `create_run`.
        schedule: as in `create_run`.
        lease_seconds: as in `create_run`.
        with_reservation: continue the reservation of an earlier process of this job. Each of its steps must have been
            authorized individually, or the ledger would not know them.
        step: training steps taken before, in all attempts; required by a schedule.

    Returns:
        The run.

    Raises:
        AmbiguousPathError: several runs have this path.
        LedgerError: the run does not exist, or no response arrived.
        ValueError: the arguments about grants contradict each other, or a schedule lacks `step`.
    """
    config = PrefetchConfig.of(prefetch, prefetch_in_background, schedule, lease_seconds)
    return RunSetup(find_run(run), config, _known_step(step, schedule), with_reservation, begins_attempt=False)


def resume_run(
    state: RunStateDict | str,
    *,
    steps_executed: int | None = None,
    prefetch: int = 1,
    prefetch_in_background: bool = False,
    schedule: Callable[[int], Event] | None = None,
    lease_seconds: int | None = None,
    step: int | None = None,
) -> RunSetup:
    """Resume a run from a checkpoint in a new attempt, which fences off earlier processes.

    Spending is final: steps repeated after the checkpoint are charged again, and the earlier process's grants in full.

    Args:
        state: from `run.state_dict()` when the checkpoint was written; or a run's id or
            path, to repeat nothing.
        steps_executed: known number of executed steps of the earlier process's reservation; None: its
            remainder is forfeited.
        prefetch: as in `create_run`.
        prefetch_in_background: as in `create_run`.
        schedule: as in `create_run`.
        lease_seconds: as in `create_run`.
        step: training steps taken before, if `state` is an id; required by a schedule.

    Returns:
        The run.

    Raises:
        RunStateConflictError: the run has ended.
        LedgerError: the run does not exist, or no response arrived.
        ValueError: `state` is no checkpoint of a run or has another step, or a schedule lacks `step`.
    """
    config = PrefetchConfig.of(prefetch, prefetch_in_background, schedule, lease_seconds)
    run_id, kept = parse_state(state)
    if None not in {kept, step} and kept != step:
        raise ValueError(f"The checkpoint was written after {kept} steps, not {step}: leave `step` out.")
    known = _known_step(step if kept is None else kept, schedule)
    return RunSetup(
        _next_attempt(run_id, known, steps_executed), config, known, with_reservation=False, begins_attempt=True
    )


def _known_step(step: int | None, schedule: Callable[[int], Event] | None) -> int | None:
    """Require the step of a schedule, because the ledger does not number forfeited steps."""
    if step is None and schedule is not None:
        raise ValueError(
            "A schedule goes on at the step that the training has reached, which the ledger cannot know: it charges "
            "steps that were granted to a process that died without numbering them. Resume from what "
            "run.state_dict() returned, or give the number of training steps taken as `step`."
        )
    return None if step is None else whole("step", step, 0)


def _next_attempt(run: str, step: int | None, steps_executed: int | None) -> RequestFlow[RunState]:
    """Open a new attempt after a checkpoint, which fences off earlier processes."""
    run_id = yield from find_run_id(run)
    before = None
    if step is not None:
        # Grants of a process that died were charged without step numbers.
        before = (yield read_run(run_id).request).read(RunState)
        step = min(step, before.next_step)
    response = yield post(f"{path('runs', run_id)}/attempts", {"first_step": step, "steps_executed": steps_executed})
    state = response.read(RunState)
    if before is not None and (state.attempt <= before.attempt or state.next_step != step):
        raise UnexpectedResponseError(
            f"The ledger's answer does not begin an attempt of {run_id} at step {step}: release nothing.",
            status=response.status,
        )
    return state
