"""One caller's expensive question does not keep the others waiting: no new curve is computed under the lock."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.accounting import poisson_rdp, rdp
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from tests.api.conftest import LIMIT, SeededLedger
from tests.api.trainer import is_refused


def _sampled(noise: float) -> dict[str, Any]:
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    return {"type": "poisson_sampled", "sampling_probability": 0.03, "event": gaussian}


BUDGET = {"name": "b", "parent": "mimic", "limit": LIMIT, "planned": [{"event": _sampled(7.002)}]}
REQUESTS: list[tuple[str, dict[str, Any], int]] = [
    ("runs/{run_id}/steps", {"event": _sampled(7.001)}, 200),
    ("runs/{run_id}/steps", {"events": [{"event": _sampled(8 + i / 1000)} for i in range(9)]}, 200),
    ("runs/{run_id}/steps", {"events": [{"event": _sampled(0.2 + i / 1000)} for i in range(9)]}, 403),
    ("runs/{run_id}/steps", {"event": _sampled(0.301), "count": 1000}, 403),
    ("budgets", BUDGET, 201),
    ("runs", {"name": "r", "budget": "mimic/icu-team", "event": _sampled(7.003)}, 201),
]


@pytest.fixture
def computed_under_lock(seeded: SeededLedger, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each curve that is computed: whether other writers had to wait for it."""
    seen: list[bool] = []

    def watched(q: float, s: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        writer = seeded.ledger.database._writer
        seen.append(writer is not None and writer.lock.locked())
        return sampled_gaussian_rdp(q, s, orders)

    rdp.cached_event_curve.cache_clear()
    monkeypatch.setattr(poisson_rdp, "sampled_gaussian_rdp", watched)
    yield seen
    rdp.cached_event_curve.cache_clear()


def test_new_curve_is_computed_while_no_lock_is_held(seeded: SeededLedger, computed_under_lock: list[bool]) -> None:
    for path, body, status in REQUESTS:
        computed_under_lock.clear()
        assert seeded.ledger.post(f"/v1/{path.format(**seeded.ids())}", body).status_code == status
        assert set(computed_under_lock) == {False}, path


def test_step_that_is_too_much_work_is_refused(seeded: SeededLedger, computed_under_lock: list[bool]) -> None:
    parts = [_sampled(1 + index / 1000) for index in range(1000)]
    too_much = {"type": "composed", "events": [*parts[:999], {**_sampled(1.0), "sampling_probability": 0.5}]}
    items = [{"event": {"type": "composed", "events": parts}}, {"event": too_much}]
    for path, body in (("steps", {"events": items}), ("reservations", {"events": items})):
        reply = seeded.ledger.post(f"/v1/runs/{seeded.run}/{path}", body)
        is_refused(reply, 422, "computation_limit_exceeded")
    assert not computed_under_lock
