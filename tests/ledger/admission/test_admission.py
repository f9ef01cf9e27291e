"""The one rule, against a model that counts with Python's own integers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.calibration.monotone_search import decimal, index_at_or_below
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.ledger.accounts import account as accounts
from app.ledger.accounts.account import MOST_USED
from app.ledger.admission.admission import Admission
from app.ledger.filter.limits import Limit
from app.ledger.fitting import fitting_limits, fitting_noise
from app.ledger.fitting.fitting_limits import raise_limits
from app.ledger.fitting.fitting_noise import noise_that_fits
from app.ledger.fitting.trial_admission import Trial
from app.ledger.step_events import StepEvent
from tests.ledger.conftest import admit, admitted, chained, make_account, planning, priced, refused, repetitions_left
from tests.ledger.ledger_model import limited_to

EVENTS: list[DpEvent] = [
    *(dp.Gaussian(1.0), dp.Gaussian(8.0), dp.Gaussian(300.0), dp.PoissonSampled(0.004, dp.Gaussian(1.1))),
    *(dp.PoissonSampled(0.01, dp.Gaussian(0.8)), dp.PoissonSampled(0.2, dp.Gaussian(3.0))),
]
RUN = make_account(name="run", limited=False)
events = st.sampled_from(EVENTS)
terms = st.tuples(st.sampled_from([0.3, 1.0, 2.5, 8.0]), st.sampled_from([1e-5, 1e-8]))


@given(terms, events, st.integers(1, 100_000))
def test_the_noise_that_fits_fits_and_a_little_less_does_not(
    limit: tuple[float, float], event: DpEvent, count: int
) -> None:
    path = chained(make_account(*limit), RUN)
    if isinstance(admit(path, event, count), Admission):
        return
    noise = noise_that_fits(path, [priced(path[0], event, count)])
    if noise is None:
        return
    assert noise > dp.noise_multiplier(event)
    admitted(path, dp.with_noise_multiplier(event, noise), count)
    refused(path, dp.with_noise_multiplier(event, noise * (1 - 2e-3)), count)


@pytest.mark.parametrize(("planned", "digits"), [(False, 4), (True, 3)])
def test_raised_limit_has_few_digits_and_the_next_smaller_one_is_not_enough(*, planned: bool, digits: int) -> None:
    event, trial = dp.Laplace(10.0), Trial(keeps_plans=False, keeps_events=False)
    account = planning(make_account(), StepEvent(event, 40)) if planned else make_account()
    steps = [priced(account, event, 23)]
    [raised] = raise_limits(trial, [account], steps)
    index = index_at_or_below(raised.limit.epsilon, digits)
    assert decimal(index, digits) == raised.limit.epsilon
    fitting = [limited_to(account, Limit(decimal(each, digits), 1e-5)) for each in (index - 1, index)]
    assert [trial.admits([each], steps) for each in fitting] == [False, True]


def test_raised_limit_is_the_next_digit_where_an_estimate_is_one_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    event, trial = dp.Laplace(10.0), Trial(keeps_plans=False, keeps_events=False)
    account = planning(make_account(), StepEvent(event, 40))
    steps = [priced(account, event, 23)]
    raised = raise_limits(trial, [account], steps)
    low = decimal(index_at_or_below(raised[0].limit.epsilon, 3) - 2, 3)  # the search begins one above it
    monkeypatch.setattr(fitting_limits, "_planned_epsilon", lambda *_: low)
    assert raise_limits(trial, [account], steps) == raised


@pytest.mark.parametrize("event", EVENTS)
def test_search_for_fitting_noise_computes_few_curves(monkeypatch: pytest.MonkeyPatch, event: DpEvent) -> None:
    """Each takes as long as all else in a refused step."""
    path, computed = chained(make_account(), RUN), []

    def counted(compute: Callable[..., object]) -> Callable[..., object]:
        def count(*given: object) -> object:
            computed.append(given)
            return compute(*given)

        return count

    for module, name in ((fitting_noise, "curve_over"), (accounts, "event_curve")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    path = tuple(each.prepared_for([priced(each, event, 10**5)]) for each in path)
    asked = [priced(path[0], event, 10**5)]
    computed.clear()
    assert noise_that_fits(path, asked) is not None
    assert 4 <= len(computed) <= 12


def test_the_numbers_of_a_refusal_add_up() -> None:
    event = dp.PoissonSampled(0.01, dp.Gaussian(1.1))
    path = chained(make_account(3.0, name="population"), make_account(1.0, name="budget"), RUN)
    count, binding = repetitions_left(path, event)
    assert binding.name == "budget"
    outcome = admitted(path, event, count)
    assert outcome.steps_remaining == 0
    refusal = refused(outcome.accounts, event)
    assert refusal.binding.name == "budget"
    assert refusal.used <= refusal.used_including_reserved <= 1.0 < refusal.used_requested
    assert refusal.max_steps_that_fit == 0


def test_of_equally_refusing_accounts_the_one_with_the_least_room_is_named() -> None:
    small, large = dp.PoissonSampled(0.01, dp.Gaussian(1.1)), dp.Gaussian(1.0)
    for limits, named in (((3.0, 2.5), "child"), ((2.5, 3.0), "parent"), ((3.0, 3.0), "parent")):
        accounts = [make_account(limit, name=name) for limit, name in zip(limits, ("parent", "child"), strict=True)]
        path = chained(*accounts, RUN)
        after = admitted(path, small, repetitions_left(path, small)[0]).accounts
        assert [each.fits(priced(each, large).cost) for each in after] == [False, False, True]
        assert refused(after, large).binding.name == named


def test_a_mechanism_without_noise_worth_the_name_is_refused_as_more_than_all() -> None:
    refusal = refused([make_account(10.0)], dp.Gaussian(1e-3), 10**9)
    assert (refusal.used_requested, refusal.max_steps_that_fit) == (MOST_USED, 0)


def test_noise_is_sought_only_where_a_trial_is_little_work() -> None:
    for steps in (32, 33):
        schedule, node = dp.Decay("exp", 0.01, steps, dp.PoissonSampled(0.1, dp.Gaussian(1.0))), make_account(0.5)
        refused([node], schedule)
        assert (noise_that_fits([node], [priced(node, schedule)]) is not None) is (steps == 32)


def test_a_planned_workload_decides_the_weights() -> None:
    planned = dp.PoissonSampled(0.004, dp.Gaussian(1.1))
    misleading = dp.PoissonSampled(1e-6, dp.Gaussian(1000.0))  # the plan covers it
    answer, untold = planning(make_account(), StepEvent(planned, 1000)), make_account()
    left = [repetitions_left(admitted([node], misleading).accounts, planned)[0] for node in (answer, untold)]
    assert left[0] > 2 * left[1]


def test_a_refused_first_charge_freezes_nothing() -> None:
    node = make_account()
    refused([node], dp.Gaussian(0.1))
    assert not node.weights_frozen
    assert admitted([node], dp.Gaussian(10.0)).accounts[0].weights_frozen


def test_replace_one_costs_four_times_as_much() -> None:
    added = make_account()
    replaced = replace(added, relation=NeighboringRelation.REPLACE_ONE)
    assert priced(replaced, dp.Gaussian(10.0)).curve == priced(added, dp.Gaussian(5.0)).curve
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        admit([replaced], dp.PoissonSampled(0.01, dp.SampledWithoutReplacement(100, 10, dp.Gaussian(1.0))))
