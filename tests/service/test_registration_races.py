"""Registrations and first charges at the same moment: a filter is tuned before the first charge, or not any more."""

from functools import partial
from typing import Any

import httpx2
import pytest

from app.persistence.database import ALL_TENANTS
from app.persistence.repositories import accounts
from app.service.verification.verify import verify
from tests.api.trainer import audited
from tests.conftest import Ledger
from tests.reliability.conftest import ROUNDS
from tests.service.test_scheduling_races import at_once

pytestmark = pytest.mark.both_databases

RELEASE: dict[str, Any] = {"type": "laplace", "noise_multiplier": 10.0}
TRAINING: dict[str, Any] = {
    "type": "poisson_sampled",
    "sampling_probability": 0.001,
    "event": {"type": "gaussian", "noise_multiplier": 0.7},
}
LIMIT = {"epsilon": 3.0, "delta": 1e-5}
AFTER_RELEASE, AFTER_BOTH = 1_849, 47_477


def registered(ledger: Ledger, event: dict[str, Any], number: int) -> httpx2.Response:
    body = {"name": "model", "budget": "mimic/icu-team", "event": event, "expected_steps": number}
    return ledger.post("/v1/runs", body)


@pytest.mark.parametrize("race", range(ROUNDS))
def test_two_registrations_and_a_first_charge(ledger: Ledger, race: int) -> None:
    del race
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    release = ledger.run(event=RELEASE, expected_steps=1)
    charge = partial(ledger.post, f"/v1/runs/{release}/steps", {"count": 1}, "trainer")
    replies = at_once(charge, partial(registered, ledger, TRAINING, 40_000), partial(registered, ledger, RELEASE, 1))
    assert [reply.status_code for reply in replies] == [200, 201, 201]
    training = replies[1].json()["id"]
    answer = ledger.post(f"/v1/runs/{training}/steps", {"count": 1}, "trainer").json()
    with ledger.database.read(ALL_TENANTS) as tx:
        weights = {record.account.path: record.account.weights for _, record, _ in accounts.list_all(tx)}
    assert weights["mimic"] == weights["mimic/icu-team"]
    [made] = [each for each in audited(ledger, "action=run.created") if each["subject"] == training]
    tuned = "tuned" in made["after"]  # then it was registered before the charge
    assert answer["steps_remaining"] == (AFTER_BOTH if tuned else AFTER_RELEASE) - 1
    assert len(answer["warnings"]) == (0 if tuned else 2)
    assert verify(ledger.database).problems == ()


@pytest.mark.parametrize("race", range(ROUNDS))
def test_a_cached_account_is_charged_as_it_was_tuned(ledger: Ledger, race: int) -> None:
    """A run whose path is cached takes its first step while another run is registered."""
    del race
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    release = ledger.run(event=RELEASE, expected_steps=1)
    refused = {"count": 1, "event": {"type": "gaussian", "noise_multiplier": 0.01}}
    assert ledger.post(f"/v1/runs/{release}/steps", refused, "trainer").status_code == 403
    training = registered(ledger, TRAINING, 40_000).json()["id"]
    assert ledger.post(f"/v1/runs/{release}/steps", {"count": 1}, "trainer").status_code == 200
    answer = ledger.post(f"/v1/runs/{training}/steps", {"count": 1}, "trainer").json()
    assert answer["steps_remaining"] == AFTER_BOTH - 1
    assert verify(ledger.database).problems == ()
