"""Reservations: what is set aside is exact, is used step by step, and ends for ever in one of three ways."""

from typing import Any

import pytest

from app.service.maintenance import expire_reservations
from app.service.verification import verify
from tests.api.test_refusals import more_noise
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, counted, hired, is_refused, moved
from tests.conftest import Ledger
from tests.persistence.dump import changed

Items = tuple[tuple[dict[str, Any], int], ...]

PLAN: Items = ((LOUD, 5), (QUIET, 3), (LOUD, 2))
MEMBERS = {
    *("type", "title", "status", "detail", "code", "request_id", "decision", "count", "binding_account"),
    *("binding_account_path", "epsilon", "epsilon_requested", "epsilon_limit", "delta", "rdp"),
    *("delta_requested", "delta_left"),
    *("max_count_that_fits", "url"),
    *("steps_needed", "exhausted", "alternatives", "unavailable_alternatives"),
}


def _hired(ledger: Ledger) -> Trainer:
    """A trainer whose run has a limit of its own and took two steps."""
    trainer = hired(ledger, limit={"epsilon": 0.9, "delta": 1e-5})
    assert trainer.steps(count=2).status_code == 200
    return trainer


FURNISHED = {"trainer": _hired}


def _after(trainer: Trainer, spent: Items, held: Items) -> None:
    """Every account of the path has spent and holds the same, and the run's plan was used as much."""
    assert trainer.balance() == list(zip(trainer.costs(*spent), trainer.costs(*held), strict=True))
    assert trainer.sound()


@pytest.mark.both_databases
def test_reserved_curve_is_that_of_the_plan_on_every_account(trainer: Trainer) -> None:
    before = trainer.rows()
    made = trainer.reserve(*PLAN, lease_seconds=60).json()
    after = trainer.rows()
    tables = {"accounts", "balances", "runs", "reservations", "reservation_items", "dp_events", "event_costs"}
    assert changed(before, after) == tables
    assert made["plan"] == [
        {"event": LOUD, "count": 7, "authorized": 0, "revoked": 0},
        {"event": QUIET, "count": 3, "authorized": 0, "revoked": 0},
    ]
    assert (made["status"], made["steps_planned"]) == ("active", 10)
    assert (made["steps_authorized"], made["steps_executed"]) == (0, None)
    assert trainer.ledger.get(f"/v1/reservations/{made['id']}").json().items() <= made.items()
    assert trainer.read()["reservation"] == made["id"]
    _after(trainer, ((LOUD, 2),), PLAN)


def test_steps_of_a_plan_touch_the_rows_of_their_run_only(trainer: Trainer) -> None:
    held = trainer.reserved(*PLAN)
    before, above = trainer.rows(), trainer.balance()[:-1]
    answer = [trainer.steps(event=QUIET).json(), trainer.steps(events=counted((LOUD, 4), (QUIET, 2), (LOUD, 1))).json()]
    after = trainer.rows()
    assert [each["reservation"] for each in answer] == [held, held]
    assert [each["steps_remaining"] for each in answer] == [2, 2]
    assert answer[-1]["binding_account"] == trainer.run
    assert changed(before, after) == {"accounts", "runs", "decisions", "decision_events", "reservation_items"}
    moved_rows = {row[1] for row in set(before["accounts"]) ^ set(after["accounts"])}
    assert moved_rows == {trainer.run}
    assert trainer.balance()[:-1] == above
    own_spent, own_held = trainer.balance()[-1]
    assert (own_spent, own_held) == (trainer.price((LOUD, 7), (QUIET, 3)), trainer.price((LOUD, 2)))
    assert [row[-1] for row in after["reservation_items"]] == [5, 3]
    assert trainer.sound()


@pytest.mark.parametrize(
    "body",
    [
        {"event": QUIET, "count": 4},
        {"event": LOUD, "count": 8},
        {"event": {"type": "gaussian", "noise_multiplier": 80.0}},
        {"events": counted((LOUD, 1), ({"type": "laplace", "noise_multiplier": 200.0}, 1))},
        {"events": counted((LOUD, 4), (QUIET, 1), (LOUD, 4))},
    ],
)
def test_steps_outside_the_plan_are_charged_to_the_accounts(trainer: Trainer, body: dict[str, Any]) -> None:
    trainer.reserved(*PLAN)
    answer = trainer.steps(**body).json()
    assert (answer["decision"], answer["reservation"]) == ("admitted", None)
    charged = [(item["event"], item["count"]) for item in trainer.history()[-1]["events"]]
    _after(trainer, ((LOUD, 2), *charged), PLAN)
    assert trainer.steps(count=7).json()["reservation"] is not None


