"""What can be asked of the ledger besides steps: each function prepares a request and knows its answer's shape."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote, urlencode

from epsilon_ledger._wire.events import EventCount
from epsilon_ledger._wire.members import wire_block, wire_limit, wire_moment, wire_parts
from epsilon_ledger._wire.models import (
    Block,
    Budget,
    Experiment,
    History,
    Limit,
    NeighboringRelation,
    Parts,
    Population,
    PrivacyFilter,
    Reservation,
    RunState,
)
from epsilon_ledger._wire.requests import Call, get, post


def create_population(  # noqa: PLR0913 - the members of the request, by name
    name: str,
    *,
    privacy_unit: str,
    neighboring_relation: NeighboringRelation,
    limit: Limit,
    size: int | None = None,
    privacy_filter: PrivacyFilter | None = None,
    planned: Sequence[EventCount] | None = None,
    parts: Parts | None = None,
) -> Call[Population]:
    """Create the root of a budget tree; it takes an admin's key.

    Args:
        name: unique in the organisation, without "/".
        privacy_unit: who is protected, "patient record" for instance, 1 to 100 characters.
        neighboring_relation: which two data sets are neighbours.
        limit: the most that all runs on these people may spend together.
        size: number of privacy units, if known; the limit's delta must be below 1 / size.
        privacy_filter: how the limit is enforced; the ledger's default is adaptive.
        planned: the workload that an adaptive filter is tuned for.
        parts: that its budgets hold disjoint parts; None: what they spend adds up.

    Returns:
        The population.

    Raises:
        ApprovalRequiredError: by the organisation's policy another person opens it; it is proposed.
        LedgerError: it was not created, or no answer came.
    """
    body = {
        "name": name,
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
        "limit": wire_limit(limit),
        "size": size,
        "filter": privacy_filter,
        "planned": planned,
        **wire_parts(parts),
    }
    return Call(post("v1/populations", body), Population)


def create_budget(  # noqa: PLR0913 - as above
    name: str,
    *,
    parent: str,
    limit: Limit,
    privacy_filter: PrivacyFilter | None = None,
    planned: Sequence[EventCount] | None = None,
    parts: Parts | None = None,
    opens_at: datetime | None = None,
    closes_at: datetime | None = None,
    block: Block | None = None,
) -> Call[Budget]:
    """Create a budget under a population or another budget; it takes an admin's key.

    Args:
        name: unique under its parent, without "/".
        parent: id or path of the parent, "mimic" or "mimic/icu-team" for instance.
        limit: the most that all runs under it may spend together.
        privacy_filter: how the limit is enforced; the ledger's default is adaptive.
        planned: the workload that an adaptive filter is tuned for.
        parts: that the budgets beneath it hold disjoint parts; None: what they spend adds up.
        opens_at: an aware moment; nothing is taken from the budget before.
        closes_at: as `opens_at`; nothing is taken from it from then on.
        block: the data that it stands for; its parent has parts.

    Returns:
        The budget.

    Raises:
        LedgerError: it was not created, or no answer came.
    """
    body = {
        "name": name,
        "parent": parent,
        "limit": wire_limit(limit),
        "filter": privacy_filter,
        "planned": planned,
        "opens_at": wire_moment("opens_at", opens_at),
        "closes_at": wire_moment("closes_at", closes_at),
        "block": wire_block(block),
        **wire_parts(parts),
    }
    return Call(post("v1/budgets", body), Budget)


def declare_experiment(  # noqa: PLR0913 - as above
    name: str,
    *,
    budget: str | None = None,
    budgets: Sequence[str] | None = None,
    limit: Limit | None = None,
    privacy_filter: PrivacyFilter | None = None,
    planned: Sequence[EventCount] | None = None,
    events: Sequence[EventCount] | None = None,
    mean: float | None = None,
    shape: float | None = 1.0,
    privacy_unit: str | None = None,
    neighboring_relation: NeighboringRelation | None = None,
) -> Call[Experiment]:
    """Declare a sweep: many trainings of which one model is chosen.

    Without `events`, its runs are registered beneath the experiment (`budget=experiment.path`) and charged one by one;
    all of them may be looked at. With `events` and `mean`, the whole sweep is charged now, `experiment.trials` says how
    many trials to run, and nothing but the best of them may be looked at or released; `trials` goes through them.

    Args:
        name: of a budget or a run beneath the budget.
        budget: id or path of the budget above.
        budgets: in its place, several; of a sweep that is charged at once.
        limit: of all runs together; None: that of the budget above. Of runs that are charged one by one.
        privacy_filter: how that limit is enforced.
        planned: the workload that an adaptive filter is tuned for.
        events: all that one trial does to the data, whatever its hyper-parameters.
        mean: expected number of trials, in [1, 1e6].
        shape: of the distribution of their number, in [-0.5, 1e6]: 1 is the geometric, 0 the logarithmic one; None:
            Poisson's.
        privacy_unit: what the trainer protects; of a sweep that is charged at once.
        neighboring_relation: what its mechanisms are calibrated for; as above.

    Returns:
        The experiment; `status` is "pending", and `trials` None, if its charge waits for another person's approval:
        `charge_experiment` tells the number then.

    Raises:
        BudgetExceededError: the whole sweep does not fit; nothing was charged.
        LedgerError: it was not declared, or no answer came.
        ValueError: `events` and `mean` do not come together.
    """
    if (events is None) != (mean is None):
        raise ValueError("A sweep that is charged at once has both `events` and `mean`; one that is not, neither.")
    body: dict[str, object] = {
        "name": name,
        "charging_mode": "each_run" if events is None else "repeat_and_select",
        "budget": budget,
        "budgets": None if budgets is None else list(budgets),
        "limit": wire_limit(limit),
        "filter": privacy_filter,
        "planned": planned,
        "trials": None if events is None else {"events": list(events), "mean": mean, "shape": shape},
        "privacy_unit": privacy_unit,
        "neighboring_relation": neighboring_relation,
    }
    return Call(post("v1/experiments", body), Experiment)


def charge_experiment(experiment_id: str) -> Call[Experiment]:
    """Charge a sweep that waited for another person's approval.

    Args:
        experiment_id: its id.

    Returns:
        The experiment, with its number of trials.

    Raises:
        BudgetExceededError: the whole sweep does not fit; nothing was charged.
        LedgerError: it waits still, or was charged before; or no answer came.
    """
    return Call(post(path("experiments", experiment_id) + "/charge", {}), Experiment)


def get_experiment(experiment_id: str) -> Call[Experiment]:
    """Read an experiment.

    Args:
        experiment_id: its id.

    Returns:
        The experiment, without its number of trials.

    Raises:
        LedgerError: there is no such experiment, or no answer came.
    """
    return Call(get(path("experiments", experiment_id)), Experiment)


def get_run(run_id: str) -> Call[RunState]:
    """Read a run.

    Args:
        run_id: its id.

    Returns:
        The run as it is.

    Raises:
        LedgerError: there is no such run, or no answer came.
    """
    return Call(get(path("runs", run_id)), RunState)


def get_budget(budget_id: str) -> Call[Budget]:
    """Read a budget.

    Args:
        budget_id: its id.

    Returns:
        The budget.

    Raises:
        LedgerError: there is no such budget, or no answer came.
    """
    return Call(get(path("budgets", budget_id)), Budget)


def get_population(population_id: str) -> Call[Population]:
    """Read a population.

    Args:
        population_id: its id.

    Returns:
        The population.

    Raises:
        LedgerError: there is no such population, or no answer came.
    """
    return Call(get(path("populations", population_id)), Population)


def get_reservation(reservation_id: str) -> Call[Reservation]:
    """Read a reservation.

    Args:
        reservation_id: its id.

    Returns:
        The reservation.

    Raises:
        LedgerError: there is no such reservation, or no answer came.
    """
    return Call(get(path("reservations", reservation_id)), Reservation)


def history(run_id: str, *, max_points: int = 500, after: str | None = None) -> Call[History]:
    """Read the decisions on a run, thinned out to a number of points.

    Args:
        run_id: its id.
        max_points: points wanted at most, at least 2.
        after: `next_cursor` of an earlier page.

    Returns:
        A page of points.

    Raises:
        LedgerError: there is no such run, or no answer came.
    """
    query = {"max_points": str(max_points)} | ({} if after is None else {"after": after})
    return Call(get(f"{path('runs', run_id)}/history?{urlencode(query)}"), History)


def path(kind: str, name: str) -> str:
    """Where an object is found under the ledger's address."""
    return f"v1/{kind}/{quote(name, safe='')}"
