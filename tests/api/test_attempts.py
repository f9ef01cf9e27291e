"""Attempts: a trainer that goes on from a checkpoint fences off the one before, and pays again for what it repeats."""

from typing import Any

import pytest

from tests.api.answer_validation import without_request_id
from tests.api.trainer import LOUD, QUIET, Trainer, hired, is_refused
from tests.conftest import Ledger
from tests.persistence.dump import changed


def _hired(ledger: Ledger) -> Trainer:
    """A trainer that took ten steps, in requests of 4 and 6."""
    trainer = hired(ledger)
    assert trainer.steps(first_step=0, count=4, key="k-0").status_code == 200
    assert trainer.steps(first_step=4, count=6).status_code == 200
    return trainer


FURNISHED = {"trainer": _hired}


def _open(trainer: Trainer, key: str | None = None, **body: object) -> int:
    made = trainer.post(f"runs/{trainer.run}/attempts", body, key)
    assert made.status_code == 201, made.text
    assert made.json() == trainer.read()
    return int(made.json()["attempt"])


def test_steps_restart_at_the_checkpoint_and_are_charged_again(trainer: Trainer) -> None:
    before = trainer.balance()
    assert _open(trainer, first_step=4) == 2
    assert trainer.balance() == before
    assert trainer.read()["next_step"] == 4
    taken = trainer.steps(first_step=4, count=6, attempt=2).json()
    assert (taken["decision"], taken["attempt"], taken["first_step"], taken["next_step"]) == ("admitted", 2, 4, 10)
    assert {spent.to_bytes() for spent, _ in trainer.balance()} == {trainer.price((LOUD, 16)).to_bytes()}
    assert [(point["attempt"], point["first_step"]) for point in trainer.history()] == [(1, 0), (1, 4), (2, 4)]
    assert trainer.sound()


def test_left_out_the_first_step_is_the_next_one(trainer: Trainer) -> None:
    assert _open(trainer) == 2
    assert trainer.steps(attempt=2).json()["first_step"] == 10
    assert _open(trainer, first_step=0) == 3
    assert trainer.steps(attempt=3, first_step=0).status_code == 200
    assert trainer.sound()


@pytest.mark.parametrize(
    ("mode", "body"),
    [
        *(("authorize", body) for body in ({}, {"attempt": 1}, {"attempt": 3}, {"first_step": 4}, {"first_step": 5})),
        *(("report", body) for body in ({"first_step": 4}, {"first_step": 5}, {"attempt": 3, "first_step": 4})),
    ],
)
def test_only_the_current_attempt_charges(trainer: Trainer, mode: str, body: dict[str, Any]) -> None:
    _open(trainer, first_step=4)
    before = trainer.rows()
    for dry_run in (False, True):
        answer = is_refused(trainer.steps(**body, mode=mode, dry_run=dry_run), 412, "attempt_superseded")
        assert (answer["attempt"], answer["current_attempt"]) == (body.get("attempt", 1), 2)
    is_refused(trainer.reserve((LOUD, 1), attempt=body.get("attempt", 1)), 412, "attempt_superseded")
    assert trainer.rows() == before


def test_a_trainer_that_named_no_attempt_is_told_which_one_to_name(trainer: Trainer) -> None:
    _open(trainer, first_step=4)
    for reply in (trainer.steps(), trainer.steps(dry_run=True), trainer.reserve((LOUD, 1))):
        answer = is_refused(reply, 412, "attempt_superseded")
        assert (answer["attempt"], answer["current_attempt"]) == (1, 2)
        assert answer["detail"] == (
            'The request named no `attempt`, which means 1; the current one is 2. Its trainer sends "attempt": 2.'
        )
    for reply in (trainer.steps(attempt=1), trainer.reserve((LOUD, 1), attempt=1)):
        answer = is_refused(reply, 412, "attempt_superseded")
        assert answer["detail"].startswith("Attempt 1 of the run was superseded; the current one is 2.")


