"""What disjoint partitions use up of the plans above them is composed as their losses are, mechanism by mechanism."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import le, sub

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import DpEvent, EpsilonDelta, Gaussian, Laplace, NeighboringRelation
from app.ledger.accounts import Account, with_usage
from app.ledger.admission import record
from app.ledger.composition import counting_plans, exposed, recompose
from app.ledger.plan_filter import Coordinates
from app.ledger.step_events import MAX_COUNT, StepEvent, total_cost

from .conftest import make_account, planning
from .plan_models import priced
from .test_account_plans import most_that

EVENTS: list[DpEvent] = [Gaussian(60.0), Gaussian(90.0), Laplace(20.0), Laplace(45.0), EpsilonDelta(0.05)]
PLAN = (
    StepEvent(Laplace(15.0), 4),
    StepEvent(EpsilonDelta(0.05), 3),
    StepEvent(Gaussian(60.0), 40),
    StepEvent(Laplace(40.0), MAX_COUNT),
)
RUNS = {"r0": ("c0",), "r1": ("c1",), "r2": ("c2",), "both": ("c1", "c2"), "inner": ("e",), "beside": ("d",)}
PARENTS = {"p": "a", "d": "a", "c0": "p", "c1": "p", "c2": "p", "c3": "p", "e": "c0"}
History = list[tuple[str, DpEvent, int]]


@dataclass
class Tree:
    """A population with a parallel budget and one beside it, parts of the first, and runs; every charge and hold."""

    relation: NeighboringRelation
    partitions: int
    accounts: dict[str, Account] = field(default_factory=dict)
    charges: History = field(default_factory=list)
    holds: History = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the accounts: those that are composed, and one of the partitions, have plans."""
        for name in ("a", "p", "d", "c0", "c1", "c2", "c3", "e"):
            account = replace(make_account(3.0, 1e-5, name=name), id=name, relation=self.relation)
            partitions = self.partitions if name == "p" else None
            account = replace(account, parent_id=PARENTS.get(name), partitions_per_unit=partitions)
            if name in "apc1":
                account = planning(account, *PLAN)
            self._add(name, account, self.above(name)[:-1])
        for name, budgets in RUNS.items():
            run = replace(make_account(name=name, limited=False), id=name, relation=self.relation)
            above = {each: None for budget in budgets for each in self.above(budget)}
            self._add(name, replace(run, parent_id=budgets[0]), list(above))

    def _add(self, name: str, account: Account, above: Sequence[str]) -> None:
        depth = max((self.accounts[each].depth for each in above), default=-1) + 1
        ancestors = [self.accounts[each] for each in above]
        self.accounts[name] = counting_plans(replace(account, depth=depth), ancestors)

    def above(self, name: str) -> list[str]:
        """An account under all above it."""
        return [*(self.above(PARENTS[name]) if name in PARENTS else []), name]

    def path(self, run: str) -> tuple[Account, ...]:
        names = {each: None for budget in RUNS[run] for each in self.above(budget)}
        path = sorted((self.accounts[each] for each in names), key=lambda account: (account.depth, account.id))
        return exposed([*path, self.accounts[run]], [self.accounts[name] for name in ("c0", "c1", "c2", "c3")])

    def put(self, path: Sequence[Account]) -> None:
        self.accounts |= {account.id: replace(account, exposure=None) for account in path}

    def charge(self, run: str, event: DpEvent, count: int, *, held: bool) -> None:
        path, step = self.path(run), priced(self.accounts["a"], event, count)
        if held:
            cost = total_cost(with_usage(path, [step]))
            self.put([account.with_hold(cost) for account in path])
            self.holds.append((run, event, count))
        else:
            self.put(record(path, [step]).accounts)
            self.charges.append((run, event, count))

    def usage(self, name: str, owner: str, history: History) -> Coordinates:
        """Count from nothing what an account has used up of a plan."""
        plan = self.accounts[owner].plan
        assert plan is not None
        nothing = (0,) * len(plan.capacity)
        under = [self.usage(child, owner, history) for child, parent in PARENTS.items() if parent == name]
        if name == "p":
            counting = self.partitions * (2 if self.relation is NeighboringRelation.REPLACE_ONE else 1)
            return tuple(sum(sorted(column, reverse=True)[:counting]) for column in zip(*under, strict=True))
        direct = [
            tuple(each * count for each in plan.workload.cost(event))
            for run, event, count in history
            if name == run or name in RUNS[run]
        ]
        return tuple(map(sum, zip(nothing, *under, *direct, strict=True)))


trees = st.builds(
    Tree,
    st.sampled_from([NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE]),
    st.integers(1, 3),
)
charges = st.lists(
    st.tuples(st.sampled_from(sorted(RUNS)), st.sampled_from(EVENTS), st.integers(1, 30), st.booleans()), max_size=10
)


def require_defined(tree: Tree) -> None:
    """Require that each account counts what the definition says."""
    made = tree.charges + tree.holds
    for name, account in tree.accounts.items():
        for owner in account.spent.used:
            spent, total = (tree.usage(name, owner, history) for history in (tree.charges, made))
            assert account.spent.used[owner] == spent
            assert account.held.used.get(owner, (0,) * len(spent)) == tuple(map(sub, total, spent))


