"""The alternatives that a refusal offers can be followed to the end, or it states that there is none."""

import pytest

from app.service.verification import verify
from tests.conftest import Ledger
from tests.service.random_trainings import random_training
from tests.soak import thinned


@pytest.mark.parametrize("seed", thinned(range(200), 36))
def test_a_program_that_obeys_a_refusal_finishes_or_was_told_that_it_cannot(ledger: Ledger, seed: int) -> None:
    training = random_training(ledger, seed)
    outcome = training.finish()
    assert outcome in {"finished", "stated that it cannot"}
    assert (training.taken == training.steps) is (outcome == "finished")
    assert verify(ledger.database).problems == ()
