"""One caller's expensive question does not keep the others waiting: no new curve is computed under the lock."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.accounting import poisson_rdp, rdp
from app.accounting.formulas.sampled_gaussian import sampled_gaussian_rdp
from tests.api.conftest import SeededLedger

LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def _sampled(noise: float) -> dict[str, Any]:
    gaussian = {"type": "gaussian", "noise_multiplier": noise}
    return {"type": "poisson_sampled", "sampling_probability": 0.03, "event": gaussian}


REQUESTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "admitted steps": ("/v1/runs/{run_id}/steps", {"event": _sampled(7.001)}, 200),
    "a list of steps": (
        "/v1/runs/{run_id}/steps",
        {"events": [{"event": _sampled(8 + i / 1000)} for i in range(9)]},
        200,
    ),
    "refused steps": (
        "/v1/runs/{run_id}/steps",
        {"events": [{"event": _sampled(0.2 + i / 1000)} for i in range(9)]},
        403,
    ),
    "a refused step": ("/v1/runs/{run_id}/steps", {"event": _sampled(0.301), "count": 1000}, 403),
    "a budget": (
        "/v1/budgets",
        {"name": "b", "parent": "mimic", "limit": LIMIT, "planned": [{"event": _sampled(7.002)}]},
        201,
    ),
    "a run": ("/v1/runs", {"name": "r", "budget": "mimic/icu-team", "event": _sampled(7.003)}, 201),
}


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


@pytest.mark.parametrize("what", REQUESTS)
def test_new_curve_is_computed_while_no_lock_is_held(
    seeded: SeededLedger, computed_under_lock: list[bool], what: str
) -> None:
    path, body, status = REQUESTS[what]
    assert seeded.ledger.post(path.format(**seeded.ids()), body).status_code == status
    assert computed_under_lock
    assert not any(computed_under_lock)


def test_step_that_is_too_much_work_is_refused(seeded: SeededLedger, computed_under_lock: list[bool]) -> None:
    parts = [_sampled(1 + index / 1000) for index in range(1000)]
    too_much = {"type": "composed", "events": [*parts[:999], {**_sampled(1.0), "sampling_probability": 0.5}]}
    body = {"events": [{"event": {"type": "composed", "events": parts}}, {"event": too_much}]}
    for path in ("steps", "reservations"):
        asked = body if path == "steps" else {"plan": body["events"]}
        reply = seeded.ledger.post(f"/v1/runs/{seeded.ids()['run_id']}/{path}", asked)
        assert (reply.status_code, reply.json()["code"]) == (422, "computation_limit_exceeded")
    assert not computed_under_lock
