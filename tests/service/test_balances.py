"""Balances: a charge is an event and a count, and the curve that follows is the same however it was written."""

import json

import pytest
from sqlalchemy import select

from app.accounting.events import Gaussian
from app.ledger.account_records import MOST_EVENTS
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import accounts, balances
from tests.conftest import Ledger
from tests.service.step_commands import LOUD, QUIET, CommandRunner, opened, request, sound

LIMIT = {"epsilon": 1000.0, "delta": 1e-5}


def _written(ledger: Ledger, run: str) -> tuple[dict[str, list[int]], bool]:
    """What is counted since the run's curve was written, and whether it ever was."""
    with ledger.database.read(ALL_TENANTS) as tx:
        since = tx.execute(select(accounts.c.uncompacted_charges).where(accounts.c.id == run)).scalar_one()
        spent = tx.execute(select(balances.c.spent_curve).where(balances.c.account_id == run)).scalar_one()
    return json.loads(since), bool(spent)


def test_charges_of_one_event_are_counted_without_a_curve(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    for count in (1, 2, 3):
        runner.charged(request(run, (LOUD, count), (QUIET, 1)))
    since, whole = _written(ledger, run)
    assert (sorted(map(tuple, since.values())), whole) == ([(3, 0), (6, 0)], False)
    assert sound(ledger)


def test_decaying_noise_writes_a_curve_once_in_seventeen_steps(ledger: Ledger) -> None:
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    run, runner = ledger.run(), CommandRunner(ledger)
    for step in range(3 * (MOST_EVENTS + 1)):
        runner.charged(request(run, (Gaussian(60.0 + step), 1 + step % 3)))
        since, whole = _written(ledger, run)
        assert (len(since), whole) == ((step + 1) % (MOST_EVENTS + 1), step >= MOST_EVENTS)
    assert sound(ledger)  # byte for byte the sum of all charges
    assert CommandRunner(ledger).path(run)[0].spent == CommandRunner(ledger).path(run)[-1].spent


@pytest.mark.parametrize("count", [1, MOST_EVENTS, MOST_EVENTS + 1])
def test_request_of_many_events_is_counted_or_written(ledger: Ledger, count: int) -> None:
    ledger.population(limit=LIMIT)
    ledger.budget(limit=LIMIT)
    run, runner = ledger.run(), CommandRunner(ledger)
    runner.charged(request(run, *[(Gaussian(60.0 + place), 2) for place in range(count)]))
    since, whole = _written(ledger, run)
    assert (len(since), whole) == ((count, False) if count <= MOST_EVENTS else (0, True))
    assert sound(ledger)
