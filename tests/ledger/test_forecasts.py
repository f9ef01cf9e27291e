"""Forecasts: the share of a limit that is used grows evenly, and a straight line is drawn through it."""

import pytest

from app.accounting.events import EpsilonDelta, Gaussian
from app.ledger.admission import Admission, admit
from app.ledger.alerts import LARGEST_SHARE, Forecast, forecast, share_used
from app.ledger.filters import Limit
from app.ledger.step_events import PricedStep, StepEvent
from tests.ledger.test_thresholds import PRICES, account, charged


def test_a_share_grows_evenly_and_is_1_where_nothing_is_admitted() -> None:
    event = Gaussian(90.0)
    step = PricedStep(StepEvent(event, 1), PRICES[event])
    start = account().prepared_for([step])
    admitted = admit([start], [step])
    assert isinstance(admitted, Admission)
    most = admitted.steps_remaining + 1
    shares = [share_used(charged(start, event, most * part // 4)) for part in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0], rel=0.02)
    assert shares[3] <= 1 < share_used(charged(start, event, most + 1))


def test_nothing_spent_is_no_share() -> None:
    assert share_used(account()) == 0.0


def test_a_delta_that_is_used_up_counts_as_well() -> None:
    event = EpsilonDelta(0.001, 1e-9)
    step = charged(account(Limit(1000.0, 1e-5)), Gaussian(90.0), 1)
    before, after = share_used(step), share_used(charged(step, event, 50))
    assert before < 0.01
    assert after == pytest.approx(0.5, rel=0.05)


def test_an_exhausted_account_has_a_share_all_the_same() -> None:
    assert share_used(charged(account(), Gaussian(3.0), 10**9)) == LARGEST_SHARE


@pytest.mark.parametrize(
    ("share", "before", "days", "expected"),
    [
        (0.5, 0.25, 5.0, Forecast(0.5, 0.05, 10.0)),
        (0.5, 0.5, 5.0, Forecast(0.5, 0.0, None)),
        (0.4, 0.5, 5.0, Forecast(0.4, 0.0, None)),
        (1.0, 0.5, 5.0, Forecast(1.0, 0.1, None)),
        (2.0, 0.5, 5.0, Forecast(2.0, 0.3, None)),
        (0.5, 0.25, 0.0, Forecast(0.5, None, None)),
        (0.5, 0.5 - 2.0**-30, 4.0, Forecast(0.5, 2.0**-32, None)),
    ],
)
def test_a_forecast_is_a_straight_line(share: float, before: float, days: float, expected: Forecast) -> None:
    assert forecast(share, before, days) == expected
