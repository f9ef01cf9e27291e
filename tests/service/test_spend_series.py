"""How the spending of an account's children is added up: right, and in little memory."""

import tracemalloc
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from app.accounting.curves import RdpCurve, orders
from app.persistence.repositories.usage_history import Sample
from app.service.queries.spend_series import SpendSeries, spend_series

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


def grown(children: int, moments: int) -> SpendSeries:
    """Runs of so many children that are charged one unit at each order, one after the other."""
    size = orders(1).size
    times = [BEGAN + timedelta(minutes=at) for at in range(moments)]
    samples = [
        Sample(f"run-{at}", 0, 1, charged=True, reached=1, steps=1, at=times[at % moments]) for at in range(children)
    ]
    return spend_series(
        samples,
        {(each.run_id, 0): [("event", 1)] for each in samples},
        {each.run_id: each.run_id for each in samples},
        {"event": RdpCurve(np.ones(size, dtype=np.int64), 3)},
        times,
        whole=True,
    )


@pytest.mark.parametrize(("most", "counted"), [(None, 10), (10, 10), (4, 4)])
def test_children_add_up_or_the_largest_count(most: int | None, counted: int) -> None:
    curves, deltas = grown(10, 20).total(most)
    assert curves[:, 0].tolist() == curves[:, -1].tolist() == [float(min(at + 1, counted)) for at in range(20)]
    assert deltas.tolist() == [3.0 * min(at + 1, counted) for at in range(20)]


@pytest.mark.parametrize("most", [None, 4])
def test_scaled_series_ends_with_what_is_spent(most: int | None) -> None:
    end = RdpCurve(np.full(orders(1).size, 60, dtype=np.int64), 24)
    found = grown(10, 20).scaled(end, most)
    assert found.ends_with(end, most)
    assert found.through("run-0", 7)[-1] == 60 / (most or 10)


def test_thousand_children_take_little_memory() -> None:
    tracemalloc.start()
    try:
        found = grown(1000, 200)
        found.scaled(RdpCurve(np.full(orders(1).size, 5000, dtype=np.int64), 3000), None).total(None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6, "as curves at all orders they would take gigabytes"
