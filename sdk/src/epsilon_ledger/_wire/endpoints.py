"""Requests to the ledger other than steps, with the types of their responses."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote, urlencode

from epsilon_ledger._wire.events import EventCount, PlannedEvents
from epsilon_ledger._wire.members import wire_composition, wire_data_block, wire_limit, wire_planned, wire_timestamp
from epsilon_ledger._wire.models import (
    Budget,
    DataBlock,
    Experiment,
    Limit,
    NeighboringRelation,
    ParallelComposition,
    Population,
    Reservation,
    RunHistory,
    RunState,
)
from epsilon_ledger._wire.requests import Call, get, post


def create_population(
    name: str,
    *,
    privacy_unit: str,
    neighboring_relation: NeighboringRelation,
    limit: Limit,
    size: int | None = None,
    planned: PlannedEvents | None = None,
    composition: ParallelComposition | None = None,
) -> Call[Population]:
    """Create a population, the root of a budget tree; needs an admin's key.

    Args:
        name: unique in the organisation, without "/".
        privacy_unit: "patient record" for instance, 1 to 100 characters.
        neighboring_relation: which data sets are neighbours.
        limit: of all runs on the population together.
        size: number of privacy units, if known; the limit's delta must be below 1 / size.
        planned: the plan: events in order, each with a count, such as `[(event, 1000)]`. The last one may be a bare
            event: as many as the limit allows. None: the filter is tuned for the first charged event.
        composition: declares its budgets as disjoint; None: their spending adds up.

    Returns:
        The population.

    Raises:
        ApprovalRequiredError: the organisation's policy requires approval; a proposal was created.
        LedgerError: it was not created, or no response arrived.
    """
    body = {
        "name": name,
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
        "limit": wire_limit(limit),
        "size": size,
        "planned": wire_planned(planned),
        **wire_composition(composition),
    }
    return Call(post("v1/populations", body), Population)


def create_budget(  # noqa: PLR0913 - the members of the request, by name
    name: str,
    *,
    parent: str,
    limit: Limit,
    planned: PlannedEvents | None = None,
    composition: ParallelComposition | None = None,
    opens_at: datetime | None = None,
    closes_at: datetime | None = None,
    block: DataBlock | None = None,
) -> Call[Budget]:
    """Create a budget under a population or another budget; needs an admin's key.

    Args:
        name: unique under its parent, without "/".
        parent: id or path, "mimic" or "mimic/icu-team" for instance.
        limit: of all runs under it together.
        planned: the plan: events in order, each with a count, such as `[(event, 1000)]`. The last one may be a bare
            event: as many as the limit allows. None: the filter is tuned for the first charged event.
        composition: declares the budgets under it as disjoint; None: their spending adds up.
        opens_at: timezone-aware; the budget is closed before.
        closes_at: timezone-aware; the budget is closed from then on.
        block: its data, if its parent has composition.

    Returns:
        The budget.

    Raises:
        LedgerError: it was not created, or no response arrived.
    """
    body = {
        "name": name,
        "parent": parent,
        "limit": wire_limit(limit),
        "planned": wire_planned(planned),
        "opens_at": wire_timestamp("opens_at", opens_at),
        "closes_at": wire_timestamp("closes_at", closes_at),
        "block": wire_data_block(block),
        **wire_composition(composition),
    }
    return Call(post("v1/budgets", body), Budget)


def create_experiment(  # noqa: PLR0913 - as above
    name: str,
    *,
    budget: str | None = None,
    budgets: Sequence[str] | None = None,
    limit: Limit | None = None,
    planned: PlannedEvents | None = None,
    events: Sequence[EventCount] | None = None,
    mean: float | None = None,
    shape: float | None = 1.0,
    privacy_unit: str | None = None,
    neighboring_relation: NeighboringRelation | None = None,
) -> Call[Experiment]:
    """Create a sweep: many trainings of which one model is chosen.

    Without `events`, create its runs under the experiment (`budget=experiment.path`): each is charged, and all may be
    looked at. With `events` and `mean`, the whole sweep is charged now. Run exactly `experiment.trials` trials (see
    `trials`), and look at or release only the best one.

    Args:
        name: of a budget or a run under the budget.
        budget: id or path of the parent budget.
        budgets: several instead, for a sweep that is charged as a whole.
        limit: of all individually charged runs together; None: the parent budget's.
        planned: the plan: events in order, each with a count, such as `[(event, 1000)]`. The last one may be a bare
            event: as many as the limit allows. None: the filter is tuned for the first charged event.
        events: events of one trial, for all hyper-parameters.
        mean: expected number of trials, in [1, 1e6].
        shape: of the distribution of their number, in [-0.5, 1e6]: 1 is geometric, 0 logarithmic; None: Poisson.
        privacy_unit: that the trainer protects, for a sweep that is charged as a whole.
        neighboring_relation: of its mechanisms, for a sweep that is charged as a whole.

    Returns:
        The experiment. While its charge awaits approval, `status` is "pending" and `trials` None; `charge_experiment`
        then returns the number.

    Raises:
        BudgetExceededError: the whole sweep does not fit; nothing was charged.
        LedgerError: it was not created, or no response arrived.
        ValueError: only one of `events` and `mean` is given.
    """
    if (events is None) != (mean is None):
        raise ValueError("A sweep that is charged at once has both `events` and `mean`; one that is not, neither.")
    body: dict[str, object] = {
        "name": name,
        "charging_mode": "each_run" if events is None else "repeat_and_select",
        "budget": budget,
        "budgets": None if budgets is None else list(budgets),
        "limit": wire_limit(limit),
        "planned": wire_planned(planned),
        "trials": None if events is None else {"events": list(events), "mean": mean, "shape": shape},
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
    }
    return Call(post("v1/experiments", body), Experiment)


def charge_experiment(experiment_id: str) -> Call[Experiment]:
    """Charge a sweep after its approval.

    Args:
        experiment_id: its id.

    Returns:
        The experiment, with its number of trials.

    Raises:
        BudgetExceededError: the whole sweep does not fit; nothing was charged.
        LedgerError: it is still pending or was already charged; or no response arrived.
    """
    return Call(post(path("experiments", experiment_id) + "/charge", {}), Experiment)


def get_experiment(experiment_id: str) -> Call[Experiment]:
    """Get an experiment.

    Args:
        experiment_id: its id.

    Returns:
        The experiment, without its number of trials.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("experiments", experiment_id)), Experiment)


