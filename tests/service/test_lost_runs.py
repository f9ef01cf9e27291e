"""A run whose trainer is silent for too long ends as lost."""

from datetime import UTC, datetime, timedelta

import pytest

from app.service.runs.lost import end_lost_runs
from tests.api.trainer import LOUD, Trainer, hired, moved
from tests.conftest import Ledger

SILENCE = timedelta(days=30)


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    return hired(ledger)


def _look(trainer: Trainer, **later: float) -> int:
    return end_lost_runs(trainer.ledger.database, datetime.now(UTC) + timedelta(**later), SILENCE)


def test_silent_run_ends_as_lost_and_its_spending_stays(trainer: Trainer) -> None:
    assert trainer.steps(count=3).status_code == 200
    before = trainer.read()
    assert _look(trainer, days=29) == 0
    assert _look(trainer, days=31) == 1
    after = trainer.read()
    assert (after["status"], after["end_reason"], after["steps_remaining"]) == ("aborted", "lost", None)
    assert after["ended_at"] is not None
    assert after["epsilon"] == before["epsilon"] > 0
    assert _look(trainer, days=60) == 0
    events = trainer.ledger.get(f"/v1/audit-events?subject={trainer.run}", "auditor").json()["items"]
    assert (events[0]["action"], events[0]["actor"]) == ("run.aborted", "service")
    assert events[0]["after"] == {"status": "aborted", "end_reason": "lost"}
    assert "last heard of" in events[0]["reason"]
    assert trainer.sound()


def test_run_whose_trainer_asks_is_not_lost(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, days=20)
    assert trainer.steps(count=10**9).status_code == 403  # a refusal is heard, too
    assert _look(trainer, days=31) == 0
    assert _look(trainer, days=51) == 1


@pytest.mark.parametrize("state", ["paused", "reserving", "completed"])
def test_run_that_is_not_active_or_has_a_plan_is_not_lost(trainer: Trainer, state: str) -> None:
    if state == "reserving":
        trainer.reserved((LOUD, 3), lease_seconds=7 * 24 * 3600)
    else:
        assert trainer.act({"paused": "pause", "completed": "complete"}[state]).status_code == 200
    assert _look(trainer, days=400) == 0
