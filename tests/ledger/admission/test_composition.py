"""How an account is composed of its parts, on examples; test_ledger_machine.py has the definition."""

from itertools import pairwise

import numpy as np
import pytest

from app.accounting.curves import EXHAUSTED, RdpCurve
from app.accounting.events import DpEvent, Gaussian, Laplace, NeighboringRelation
from app.ledger.accounts.account import Account, zero_curve
from app.ledger.admission.admission import hold, record
from app.ledger.admission.composition import budgets_of, check_several, topmost_parallel_under
from app.ledger.errors import InvalidInputError
from app.ledger.step_events import MAX_COUNT, StepEvent
from tests.ledger.ledger_model import LedgerModel

ADD, REPLACE, SPECIAL = NeighboringRelation
UNIT, EDGE = Gaussian(1.0), Gaussian(2.0)
PLAN = (StepEvent(Laplace(40.0), MAX_COUNT),)


def sites(partitions: int = 1, relation: NeighboringRelation = ADD) -> LedgerModel:
    """A population of three sites, one of which has wards that are disjoint as well."""
    size = zero_curve().values.size
    edge = np.full(size, 3, dtype=np.int64)
    edge[0] = EXHAUSTED
    model = LedgerModel(relation, {UNIT: RdpCurve(np.ones(size, dtype=np.int64), 1), EDGE: RdpCurve(edge)})
    model.open("p", partitions=partitions)
    for name in ("a", "b", "c"):
        model.open(name, "p")
    model.open("wards", "c", partitions=1)
    for name in ("w1", "w2"):
        model.open(name, "wards")
    return model


def charge(model: LedgerModel, run: str, event: DpEvent, count: int) -> None:
    model.put(record(model.path(run), [model.step(event, count)]).accounts)


def spent(account: Account) -> set[int]:
    return {*map(int, account.spent.values), account.spent.delta}


@pytest.mark.parametrize(
    ("partitions", "relation", "expected"),
    [(1, ADD, 5), (1, SPECIAL, 5), (1, REPLACE, 9), (2, ADD, 9), (2, REPLACE, 12), (3, ADD, 12)],
)
def test_parts_that_lost_most_count(partitions: int, relation: NeighboringRelation, expected: int) -> None:
    model = sites(partitions, relation)
    model.open("root", limit=(1.0, 1e-5))  # a reading needs a limit
    for name in "abc":
        model.accounts[name] = model.accounts[name].charged(model.curves[UNIT].times({"a": 5, "b": 4, "c": 3}[name]))
    for name in "abc":
        assert model.register(f"r{name}", name)
    *_, whole = [each for each in model.path("ra") if each.id == "p"]
    assert spent(whole.charged(zero_curve())) == {expected}


def test_part_that_is_exhausted_exhausts_the_whole() -> None:
    model = sites()
    assert model.register("r", "a")
    model.put([account.charged(model.curves[EDGE]) for account in model.path("r")])
    assert model.accounts["p"].spent.values[0] == EXHAUSTED
    assert set(model.accounts["p"].spent.values[1:]) == {3}
    model.put([account.with_hold(model.curves[EDGE]) for account in model.path("r")])
    assert model.accounts["p"].held.values[0] == 0
    assert set(model.accounts["p"].held.values[1:]) == {3}


def test_run_on_two_parts_costs_a_unit_of_both_twice() -> None:
    model = sites(2)
    assert model.register("r", "a", "b")
    model.put([account.charged(model.curves[UNIT]) for account in model.path("r")])
    assert spent(model.accounts["p"]) == {2}
    assert [account.id for account in budgets_of(model.path("r"))] == ["a", "b"]
    exposure = model.path("r")[0].exposure
    assert exposure is not None
    assert set(exposure.total) == {0, 1, 2}


def test_topmost_parallel_account_is_found_through_those_between() -> None:
    model = sites()
    assert model.register("r", "w1")
    path = model.path("r")
    inner = topmost_parallel_under(path, path[1])
    assert inner is not None
    assert (path[1].id, inner.id) == ("c", "wards")
    assert topmost_parallel_under(path, path[-2]) is None


@pytest.mark.parametrize(
    ("names", "words"),
    [(["c", "w1"], "c lies above w1"), (["w1", "beside"], "beside them"), (["w1", "v1"], "parts of two kinds")],
)
def test_run_on_budgets_that_add_up_in_two_ways_is_refused(names: list[str], words: str) -> None:
    model = sites()
    model.open("beside", "c")
    model.open("villages", "c", partitions=1)
    model.open("v1", "villages")
    with pytest.raises(InvalidInputError, match=words):
        check_several({name: model.line(name) for name in names})
    for first, second in pairwise(names):
        assert not model.register("r", second, first)


@pytest.mark.parametrize(("relation", "counting"), [(ADD, 1), (REPLACE, 2)])
def test_partitions_use_a_plan_beside_each_other(relation: NeighboringRelation, counting: int) -> None:
    model = LedgerModel(relation)
    model.open("p", limit=(3.0, 1e-5), plan=PLAN, partitions=1)
    for name in "abc":
        model.open(name, "p")
        assert model.register(f"r{name}", name)
    account = model.accounts["p"]
    assert account.plan is not None
    model.curves[PLAN[0].event] = account.price(PLAN[0]).curve
    cost = account.plan.workload.cost(PLAN[0].event)
    fitting = int(account.plan.repetitions((0,) * len(cost), cost))
    assert fitting > 20
    for name in "abc":
        charge(model, f"r{name}", PLAN[0].event, fitting // counting)
        assert model.accounts["p"].is_planned()
    after = record(model.path("ra"), [model.step(PLAN[0].event, counting)]).accounts
    assert not after[0].is_planned()
    assert not isinstance(hold(model.path("ra"), [model.step(PLAN[0].event, 10**6)]), tuple)
