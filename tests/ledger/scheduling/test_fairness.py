"""What PrivateKube proves of its rule DPF-N (Luo et al. 2021, Theorems 1, 2 and 4), as far as it is claimed.

Every run that asks for some of a block's budget unlocks a fair share of it, and then a pass is made. Nothing is
returned: a reservation that is small and late on another block may wait, and would be tried before a fair one.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from app.ledger.scheduling.queue import Ledgers, WaitingReservation
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.settings.allocation import SchedulingRule
from tests.ledger.scheduling.blocks import (
    ORDERS,
    Units,
    block,
    curve_of,
    line_of,
    names,
    open_ledgers,
    part_of,
    units_of,
    unlocked,
    waiting,
)
from tests.soak import few

from . import blocks

BLOCKS = ("b0", "b1", "b2")

limits = st.tuples(*[st.sampled_from([-1, 40, 60, 61])] * ORDERS, st.sampled_from([0, 20, 20]))


@dataclass
class Arrivals:
    """Reservations that arrive one after another, at blocks of which each unlocks a fair share."""

    limits: Mapping[str, Units]
    number: int
    plans: list[WaitingReservation]

    def __post_init__(self) -> None:
        self.arrived: Counter[str] = Counter()
        self.line: Line = line_of(SchedulingRule.SMALLEST_SHARE, [])
        accounts = [block(name, limit) for name, limit in self.limits.items()]
        locked = dict.fromkeys(self.limits, unlocked(Fraction(0)))
        self.ledgers: Ledgers = open_ledgers(accounts, self.plans, locked)

    def arrive(self, plan: WaitingReservation) -> list[str]:
        for name in plan.path[:-1]:
            self.arrived[name] += 1
            part = Fraction(min(self.arrived[name], self.number), self.number)
            self.ledgers.withholdings[name] = unlocked(part)
        self.line.add(plan)
        return names(blocks.run_pass(self.line, self.ledgers, plan.arrived_at, plan.path[:-1]))

    @property
    def waiting(self) -> list[WaitingReservation]:
        return list(self.line.reservations.values())

    def granted(self) -> dict[str, int]:
        """Number of arrivals until each reservation was granted."""
        return {name: place for place, plan in enumerate(self.plans) for name in self.arrive(plan)}

    def is_early(self, plan: WaitingReservation) -> bool:
        """Whether an arriving reservation is among the first of all its blocks."""
        return all(self.arrived[name] < self.number for name in plan.path[:-1])

    def is_fair(self, plan: WaitingReservation) -> bool:
        """Whether a reservation asks for at most a fair share of its blocks, at all orders and of own deltas."""
        asked = units_of(plan.cost)
        for name in plan.path[:-1]:
            share = part_of(Fraction(1, self.number), self.limits[name])
            wanted = [new for new, most in zip(asked[:ORDERS], self.limits[name], strict=False) if most > 0]
            most = [each for each, most in zip(share[:ORDERS], self.limits[name], strict=False) if most > 0]
            if not most or asked[ORDERS] > share[ORDERS]:
                return False
            if any(new > each for new, each in zip(wanted, most, strict=True)):
                return False
        return True


def asking(number: int) -> st.SearchStrategy[tuple[frozenset[str], Units]]:
    """Demands of which about half are no more than a fair share."""
    small = st.tuples(*[st.integers(0, 40 // number)] * ORDERS, st.sampled_from([0, 0, 20 // number]))
    large = st.tuples(*[st.integers(0, 40)] * ORDERS, st.sampled_from([0, 0, 9]))
    return st.tuples(st.frozensets(st.sampled_from(BLOCKS), min_size=1), small | large)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    number = draw(st.sampled_from([1, 2, 3, 5]))
    demands = draw(st.lists(asking(number), min_size=1, max_size=8))
    plans = [waiting(f"x{at:02}", sorted(path), cost, at) for at, (path, cost) in enumerate(demands)]
    return Arrivals({name: draw(limits) for name in BLOCKS}, number, plans)


@given(arrivals())
def test_a_fair_reservation_is_granted_when_it_arrives(world: Arrivals) -> None:
    """Theorem 1, sharing incentive, while no reservation waits that asks for a fair share at one order and more at
    another.

    The paper's share is the largest over the orders; the rule's is the least, and tries such a reservation first.
    """
    for plan in world.plans:
        scores = world.line.scores(world.waiting, world.ledgers)
        may_overtake = any(scores[each.id][0] <= 1 / world.number and not world.is_fair(each) for each in world.waiting)
        fair = world.is_early(plan) and world.is_fair(plan)
        granted = world.arrive(plan)
        if fair and not may_overtake:
            assert granted[0] == plan.id, "no other can have waited for its share"


def test_a_reservation_that_is_small_at_one_order_overtakes_a_fair_one() -> None:
    plans = [waiting("first", ["b0"], (20, 60, 0, 0), 0), waiting("small", ["b0"], (21, 1, 0, 0), 1)]
    world = Arrivals({"b0": (60, 60, -1, 0)}, 3, [*plans, waiting("fair", ["b0"], (20, 20, 0, 0), 2)])
    assert world.granted() == {"first": 0, "small": 2}


@few(25)
@given(arrivals(), st.data())
def test_asking_for_more_does_not_get_a_reservation_granted_earlier(world: Arrivals, data: st.DataObject) -> None:
    """Theorem 2, strategy-proofness: a reservation asks for more than it needs, at some orders or of own deltas."""
    place = data.draw(st.integers(0, len(world.plans) - 1))
    plan = world.plans[place]
    more = data.draw(st.tuples(*[st.integers(0, 9)] * ORDERS, st.integers(0, 3)))
    greedy = replace(plan, steps=(plan.steps[0]._replace(curve=curve_of(blocks.plus(units_of(plan.cost), more))),))
    asked = [*world.plans[:place], greedy, *world.plans[place + 1 :]]
    never = len(world.plans)
    with_more = Arrivals(world.limits, world.number, asked).granted().get(plan.id, never)
    assert world.granted().get(plan.id, never) <= with_more


def test_example_of_the_paper_is_granted_in_its_order() -> None:
    """Figure 4: two blocks, of which each reservation unlocks 10, and a tie that the second share decides."""
    demands = {"p1": (5, 15), "p2": (10, 10), "p3": (15, 10)}
    # A reservation has one cost for all of its blocks: each of these counts an order of its own.
    orders = {"b0": (100, -1, -1, 0), "b1": (-1, 100, -1, 0)}
    plans = [waiting(name, orders, (*each, 0, 0), at) for at, (name, each) in enumerate(demands.items())]
    world = Arrivals(orders, 10, plans)
    assert world.granted() == {"p2": 1, "p1": 2}
    assert world.line.scores(world.waiting, world.ledgers) == {"p3": (0.15, 0.1)}
