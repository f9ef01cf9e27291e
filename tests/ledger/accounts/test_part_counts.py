"""Counts of disjoint parts: whatever an event costs, no unit has lost more than one of the alternatives says."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations, count, product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.ledger.accounts.account_records import MOST_KINDS, Counts
from app.ledger.accounts.part_counts import (
    MOST_ALTERNATIVES,
    CountedPart,
    counts_that_matter,
    largest_counts,
    most_of_each,
)

EVENTS = "abc"
COUNTS = st.dictionaries(st.sampled_from(EVENTS), st.integers(1, 9), max_size=3)
WEIGHTS = st.fixed_dictionaries({event: st.integers(0, 20) for event in EVENTS})

Tree = tuple[Counts | None, int | None, list["Tree"]]
"""The counts of an account, if it is counted; the number of its parts that count, if it is parallel; those below."""


def whole(*below: Tree) -> Tree:
    return None, None, list(below)


def parallel(number: int, *below: Tree) -> Tree:
    return None, number, list(below)


def counted(**counts: int) -> Tree:
    return counts, None, []


trees: st.SearchStrategy[Tree] = st.recursive(
    st.builds(lambda counts: counted(**counts), COUNTS),
    lambda below: st.tuples(st.none(), st.none() | st.integers(1, 3), st.lists(below, max_size=3)),
    max_leaves=7,
)


def parts_of(tree: Tree) -> list[CountedPart]:
    """Name the accounts of a tree by their place; those without any below are runs."""
    numbers = count()
    found: list[CountedPart] = []

    def add(each: Tree, parents: tuple[str, ...]) -> None:
        counts, number, below = each
        own = str(next(numbers))
        found.append(CountedPart(own, parents, counts, number, is_run=counts is not None))
        for one in below:
            add(one, (own,))

    add(tree, ())
    return found


def worst(tree: Tree, cost: Mapping[str, int]) -> int:
    """What a unit may have lost, if each event costs so much: of disjoint parts, in those that lost most."""
    counts, number, below = tree
    if counts is not None:
        return total(counts, cost)
    lost = sorted((worst(each, cost) for each in below), reverse=True)
    return sum(lost if number is None else lost[:number])


def total(counts: Counts, cost: Mapping[str, int]) -> int:
    return sum(cost[event] * each for event, each in counts.items())


def is_exact(tree: Tree) -> bool:
    """Whether no unit is in several parts of an account."""
    _, number, below = tree
    return number in {None, 1} and all(map(is_exact, below))


def alternatives(tree: Tree) -> Sequence[Counts] | None:
    return counts_that_matter("0", parts_of(tree))


@given(tree=trees, costs=st.lists(WEIGHTS, min_size=1, max_size=5))
def test_largest_alternative_is_what_a_unit_lost_most_or_more(tree: Tree, costs: list[dict[str, int]]) -> None:
    found = alternatives(tree)
    assume(found is not None)
    for cost in costs:
        largest = max(total(counts, cost) for counts in found or ())
        assert largest >= worst(tree, cost)
        if is_exact(tree):
            assert largest == worst(tree, cost), "an alternative is the sum of parts in which a unit may be"


@given(tree=trees, order=st.randoms(use_true_random=False))
def test_alternatives_do_not_depend_on_the_order_of_accounts(tree: Tree, order: random.Random) -> None:
    parts = parts_of(tree)
    shuffled = [parts[0], *order.sample(parts[1:], len(parts) - 1)]
    both = [counts_that_matter("0", each) for each in (parts, shuffled)]
    first, second = (None if found is None else {frozenset(each.items()) for each in found} for found in both)
    assert first == second


@given(st.lists(COUNTS, max_size=12))
def test_no_alternative_has_all_the_charges_of_another(found: list[dict[str, int]]) -> None:
    left = largest_counts(found)
    assert left is not None
    for counts in found:
        assert any(has_all(each, counts) for each in left)
    assert not any(has_all(one, other) for one, other in combinations(left, 2))
    assert not any(has_all(other, one) for one, other in combinations(left, 2))


def has_all(one: Counts, other: Counts) -> bool:
    return all(one.get(event, 0) >= each for event, each in other.items())


@given(st.lists(st.lists(COUNTS, min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 4))
def test_most_of_each_event_covers_all_parts_in_which_a_unit_may_be(
    parts: list[list[dict[str, int]]], number: int
) -> None:
    most = most_of_each(parts, number)
    for chosen in combinations(parts, min(number, len(parts))):
        for counts in product(*chosen):
            for event in EVENTS:
                assert sum(each.get(event, 0) for each in counts) <= most.get(event, 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_parts_of_one_kind_are_exact(counts: list[int], number: int) -> None:
    found = alternatives(parallel(number, *(counted(a=each) for each in counts)))
    assert found == [{"a": sum(sorted(counts, reverse=True)[:number])}]


def test_part_with_less_of_everything_is_left_out() -> None:
    parts = counted(a=3, b=1), counted(a=2), counted(b=2)
    assert alternatives(parallel(1, *parts)) == [{"a": 3, "b": 1}, {"b": 2}]
    assert alternatives(parallel(2, *parts)) == [{"a": 5, "b": 3}]
    beside = whole(counted(a=10), parallel(1, *parts))
    assert alternatives(beside) == [{"a": 13, "b": 1}, {"a": 10, "b": 2}]


def test_account_without_parts_has_lost_nothing() -> None:
    for empty in (whole(), parallel(1), parallel(2)):
        assert alternatives(empty) == [{}]
        assert alternatives(whole(counted(a=1), empty)) == [{"a": 1}]
        assert alternatives(parallel(1, counted(a=1), empty)) == [{"a": 1}]


@pytest.mark.parametrize("number", [MOST_ALTERNATIVES, MOST_ALTERNATIVES + 1])
def test_too_many_alternatives_are_none(number: int) -> None:
    parts = [counted(a=place + 1, b=number - place) for place in range(number)]
    found = alternatives(parallel(1, *parts))
    assert (found is None) == (number > MOST_ALTERNATIVES)


def test_alternatives_with_too_many_kinds_are_none() -> None:
    halves = [counted(**{f"{half}{place}": 1 for place in range(MOST_KINDS // 2)}) for half in "xy"]
    assert [len(each) for each in alternatives(whole(*halves)) or ()] == [MOST_KINDS]
    assert alternatives(whole(*halves, counted(a=1))) is None
    assert alternatives(parallel(2, *halves, counted(a=1))) is None


def test_part_that_is_not_counted_hides_what_is_above_it() -> None:
    unknown = CountedPart("2", ("1",), None, None, is_run=True)
    below = [
        CountedPart("0", (), None, 1, is_run=False),
        CountedPart("1", ("0",), None, None, is_run=False),
        CountedPart("3", ("0",), {"a": 1}, None, is_run=True),
    ]
    assert counts_that_matter("0", [*below, unknown]) is None
    assert counts_that_matter("1", [*below, unknown]) is None
    assert counts_that_matter("3", below) == [{"a": 1}]


def test_run_on_two_parts_counts_in_each() -> None:
    below = [
        CountedPart("0", (), None, 1, is_run=False),
        CountedPart("1", ("0",), None, None, is_run=False),
        CountedPart("2", ("0",), None, None, is_run=False),
        CountedPart("3", ("1", "2"), {"a": 1}, None, is_run=True),
        CountedPart("4", ("2",), {"b": 1}, None, is_run=True),
    ]
    assert counts_that_matter("0", below) == [{"a": 1, "b": 1}]