@given(
    trees,
    charges,
    st.sampled_from(sorted(RUNS)),
    st.sampled_from(EVENTS),
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)),
)
def test_usage_is_composed_as_the_definition_says(
    tree: Tree,
    asked: list[tuple[str, DpEvent, int, bool]],
    run: str,
    event: DpEvent,
    pending: tuple[DpEvent, int],
) -> None:
    tree.charge("r1", Laplace(45.0), 1, held=False)  # all plans are begun
    for each in asked:
        tree.charge(*each[:3], held=each[3])
    made = tree.charges + tree.holds
    assert all(account.plan is not None for account in tree.accounts.values() if account.planned)
    require_defined(tree)
    assert {"a", "p"} <= tree.accounts["p"].spent.used.keys()
    assert all({"a", "p"} <= tree.accounts[name].spent.used.keys() for name in ("c0", "c1", "c2", "c3"))
    parts = [tree.accounts[name] for name in ("c0", "c1", "c2", "c3")]
    anew = recompose(tree.accounts["p"], parts)
    assert (anew.spent, anew.held) == (tree.accounts["p"].spent, tree.accounts["p"].held)
    path = tree.path(run)
    first, [one] = (
        [each.curve.times(count) for each in with_usage(path, [priced(path[0], of)])]
        for of, count in (pending, (event, 1))
    )
    for account in path:
        if account.plan is None:
            assert account.planned_repetitions(first, one) == -1
            continue
        capacity, id_ = account.plan.capacity, account.id

        def fit(count: int) -> bool:
            history = [*made, (run, *pending), (run, event, count)]
            return all(map(le, tree.usage(id_, id_, history), capacity))  # noqa: B023

        assert account.planned_repetitions(first, one) == min(most_that(fit), 2**62)


@pytest.mark.parametrize(
    ("relation", "counting"), [(NeighboringRelation.ADD_OR_REMOVE_ONE, 1), (NeighboringRelation.REPLACE_ONE, 2)]
)
def test_partitions_use_a_plan_beside_each_other(relation: NeighboringRelation, counting: int) -> None:
    tree = Tree(relation, 1)
    plan = tree.accounts["p"].plan
    assert plan is not None
    quiet = Laplace(40.0)
    cost = plan.workload.cost(quiet)
    fitting = int(plan.repetitions(tuple(0 for _ in cost), cost))
    assert fitting > 20
    for run in ("r0", "r1", "r2"):
        tree.charge(run, quiet, fitting // counting, held=False)
        assert tree.accounts["p"].is_planned()
        assert tree.accounts["a"].is_planned()
    for path in (tree.path("r0"), tree.path("both")):
        *_, after = [
            account for account in record(path, [priced(path[0], quiet, counting)]).accounts if account.id == "p"
        ]
        assert not after.is_planned()


@given(trees, charges)
def test_a_charge_beside_the_partitions_is_added_to_theirs(
    tree: Tree, asked: list[tuple[str, DpEvent, int, bool]]
) -> None:
    for each in asked:
        tree.charge(*each[:3], held=each[3])
    before = dict(tree.accounts)
    tree.charge("beside", Gaussian(90.0), 2, held=False)
    if tree.accounts["a"].plan is not None:
        cost = tree.accounts["a"].plan.workload.cost(Gaussian(90.0))
        grown = map(sub, tree.accounts["a"].spent.used["a"], before["a"].spent.used["a"])
        assert tuple(grown) == tuple(2 * each for each in cost)
    assert all(tree.accounts[name] == before[name] for name in before if name not in {"a", "d", "beside"})


def test_a_plan_that_was_not_begun_is_counted_by_its_parts_alone() -> None:
    tree = Tree(NeighboringRelation.ADD_OR_REMOVE_ONE, 2)
    other = Laplace(3.0)  # the whole plan has none with so little noise
    for _ in range(2):
        tree.charge("r0", other, 1, held=False)
    assert [tree.accounts[name].plan for name in "ap"] == [None, None]
    assert [tree.accounts[name].spent.used.keys() for name in ("a", "p", "c0")] == [set(), {"a"}, {"a", "p"}]
    assert not any(sum(used) for used in tree.accounts["c0"].spent.used.values())
    assert tree.accounts["p"].spent.using({}) == tree.accounts["c0"].spent.using({})
    assert recompose(tree.accounts["p"], [tree.accounts["c0"]]).spent == tree.accounts["p"].spent


@pytest.mark.parametrize("relation", [NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("held", [False, True])
def test_a_run_in_two_partitions_that_used_different_mechanisms(
    relation: NeighboringRelation,
    partitions: int,
    held: bool,  # noqa: FBT001
) -> None:
    tree = Tree(relation, partitions)
    tree.charge("r1", Laplace(45.0), 3, held=False)
    tree.charge("r2", EpsilonDelta(0.05), 2, held=False)
    for event in (Gaussian(90.0), Laplace(45.0), EpsilonDelta(0.05)):
        tree.charge("both", event, 1, held=held)
        require_defined(tree)
