"""What an event costs under each relation; the sampled Gaussian's own formula is in test_sampled_gaussian.py."""

import numpy as np
import pytest

from app.accounting.curves import EXHAUSTED, finite_orders
from app.accounting.errors import UnknownGridVersionError, UnsupportedEventError
from app.accounting.events import DpEvent, Gaussian, NeighboringRelation, PoissonSampled
from app.accounting.rdp import event_curve, rdp

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL


@pytest.mark.parametrize("z", [1e-3, 0.0199, 0.1999999, 0.2, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("q", [5e-324, 1e-300, 1e-160, 1e-9, 0.5, 1 - 2**-53, 1.0])
def test_every_admissible_event_has_a_positive_curve(q: float, z: float) -> None:
    event = PoissonSampled(q, Gaussian(z))
    with np.errstate(all="raise", under="ignore"):
        nats = rdp(event, finite_orders(1), ADD_OR_REMOVE)
        curve = event_curve(event, ADD_OR_REMOVE)
    assert np.all(np.isfinite(nats) & (nats > 0))
    assert np.all(nats <= finite_orders(1) / (2 * z * z) * (1 + 1e-12))  # sampling never costs more than not sampling
    assert curve.values.min() >= 1


def test_no_noise_to_speak_of_exhausts_the_high_orders() -> None:
    curve = event_curve(Gaussian(1e-3), ADD_OR_REMOVE)
    assert curve.values[-1] == EXHAUSTED
    assert np.isinf(curve.nats()[-1])


def test_taking_every_record_is_not_sampling() -> None:
    assert event_curve(PoissonSampled(1, Gaussian(1.1)), REPLACE_ONE) == event_curve(Gaussian(1.1), REPLACE_ONE)


@pytest.mark.parametrize(("relation", "factor"), [(ADD_OR_REMOVE, 1), (REPLACE_SPECIAL, 1), (REPLACE_ONE, 4)])
def test_replacing_a_record_doubles_the_sensitivity(relation: NeighboringRelation, factor: int) -> None:
    grid = np.array([1.5, 2.0, 64.0])
    assert rdp(Gaussian(2.0), grid, relation) == pytest.approx(factor * grid / 8, rel=1e-15)


def test_replacing_with_a_special_record_costs_what_removing_costs() -> None:
    event = PoissonSampled(0.01, Gaussian(1.1))
    assert event_curve(event, REPLACE_SPECIAL) == event_curve(event, ADD_OR_REMOVE)


@pytest.mark.parametrize(
    ("event", "relation", "words"),
    [
        (PoissonSampled(0.01, Gaussian(1.1)), REPLACE_ONE, "add_or_remove_one or replace_special"),
        (PoissonSampled(0.5, PoissonSampled(0.5, Gaussian(1.1))), ADD_OR_REMOVE, "may hold a gaussian"),
    ],
)
def test_what_is_not_proven_is_refused(event: DpEvent, relation: NeighboringRelation, words: str) -> None:
    with pytest.raises(UnsupportedEventError, match=words):
        event_curve(event, relation)


def test_an_unknown_grid_is_refused() -> None:
    with pytest.raises(UnknownGridVersionError, match="known is 1"):
        event_curve(Gaussian(1.0), ADD_OR_REMOVE, 3)
