"""The one rule, against a model that counts with Python's own integers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger import accounts, fitting_noise
from app.ledger.accounts import Account
from app.ledger.admission import Admission, Refusal
from app.ledger.fitting_noise import noise_that_fits
from app.ledger.step_events import StepEvent

from .conftest import AccountMaker, admit, chained, planning, repetitions_left

EVENTS: list[DpEvent] = [
    dp.Gaussian(1.0),
    dp.Gaussian(8.0),
    dp.Gaussian(300.0),
    dp.PoissonSampled(0.004, dp.Gaussian(1.1)),
    dp.PoissonSampled(0.01, dp.Gaussian(0.8)),
    dp.PoissonSampled(0.2, dp.Gaussian(3.0)),
]
events = st.sampled_from(EVENTS)
terms = st.tuples(st.sampled_from([0.3, 1.0, 2.5, 8.0]), st.sampled_from([1e-5, 1e-8]))


def path_of(account: AccountMaker, limits: list[tuple[float, float]]) -> tuple[Account, ...]:
    nodes = [account(*limit, name=f"n{depth}") for depth, limit in enumerate(limits)]
    return chained(*nodes, account(name="run", limited=False))


@given(terms, events, st.integers(1, 100_000))
def test_the_noise_that_fits_fits_and_a_little_less_does_not(
    account: AccountMaker, limit: tuple[float, float], event: DpEvent, count: int
) -> None:
    path = path_of(account, [limit])
    if isinstance(admit(path, [StepEvent(event, count)]), Admission):
        return
    noise = noise_that_fits(path, [path[0].price(StepEvent(event, count))])
    if noise is None:
        return
    assert noise > dp.noise_multiplier(event)
    assert isinstance(admit(path, [StepEvent(dp.with_noise_multiplier(event, noise), count)]), Admission)
    less = dp.with_noise_multiplier(event, noise * (1 - 2e-3))
    assert isinstance(admit(path, [StepEvent(less, count)]), Refusal)


@pytest.mark.parametrize("event", EVENTS)
def test_search_for_fitting_noise_computes_few_curves(
    account: AccountMaker, monkeypatch: pytest.MonkeyPatch, event: DpEvent
) -> None:
    """Each takes as long as all else in a refused step."""
    path = path_of(account, [(1.0, 1e-5)])
    computed = []

    def counted(compute: Callable[..., object]) -> Callable[..., object]:
        def count(*given: object) -> object:
            computed.append(given)
            return compute(*given)

        return count

    for module, name in ((fitting_noise, "curve_over"), (accounts, "event_curve")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    path = tuple(each.prepared_for([each.price(StepEvent(event, 10**5))]) for each in path)
    priced = [path[0].price(StepEvent(event, 10**5))]
    computed.clear()
    assert noise_that_fits(path, priced) is not None
    assert 4 <= len(computed) <= 12


def test_the_numbers_of_a_refusal_add_up(account: AccountMaker) -> None:
    population, budget = account(3.0, name="population"), account(1.0, name="budget")
    run = account(name="run", limited=False)
    event = dp.PoissonSampled(0.01, dp.Gaussian(1.1))
    path = chained(population, budget, run)
    count, binding = repetitions_left(path, event)
    assert binding.name == "budget"
    outcome = admit(path, [StepEvent(event, count)])
    assert isinstance(outcome, Admission)
    assert outcome.steps_remaining == 0
    refusal = admit(outcome.accounts, [StepEvent(event, 1)])
    assert isinstance(refusal, Refusal)
    assert refusal.binding.name == "budget"
    assert refusal.epsilon <= 1.0 < refusal.epsilon_requested
    assert refusal.spent <= refusal.limit < refusal.spent + refusal.requested
    assert refusal.max_count_that_fits == 0
    assert refusal.reading.epsilon == refusal.epsilon


def test_of_equally_refusing_accounts_the_one_with_the_least_room_is_named(account: AccountMaker) -> None:
    small, large = dp.PoissonSampled(0.01, dp.Gaussian(1.1)), dp.Gaussian(1.0)
    for limits, named in (((3.0, 2.5), "child"), ((2.5, 3.0), "parent"), ((3.0, 3.0), "parent")):
        accounts = [account(limit, name=name) for limit, name in zip(limits, ("parent", "child"), strict=True)]
        path = chained(*accounts, account(name="run", limited=False))
        count, _ = repetitions_left(path, small)
        outcome = admit(path, [StepEvent(small, count)])
        assert isinstance(outcome, Admission)
        assert [each.fits(each.price(StepEvent(large, 1)).cost) for each in outcome.accounts] == [False, False, True]
        refusal = admit(outcome.accounts, [StepEvent(large, 1)])
        assert isinstance(refusal, Refusal)
        assert refusal.binding.name == named


def test_a_mechanism_without_noise_worth_the_name_is_refused_with_infinite_epsilon(account: AccountMaker) -> None:
    refusal = admit([account(10.0)], [StepEvent(dp.Gaussian(1e-3), 10**9)])
    assert isinstance(refusal, Refusal)
    assert refusal.epsilon_requested == float("inf")
    assert refusal.max_count_that_fits == 0


def test_noise_is_sought_only_where_a_trial_is_little_work(account: AccountMaker) -> None:
    for steps in (32, 33):
        schedule = dp.Decay("exp", 0.01, steps, dp.PoissonSampled(0.1, dp.Gaussian(1.0)))
        node = account(0.5)
        assert isinstance(admit([node], [StepEvent(schedule, 1)]), Refusal)
        assert (noise_that_fits([node], [node.price(StepEvent(schedule, 1))]) is not None) is (steps == 32)


def test_a_planned_workload_decides_the_weights(account: AccountMaker) -> None:
    planned = dp.PoissonSampled(0.004, dp.Gaussian(1.1))
    misleading = dp.PoissonSampled(1e-6, dp.Gaussian(1000.0))  # the plan covers it
    answer = planning(account(1.0), StepEvent(planned, 1000))
    untold = account(1.0)
    after = [admit([node], [StepEvent(misleading, 1)]) for node in (answer, untold)]
    assert all(isinstance(outcome, Admission) for outcome in after)
    left = [repetitions_left(outcome.accounts, planned)[0] for outcome in after if isinstance(outcome, Admission)]
    assert left[0] > 2 * left[1]


def test_a_refused_first_charge_freezes_nothing(account: AccountMaker) -> None:
    node = account(1.0)
    assert isinstance(admit([node], [StepEvent(dp.Gaussian(0.1), 1)]), Refusal)
    assert not node.weights_frozen
    charged = admit([node], [StepEvent(dp.Gaussian(10.0), 1)])
    assert isinstance(charged, Admission)
    assert charged.accounts[0].weights_frozen


def test_replace_one_costs_four_times_as_much(account: AccountMaker) -> None:
    added = account(1.0)
    replaced = replace(added, relation=NeighboringRelation.REPLACE_ONE)
    assert replaced.price(StepEvent(dp.Gaussian(10.0), 1)).curve == added.price(StepEvent(dp.Gaussian(5.0), 1)).curve
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        admit([replaced], [StepEvent(dp.PoissonSampled(0.01, dp.Gaussian(1.0)), 1)])