def get_run(run_id: str) -> Call[RunState]:
    """Get a run's state."""
    return Call(get(path("runs", run_id)), RunState)


def get_budget(budget_id: str) -> Call[Budget]:
    """Get a budget.

    Args:
        budget_id: its id.

    Returns:
        The budget.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("budgets", budget_id)), Budget)


def get_population(population_id: str) -> Call[Population]:
    """Get a population.

    Args:
        population_id: its id.

    Returns:
        The population.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("populations", population_id)), Population)


def get_reservation(reservation_id: str) -> Call[Reservation]:
    """Get a reservation.

    Args:
        reservation_id: its id.

    Returns:
        The reservation.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("reservations", reservation_id)), Reservation)


def get_run_history(run_id: str, *, max_points: int = 500, after: str | None = None) -> Call[RunHistory]:
    """List the decisions on a run, thinned out.

    Args:
        run_id: its id.
        max_points: maximum number of points, at least 2.
        after: `next_cursor` of an earlier page.

    Returns:
        A page of points.

    Raises:
        LedgerError: the run does not exist, or no response arrived.
    """
    query = {"max_points": str(max_points)} | ({} if after is None else {"after": after})
    return Call(get(f"{path('runs', run_id)}/history?{urlencode(query)}"), RunHistory)


def path(kind: str, name: str) -> str:
    """Build the path of an object under the ledger's address."""
    return f"v1/{kind}/{quote(name, safe='')}"
