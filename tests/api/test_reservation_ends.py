"""Reservations at the end of runs, with deltas of their own, with and without plans; and who may touch them."""

from typing import Any

import pytest

from app.service.maintenance import expire_reservations
from tests.api.trainer import LOUD, QUIET, Trainer, counted, hired, is_refused, moved, within_limits
from tests.conftest import Ledger
from tests.persistence.dump import changed
from tests.service.tampering import set_account, tampering

OWN_DELTA = {"type": "epsilon_delta", "epsilon": 0.001, "delta": 1e-8}


FURNISHED = {"trainer": hired}


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_a_run_ends_with_its_trainers_word(trainer: Trainer, action: str) -> None:
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


def test_a_run_is_not_completed_without_a_word(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 10))
    trainer.steps(count=3)
    before = trainer.rows()
    for body in (None, {}, {"steps_executed": None}):
        answer = is_refused(trainer.act("complete", body), 409, "reservation_state_conflict")
        assert (answer["reservation"], answer["steps_authorized"]) == (held, 3)
    assert trainer.rows() == before


def test_an_aborted_run_forfeits_what_is_left(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 10))
    trainer.steps(count=3)
    assert trainer.act("abort").json()["status"] == "aborted"
    assert trainer.ledger.get(f"/v1/reservations/{held}").json()["status"] == "forfeited"
    assert trainer.balance() == [(trainer.price((LOUD, 10)), trainer.price())] * 3
    assert trainer.sound()


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_a_word_about_nothing_is_refused(trainer: Trainer, action: str) -> None:
    trainer.steps(count=3)
    before = trainer.rows()
    is_refused(trainer.act(action, {"steps_executed": 3}), 409, "reservation_state_conflict")
    assert trainer.rows() == before


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_a_word_that_comes_after_the_lease_does_not_count(
    trainer: Trainer, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = trainer.reserved((LOUD, 10), lease_seconds=60)
    moved(monkeypatch, seconds=60)
    assert trainer.act(action, {"steps_executed": 0}).status_code == 200
    assert trainer.ledger.get(f"/v1/reservations/{held}").json()["status"] == "forfeited"
    assert trainer.balance() == [(trainer.price((LOUD, 10)), trainer.price())] * 3


def test_a_paused_run_keeps_what_it_holds(trainer: Trainer) -> None:
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


@pytest.mark.parametrize("planned", [[], [{"event": QUIET}]], ids=["orders", "plan"])
def test_a_reservation_freezes_the_filters(ledger: Ledger, planned: list[dict[str, Any]]) -> None:
    """What is reserved, and not the first step, chooses the weights, unless a plan did."""
    ledger.population(planned=planned)
    ledger.budget(planned=planned)
    trainer = Trainer(ledger, ledger.run(event=None, limit={"epsilon": 0.5, "delta": 1e-6}, planned=planned))
    before = [account.weights for account in trainer.path()]
    held = trainer.reserved((LOUD, 5), (QUIET, 9))
    weights = [account.weights for account in trainer.path()]
    assert all(account.weights_frozen for account in trainer.path())
    assert trainer.read()["weights_frozen"]
    assert before == (weights if planned else [None] * 3)
    assert all((each is not None and each.plan is not None) == bool(planned) for each in weights)
    assert trainer.steps(event=QUIET, count=9).json()["reservation"] == held
    assert trainer.steps(event={"type": "laplace", "noise_multiplier": 500.0}).json()["reservation"] is None
    trainer.end(held, "commit", 12)
    assert [account.weights for account in trainer.path()] == weights
    assert trainer.steps(event=QUIET, count=10**6, on_exceed="truncate").json()["steps_remaining"] == 0
    assert within_limits(trainer.path())
    assert trainer.sound()


def test_a_voided_plan_leaves_the_filters_frozen(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 5))
    weights = [account.weights for account in trainer.path()]
    trainer.end(held, "void")
    trainer.steps(event=QUIET)
    assert [account.weights for account in trainer.path()] == weights
    assert trainer.sound()


