"""Experiments: sweeps of many trainings."""

from collections.abc import Sequence
from typing import Unpack

from epsilon_ledger._wire.events import EventCount, PlannedEvents
from epsilon_ledger._wire.experiment_models import Experiment
from epsilon_ledger._wire.members import wire_budgets, wire_events, wire_limit, wire_planned
from epsilon_ledger._wire.metadata import Metadata, wire_metadata
from epsilon_ledger._wire.models import Limit, NeighboringRelation
from epsilon_ledger._wire.origins import OriginReference, wire_origins
from epsilon_ledger._wire.requests import Call, Listing, get, path, post


def create_experiment(  # noqa: PLR0913 - the members of the request, by name
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
    starts_from: Sequence[OriginReference] | None = None,
    **metadata: Unpack[Metadata],
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
        starts_from: what its trials start from, as in `create_run`, for a sweep that is charged as a whole.
        metadata: of its account for people, as in `Metadata`.

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
        "budgets": wire_budgets(budgets),
        "limit": wire_limit(limit),
        "planned": wire_planned(planned),
        "trials": None if events is None else {"events": wire_events(events), "mean": mean, "shape": shape},
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
        "starts_from": wire_origins(starts_from),
        **wire_metadata(metadata),
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


def list_experiments(*, budget: str | None = None, page_size: int = 100) -> Listing[Experiment]:
    """List experiments, newest first.

    Args:
        budget: only those under this budget, an id or a path.
        page_size: items of one request, in [1, 200].

    Returns:
        An iterator, which requests a page when it is needed.

    Raises:
        LedgerError: while iterating: the budget does not exist, or no response arrived.
    """
    return Listing("v1/experiments", {"budget": budget}, Experiment, page_size)
