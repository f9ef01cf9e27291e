"""Mechanisms with a delta of their own: it is taken from the account's delta, and from no part of it twice."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import DELTA_UNIT, GRID_VERSION, RdpCurve
from app.accounting.events import Gaussian, NeighboringRelation, RandomizedResponse
from app.accounting.rdp import event_curve
from app.ledger.accounts import Account
from app.ledger.admission import Admission, Refusal, admit, repetitions_left
from app.ledger.filters import Limit, filter_weights
from app.ledger.step_events import PricedStep, StepEvent

from .conftest import AccountMaker

NOISY = event_curve(Gaussian(20.0), NeighboringRelation.ADD_OR_REMOVE_ONE)


def priced(delta: float, count: int = 1, noise: float = 20.0) -> PricedStep:
    """A charge of a mechanism with a delta of its own; only its price matters here."""
    curve = event_curve(Gaussian(noise), NeighboringRelation.ADD_OR_REMOVE_ONE)
    own = RdpCurve.from_nats(np.zeros(curve.values.shape), delta).delta
    return PricedStep(StepEvent(Gaussian(noise), count), replace(curve, delta=own))


def charge(account: Account, step: PricedStep) -> Account:
    outcome = admit([account], [step])
    assert isinstance(outcome, Admission)
    return outcome.accounts[0]


@given(st.floats(1e-12, 1e-3), st.floats(0.3, 8))
def test_the_parts_of_delta_and_what_is_set_aside_sum_to_at_most_delta(delta: float, epsilon: float) -> None:
    limit = Limit(epsilon, delta)
    weights = filter_weights(limit, NOISY, GRID_VERSION)
    aside = weights.set_aside()
    assert sum(map(Fraction, weights.deltas)) + aside * Fraction(DELTA_UNIT) <= Fraction(delta)
    assert aside * DELTA_UNIT == pytest.approx(0.01 * delta, rel=1e-6, abs=DELTA_UNIT)


def test_an_account_that_planned_none_admits_one_hundredth_of_its_delta(account: AccountMaker) -> None:
    opened = charge(account(epsilon=3.0, delta=1e-5), priced(0.0))
    left, _ = repetitions_left([opened], priced(1e-8))
    assert left == 9  # 1e-7 was set aside; the price of 1e-8 is rounded up
    refused = admit([opened], [priced(2e-7)])
    assert isinstance(refused, Refusal)
    assert refused.max_count_that_fits == 0
    assert refused.delta_requested == pytest.approx(2e-7)
    assert refused.delta_left == pytest.approx(1e-7)
    assert refused.epsilon_requested == np.inf


def test_of_equally_refusing_accounts_the_one_without_own_delta_is_named(account: AccountMaker) -> None:
    parent, child = (
        account(epsilon=3.0, delta=delta, name=name) for delta, name in ((1e-5, "parent"), (1e-6, "child"))
    )
    path = [charge(each, priced(0.0)) for each in (parent, child)]
    refused = admit(path, [priced(5e-8, noise=0.5)])  # its curve fits into neither, its delta into the parent's
    assert isinstance(refused, Refusal)
    assert refused.binding.name == "child"


def test_planned_own_deltas_are_set_aside(account: AccountMaker) -> None:
    frugal = account(epsilon=3.0, delta=1e-5)
    weights = filter_weights(Limit(3.0, 1e-5), priced(1e-8).curve, GRID_VERSION)
    planned = replace(frugal, weights=weights)
    gate = planned.bounds()
    by_delta = gate.room // priced(1e-8).curve.delta
    by_curve = int((gate.left(planned.spent) // np.maximum(NOISY.values[gate.places], 1)).max())
    assert by_delta == pytest.approx(by_curve, rel=0.05)
    assert repetitions_left([planned], priced(1e-8))[0] == min(by_delta, by_curve)


def test_the_odometer_counts_own_deltas(account: AccountMaker) -> None:
    opened = account(epsilon=3.0, delta=1e-5)
    without, half = charge(opened, priced(0.0)), charge(opened, priced(5e-6))
    assert replace(half, weights=without.weights).epsilon() == np.inf > without.epsilon()  # the reserve is smaller
    assert half.epsilon_rdp(1e-5) > without.epsilon_rdp(1e-5)
    assert half.epsilon_rdp(4e-6) == np.inf


COIN = RandomizedResponse(1.0, 2)  # the answer does not depend on the data
FREE = PricedStep(StepEvent(COIN, 5), event_curve(COIN, NeighboringRelation.REPLACE_ONE))


@pytest.mark.parametrize("planned", [(), (FREE.step,)], ids=["nothing planned", "what is free planned"])
def test_weights_are_frozen_with_the_first_charge_that_costs_anything(
    account: AccountMaker, planned: tuple[StepEvent, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = account(planned=planned)
    monkeypatch.setattr(type(opened), "price", lambda self, step: PricedStep(step, FREE.curve))  # noqa: ARG005
    free = admit([opened], [FREE])
    assert isinstance(free, Admission)
    assert free.accounts[0].weights is None
    assert free.accounts[0].spent.is_zero
    charged = admit(free.accounts, [FREE, priced(0.0, 3), priced(0.0, 2, noise=50.0)])
    assert isinstance(charged, Admission)
    limit = opened.limit
    assert limit is not None
    assert charged.accounts[0].weights == filter_weights(limit, priced(0.0).curve, GRID_VERSION)


def test_free_charge_does_not_change_how_much_fits(account: AccountMaker) -> None:
    alone = [isinstance(admit([account()], [priced(0.0, n)]), Admission) for n in range(1, 60)]
    after = [isinstance(admit([account()], [FREE, priced(0.0, n)]), Admission) for n in range(1, 60)]
    assert alone == after
    assert True in alone
    assert False in alone
