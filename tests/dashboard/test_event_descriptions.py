"""Events in words: with all that multiplies the cost of their mechanisms."""

import pytest

from app.accounting import events as dp
from app.dashboard.event_descriptions import describe_event

GAUSSIAN = dp.Gaussian(4.0)
DESCRIBED = [
    (GAUSSIAN, "Gaussian, noise multiplier 4"),
    (dp.PoissonSampled(0.01, GAUSSIAN), "Gaussian, noise multiplier 4, Poisson sampling with probability 0.01"),
    (dp.SelfComposed(GAUSSIAN, 200), "200 times: gaussian, noise multiplier 4"),
    (
        dp.RepeatAndSelect(dp.SelfComposed(GAUSSIAN, 200), 10.0, 1.0),
        "Selection of the best of 10 trials on average, each 200 times: gaussian, noise multiplier 4",
    ),
    (
        dp.Composed((GAUSSIAN, dp.Laplace(2.0), GAUSSIAN)),
        "Together: 2 times: gaussian, noise multiplier 4; laplace, noise multiplier 2",
    ),
    (dp.GroupPrivacy(3, GAUSSIAN), "Gaussian, noise multiplier 4, for groups of 3 records"),
    (
        dp.SampledWithoutReplacement(1000, 10, GAUSSIAN),
        "Gaussian, noise multiplier 4, batches of 10 of 1\u202f000 records without replacement",
    ),
    (dp.EpsilonDelta(1.0, 0.0), "Epsilon delta"),
]


@pytest.mark.parametrize(("event", "words"), DESCRIBED, ids=lambda case: type(case).__name__)
def test_description_has_every_part_of_an_event(event: dp.DpEvent, words: str) -> None:
    assert describe_event(event) == words