def test_plan_that_does_not_fit_is_refused_at_once_with_every_number(trainer: Trainer) -> None:
    before = trainer.rows()
    refused = trainer.reserve((LOUD, 10**6), key="k-1")
    answer = is_refused(refused, 403, "budget_exceeded")
    assert set(answer) >= MEMBERS
    assert (answer["decision"], answer["count"], answer["rdp"]["held"]) == ("refused", 10**6, 0)
    rdp = answer["rdp"]
    assert rdp["spent"] + rdp["held"] + rdp["requested"] > rdp["limit"]
    noise = more_noise(answer)
    assert noise is not None
    assert noise > 60
    assert changed(before, trainer.rows()) == {"idempotent_responses", "audit_entries"}
    fitting = answer["max_count_that_fits"]
    is_refused(trainer.reserve((LOUD, fitting + 1)), 403, "budget_exceeded")
    held = trainer.reserved((LOUD, fitting))
    again = trainer.reserve((LOUD, 10**6), key="k-1")
    assert (again.status_code, again.content, again.headers["idempotent-replayed"]) == (403, refused.content, "true")
    assert again.headers["content-type"] == "application/problem+json"
    assert trainer.end(held, "void").status_code == 200
    assert trainer.reserve((LOUD, 10**6), key="k-1").content == refused.content
    is_refused(trainer.reserve((LOUD, 1), key="k-1"), 422, "idempotency_key_reused")
    is_refused(trainer.steps(key="k-1"), 422, "idempotency_key_reused")


def test_reservation_is_made_once_for_its_key(trainer: Trainer) -> None:
    first = trainer.reserve(*PLAN, key="k-1")
    before = trainer.rows()
    again = trainer.reserve(*PLAN, key="k-1")
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    is_refused(trainer.reserve(*PLAN, lease_seconds=5, key="k-1"), 422, "idempotency_key_reused")
    answer = is_refused(trainer.reserve(*PLAN), 409, "reservation_state_conflict")
    assert answer["reservation"] == first.json()["id"]
    assert trainer.rows() == before


def test_plan_at_registration_is_held_with_the_run(trainer: Trainer) -> None:
    ledger = trainer.ledger
    other = Trainer(ledger, ledger.run(name="other", plan=counted(*PLAN), event=LOUD, lease_seconds=60))
    held = other.read()["reservation"]
    assert ledger.get(f"/v1/reservations/{held}").json()["steps_planned"] == 10
    assert other.path()[-1].held == other.path()[0].held == other.price(*PLAN)
    assert other.steps().json()["reservation"] == held
    assert other.sound()


def test_plan_that_does_not_fit_leaves_no_run(trainer: Trainer) -> None:
    ledger = trainer.ledger
    body = {"name": "other", "budget": "mimic/icu-team", "plan": counted((LOUD, 10**6)), "event": LOUD}
    before = trainer.rows()
    refused = trainer.post("runs", body, "k-1")
    answer = is_refused(refused, 403, "budget_exceeded")
    assert set(answer) >= MEMBERS - {"url"}
    assert changed(before, trainer.rows()) == {"idempotent_responses", "audit_entries"}
    assert [item["id"] for item in ledger.get("/v1/runs").json()["items"]] == [trainer.run]
    assert trainer.post("runs", body, "k-1").content == refused.content
    fitting = counted((LOUD, answer["max_count_that_fits"]))
    is_refused(trainer.post("runs", body | {"plan": fitting}, "k-1"), 422, "idempotency_key_reused")
    assert trainer.post("runs", body | {"plan": fitting}, "k-2").status_code == 201
    assert trainer.sound()


