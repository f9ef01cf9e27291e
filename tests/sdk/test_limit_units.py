"""The client's limits in pure epsilon, rho and mu: what is sent and read, and what a refusal lets people request."""

import uuid
from math import inf

import pytest

from epsilon_ledger import (
    BudgetExceededError,
    LedgerClient,
    Limit,
    Population,
    UnsupportedEventError,
    gaussian,
    laplace,
)


def open_people(admin: LedgerClient, limit: Limit) -> Population:
    name = f"people-{uuid.uuid4().hex[:8]}"
    return admin.create_population(name, privacy_unit="user", neighboring_relation="add_or_remove_one", limit=limit)


@pytest.mark.parametrize("limit", [Limit(1.0, 0), Limit(rho=0.5), Limit(rho=0.5, delta=1e-9), Limit(mu=1.0)])
def test_limits_of_every_unit_are_read_as_they_were_sent(admin: LedgerClient, limit: Limit) -> None:
    population = open_people(admin, limit)
    assert population.limit == limit == admin.get_limit(population.path).limit
    assert admin.create_budget("team", parent=population.path, limit=limit).limit == limit


def test_limit_of_another_unit_has_infinite_epsilon_and_no_delta() -> None:
    limit = Limit(mu=1.0)
    assert (limit.epsilon, limit.delta, limit.rho, str(limit)) == (inf, 0.0, inf, "mu 1")
    assert [str(each) for each in (Limit(1.0, 0), Limit(rho=0.5, delta=1e-9))] == [
        "epsilon 1 at delta 0",
        "rho 0.5 at delta 1e-09",
    ]
    with pytest.raises(TypeError, match="needs delta"):
        Limit(1.0)


def test_run_fills_mu_with_a_hundred_steps_and_requests_more(admin: LedgerClient, trainer: LedgerClient) -> None:
    people = open_people(admin, Limit(mu=1.0)).path
    run = trainer.create_run("model", budget=people, event=gaussian(10.0))
    step = run.authorize(100)
    assert (step.steps_remaining, step.delta) == (0, 1e-6)
    with pytest.raises(BudgetExceededError, match="mu 1") as caught:
        run.authorize()
    assert caught.value.higher_limit is not None
    assert caught.value.higher_limit.limits is not None
    assert [each.limit for each in caught.value.higher_limit.limits] == [Limit(mu=1.005)]
    [proposal] = run.request_limit("One more step.")
    assert proposal.proposed["limit"] == {"mu": 1.005}


def test_event_without_a_value_is_refused(admin: LedgerClient, trainer: LedgerClient) -> None:
    people = open_people(admin, Limit(rho=0.5)).path
    with pytest.raises(UnsupportedEventError, match="laplace has no rho"):
        trainer.create_run("model", budget=people, event=laplace(10.0))


def test_equivalents_of_a_limit(admin: LedgerClient) -> None:
    people = open_people(admin, Limit(mu=1.0)).path
    found = admin.get_limit_equivalents(people, delta=1e-9)
    assert (found.limit, found.rho, found.mu, found.delta) == (Limit(mu=1.0), 0.5, 1.0, 1e-9)
    assert found.epsilon == pytest.approx(6.1739, rel=1e-4)
    assert found.risk.singled_out == 93
    assert admin.get_limit_equivalents(people, delta=0).epsilon == inf
