"""An older state of the ledger under a process that lives on: it charges nothing that the ledger cannot prove."""

from typing import Any

import pytest
from sqlalchemy import delete

from app.ledger.errors import LedgerUnavailableError
from app.persistence.tables import event_costs
from app.service import maintenance
from app.service.charging import close
from app.service.charging.requests import StepRequest
from app.service.maintenance import expire_reservations
from tests.api.trainer import LOUD as LOUD_IN_JSON
from tests.api.trainer import Trainer, moved
from tests.conftest import Ledger
from tests.persistence.dump import dump
from tests.service.step_commands import QUIET, CommandRunner, another, opened, request, sound
from tests.service.tampering import restore, set_account, tampering


@pytest.mark.parametrize("asked", [(), ((QUIET, 2),)], ids=["the default event", "another event"])
def test_prices_lost_by_a_restore_are_written_again(ledger: Ledger, asked: tuple[tuple[object, int], ...]) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    before = dump(ledger.database)
    step: StepRequest = request(run, *asked, first=0)  # type: ignore[arg-type]
    first = runner.charged(step)
    restore(ledger.database, before)
    assert runner.charged(step).steps_remaining == first.steps_remaining
    assert sound(ledger)
    assert CommandRunner(ledger).charged(request(run)).admitted  # another process can price what this one has charged
    assert sound(ledger)


def test_events_lost_by_a_restore_are_written_again_with_a_refusal(ledger: Ledger) -> None:
    run, runner = opened(ledger), CommandRunner(ledger)
    before = dump(ledger.database)
    assert runner.charged(request(run, (QUIET, 1))).admitted
    assert not runner.charged(request(run, (QUIET, 10**9))).admitted
    restore(ledger.database, before)
    assert not runner.charged(request(run, (QUIET, 10**9))).admitted
    assert sound(ledger)


def test_plan_used_before_a_restore_is_read_anew(ledger: Ledger) -> None:
    trainer = Trainer(ledger, opened(ledger))
    trainer.reserved((LOUD_IN_JSON, 5))
    before = dump(ledger.database)
    assert [trainer.steps(event=LOUD_IN_JSON).json()["steps_remaining"] for _ in range(3)] == [4, 3, 2]
    restore(ledger.database, before)
    assert trainer.steps(event=LOUD_IN_JSON).json()["steps_remaining"] == 4
    assert sound(ledger)


@pytest.mark.parametrize("how", ["abort", "complete"])
def test_plan_without_its_price_is_an_error_and_no_endless_loop(ledger: Ledger, how: str) -> None:
    trainer = Trainer(ledger, opened(ledger))
    trainer.reserved((LOUD_IN_JSON, 5))
    with tampering(ledger.database) as tx:
        tx.execute(delete(event_costs))
    body = {"steps_executed": 3} if how == "complete" else {}
    reply = ledger.post(f"/v1/runs/{trainer.run}/{how}", body)
    assert (reply.status_code, reply.json()["code"]) == (503, "ledger_unavailable"), reply.text
    assert "verify" in reply.json()["detail"]


def test_sweep_ends_other_plans_where_one_cannot_be_ended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened(ledger)
    ill, well = Trainer(ledger, another(ledger)), Trainer(ledger, another(ledger))
    for trainer, event in ((ill, LOUD_IN_JSON), (well, {"type": "gaussian", "noise_multiplier": 77.0})):
        trainer.reserved((event, 2), lease_seconds=60)

    real, first = close.close_reservation, ledger.get(f"/v1/runs/{ill.run}").json()["reservation"]

    def end(tx: Any, work: Any, before: Any, *more: Any) -> None:  # noqa: ANN401 - passed through
        if before.id == first:
            raise LookupError("a bug")
        real(tx, work, before, *more)

    now = moved(monkeypatch, seconds=61)
    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "close_reservation", end)
        assert expire_reservations(ledger.database, now) == 1
    assert first in caplog.text
    assert expire_reservations(ledger.database, now) == 1
    assert sound(ledger)


def test_page_of_plans_that_cannot_be_ended_holds_up_no_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(ledger)
    ill, well = Trainer(ledger, another(ledger)), Trainer(ledger, another(ledger))
    for trainer in (ill, well):
        trainer.reserved((LOUD_IN_JSON, 2), lease_seconds=60)
    own = ill.path()[-1]
    with tampering(ledger.database) as tx:
        set_account(tx, own.path, quarantine_reason="its balance is wrong")
    monkeypatch.setattr(maintenance, "PAGE", 1)
    now = moved(monkeypatch, seconds=61)
    assert [expire_reservations(ledger.database, now) for _ in range(2)] == [1, 0]
    assert well.read()["reservation"] is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_reserved_steps_under_a_quarantined_account_are_not_released(ledger: Ledger, place: int) -> None:
    trainer = Trainer(ledger, opened(ledger))
    trainer.reserved((LOUD_IN_JSON, 5))
    assert trainer.steps().status_code == 200
    doubtful = trainer.path()[place]
    with tampering(ledger.database) as tx:
        set_account(tx, doubtful.path, quarantine_reason="its balance is wrong")
    answer = trainer.steps()
    assert (answer.status_code, answer.json()["code"], answer.json()["account"]) == (
        409,
        "account_quarantined",
        doubtful.id,
    )
    with tampering(ledger.database) as tx:
        set_account(tx, doubtful.path, quarantine_reason=None)
    assert trainer.steps().json()["steps_remaining"] == 3


def test_account_without_its_balance_is_not_charged(ledger: Ledger) -> None:
    run = opened(ledger)
    before = dump(ledger.database)
    runner = CommandRunner(ledger)
    runner.charged(request(run))
    restore(ledger.database, before | {"balances": []})
    with pytest.raises(LedgerUnavailableError, match="balance of mimic"):
        CommandRunner(ledger).once(request(run))
