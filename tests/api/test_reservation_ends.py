"""Reservations at the end of runs, under quarantine, and followed by another plan."""

from typing import Any

import pytest

from tests.api.trainer import LOUD, QUIET, Trainer, counted, hired, is_refused, moved, within_limits
from tests.persistence.dump import changed
from tests.service.tampering import set_account, tampering

FURNISHED = {"trainer": hired}


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_run_ends_with_the_attested_steps(trainer: Trainer, action: str) -> None:
    held = trainer.reserved((LOUD, 10))
    trainer.steps(count=3)
    before = trainer.rows()
    for executed in (2, 11):
        is_refused(trainer.act(action, {"steps_executed": executed}), 422, "invalid_request")
    assert trainer.rows() == before
    ended = trainer.act(action, {"steps_executed": 7})
    assert (ended.json()["reservation"], ended.json()["next_step"]) == (None, 7)
    assert trainer.ledger.get(f"/v1/reservations/{held}").json()["status"] == "committed"
    assert trainer.balance() == [(trainer.price((LOUD, 7)), trainer.price())] * 3
    after = trainer.rows()
    assert trainer.act(action, {"steps_executed": 7}).json() == trainer.act(action).json() == ended.json()
    answer = is_refused(trainer.act(action, {"steps_executed": 8}), 409, "reservation_state_conflict")
    assert answer["steps_executed"] == 7
    assert trainer.rows() == after
    assert trainer.sound()


def test_paused_run_keeps_its_reservation(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 10))
    trainer.act("pause")
    is_refused(trainer.steps(), 409, "run_state_conflict")
    is_refused(trainer.reserve((LOUD, 1)), 409, "run_state_conflict")
    assert trainer.end(held, "renew").status_code == 200
    trainer.act("resume")
    assert trainer.steps().json()["reservation"] == held
    trainer.act("pause")
    assert trainer.end(held, "commit", 5).json()["status"] == "committed"
    assert trainer.sound()


def test_quarantined_account_neither_reserves_nor_gives_back(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 5))
    other = Trainer(trainer.ledger, trainer.ledger.run(name="other", event=LOUD))
    with tampering(trainer.ledger.database) as tx:
        set_account(tx, "mimic", quarantine_reason="its balance is wrong")
    before = trainer.rows()
    for asked in (
        *(trainer.end(held, "commit", 5), trainer.end(held, "void")),
        *(trainer.act("complete", {"steps_executed": 5}), trainer.act("abort"), trainer.act("attempts", {})),
        *(other.reserve((LOUD, 1)), other.steps(), other.steps(mode="report")),
        trainer.post("runs", {"name": "third", "budget": "mimic/icu-team", "plan": counted((LOUD, 1))}),
    ):
        assert is_refused(asked, 409, "account_quarantined")["account"] == trainer.path()[0].id
    assert trainer.rows() == before


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


def test_refused_plan_leaves_the_one_before_as_it_is(trainer: Trainer) -> None:
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


def test_attested_steps_of_the_preceding_plan_are_checked(trainer: Trainer) -> None:
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


def test_plan_cannot_follow_on_one_whose_lease_ran_out(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
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
