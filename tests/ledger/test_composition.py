"""What an account makes of its parts: the closed form by which charges are decided, against the definition."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.accounting.curves import EXHAUSTED
from app.accounting.events import NeighboringRelation
from app.ledger.accounts import Account
from app.ledger.composition import budgets_of, check_several, recompose, topmost_parallel_under
from app.ledger.errors import InvalidInputError
from app.ledger.filters import FilterBounds

from .trees import ORDERS, Cost, Tree, cost_of, costs, curve_of, small_costs, summed, trees

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
steps = st.lists(st.tuples(st.integers(0, 4), st.booleans(), costs), min_size=1, max_size=8)


def total_of(account: Account) -> Cost:
    return cost_of(account.spent + account.held)


@given(trees(), steps)
def test_every_account_is_what_its_charges_make_of_it(tree: Tree, asked: list[tuple[int, bool, Cost]]) -> None:
    runs = sorted(tree.budgets)
    assume(runs)
    for which, is_hold, cost in asked:
        run = runs[which % len(runs)]
        before = {name: (cost_of(each.spent), total_of(each)) for name, each in tree.accounts.items()}
        (tree.hold if is_hold else tree.charge)(run, cost)
        for name, account in tree.accounts.items():
            assert cost_of(account.spent) == tree.value(name, tree.charges)
            assert total_of(account) == tree.value(name, tree.charges + tree.holds)
            assert all(a <= b for a, b in zip(before[name][0], cost_of(account.spent), strict=True))
            assert all(a <= b for a, b in zip(before[name][1], total_of(account), strict=True))


@given(
    trees(),
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), small_costs), max_size=6),
    small_costs,
    small_costs,
    st.lists(st.integers(-1, 60), min_size=ORDERS, max_size=ORDERS),
)
def test_what_is_left_is_what_the_definition_leaves(
    tree: Tree, history: list[tuple[int, bool, Cost]], pending: Cost, cost: Cost, bounds: list[int]
) -> None:
    runs = sorted(tree.budgets)
    assume(runs)
    for which, is_hold, each in history:
        (tree.hold if is_hold else tree.charge)(runs[which % len(runs)], each)
    run = runs[0]
    made = tree.charges + tree.holds
    gate = FilterBounds(np.arange(ORDERS), np.array(bounds, dtype=np.int64), np.zeros(ORDERS), room=20)

    def value(account: Account, count: int) -> Cost:
        return tree.value(account.id, [*made, (run, summed([pending, *[cost] * count]))])

    for account in tree.path(run)[:-1]:
        left = account.headroom(gate, curve_of(pending))
        own_left = account.delta_left(gate, curve_of(pending))
        assert account.own_delta(curve_of(pending)) == value(account, 0)[-1]
        for place, bound in enumerate(bounds):
            fits = [bound >= 0 and value(account, count)[place] <= bound for count in range(70)]
            assert (left[place] >= 0) is np.bool(fits[0])
            if fits[0] and cost[place]:
                assert left[place] // cost[place] == sum(fits) - 1
        fitting = [value(account, count)[-1] <= 20 for count in range(30)]
        assert (own_left >= 0) is fitting[0]
        if fitting[0] and cost[-1]:
            assert own_left // cost[-1] == sum(fitting) - 1


@given(trees(), steps, costs)
def test_a_path_that_was_charged_goes_on_as_one_that_is_read_anew(
    tree: Tree, asked: list[tuple[int, bool, Cost]], cost: Cost
) -> None:
    runs = sorted(tree.budgets)
    assume(runs)
    path = tree.path(runs[0])
    for _, is_hold, each in asked:
        (tree.hold if is_hold else tree.charge)(runs[0], each)
        path = tuple((one.with_hold if is_hold else one.charged)(curve_of(each)) for one in path)
    for carried, read in zip(path, tree.path(runs[0]), strict=True):
        assert carried.charged(curve_of(cost)).spent == read.charged(curve_of(cost)).spent
        assert total_of(carried.charged(curve_of(cost))) == total_of(read.charged(curve_of(cost)))
        if carried.exposure is not None:
            assert carried.grown_by(curve_of(cost)) == read.grown_by(curve_of(cost))


@given(trees(), steps)
def test_a_parallel_account_is_made_anew_from_its_parts(tree: Tree, asked: list[tuple[int, bool, Cost]]) -> None:
    runs = sorted(tree.budgets)
    assume(runs)
    for which, is_hold, cost in asked:
        (tree.hold if is_hold else tree.charge)(runs[which % len(runs)], cost)
    for account in list(tree.accounts.values()):
        if account.partitions_per_unit is not None:
            parts = [each for each in tree.accounts.values() if each.parent_id == account.id]
            anew = recompose(account, parts)
            assert (anew.spent, total_of(anew)) == (account.spent, total_of(account))


def sites(partitions: int = 1, relation: NeighboringRelation = ADD) -> Tree:
    """A population of three sites, one of which has wards that are disjoint as well."""
    tree = Tree()
    tree.open("p", None, partitions, relation)
    for name in ("a", "b", "c"):
        tree.open(name, "p", None, relation)
    tree.open("wards", "c", 1, relation)
    for name in ("w1", "w2"):
        tree.open(name, "wards", None, relation)
    return tree


@pytest.mark.parametrize(
    ("partitions", "relation", "expected"),
    [
        (1, ADD, 5),
        (1, NeighboringRelation.REPLACE_SPECIAL, 5),
        (1, NeighboringRelation.REPLACE_ONE, 9),
        (2, ADD, 9),
        (2, NeighboringRelation.REPLACE_ONE, 12),
        (3, ADD, 12),
    ],
)
def test_the_parts_that_lost_most_count(partitions: int, relation: NeighboringRelation, expected: int) -> None:
    tree = sites(partitions, relation)
    for run, budget, cost in (("r1", "a", 5), ("r2", "b", 4), ("r3", "c", 3)):
        assert tree.register(run, [budget])
        tree.charge(run, (cost,) * (ORDERS + 1))
    assert set(cost_of(tree.accounts["p"].spent)) == {expected}


def test_a_part_that_is_exhausted_exhausts_the_whole() -> None:
    tree = sites()
    tree.register("r", ["a"])
    tree.charge("r", (EXHAUSTED, 3, 3, 0))
    assert cost_of(tree.accounts["p"].spent) == (EXHAUSTED, 3, 3, 0)
    tree.hold("r", (1, EXHAUSTED, 3, 0))
    assert cost_of(tree.accounts["p"].held) == (0, EXHAUSTED, 3, 0)


def test_a_run_on_several_parts_costs_a_unit_of_all_of_them_as_often() -> None:
    tree = sites(2)
    assert tree.register("r", ["a", "b"])
    tree.charge("r", (1,) * (ORDERS + 1))
    assert set(cost_of(tree.accounts["p"].spent)) == {2}
    assert [account.id for account in budgets_of(tree.path("r"))] == ["a", "b"]
    exposure = tree.path("r")[0].exposure
    assert exposure is not None
    assert set(exposure.total) == {0, 1, 2}


def test_the_topmost_parts_are_looked_through() -> None:
    tree = sites()
    tree.register("r", ["w1"])
    path = tree.path("r")
    inner = topmost_parallel_under(path, path[1])
    assert inner is not None
    assert (path[1].id, inner.id) == ("c", "wards")
    assert topmost_parallel_under(path, path[-2]) is None


REFUSED: dict[str, tuple[list[str], str]] = {
    "above": (["c", "w1"], "c lies above w1"),
    "beside parts": (["w1", "beside"], "beside them"),
    "two kinds of parts": (["w1", "v1"], "parts of two kinds"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_run_charges_what_adds_up_in_one_way_only(what: str) -> None:
    tree = sites()
    tree.open("beside", "c", None, ADD)
    tree.open("villages", "c", 1, ADD)
    tree.open("v1", "villages", None, ADD)
    names, words = REFUSED[what]
    with pytest.raises(InvalidInputError, match=words):
        check_several({name: tree.line(name) for name in names})
    for first, second in pairwise(names):
        assert not tree.register("r", [second, first])
