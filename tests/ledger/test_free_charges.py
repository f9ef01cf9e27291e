"""Charges that cost nothing: they freeze no weights, and nothing else is charged before some are frozen."""

import pytest

from app.accounting.curves import GRID_VERSION
from app.accounting.events import NeighboringRelation, RandomizedResponse
from app.accounting.rdp import event_curve
from app.ledger.admission import Admission, admit
from app.ledger.filters import filter_weights
from app.ledger.step_events import PricedStep, StepEvent

from .conftest import AccountMaker
from .test_own_delta import priced

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
