"""Trees of partial sums: the price against the nodes that are released, completed or not."""

import numpy as np
import pytest

import epsilon_ledger as sdk
from app.accounting.events import NeighboringRelation, TreeAggregation, event_from_dict
from app.accounting.formulas.mechanisms import gaussian_rdp
from app.accounting.rdp import curve_over

SPECIALLY = NeighboringRelation.REPLACE_SPECIAL
ORDERS = np.array([1.5, 2.0, 64.0])
COUNTS = [*range(1, 70), 127, 128, 129, 255, 256, 1000, 1024]


def most_nodes(steps: int, released: int) -> int:
    """Get in how many nodes a record of one of the steps is, of a tree whose nodes end at the latest at `released`."""
    sizes = [1 << level for level in range(released.bit_length())]
    return max(sum((step // size + 1) * size <= released for size in sizes) for step in range(steps))


def nodes_charged(event: TreeAggregation) -> list[float]:
    return list(curve_over(event, ORDERS, SPECIALLY).nats() / gaussian_rdp(event.noise_multiplier, ORDERS))


@pytest.mark.parametrize("steps", COUNTS)
def test_a_tree_costs_the_nodes_that_hold_a_record(steps: int) -> None:
    assert nodes_charged(TreeAggregation(6.0, (steps,))) == pytest.approx([most_nodes(steps, steps)] * 3, rel=3e-9)


@pytest.mark.parametrize("steps", COUNTS)
def test_a_completed_tree_costs_those_that_its_virtual_steps_release_as_well(steps: int) -> None:
    event = event_from_dict(sdk.tree_aggregation(6.0, [steps], completed=True))
    assert isinstance(event, TreeAggregation)
    released = event.step_counts[0]
    assert released >= steps > released // 2
    assert released & (released - 1) == 0
    assert nodes_charged(event) == pytest.approx([most_nodes(steps, released)] * 3, rel=3e-9)


def test_tree_of_seven_steps_has_three_nodes_and_completed_four() -> None:
    assert most_nodes(7, 7) == 3
    assert most_nodes(7, 8) == 4
    assert sdk.tree_aggregation(6.0, [7, 8, 1])["step_counts"] == [7, 8, 1]
    assert sdk.tree_aggregation(6.0, [7, 8, 1], completed=True)["step_counts"] == [8, 8, 1]