def test_the_fenced_trainers_repeats_get_the_first_answer(trainer: Trainer) -> None:
    first = trainer.steps(first_step=0, count=4, key="k-0")
    _open(trainer, first_step=0)
    before = trainer.rows()
    for more in ({}, {"attempt": 1}):
        again = trainer.post(f"runs/{trainer.run}/steps", {"first_step": 0, "count": 4} | more)
        assert (again.status_code, again.content) == (200, first.content)
        assert (again.headers["idempotent-replayed"], again.headers["idempotent-replay-of"]) == ("true", "k-0")
    assert trainer.steps(first_step=4, count=6).json()["attempt"] == 1
    is_refused(trainer.steps(first_step=4, count=5), 412, "attempt_superseded")
    is_refused(trainer.steps(first_step=4, count=5, key="k-1"), 412, "attempt_superseded")
    assert trainer.rows() == before


def test_a_key_of_one_attempt_says_nothing_in_another(trainer: Trainer) -> None:
    """A trainer that names its keys after its steps must not be told that it may release again for nothing."""
    _open(trainer, first_step=0)
    before = trainer.rows()
    is_refused(trainer.steps(first_step=0, count=4, attempt=2, key="k-0"), 422, "idempotency_key_reused")
    is_refused(trainer.steps(count=4, attempt=2, key="k-0"), 422, "idempotency_key_reused")
    assert trainer.rows() == before
    assert trainer.steps(first_step=0, count=4, attempt=1, key="k-0").headers["idempotent-replayed"] == "true"


def test_a_refusal_of_one_attempt_is_not_one_of_another(trainer: Trainer) -> None:
    refused = trainer.steps(count=10**6, key="k-1")
    assert refused.status_code == 403
    _open(trainer)
    assert without_request_id(trainer.steps(count=10**6, key="k-1")) == without_request_id(refused)
    is_refused(trainer.steps(count=10**6, attempt=2, key="k-1"), 422, "idempotency_key_reused")


def test_gaps_and_conflicts_are_counted_within_an_attempt(trainer: Trainer) -> None:
    _open(trainer, first_step=4)
    assert is_refused(trainer.steps(first_step=5, attempt=2), 409, "sequence_gap")["expected_step"] == 4
    assert is_refused(trainer.steps(first_step=10, attempt=2), 409, "sequence_gap")["expected_step"] == 4
    assert is_refused(trainer.steps(first_step=0, count=4, attempt=2), 409, "sequence_conflict")["next_step"] == 4
    assert trainer.steps(first_step=4, count=3, attempt=2).json()["next_step"] == 7
    is_refused(trainer.steps(first_step=4, count=6, attempt=2), 409, "sequence_conflict")
    assert trainer.steps(first_step=4, count=3, attempt=2).headers["idempotent-replayed"] == "true"
    assert trainer.sound()


@pytest.mark.both_databases
def test_many_attempts_at_one_checkpoint(trainer: Trainer) -> None:
    for attempt in range(2, 6):
        assert _open(trainer, first_step=4) == attempt
        if attempt % 2:  # some of them take no step at all
            assert trainer.steps(first_step=4, count=2, attempt=attempt, event=QUIET).status_code == 200
            refused = trainer.steps(first_step=6, count=10**6, attempt=attempt)
            assert refused.json()["attempt"] == attempt
    assert trainer.path()[-1].spent == trainer.price((LOUD, 10), (QUIET, 4))
    assert trainer.sound()


def test_no_attempt_begins_where_nobody_was(trainer: Trainer) -> None:
    before = trainer.rows()
    answer = is_refused(trainer.post(f"runs/{trainer.run}/attempts", {"first_step": 11}), 422, "invalid_request")
    assert "10" in answer["detail"]
    _open(trainer, first_step=4)
    is_refused(trainer.post(f"runs/{trainer.run}/attempts", {"first_step": 5}), 422, "invalid_request")
    assert before != trainer.rows()
    answer = is_refused(
        trainer.post(f"runs/{trainer.run}/attempts", {"steps_executed": 0}), 409, "reservation_state_conflict"
    )
    assert trainer.read()["attempt"] == 2


