"""A short fuzz in every run of the tests; `make fuzz` runs long ones."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import ENVIRONMENT, fuzz

SEED = 17
REQUESTS = 300


def test_no_request_breaks_the_service_or_a_balance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    tally = fuzz("sqlite", tmp_path, SEED, REQUESTS, check_every=REQUESTS)
    assert not tally.faults, str(tally)
    assert tally.taken["authorizeSteps"] > 0, str(tally)
