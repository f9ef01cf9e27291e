"""Runs: their states, and attempts that go on from a checkpoint and pay again for what they repeat."""

from dataclasses import replace

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.api.trainer import LOUD, QUIET, Trainer, hired, is_refused
from tests.conftest import Ledger
from tests.persistence.dump import changed

WAYS: dict[str, list[str]] = {"active": [], "paused": ["pause"], "completed": ["complete"], "aborted": ["abort"]}
OPEN = {"pause": "paused", "resume": "active", "complete": "completed", "abort": "aborted"}
REACHED = {"active": OPEN, "paused": OPEN, "completed": {"complete": "completed"}, "aborted": {"abort": "aborted"}}


def _act(seeded: SeededLedger, action: str) -> httpx2.Response:
    return seeded.ledger.post(f"/v1/runs/{seeded.run}/{action}", None, "trainer")


@pytest.mark.parametrize("status", WAYS)
def test_action_reaches_its_state_or_is_a_conflict(seeded: SeededLedger, status: str) -> None:
    for action in OPEN:
        run = replace(seeded, run=seeded.ledger.run(name=action))
        for way in WAYS[status]:
            assert _act(run, way).json()["status"] == status
        before = seeded.rows()
        reply, reached = _act(run, action), REACHED[status].get(action)
        if reached is None:
            assert is_refused(reply, 409, "run_state_conflict")["run_status"] == status
            assert seeded.rows() == before
            continue
        assert (reply.status_code, reply.json()["status"]) == (200, reached)
        assert seeded.ledger.get(f"/v1/runs/{run.run}").json() == reply.json()
        assert changed(before, seeded.rows()) == (set() if reached == status else {"runs", "accounts", "audit_entries"})


def test_end_has_a_reason_and_a_time_and_what_was_spent(seeded: SeededLedger) -> None:
    above = [f"/v1/budgets/{seeded.budget}", f"/v1/populations/{seeded.population}"]
    for action, reason, told, wrong in (
        ("complete", None, "finished", "lost"),
        ("complete", "budget_exhausted", "budget_exhausted", "lost"),
        ("abort", None, "aborted", "finished"),
        ("abort", "lost", "lost", "finished"),
    ):
        run = seeded.ledger.run(name=told)
        assert seeded.steps(run=run, event=QUIET).status_code == 200
        path = f"/v1/runs/{run}"
        before, spent = seeded.ledger.get(path).json(), [seeded.ledger.get(each).content for each in above]
        assert (before["ended_at"], before["end_reason"]) == (None, None)
        refused = is_refused(seeded.ledger.post(f"{path}/{action}", {"reason": wrong}), 422, "invalid_request")
        assert "`reason`" in refused["detail"]
        body = {} if reason is None else {"reason": reason}
        after = seeded.ledger.post(f"{path}/{action}", body, "trainer").json()
        assert (after["end_reason"], after["steps_remaining"], after["binding_account"]) == (told, None, None)
        assert (after["ended_at"] is not None, after["epsilon"]) == (True, before["epsilon"])
        assert before["epsilon"] > 0
        assert [seeded.ledger.get(each).content for each in above] == spent
        assert seeded.ledger.post(f"{path}/{action}", body, "trainer").json() == after


def _hired(ledger: Ledger) -> Trainer:
    """A trainer that took ten steps, in requests of 4 and 6."""
    trainer = hired(ledger)
    assert trainer.steps(first_step=0, count=4, key="k-0").status_code == 200
    assert trainer.steps(first_step=4, count=6).status_code == 200
    return trainer


FURNISHED = {"trainer": _hired}


def _open(trainer: Trainer, key: str | None = None, /, **body: object) -> int:
    made = trainer.post(f"runs/{trainer.run}/attempts", body, key).raise_for_status()
    assert made.json() == trainer.read()
    return int(made.json()["attempt"])