@pytest.mark.both_databases
def test_opening_is_safe_to_repeat_with_a_key(trainer: Trainer) -> None:
    assert _open(trainer, "k-1", first_step=4) == 2
    before = trainer.rows()
    again = trainer.post(f"runs/{trainer.run}/attempts", {"first_step": 4}, "k-1")
    assert (again.status_code, again.json()["attempt"]) == (201, 2)
    assert again.headers["idempotent-replayed"] == "true"
    is_refused(trainer.post(f"runs/{trainer.run}/attempts", {"first_step": 3}, "k-1"), 422, "idempotency_key_reused")
    is_refused(trainer.steps(attempt=2, key="k-1"), 422, "idempotency_key_reused")
    assert trainer.rows() == before


@pytest.mark.parametrize(("action", "status"), [("complete", 409), ("abort", 409), ("pause", 201)])
def test_a_run_that_has_ended_has_no_further_attempt(trainer: Trainer, action: str, status: int) -> None:
    assert trainer.act(action).status_code == 200
    opened = trainer.post(f"runs/{trainer.run}/attempts", {})
    assert opened.status_code == status
    if status == 201:  # whoever goes on is not thereby resumed
        is_refused(trainer.steps(attempt=2), 409, "run_state_conflict")
    else:
        assert opened.json()["code"] == "run_state_conflict"


def test_an_attempt_ends_the_reservation(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 20))
    assert trainer.steps(count=5).json()["reservation"] == held
    assert _open(trainer, first_step=4, steps_executed=8) == 2
    assert trainer.ledger.get(f"/v1/reservations/{held}").json()["status"] == "committed"
    assert {spent for spent, _ in trainer.balance()} == {trainer.price((LOUD, 18))}
    lost = trainer.reserved((LOUD, 20), attempt=2)
    assert _open(trainer, first_step=4) == 3
    assert trainer.ledger.get(f"/v1/reservations/{lost}").json()["status"] == "forfeited"
    assert {spent for spent, _ in trainer.balance()} == {trainer.price((LOUD, 38))}
    assert all(nothing.is_zero for _, nothing in trainer.balance())
    assert trainer.sound()


def test_left_out_the_next_attempt_begins_after_what_was_attested(trainer: Trainer) -> None:
    trainer.reserved((LOUD, 20))
    trainer.steps(count=5)
    opened = trainer.post(f"runs/{trainer.run}/attempts", {"steps_executed": 8}).json()
    assert (opened["attempt"], opened["next_step"], opened["reservation"]) == (2, 18, None)
    assert trainer.sound()


def test_whom_it_is_not_allowed(trainer: Trainer) -> None:
    path = f"/v1/runs/{trainer.run}/attempts"
    is_refused(trainer.ledger.post(path, {}, "viewer"), 403, "insufficient_scope")
    elsewhere = trainer.ledger.http.post(path, json={}, headers=trainer.ledger.headers("admin", "clinic"))
    is_refused(elsewhere, 404, "not_found")
    assert trainer.read()["attempt"] == 1


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_a_trainer_that_was_superseded_ends_nothing(trainer: Trainer, action: str) -> None:
    assert trainer.act("attempts", {}).json()["attempt"] == 2
    before = trainer.rows()
    answer = is_refused(trainer.act(action, {"attempt": 1}), 412, "attempt_superseded")
    assert (answer["attempt"], answer["current_attempt"]) == (1, 2)
    assert not changed(before, trainer.rows())
    assert trainer.read()["status"] == "active"
    ended = trainer.act(action, {"attempt": 2}).json()
    assert ended["status"] == f"{action.removesuffix('e')}ed"
    assert trainer.act(action, {"attempt": 2}).json() == ended
    assert trainer.act(action).json() == ended  # an operator names none
