"""Disjoint parts, exactly: whoever interleaves two parts as they like stays within the limit, and who does not.

Everything is two-valued, so the hockey-stick divergence is a finite sum over the transcripts. A unit lies in one part:
on its two neighbors only the mechanisms of that part differ. Under replace_one a unit may leave one part for another,
and those of both do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import comb, exp, fsum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.curves import GRID_VERSION, RdpCurve
from app.ledger.accounts.account import zero_curve
from app.ledger.filter.filters import FilterWeights
from app.ledger.filter.limits import Limit
from app.ledger.filter.parallel_exposure import largest
from tests.ledger.conftest import thresholds
from tests.ledger.filter.test_counterexample import GRID, SIXTY_FOUR, TEN, Pair, curve
from tests.soak import few

LIMIT = Limit(1.0, 1e-3)
WEIGHTS = FilterWeights((TEN, SIXTY_FOUR), (0.5 * LIMIT.delta, 0.5 * LIMIT.delta * (1 - 1e-12)))
ROUNDS = 3

Rule = Callable[[RdpCurve, RdpCurve], bool]
"""Whether an account with two parts, which have lost so much, is within its limit."""


def within(most: int, limit: Limit = LIMIT, weights: FilterWeights = WEIGHTS) -> Rule:
    """The rule under which the sum of so many of the largest counts."""
    bound = thresholds(limit, weights)
    return lambda a, b: bool(np.any(largest([a, b], most).values <= bound))


@dataclass(frozen=True)
class Choice:
    """What the trainer does at one place of its tree: in which part, around which probability, and how far."""

    part: int
    base: float
    upwards: bool
    share: float


Strategy = dict[str, Choice]
"""What is done after the bits that were released so far."""


def released(
    strategy: Strategy, rule: Rule, bits: str = "", spent: tuple[RdpCurve, RdpCurve] | None = None
) -> Iterator[tuple[Pair, Pair]]:
    """Every transcript: its probability on both neighbors by the rounds in the first part, and in the second.

    A mechanism that is not admitted is made weaker until it is; what is never admitted releases nothing.
    """
    spent = spent or (zero_curve(), zero_curve())
    if bits not in strategy:
        yield (1.0, 1.0), (1.0, 1.0)
        return
    choice = strategy[bits]
    pair = _widest(choice, spent, rule)
    after = _charged(spent, choice.part, pair)
    for bit in (0, 1):
        here = pair if bit else (1 - pair[0], 1 - pair[1])
        for first, second in released(strategy, rule, f"{bits}{bit}", after):
            if choice.part == 0:
                yield (first[0] * here[0], first[1] * here[1]), second
            else:
                yield first, (second[0] * here[0], second[1] * here[1])


def _charged(spent: tuple[RdpCurve, RdpCurve], part: int, pair: Pair) -> tuple[RdpCurve, RdpCurve]:
    cost = curve(pair)
    return (spent[0] + cost, spent[1]) if part == 0 else (spent[0], spent[1] + cost)


def _widest(choice: Choice, spent: tuple[RdpCurve, RdpCurve], rule: Rule) -> Pair:
    low, high = 0.0, choice.share
    end = 1 - 1e-9 if choice.upwards else 1e-9
    for _ in range(25):
        middle = (low + high) / 2
        pair = (choice.base + middle * (end - choice.base), choice.base)
        low, high = (middle, high) if rule(*_charged(spent, choice.part, pair)) else (low, middle)
    return choice.base + low * (end - choice.base), choice.base


def delta(transcripts: list[tuple[Pair, Pair]], parts: tuple[bool, bool], epsilon: float) -> float:
    """The exact hockey-stick divergence for a unit in these parts, in the worse direction."""
    first, second = parts
    laws = [
        (a[0] * b[0], (a[1] if first else a[0]) * (b[1] if second else b[0])) for a, b in transcripts
    ]  # a unit that is not there changes nothing
    there = fsum(max(0.0, p - exp(epsilon) * q) for p, q in laws)
    back = fsum(max(0.0, q - exp(epsilon) * p) for p, q in laws)
    return max(there, back)


def places() -> list[str]:
    """What can have been released before each round."""
    return [f"{bits:0{length}b}" if length else "" for length in range(ROUNDS) for bits in range(2**length)]


choices = st.builds(Choice, st.integers(0, 1), st.floats(1e-4, 1 - 1e-4), st.booleans(), st.floats(0.05, 1.0))
strategies = st.fixed_dictionaries(dict.fromkeys(places(), choices))


@few(25)
@given(strategies, st.floats(0.5, 3.0), st.floats(0.02, 0.98))
def test_interleaving_of_two_parts_stays_within_the_limit(strategy: Strategy, epsilon: float, share: float) -> None:
    """Which part is next, and with what noise, is chosen by all that both have released."""
    limit = Limit(epsilon, 1e-3)
    weights = FilterWeights((TEN, SIXTY_FOUR), (share * limit.delta, (1 - share) * limit.delta * (1 - 1e-12)))
    transcripts = list(released(strategy, within(1, limit, weights)))
    assert fsum(a[0] * b[0] for a, b in transcripts) == pytest.approx(1.0)
    for parts in ((True, False), (False, True)):
        assert delta(transcripts, parts, limit.epsilon) <= limit.delta


def one_each(share: float = 1.0) -> Strategy:
    """The same rare bit released of both parts, as loudly as is admitted."""
    first, second = (Choice(part, 1e-4, upwards=True, share=share) for part in (0, 1))
    return {"": first, "0": second, "1": second}


def test_two_parts_may_lose_more_than_one_account_could() -> None:
    """What is admitted of both parts would not be if their losses were added."""
    alone = within(1)
    pair = _widest(one_each()[""], (zero_curve(), zero_curve()), alone)
    spent = _charged(_charged((zero_curve(), zero_curve()), 0, pair), 1, pair)
    assert alone(*spent)
    assert not within(2)(*spent)


QUIET: Pair = (0.52, 0.48)
"""A bit that is told rightly a little more often than not."""


def many(rounds: int, epsilon: float) -> float:
    """The exact divergence of so many quiet bits, whichever parts they were released of."""
    right, wrong = QUIET
    laws = [
        (comb(rounds, n) * right**n * wrong ** (rounds - n), comb(rounds, n) * wrong**n * right ** (rounds - n))
        for n in range(rounds + 1)
    ]
    return fsum(max(0.0, p - exp(epsilon) * q) for p, q in laws)


def fitting(rule: Rule) -> int:
    """How many quiet bits are admitted of both parts, as many of the one as of the other."""
    cost = curve(QUIET)
    return max(count for count in range(1, 400) if rule(cost.times(count), cost.times(count)))


def test_largest_part_alone_is_unsound_under_replace_one() -> None:
    """A unit that leaves the one part and enters the other changes what both release."""
    by_the_largest, by_the_two_largest = fitting(within(1)), fitting(within(2))
    assert many(by_the_largest, LIMIT.epsilon) <= LIMIT.delta
    assert many(2 * by_the_largest, LIMIT.epsilon) > 4 * LIMIT.delta
    assert many(2 * by_the_two_largest, LIMIT.epsilon) <= LIMIT.delta


@few(25)
@given(strategies, st.floats(0.5, 3.0))
def test_unit_in_both_parts_is_protected_by_the_two_largest(strategy: Strategy, epsilon: float) -> None:
    limit = Limit(epsilon, 1e-3)
    weights = FilterWeights((TEN, len(GRID) - 2), (0.5 * limit.delta, 0.5 * limit.delta * (1 - 1e-12)))
    transcripts = list(released(strategy, within(2, limit, weights)))
    for parts in ((True, False), (False, True), (True, True)):
        assert delta(transcripts, parts, limit.epsilon) <= limit.delta


def test_the_grid_is_the_one_of_the_ledger() -> None:
    assert len(GRID) == zero_curve(GRID_VERSION).values.size
