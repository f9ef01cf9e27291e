"""How a trainer comes by a run: it registers one, takes one up, or goes on from a checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epsilon_ledger._run.grants import PrefetchConfig
from epsilon_ledger._run.run_properties import RunStateDict, checked_state
from epsilon_ledger._wire.coercion import whole
from epsilon_ledger._wire.endpoints import get_run as read_run
from epsilon_ledger._wire.endpoints import path
from epsilon_ledger._wire.events import Event, EventCount
from epsilon_ledger._wire.members import wire_limit
from epsilon_ledger._wire.models import Limit, NeighboringRelation, PrivacyFilter, RunState
from epsilon_ledger._wire.requests import Call, RequestFlow, post


@dataclass(frozen=True, slots=True)
class Opening:
    """A run that is to be had.

    Args:
        talk: asks the ledger for it.
        ahead: how far it asks ahead.
        step: number of training steps taken before; None: unknown.
        with_plan: whether its active reservation is this trainer's own.
    """

    talk: RequestFlow[RunState]
    ahead: PrefetchConfig
    step: int | None
    with_plan: bool


def register_run(  # noqa: PLR0913 - the members of the request, by name
    name: str,
    *,
    budget: str | None = None,
    budgets: Sequence[str] | None = None,
    event: Event | None = None,
    limit: Limit | None = None,
    privacy_filter: PrivacyFilter | None = None,
    planned: Sequence[EventCount] | None = None,
    privacy_unit: str | None = None,
    neighboring_relation: NeighboringRelation | None = None,
    plan: Sequence[EventCount] | None = None,
    authorize_every: int = 1,
    background: bool = False,
    schedule: Callable[[int], Event] | None = None,
    lease_seconds: int | None = None,
) -> Opening:
    """Register a training run, which charges a budget, or several, and all that lies above.

    Args:
        name: for people; it need not be unique.
        budget: id or path of the budget.
        budgets: in its place, ids or paths of several, of one or of several populations: each step is charged to all
            of them, or to none.
        event: what a step does unless `authorize` says otherwise.
        limit: the run's own limit, if it has one.
        privacy_filter: how the run's own limit is enforced.
        planned: the workload that the run's own adaptive filter is tuned for.
        privacy_unit: what the trainer protects; the ledger refuses the run if the population's differs.
        neighboring_relation: what the trainer's noise is made for; as above.
        plan: what is set aside for the run at once; if it does not fit, there is no run.
        authorize_every: steps that are granted with one request. Those that were not used are returned when the
            run is completed, and forfeited if it ends otherwise, or if this process dies.
        background: whether the next grant is asked for while the steps of the last one are taken.
        schedule: what step t of the training does, from 0, in place of `event`; a decaying noise, for instance.
        lease_seconds: how long the trainer may be silent before what it holds is forfeited; 3,600 for a plan and
            600 for steps that are granted ahead, if nothing is said.

    Returns:
        The run; keep its `state_dict()` to take it up again.

    Raises:
        LedgerError: it was not registered, or no answer came.
        ValueError: `authorize_every` and its kin do not go together.
    """
    body = {
        "name": name,
        "budget": budget,
        "budgets": None if budgets is None else list(budgets),
        "event": event,
        "limit": wire_limit(limit),
        "filter": privacy_filter,
        "planned": planned,
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
        "plan": plan,
        "lease_seconds": lease_seconds if plan else None,
    }
    ahead = PrefetchConfig.of(authorize_every, background, schedule, None if plan else lease_seconds)
    return Opening(Call(post("v1/runs", body), RunState).talk(), ahead, 0, with_plan=True)


def get_run(
    run_id: str,
    *,
    authorize_every: int = 1,
    background: bool = False,
    schedule: Callable[[int], Event] | None = None,
    lease_seconds: int | None = None,
    with_plan: bool = False,
    step: int | None = None,
) -> Opening:
    """Take up a run at its first free step, in its present attempt; `resume_run` begins a new one.

    Args:
        run_id: its id.
        authorize_every: as in `register_run`.
        background: as in `register_run`.
        schedule: as in `register_run`.
        lease_seconds: as in `register_run`.
        with_plan: whether to go on with the plan that an earlier process of this job has set aside. Each of its
            steps must have been asked for on its own: the ledger would not know of others.
        step: number of training steps taken before, in all attempts together, which a schedule needs.

    Returns:
        The run.

    Raises:
        LedgerError: there is no such run, or no answer came.
        ValueError: `authorize_every` and its kin do not go together, or there is a schedule and no `step`.
    """
    ahead = PrefetchConfig.of(authorize_every, background, schedule, lease_seconds)
    return Opening(read_run(run_id).talk(), ahead, _known_step(step, schedule), with_plan)


def resume_run(
    state: RunStateDict | str,
    *,
    steps_executed: int | None = None,
    authorize_every: int = 1,
    background: bool = False,
    schedule: Callable[[int], Event] | None = None,
    lease_seconds: int | None = None,
    step: int | None = None,
) -> Opening:
    """Go on from a checkpoint, in a new attempt: whatever process held the run before can charge no more.

    What was spent stays spent: steps that are repeated after the checkpoint are charged again, and what was granted
    ahead to the process before is charged in full.

    Args:
        state: what `run.state_dict()` returned when the checkpoint was written; or a run's id, to repeat nothing.
        steps_executed: of a plan that the process before had set aside with `reserve`, if that is known for sure;
            None: what is left of it is forfeited.
        authorize_every: as in `register_run`.
        background: as in `register_run`.
        schedule: as in `register_run`.
        lease_seconds: as in `register_run`.
        step: where `state` is an id, the number of training steps taken before, which a schedule needs.

    Returns:
        The run.

    Raises:
        RunStateConflictError: the run has ended.
        LedgerError: there is no such run, or no answer came.
        ValueError: this is no checkpoint of a run, it says another step, or there is a schedule and no step.
    """
    ahead = PrefetchConfig.of(authorize_every, background, schedule, lease_seconds)
    run_id, kept = checked_state(state)
    if None not in {kept, step} and kept != step:
        raise ValueError(f"The checkpoint was written after {kept} steps, not {step}: leave `step` out.")
    known = _known_step(step if kept is None else kept, schedule)
    return Opening(_next_attempt(run_id, known, steps_executed), ahead, known, with_plan=False)


def _known_step(step: int | None, schedule: Callable[[int], Event] | None) -> int | None:
    """Refuse to guess where a schedule goes on: the ledger's numbers leave out steps that were forfeited."""
    if step is None and schedule is not None:
        raise ValueError(
            "A schedule goes on at the step that the training has reached, which the ledger cannot know: it charges "
            "steps that were granted to a process that died without numbering them. Resume from what "
            "run.state_dict() returned, or give the number of training steps taken as `step`."
        )
    return None if step is None else whole("step", step, 0)


def _next_attempt(run_id: str, step: int | None, steps_executed: int | None) -> RequestFlow[RunState]:
    """Open a new attempt after a checkpoint; whoever held the run before is fenced off."""
    if step is not None:
        # Steps that were granted to a process that died were charged without being numbered.
        step = min(step, (yield read_run(run_id).request).read(RunState).next_step)
    body = {"first_step": step, "steps_executed": steps_executed}
    return (yield post(f"{path('runs', run_id)}/attempts", body)).read(RunState)
