"""What accounts can still take: the least along the path, and by part where the parts are disjoint."""

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.events import Gaussian, NeighboringRelation
from app.ledger.admission.admission import Admission
from app.ledger.scheduling.account_status import available_of
from app.ledger.scheduling.availability import Available, least_above_part, room_of
from tests.ledger.conftest import admit
from tests.ledger.ledger_model import LedgerModel
from tests.soak import few
from tests.statuses import status_at

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
ONE = NeighboringRelation.REPLACE_ONE


class Sites:
    """A population with three disjoint parts, and a run of each."""

    def __init__(self, limit: float, part_limit: float, partitions: int, relation: NeighboringRelation) -> None:
        self.model = LedgerModel(relation)
        self.model.open("p", None, (limit, 1e-5), (), partitions)
        for name in "abc":
            self.model.open(name, "p", (part_limit, 1e-5))
            assert self.model.register(f"run_{name}", name)
        self.accounts = self.model.accounts

    def charge(self, part: str, noise: float, count: int) -> bool:
        charged = admit(self.model.path(f"run_{part}"), Gaussian(noise), count)
        if isinstance(charged, Admission):
            self.model.put(charged.accounts)
        return isinstance(charged, Admission)

    def above(self, part: str) -> Available:
        parts = [self.accounts[name] for name in "abc"]
        return least_above_part([self.accounts["p"], self.accounts[part]], parts)

    def available(self, part: str) -> float:
        return min(room_of(self.accounts[part]), self.above(part).share)


charges = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([2.0, 5.0, 20.0]), st.integers(1, 60)), min_size=1, max_size=8
)


@few(10)
@given(charges, st.sampled_from([(1, ADD), (2, ADD), (1, ONE)]), st.sampled_from([(2.0, 2.0), (2.0, 1.0), (1.0, 3.0)]))
def test_available_budget_is_admitted_and_no_more(
    history: list[tuple[str, float, int]], kind: tuple[int, NeighboringRelation], limits: tuple[float, float]
) -> None:
    sites = Sites(*limits, *kind)
    for part, noise, count in history:
        sites.charge(part, noise, count)
    whole = room_of(sites.accounts["p"])
    for part in "abc":
        left = sites.available(part)
        assert left >= min(whole, room_of(sites.accounts[part])) - 1e-9, "a part has at least what the whole has"
        before = sites.accounts[part].used()
        probe = Sites(*limits, *kind)
        probe.accounts |= sites.accounts
        if left > 0.02:
            assert probe.charge(part, 400.0, 1), "what is left can be taken"
        for noise in (3.0, 10.0, 40.0):
            while probe.charge(part, noise, 1):
                pass
        taken = probe.accounts[part].used() - before
        assert taken <= room_of(sites.accounts[part]) + 1e-9
        assert probe.accounts["p"].used() <= 1


def test_spending_of_another_part_leaves_a_part_its_budget() -> None:
    sites = Sites(2.0, 2.0, 1, ADD)
    assert sites.charge("a", 5.0, 3)
    assert room_of(sites.accounts["p"]) < 1
    assert sites.available("b") == 1.0, "another part's spending is not its own"
    assert isclose(sites.available("a"), 1 - sites.accounts["a"].used())


def test_replaced_units_count_twice() -> None:
    sites = Sites(2.0, 2.0, 1, ONE)
    assert sites.charge("a", 20.0, 3)
    above = sites.above("b")
    assert above.share < 1.0, "its replacement may have been in the other part"
    assert above.account_path == "p"


def test_other_parts_over_the_limit_leave_nothing() -> None:
    sites = Sites(2.0, 3.0, 1, ADD)
    assert sites.charge("a", 5.0, 3)
    lowered = replace(sites.accounts["p"], limit=replace(sites.accounts["p"].limit, value=0.1))  # type: ignore[type-var]
    sites.accounts["p"] = lowered
    assert sites.available("b") == 0.0
    assert not sites.charge("b", 400.0, 1)


def test_part_that_is_split_again_has_at_most_what_its_own_parts_can_take() -> None:
    sites = Sites(2.0, 4.0, 1, ADD)
    sites.model.open("split", "p", (4.0, 1e-5), (), 1)
    for name in ("ward", "other"):
        sites.model.open(name, "split", (4.0, 1e-5))
        assert sites.model.register(f"run_{name}", name)
    assert sites.charge("ward", 5.0, 3)
    whole, split = sites.accounts["p"], sites.accounts["split"]
    parts = [*(sites.accounts[name] for name in "abc"), split]
    left = least_above_part([whole, split], parts)
    assert isclose(left.share, room_of(whole))
    under = [sites.accounts[name] for name in ("ward", "other")]
    assert left.share <= min(least_above_part([whole, split, each], [*parts, *under]).share for each in under)


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        ([("p", 5.0), ("p/b", 2.0)], ("p/b", 2.0)),
        ([("p", 0.005), ("p/b", 2.0)], ("p", 0.005)),
        ([("p", 2.0), ("p/b", 2.0)], ("p/b", 2.0)),
        ([("p", 9.0), ("p/a", 1.0), ("p/a/b", 3.0), ("p/a/b/c", 2.0)], ("p/a", 1.0)),
        ([("p", 0.0), ("p/a", 0.5), ("p/a/b", 3.0)], ("p", 0.0)),
    ],
)
def test_available_budget_is_the_least_along_the_path(
    rooms: list[tuple[str, float]], expected: tuple[str, float]
) -> None:
    found = available_of(status_at(path, remaining=left) for path, left in rooms)
    assert found[rooms[-1][0]] == Available(expected[1], expected[0], expected[0])


def test_room_above_a_part_counts_for_all_accounts_under_it() -> None:
    left = {"p": 1.0, "p/a": 9.0, "p/a/b": 8.0, "p/c": 9.0}
    rooms = [status_at(path, parallel=path == "p", remaining=share) for path, share in left.items()]
    found = available_of(rooms, {"p/a": Available(4.0, "p", "p")})
    assert [found[name].share for name in ("p", "p/a", "p/a/b", "p/c")] == [1.0, 4.0, 4.0, 1.0]
