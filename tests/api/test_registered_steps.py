"""The filter of an account without a plan is tuned to its registered runs, whichever is charged first."""

from typing import Any

import pytest

from app.persistence.database import ALL_TENANTS
from app.service.verification.verify import verify
from tests.ledgers import Ledger

RELEASE: dict[str, Any] = {"type": "laplace", "noise_multiplier": 10.0}
TRAINING: dict[str, Any] = {
    "type": "poisson_sampled",
    "sampling_probability": 0.001,
    "event": {"type": "gaussian", "noise_multiplier": 0.7},
}
LIMIT = {"epsilon": 3.0, "delta": 1e-5}
TUNED, UNTUNED = 47_477, 1_849
"""Steps of a training after a release under `LIMIT`: of a filter for both, and for the release alone. By Rényi curves
at the full delta, as accountants in a process do, 47,870 fit."""


def open_accounts(ledger: Ledger) -> None:
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)


def steps(ledger: Ledger, run: str, count: int = 1, **more: object) -> dict[str, Any]:
    reply = ledger.post(f"/v1/runs/{run}/steps", {"count": count} | more, "trainer")
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def sound(ledger: Ledger) -> bool:
    assert verify(ledger.database).problems == ()
    return True


@pytest.mark.parametrize("release_first", [True, False])
def test_order_of_first_charges_does_not_matter(ledger: Ledger, *, release_first: bool) -> None:
    open_accounts(ledger)
    release = ledger.run(name="release", event=RELEASE, expected_steps=1)
    training = ledger.run(name="training", event=TRAINING, expected_steps=40_000)
    for run in (release, training) if release_first else (training, release):
        steps(ledger, run)
    assert steps(ledger, training)["steps_remaining"] == TUNED - 2
    assert sound(ledger)
