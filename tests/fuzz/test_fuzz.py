"""A short fuzz in every run of the tests; `make fuzz` runs long ones."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from app.accounting.errors import AccountingError
from app.accounting.events import event_from_dict
from app.accounting.events.base import TYPE_BY_NAME
from tests.fuzz.__main__ import ENVIRONMENT, fuzz
from tests.fuzz.shapes import event

SEED = 17
REQUESTS = 200


def test_events_of_every_type_are_sent() -> None:
    choice, sent = random.Random(SEED), set()  # noqa: S311 - repeatable
    for _ in range(2000):
        with suppress(AccountingError):  # a type without a valid event would be sent in vain
            sent.add(type(event_from_dict(event(choice))))
    assert sent == set(TYPE_BY_NAME.values())


def test_no_request_breaks_the_service_or_a_balance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    tally = fuzz("sqlite", tmp_path, SEED, REQUESTS, check_every=REQUESTS)
    assert not tally.faults, str(tally)
    assert tally.taken["authorizeSteps"] > 0, str(tally)