@pytest.mark.parametrize("planned", [[], counted((OWN_DELTA, 20))], ids=["orders", "plan"])
def test_deltas_of_mechanisms_are_held_and_spent(
    ledger: Ledger, planned: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.population(planned=planned)
    ledger.budget(planned=planned)
    trainer = Trainer(ledger, ledger.run(event=OWN_DELTA))
    trainer.reserved((OWN_DELTA, 6), (LOUD, 2), lease_seconds=60)
    one = trainer.price((OWN_DELTA, 1)).delta
    assert [held.delta for _, held in trainer.balance()] == [6 * one] * 3
    trainer.steps(count=2)
    assert [(spent.delta, held.delta) for spent, held in trainer.balance()] == [(0, 6 * one)] * 2 + [(2 * one, 4 * one)]
    left = trainer.read()["steps_remaining"]
    assert trainer.steps(count=left + 5, on_exceed="truncate").json()["count"] in {left, 4}
    expire_reservations(ledger.database, moved(monkeypatch, seconds=61))
    assert all(held.is_zero for _, held in trainer.balance())
    charged = [item for point in trainer.history() for item in point["events"] if point["decision"] != "refused"]
    costs = trainer.costs(*((item["event"], item["count"]) for item in charged))
    assert [spent for spent, _ in trainer.balance()] == costs
    assert within_limits(trainer.path())
    refused = trainer.reserve((OWN_DELTA, 10**6))
    assert is_refused(refused, 403, "budget_exceeded")["delta_requested"] > 1e-6
    assert trainer.sound()


@pytest.mark.both_databases
def test_what_is_held_beyond_int64_is_given_back(ledger: Ledger) -> None:
    """Orders that are exhausted by what is held cannot be subtracted from: the rest is added up anew."""
    vast: dict[str, Any] = {"limit": {"epsilon": 9000.0, "delta": 1e-5}}
    loud = {"type": "gaussian", "noise_multiplier": 0.05}
    ledger.population(**vast)
    ledger.budget(**vast)
    trainers = [Trainer(ledger, ledger.run(name=name, event=loud)) for name in ("one", "two")]
    one, two = trainers
    held = [trainer.reserved((loud, 10), (LOUD, 3)) for trainer in trainers]
    assert one.path()[0].held.values.max() == 2**63 - 1
    assert one.steps(count=4).json()["reservation"] == held[0]
    assert one.path()[-1].held == one.price((loud, 6), (LOUD, 3))
    assert one.sound()
    assert one.end(held[0], "commit", 5).status_code == 200
    assert one.balance()[:2] == [(one.price((loud, 5)), one.price((loud, 10), (LOUD, 3)))] * 2
    assert two.end(held[1], "void").status_code == 200
    assert all(nothing.is_zero for _, nothing in one.balance() + two.balance())
    assert one.sound()


@pytest.mark.both_databases
def test_one_account_in_doubt_does_not_keep_others_from_being_forfeited(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = trainer.ledger
    ledger.budget("other")
    other = Trainer(ledger, ledger.run("mimic/other", event=LOUD))
    for each in (trainer, other):
        each.reserved((LOUD, 5), lease_seconds=60)
    with tampering(ledger.database) as tx:
        set_account(tx, "mimic/icu-team", quarantine_reason="its balance is wrong")
    assert expire_reservations(ledger.database, moved(monkeypatch, seconds=61)) == 1
    assert other.read()["reservation"] is None
    assert trainer.read()["reservation"] is not None
    with tampering(ledger.database) as tx:
        set_account(tx, "mimic/icu-team", quarantine_reason=None)
    assert expire_reservations(ledger.database, moved(monkeypatch, seconds=61)) == 1


def test_an_account_in_doubt_neither_holds_nor_gives_back(trainer: Trainer) -> None:
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


CHANGES: dict[str, dict[str, Any] | None] = {"commit": {"steps_executed": 0}, "void": None, "renew": None}


@pytest.mark.parametrize("role", ["viewer", "trainer", "admin"])
def test_what_a_role_may_do(trainer: Trainer, role: str) -> None:
    ledger, allowed = trainer.ledger, role != "viewer"
    before = trainer.rows()
    made = ledger.post(f"/v1/runs/{trainer.run}/reservations", {"plan": counted((LOUD, 5))}, role)
    if allowed:
        assert made.status_code == 201
    else:
        is_refused(made, 403, "insufficient_scope")
        assert trainer.rows() == before
    held = made.json()["id"] if allowed else trainer.reserved((LOUD, 5))
    assert ledger.get(f"/v1/reservations/{held}", role).status_code == 200
    for how in ("renew", "commit"):
        reply = ledger.post(f"/v1/reservations/{held}/{how}", CHANGES[how], role)
        assert reply.status_code == (200 if allowed else 403)
    held = trainer.reserved((LOUD, 5)) if allowed else held
    assert ledger.post(f"/v1/reservations/{held}/void", None, role).status_code == (200 if allowed else 403)


def test_another_organisations_reservation_does_not_exist(trainer: Trainer) -> None:
    ledger = trainer.ledger
    held = trainer.reserved((LOUD, 5))
    headers = ledger.headers("admin", "clinic")
    before = trainer.rows()
    for known in (held, "res_nothing"):
        answer = is_refused(ledger.http.get(f"/v1/reservations/{known}", headers=headers), 404, "not_found")
        assert answer["detail"] == f"There is no reservation '{known}' in your organisation."
        for how, body in CHANGES.items():
            reply = ledger.http.post(f"/v1/reservations/{known}/{how}", json=body, headers=headers)
            is_refused(reply, 404, "not_found")
    plan = {"plan": counted((LOUD, 5))}
    is_refused(ledger.http.post(f"/v1/runs/{trainer.run}/reservations", json=plan, headers=headers), 404, "not_found")
    assert changed(before, trainer.rows()) == set()


BAD: dict[str, dict[str, Any]] = {
    "no plan": {},
    "an empty plan": {"plan": []},
    "no time": {"plan": counted((LOUD, 1)), "lease_seconds": 0},
    "a lease of more than a week": {"plan": counted((LOUD, 1)), "lease_seconds": 7 * 24 * 3600 + 1},
    "half a second": {"plan": counted((LOUD, 1)), "lease_seconds": 0.5},
    "no count": {"plan": counted((LOUD, 0))},
    "too many repetitions": {"plan": counted((LOUD, 10**9), (LOUD, 1))},
    "no attempt": {"plan": counted((LOUD, 1)), "attempt": 0},
    "something else": {"plan": counted((LOUD, 1)), "hold": True},
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_plan_is_refused(trainer: Trainer, what: str) -> None:
    before = trainer.rows()
    is_refused(trainer.post(f"runs/{trainer.run}/reservations", BAD[what]), 422, "invalid_request")
    assert changed(before, trainer.rows()) == set()