@pytest.mark.parametrize("executed", [3, 4, 6, 9, 10])
def test_commit_spends_what_was_executed_and_returns_the_rest(trainer: Trainer, executed: int) -> None:
    """Three steps were authorised: the quiet ones. Further ones are taken in the order of the plan, loud ones first."""
    held = trainer.reserved(*PLAN)
    trainer.steps(event=QUIET, count=3)
    answer = trainer.end(held, "commit", executed).json()
    assert (answer["status"], answer["steps_executed"], answer["steps_authorized"]) == ("committed", executed, executed)
    assert trainer.read()["next_step"] == 2 + executed
    assert trainer.read()["reservation"] is None
    _after(trainer, ((LOUD, 2 + executed - 3), (QUIET, 3)), ())
    before = trainer.rows()
    assert trainer.end(held, "commit", executed).json() == answer
    assert trainer.rows() == before


def test_renewal_begins_the_lease_anew(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer.reserve(*PLAN, lease_seconds=600).json()
    now = moved(monkeypatch, seconds=500)
    answer = trainer.end(made["id"], "renew").json()
    assert (answer | {"expires_at": made["expires_at"]}).items() <= made.items()
    assert answer["expires_at"] > made["expires_at"]
    assert expire_reservations(trainer.ledger.database, now) == 0
    now = moved(monkeypatch, seconds=1000)
    assert trainer.steps().json()["reservation"] == made["id"]
    moved(monkeypatch, seconds=-1000)
    assert trainer.end(made["id"], "renew").json()["expires_at"] == answer["expires_at"]  # shortens none
    assert expire_reservations(trainer.ledger.database, now) == 0


@pytest.mark.both_databases
def test_lapsed_lease_forfeits_and_the_budget_stays_spent(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    held = trainer.reserved(*PLAN, lease_seconds=600)
    trainer.steps(count=3)
    assert expire_reservations(trainer.ledger.database, moved(monkeypatch, seconds=590)) == 0
    now = moved(monkeypatch, seconds=601)
    assert expire_reservations(trainer.ledger.database, now) == 1
    assert expire_reservations(trainer.ledger.database, now) == 0
    assert trainer.ledger.get(f"/v1/reservations/{held}").json()["status"] == "forfeited"
    _after(trainer, ((LOUD, 2), *PLAN), ())
    last = trainer.history()[-1]
    assert (last["decision"], last["reservation"]) == ("forfeited", held)
    assert last["events"] == counted((LOUD, 4), (QUIET, 3))
    assert trainer.read()["next_step"] == 5
    assert trainer.steps(first_step=5).json()["reservation"] is None
    _after(trainer, ((LOUD, 3), *PLAN), ())


@pytest.mark.parametrize("how", ["commit", "void", "renew"])
def test_settlement_after_the_lease_forfeits(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    held = trainer.reserved(*PLAN, lease_seconds=600)
    moved(monkeypatch, seconds=600)
    late = trainer.steps(first_step=2).json()
    assert (late["decision"], late["reservation"]) == ("admitted", None)
    assert trainer.path()[-1].held == trainer.price(*PLAN)
    executed = 0 if how == "commit" else None
    for _ in range(2):
        answer = is_refused(trainer.end(held, how, executed), 409, "reservation_closed")
        assert answer["reservation_status"] == "forfeited"
    expire_reservations(trainer.ledger.database, moved(monkeypatch, seconds=601))
    _after(trainer, ((LOUD, 3), *PLAN), ())


def test_plan_that_is_refused_is_an_audit_event(trainer: Trainer) -> None:
    """Whether it was asked for by a run, or with one: then there is no run, whose chain could keep it."""
    answer = is_refused(trainer.reserve((HUGE, 3)), 403, "budget_exceeded")
    body = {"name": "never", "budget": "mimic/icu-team", "plan": [{"event": HUGE, "count": 2}]}
    is_refused(trainer.ledger.post("/v1/runs", body), 403, "budget_exceeded")
    audit_events = trainer.ledger.get("/v1/audit-events?order=oldest&limit=200", "auditor").json()["items"]
    plan, run = (act for act in audit_events if act["action"].endswith(".refused"))
    assert (plan["action"], plan["subject"], plan["after"]["count"]) == ("reservation.refused", trainer.run, 3)
    assert plan["after"]["binding_account"] == answer["binding_account"]
    [budget] = trainer.ledger.get("/v1/budgets").json()["items"]
    assert (run["action"], run["subject"], run["after"]["count"]) == ("run.refused", budget["id"], 2)
    assert verify(trainer.ledger.database).problems == ()
