"""The workloads that the rules of scheduling are measured with, small."""

from functools import partial

from app.accounting.events import EpsilonDelta
from app.ledger.filter.limits import Limit
from app.ledger.scheduling.scheduling_rules import Line
from app.ledger.settings.allocation import SchedulingRule
from benchmarks.allocation.blocks import priced, pure_filter, used_part
from benchmarks.allocation.dpack_workloads import Knobs, offline
from benchmarks.allocation.dpack_zoo import ORDERS, buckets, events, zoo
from benchmarks.allocation.largest_shares import LargestShares
from benchmarks.allocation.optimum import solve
from benchmarks.allocation.simulation import Arrival, Outcome, Workload, simulate_batches

FIRST_COME, DOMINANT, PACKED = (partial(Line, rule) for rule in SchedulingRule)
TINY = Knobs(plans=30, blocks=4, least=0.1, mean_blocks=2, sigma_blocks=1, sigma_alpha=2)


def require_within_limits(workload: Workload, outcome: Outcome) -> None:
    """Add up the granted demands anew, and compare with the blocks' filters."""
    for index, block in enumerate(outcome.blocks):
        costs = [workload.arrivals[each].demand.cost.values for each in outcome.delays]
        asked = [
            cost for each, cost in zip(outcome.delays, costs, strict=True) if index in workload.arrivals[each].blocks
        ]
        if not asked:
            assert block.held.is_zero
            continue
        bounds = block.bounds()
        sums = [sum(int(cost[place]) for cost in asked) for place in bounds.places]
        assert any(most <= bound for most, bound in zip(sums, bounds.bounds.tolist(), strict=True))
        assert used_part(block) <= 1


def test_the_zoo_has_the_curves_of_the_paper() -> None:
    assert len(events()) == 620
    assert len(zoo()) == 239
    sizes = {ORDERS[best]: len(curves) for best, curves in buckets().items()}
    assert sizes == {3: 2, 4: 14, 5: 123, 6: 14, 8: 10, 16: 6, 32: 1, 64: 69}


def test_no_rule_grants_more_than_the_optimum() -> None:
    workload = offline(TINY, 3)
    best = solve(workload, 20.0)
    assert best is not None
    assert best.is_proven
    counts = []
    for make in (FIRST_COME, LargestShares, DOMINANT, PACKED):
        outcome = simulate_batches(workload, make(), [0.0])
        require_within_limits(workload, outcome)
        assert outcome == simulate_batches(offline(TINY, 3), make(), [0.0])
        counts.append(outcome.granted)
    assert max(counts) <= best.granted
    assert counts[-1] > counts[0]


def test_the_optimum_of_two_reservations_that_share_a_block() -> None:
    chosen = pure_filter(Limit(1.0, 1e-7))
    large = priced(EpsilonDelta(0.7, 0.0))
    arrivals = (Arrival(0.0, large, (0, 1)), Arrival(0.0, large, (0,)), Arrival(0.0, large, (1,)))
    best = solve(Workload(chosen, (0.0, 0.0), arrivals), 10.0)
    assert best is not None
    assert (best.granted, best.at_most) == (2, 2)
