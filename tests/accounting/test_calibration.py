"""What fits: exact to its digits, tested by the rule itself, found in few trials; one digit better does not fit."""

from decimal import Decimal
from math import log2
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.accounting import events as dp
from app.accounting.calibration import solvers
from app.accounting.calibration.monotone_search import decimal, index_at_or_below, root, smallest_fitting
from app.accounting.calibration.solvers import Target, max_count, max_sampling_probability, min_noise_multiplier
from app.accounting.conversion import Rule
from app.accounting.curves import GRID_VERSION, RdpCurve, orders
from app.accounting.errors import UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.rdp import curve_over, event_curve
from tests.soak import few


class From:
    """A rule that fits from some number on, or from some noise multiplier, and remembers what it was asked."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.asked: list[float] = []

    def __call__(self, asked: float | DpEvent) -> bool:
        self.asked.append(dp.noise_multiplier(asked) if isinstance(asked, DpEvent) else asked)
        return self.asked[-1] >= self.least


ANY_NOISE = st.floats(-3, 6).map(lambda exponent: min(1e6, 10**exponent))


@given(own=ANY_NOISE, least=ANY_NOISE, digits=st.integers(1, 6))
def test_the_answer_is_the_least_number_with_these_digits(own: float, least: float, digits: int) -> None:
    rule = From(least)
    found = solvers.smallest_noise_multiplier(dp.Gaussian(own), rule, digits)
    assert found is not None
    assert found in rule.asked
    if own >= least:
        assert found == own
    else:
        answer = Decimal(repr(found))
        spacing = Decimal(1).scaleb(answer.adjusted() - digits + 1)
        assert answer % spacing == 0
        assert found >= least
        assert float(answer - spacing) < least or own >= float(answer - spacing)
    assert len(rule.asked) <= 40


def test_noise_search_is_empty_if_the_largest_does_not_fit() -> None:
    for own in (1e-3, 1.1, 999_999.0, 1e6):
        rule = From(float("inf"))
        assert solvers.smallest_noise_multiplier(dp.Gaussian(own), rule) is None
        assert rule.asked[-1] == 1e6


RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
NOTHING = RdpCurve.zero(orders(GRID_VERSION).size)
PROBABILITIES = st.floats(-6, 0).map(lambda exponent: min(1.0, 10**exponent))
NOISES = st.floats(-1, 2).map(lambda exponent: 10**exponent)
TARGETS = st.builds(
    Rule, st.floats(-1.5, 1.5).map(lambda exponent: 10**exponent), st.floats(-10, -1).map(lambda exponent: 10**exponent)
)
COUNTS = st.floats(0, 6).map(lambda exponent: int(10**exponent))
NOISY: st.SearchStrategy[DpEvent] = st.one_of(
    st.builds(dp.Gaussian, NOISES),
    st.builds(dp.Laplace, NOISES),
    st.builds(dp.DiscreteGaussian, NOISES),
    st.builds(dp.PoissonSampled, PROBABILITIES, st.builds(dp.Gaussian, NOISES)),
    st.builds(dp.SelfComposed, st.builds(dp.PoissonSampled, PROBABILITIES, st.builds(dp.Gaussian, NOISES)), COUNTS),
    st.builds(dp.GroupPrivacy, st.integers(1, 3), st.builds(dp.Gaussian, NOISES)),
    st.builds(
        dp.TruncatedPoissonSampled, st.just(1000), PROBABILITIES, st.integers(1, 1001), st.builds(dp.Gaussian, NOISES)
    ),
)
SAMPLED: st.SearchStrategy[DpEvent] = st.builds(
    dp.PoissonSampled,
    PROBABILITIES,
    st.one_of(
        st.builds(dp.Gaussian, NOISES),
        st.builds(dp.DiscreteLaplace, NOISES.map(lambda noise: 1 / noise), st.integers(1, 3)),
        st.builds(dp.PermuteAndFlip, NOISES.map(lambda noise: 1 / noise)),
        st.builds(dp.MixtureOfGaussians, NOISES, st.just((0.0, 0.5, 1.0)), st.just((0.9, 0.09, 0.01))),
    ),
)
OWN_DELTAS = st.builds(dp.EpsilonDelta, st.just(0.01), st.floats(-14, -5).map(lambda exponent: 10**exponent))
OTHER_COSTS = st.sampled_from(
    [
        NOTHING,
        event_curve(dp.Gaussian(40.0), RELATION),
        event_curve(dp.PoissonSampled(0.01, dp.Gaussian(2.0)), RELATION).times(500),
        event_curve(dp.EpsilonDelta(0.02, 1e-11), RELATION).times(3),
    ]
)


def spaced(value: float, digits: int = 6) -> Decimal:
    """How far the next number with so many digits is away, upwards."""
    return Decimal(1).scaleb(Decimal(repr(value)).adjusted() - digits + 1)


def next_below(value: float) -> float:
    below = Decimal(repr(value)) - spaced(value)
    return float(Decimal(repr(value)) - spaced(float(below)))


@few(20)
@given(event=NOISY, count=COUNTS, rule=TARGETS, other_cost=OTHER_COSTS)
def test_the_least_noise_meets_the_target_and_the_next_number_below_does_not(
    event: DpEvent, count: int, rule: Rule, other_cost: RdpCurve
) -> None:
    target = Target(rule, count, other_cost, RELATION)
    found = min_noise_multiplier(event, target)
    if found is None:
        assert not rule.fits(target.total(dp.with_noise_multiplier(event, 1e6)))
        return
    assert Decimal(repr(found)) % spaced(found) == 0
    assert rule.fits(target.total(dp.with_noise_multiplier(event, found)))
    if next_below(found) >= 1e-3:
        try:
            quieter = target.total(dp.with_noise_multiplier(event, next_below(found)))
        except UnsupportedEventError:  # a group of several with less noise than any event has
            return
        assert not rule.fits(quieter)


@few(20)
@example(  # where the best order is at the edge of the first window
    event=dp.PoissonSampled(0.5, dp.PermuteAndFlip(2.5)), count=7, rule=Rule(6.5, 1e-9), other_cost=NOTHING
)
@given(event=SAMPLED, count=COUNTS, rule=TARGETS, other_cost=OTHER_COSTS)
def test_the_most_sampling_meets_the_target_and_the_next_number_above_does_not(
    event: DpEvent, count: int, rule: Rule, other_cost: RdpCurve
) -> None:
    target = Target(rule, count, other_cost, RELATION)
    found = max_sampling_probability(event, target)
    if found is None:
        assert not rule.fits(target.total(dp.with_sampling_probability(event, 1e-12)))
        return
    assert Decimal(repr(found)) % spaced(found) == 0
    assert rule.fits(target.total(dp.with_sampling_probability(event, found)))
    if found < 1:
        more = float(Decimal(repr(found)) + spaced(found))
        assert not rule.fits(target.total(dp.with_sampling_probability(event, more)))


@given(event=NOISY | OWN_DELTAS, rule=TARGETS, other_cost=OTHER_COSTS)
def test_the_most_steps_meet_the_target_and_one_more_does_not(event: DpEvent, rule: Rule, other_cost: RdpCurve) -> None:
    curve = event_curve(event, RELATION)
    count = max_count(curve, other_cost, rule)
    assert count == 0 or rule.fits(other_cost + curve.times(count))
    assert not rule.fits(other_cost + curve.times(count + 1))
    assert count * curve.delta_value() < rule.delta


def test_a_training_is_calibrated_with_few_curves_and_two_over_the_whole_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Mock(wraps=curve_over)
    monkeypatch.setattr(solvers, "curve_over", counted)
    for q, count, epsilon in ((256 / 60000, 14_040, 1.0), (0.01, 10_000, 2.0), (0.1, 1000, 1.0), (0.5, 100, 3.0)):
        counted.reset_mock()
        target = Target(Rule(epsilon, 1e-5), count, NOTHING, RELATION)
        min_noise_multiplier(dp.PoissonSampled(q, dp.Gaussian(1.1)), target)
        sizes = [call.args[1].size for call in counted.mock_calls]
        assert sizes.count(orders(GRID_VERSION).size) == 2  # the answer, and the number below it
        assert len(sizes) <= 12
        assert all(size < 120 for size in sizes if size != orders(GRID_VERSION).size)


@pytest.mark.parametrize("start", [1e-3, 0.5, 30.0, 1e6])
def test_search_finds_the_same_from_every_start(start: float) -> None:
    target = Target(Rule(2.0, 1e-5), 10_000, NOTHING, RELATION)
    assert min_noise_multiplier(dp.PoissonSampled(0.01, dp.Gaussian(start)), target) == 2.27807
    sampled = dp.PoissonSampled(min(1.0, start), dp.Gaussian(1.1))
    assert max_sampling_probability(sampled, target) == 0.00397641


def test_the_bounds_of_a_parameter_are_answers_and_without_room_there_is_none() -> None:
    generous = Target(Rule(1e4, 0.4), 1, NOTHING, RELATION)
    assert max_sampling_probability(dp.PoissonSampled(0.5, dp.Gaussian(1e3)), generous) == 1.0
    loud = Target(Rule(2000.0, 1e-5), 1, NOTHING, RELATION)
    assert min_noise_multiplier(dp.Laplace(1.0), loud) == 1e-3
    target = Target(Rule(0.1, 1e-5), 1, event_curve(dp.Gaussian(1.0), RELATION), RELATION)
    assert min_noise_multiplier(dp.Gaussian(1.0), target) is None
    assert max_sampling_probability(dp.PoissonSampled(0.1, dp.Gaussian(1.0)), target) is None
    assert max_count(event_curve(dp.Gaussian(1e6), RELATION), target.other_cost, target.rule) == 0


def test_search_of_an_event_without_the_parameter_or_a_bound_is_refused() -> None:
    target = Target(Rule(1.0, 1e-5), 1, NOTHING, NeighboringRelation.REPLACE_ONE)
    with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
        min_noise_multiplier(dp.EpsilonDelta(1.0), target)
    with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
        max_sampling_probability(dp.Gaussian(1.0), target)
    sampled = dp.PoissonSampled(0.1, dp.SampledWithoutReplacement(100, 10, dp.Gaussian(1.0)))
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        min_noise_multiplier(sampled, target)
    with pytest.raises(UnsupportedEventError, match="replace_one"):
        max_sampling_probability(sampled, target)
    # A sample of everything is none, and that has a bound.
    assert max_sampling_probability(dp.PoissonSampled(0.1, dp.Gaussian(100.0)), target) == 1.0


def test_a_group_with_too_little_noise_for_an_event_only_needs_more_noise() -> None:
    target = Target(Rule(1.0, 1e-5), 1, NOTHING, RELATION)
    alone, group = (
        min_noise_multiplier(event, target) for event in (dp.Gaussian(1.0), dp.GroupPrivacy(1000, dp.Gaussian(1e-3)))
    )
    assert alone is not None
    assert group == pytest.approx(1000 * alone, rel=1e-5)


@given(number=st.integers(-110, 110), near=st.integers(-200, 200))
def test_the_least_number_that_fits_was_tried_and_so_was_the_one_below(number: int, near: int) -> None:
    rule = From(number)
    found = smallest_fitting(rule, near, -100, 100)
    if number > 100:
        assert found is None
        assert 100 in rule.asked
    else:
        assert found == max(number, -100)
        assert found in rule.asked
        assert found == -100 or found - 1 in rule.asked
    assert all(-100 <= asked <= 100 for asked in rule.asked)


@given(number=st.integers(0, 2**62), near=st.integers(0, 2**62))
def test_a_good_guess_takes_two_trials_and_a_bad_one_as_many_as_its_logarithm(number: int, near: int) -> None:
    rule, good = From(number), From(12_345)
    assert smallest_fitting(rule, near, 0, 2**62) == number
    assert len(rule.asked) <= 8 + 1.4 * log2(abs(number - near) + 2)
    assert smallest_fitting(good, 12_345, 0, 10**9) == 12_345
    assert good.asked == [12_345, 12_344]


@given(place=st.floats(-10, 10), start=st.floats(-10, 10), slope=st.floats(0.5, 30), bend=st.floats(0, 3))
def test_a_root_is_found_in_few_trials(place: float, start: float, slope: float, bend: float) -> None:
    trials = []

    def falling(at: float) -> float:
        trials.append(at)
        return -slope * (at - place) - bend * (at - place) ** 3

    found = root(falling, start, (-10.0, 10.0), 1e-9)
    assert abs(falling(found)) <= 1e-9 or abs(found - place) <= 1e-9
    assert len(trials) <= 60


def test_without_a_root_the_bound_on_its_side_or_a_jump_is_returned() -> None:
    assert root(lambda at: 5 - at / 100, 0.0, (-3.0, 3.0), 1e-9) == 3.0
    assert root(lambda at: -5 - at / 100, 0.0, (-3.0, 3.0), 1e-9) == -3.0
    assert root(lambda at: 700.0 if at < 1 else -1e-3, -2.0, (-3.0, 3.0), 1e-9) == pytest.approx(1.0, abs=1e-6)


@given(decade=st.integers(-300, 300), place=st.floats(0, 1), digits=st.integers(1, 6))
def test_numbers_with_few_digits_are_counted_upwards(decade: int, place: float, digits: int) -> None:
    index = int((decade + place) * 9 * 10 ** (digits - 1))
    number = decimal(index, digits)
    assert index_at_or_below(number, digits) == index
    assert number < decimal(index + 1, digits)
    assert len(Decimal(repr(number)).normalize().as_tuple().digits) <= digits


@given(value=st.floats(1e-12, 1e6), digits=st.integers(1, 6))
def test_the_number_at_or_below_is_at_or_below(value: float, digits: int) -> None:
    index = index_at_or_below(value, digits)
    assert Decimal(repr(decimal(index, digits))) <= Decimal(repr(value)) < Decimal(repr(decimal(index + 1, digits)))
