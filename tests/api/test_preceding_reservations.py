"""A plan that follows on another: the one before ends by the trainer's word, both at once or nothing."""

from typing import Any

import pytest

from tests.api.trainer import LOUD, QUIET, Trainer, hired, is_refused, moved, within_limits
from tests.persistence.dump import changed

FURNISHED = {"trainer": hired}


def after(reservation: str, executed: int) -> dict[str, Any]:
    return {"reservation": reservation, "steps_executed": executed}


def status(trainer: Trainer, reservation: str) -> tuple[str, int | None]:
    answer = trainer.ledger.get(f"/v1/reservations/{reservation}").json()
    return answer["status"], answer["steps_executed"]


REGISTERED = {
    *("run_budgets", "accounts", "account_ancestors", "account_metadata", "runs"),
    *("attempts", "audit_entries", "balances"),
}
"""What another run has changed."""


@pytest.mark.both_databases
def test_one_request_ends_a_plan_and_sets_the_next_one_aside(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    made = trainer.reserve((LOUD, 3), (QUIET, 7), preceding=after(first, 8)).json()
    assert (made["status"], made["steps_planned"], made["next_step"]) == ("active", 10, 8)
    assert status(trainer, first) == ("committed", 8)
    assert trainer.balance() == [(trainer.price((LOUD, 8)), trainer.price((LOUD, 3), (QUIET, 7)))] * 3
    assert [(point["count"], point["next_step"]) for point in trainer.history()] == [(8, 8)]
    assert trainer.sound()
    third = trainer.reserved((LOUD, 1), preceding=after(made["id"], 0))
    assert trainer.act("complete", {"steps_executed": 1}).json()["next_step"] == 9
    assert (status(trainer, made["id"]), status(trainer, third)) == (("committed", 0), ("committed", 1))
    assert trainer.balance()[0] == (trainer.price((LOUD, 9)), trainer.price((LOUD, 0)))
    assert trainer.sound()


def test_what_is_told_is_the_epsilon_now_and_that_of_the_executed_plan(trainer: Trainer) -> None:
    made = trainer.reserve((LOUD, 5)).json()
    assert (made["epsilon"], made["epsilon_limit"], made["delta"]) == (0.0, 1.0, 1e-5)
    following = trainer.reserve((LOUD, 5), preceding=after(made["id"], 5)).json()
    assert following["epsilon"] == made["epsilon_planned"] == trainer.read()["epsilon"] > 0
    assert following["steps_remaining"] == trainer.read()["steps_remaining"]
    assert following["binding_account_path"] == "mimic/icu-team"
    trainer.act("complete", {"steps_executed": 5})
    assert trainer.read()["epsilon"] == following["epsilon_planned"]
    assert set(trainer.ledger.get(f"/v1/reservations/{made['id']}").json()) < set(made)


def test_a_refused_plan_leaves_the_one_before_as_it_is(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    before, balance = trainer.rows(), trainer.balance()
    refused = trainer.reserve((LOUD, 10**6), preceding=after(first, 4), key="k-1")
    answer = is_refused(refused, 403, "budget_exceeded")
    assert changed(before, trainer.rows()) == {"idempotent_responses", "audit_entries"}
    assert trainer.balance() == balance
    assert status(trainer, first) == ("active", None)
    # What fits was counted with the plan before ended.
    fitting = answer["max_count_that_fits"]
    is_refused(trainer.reserve((LOUD, fitting + 1), preceding=after(first, 4)), 403, "budget_exceeded")
    assert trainer.reserve((LOUD, fitting), preceding=after(first, 4)).status_code == 201
    assert within_limits(trainer.path())
    assert trainer.reserve((LOUD, 10**6), preceding=after(first, 4), key="k-1").content == refused.content
    assert trainer.sound()


def test_the_same_key_takes_effect_once(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    made = trainer.reserve((LOUD, 10), preceding=after(first, 10), key="k-1")
    again = trainer.reserve((LOUD, 10), preceding=after(first, 10), key="k-1")
    assert (again.content, again.headers["idempotent-replayed"]) == (made.content, "true")
    is_refused(trainer.reserve((LOUD, 10), preceding=after(first, 9), key="k-1"), 422, "idempotency_key_reused")
    is_refused(trainer.reserve((LOUD, 10), key="k-1"), 422, "idempotency_key_reused")
    assert trainer.balance()[0] == (trainer.price((LOUD, 10)), trainer.price((LOUD, 10)))


def test_the_word_on_the_plan_before_is_checked(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    trainer.steps(count=4)
    before = trainer.rows()
    is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 3)), 422, "invalid_request")
    is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 11)), 422, "invalid_request")
    is_refused(trainer.reserve((LOUD, 1), preceding=after("res_none", 1)), 409, "reservation_state_conflict")
    other = Trainer(trainer.ledger, trainer.ledger.run(name="other", event=LOUD))
    is_refused(other.reserve((LOUD, 1), preceding=after(first, 4)), 404, "not_found")
    answer = is_refused(trainer.reserve((LOUD, 1)), 409, "reservation_state_conflict")
    assert answer["reservation"] == first
    assert not changed(before, trainer.rows()) - REGISTERED
    second = trainer.reserved((LOUD, 1), preceding=after(first, 4))
    answer = is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 4)), 409, "reservation_state_conflict")
    assert answer["reservation"] == second
    assert trainer.end(second, "void").status_code == 200
    is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 5)), 409, "reservation_closed")


def test_a_plan_may_follow_on_one_that_has_ended_with_the_same_word(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    trainer.end(first, "commit", 6)
    assert trainer.reserve((LOUD, 2), preceding=after(first, 6)).json()["next_step"] == 6


def test_a_plan_cannot_follow_on_one_whose_lease_ran_out(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trainer.reserved((LOUD, 10), lease_seconds=60)
    moved(monkeypatch, seconds=60)
    answer = is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 5)), 409, "reservation_closed")
    assert answer["reservation_status"] == "forfeited"
    assert trainer.reserve((LOUD, 1)).status_code == 201
    assert trainer.balance()[0] == (trainer.price((LOUD, 10)), trainer.price((LOUD, 1)))
    assert trainer.sound()


def test_another_attempt_ends_the_chain_of_plans(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    assert trainer.act("attempts", {"first_step": 0}).json()["attempt"] == 2
    answer = is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 10)), 412, "attempt_superseded")
    assert answer["current_attempt"] == 2
    is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 10), attempt=2), 409, "reservation_closed")
    assert trainer.reserve((LOUD, 1), attempt=2).json()["next_step"] == 0