def test_steps_restart_at_the_checkpoint_and_are_charged_again(trainer: Trainer) -> None:
    before = trainer.balance()
    assert _open(trainer, first_step=4) == 2
    assert (trainer.balance(), trainer.read()["next_step"]) == (before, 4)
    taken = trainer.steps(first_step=4, count=6, attempt=2).json()
    assert (taken["decision"], taken["attempt"], taken["first_step"], taken["next_step"]) == ("admitted", 2, 4, 10)
    assert {spent.to_bytes() for spent, _ in trainer.balance()} == {trainer.price((LOUD, 16)).to_bytes()}
    assert [(point["attempt"], point["first_step"]) for point in trainer.history()] == [(1, 0), (1, 4), (2, 4)]
    for attempt in range(3, 6):
        assert _open(trainer, first_step=4) == attempt
        if attempt % 2:  # some of them take no step at all
            assert trainer.steps(first_step=4, count=2, attempt=attempt, event=QUIET).status_code == 200
            assert trainer.steps(first_step=6, count=10**6, attempt=attempt).json()["attempt"] == attempt
    assert trainer.path()[-1].spent == trainer.price((LOUD, 16), (QUIET, 4))
    assert trainer.sound()


def test_attempt_begins_at_the_next_step_or_before_and_not_beyond(trainer: Trainer) -> None:
    attempts = f"runs/{trainer.run}/attempts"
    assert "10" in is_refused(trainer.post(attempts, {"first_step": 11}), 422, "invalid_request")["detail"]
    is_refused(trainer.post(attempts, {"steps_executed": 0}), 409, "reservation_state_conflict")
    assert _open(trainer) == 2
    assert trainer.steps(attempt=2).json()["first_step"] == 10
    assert _open(trainer, first_step=4) == 3
    is_refused(trainer.post(attempts, {"first_step": 5}), 422, "invalid_request")
    trainer.reserved((LOUD, 20), attempt=3)
    opened = trainer.post(attempts, {"steps_executed": 8}).json()
    assert (opened["attempt"], opened["next_step"], opened["reservation"]) == (4, 12, None)


def test_attempt_is_opened_once_for_its_key(trainer: Trainer) -> None:
    assert _open(trainer, "k-1", first_step=4) == 2
    before, attempts = trainer.rows(), f"runs/{trainer.run}/attempts"
    again = trainer.post(attempts, {"first_step": 4}, "k-1")
    assert (again.status_code, again.json()["attempt"], again.headers["idempotent-replayed"]) == (201, 2, "true")
    is_refused(trainer.post(attempts, {"first_step": 3}, "k-1"), 422, "idempotency_key_reused")
    is_refused(trainer.steps(attempt=2, key="k-1"), 422, "idempotency_key_reused")
    assert trainer.rows() == before


@pytest.mark.parametrize("action", ["complete", "abort", "pause"])
def test_superseded_trainer_ends_nothing_and_an_ended_run_has_no_further_attempt(trainer: Trainer, action: str) -> None:
    assert _open(trainer) == 2
    before = trainer.rows()
    if action != "pause":
        answer = is_refused(trainer.act(action, {"attempt": 1}), 412, "attempt_superseded")
        assert (answer["attempt"], answer["current_attempt"]) == (1, 2)
        assert not changed(before, trainer.rows())
        ended = trainer.act(action, {"attempt": 2}).json()
        # An operator names no attempt.
        assert trainer.act(action, {"attempt": 2}).json() == trainer.act(action).json() == ended
        is_refused(trainer.act("attempts", {}), 409, "run_state_conflict")
    else:  # another attempt does not resume the run
        assert trainer.act("pause").status_code == 200
        assert _open(trainer) == 3
        is_refused(trainer.steps(attempt=3), 409, "run_state_conflict")


def test_attempt_ends_the_reservation(trainer: Trainer) -> None:
    for number, (executed, status, paid) in enumerate(((8, "committed", 18), (None, "forfeited", 38)), 1):
        held = trainer.reserved((LOUD, 20), attempt=number)
        if executed:
            assert trainer.steps(count=5).json()["reservation"] == held
        taken: dict[str, object] = {"steps_executed": executed} if executed else {}
        assert _open(trainer, first_step=4, **taken) == number + 1
        assert trainer.ledger.get(f"/v1/reservations/{held}").json()["status"] == status
        assert {spent for spent, _ in trainer.balance()} == {trainer.price((LOUD, paid))}
    assert all(nothing.is_zero for _, nothing in trainer.balance())
    assert trainer.sound()
