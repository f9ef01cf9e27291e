"""One workload reads the same epsilon in run, budget and population, under any limit, with and without a plan."""

from itertools import pairwise

import pytest

from epsilon_ledger import EventCount, Limit, gaussian, poisson_sampled
from tests.ledgers import Ledger
from tests.sdk.simulation import LedgerWire

STEP, STEPS = poisson_sampled(0.125, gaussian(2.0)), 16
LEAST, MOST = 1.23031, 1.2365
"""Epsilon of the steps at delta 1e-5, by privacy loss distributions, and what a step's answer may be."""


@pytest.mark.parametrize("planned", [False, True], ids=["without a plan", "planned"])
@pytest.mark.parametrize("epsilon", [1.5, 3.0, 8.0, 50.0, 1000.0])
def test_epsilon_depends_on_charges_alone(ledger: Ledger, epsilon: float, *, planned: bool) -> None:
    wire, limit = LedgerWire(ledger=ledger), Limit(epsilon, 1e-5)
    admin, trainer = wire.client("admin"), wire.client()
    plan = [EventCount(event=STEP, count=STEPS)] if planned else []
    terms = {"privacy_unit": "patient", "neighboring_relation": "add_or_remove_one"}
    population = admin.create_population("mimic", **terms, limit=limit, planned=plan)  # type: ignore[arg-type] # names
    budget = admin.create_budget("icu-team", parent="mimic", limit=limit, planned=plan)
    run = trainer.create_run("model", budget=budget.path, event=STEP, limit=limit, planned=plan)
    steps = [run.authorize() for _ in range(STEPS)]
    assert all(before.epsilon < after.epsilon for before, after in pairwise(steps))
    assert all(before.used < after.used for before, after in pairwise(steps))
    assert LEAST <= steps[-1].epsilon <= MOST
    read = [
        run.refresh().epsilon,
        admin.get_budget(budget.id).epsilon,
        admin.get_population(population.id).epsilon,
        admin.get_account_history(budget.id).points[-1].epsilon,
    ]
    assert set(read) == {read[0]}
    assert LEAST <= read[0] <= min(steps[-1].epsilon, LEAST * 1.001)
    assert run.used == steps[-1].used == admin.get_budget(budget.id).used < 1 or planned
