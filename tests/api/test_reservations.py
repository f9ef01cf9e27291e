"""Reservations over HTTP: what is set aside is exact, is used step by step, and ends for ever in one of three ways.

Sequences of all of it are compared with a model in `tests/service/test_reservation_machine.py`.
"""

from typing import Any

import pytest

from app.service.maintenance import expire_reservations
from tests.api.test_refusals import REFUSED, more_noise
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, audited, counted, hired, is_refused, moved, within_limits
from tests.conftest import Ledger
from tests.persistence.dump import changed
from tests.service.tampering import set_account, tampering

Items = tuple[tuple[dict[str, Any], int], ...]
PLAN: Items = ((LOUD, 5), (QUIET, 3), (LOUD, 2))


def _hired(ledger: Ledger) -> Trainer:
    """A trainer whose run has a limit of its own and took two steps."""
    trainer = hired(ledger, limit={"epsilon": 0.9, "delta": 1e-5})
    assert trainer.steps(count=2).status_code == 200
    return trainer


FURNISHED = {"trainer": _hired}


def _after(trainer: Trainer, spent: Items, held: Items) -> None:
    """Every account of the path has spent and holds the same, and the run's reservation was used as much."""
    assert trainer.balance() == list(zip(trainer.costs(*spent), trainer.costs(*held), strict=True))
    assert trainer.sound()


def after(reservation: str, executed: int) -> dict[str, Any]:
    return {"reservation": reservation, "steps_executed": executed}


def _status(trainer: Trainer, reservation: str) -> tuple[str, int | None]:
    answer = trainer.ledger.get(f"/v1/reservations/{reservation}").json()
    return answer["status"], answer["steps_executed"]


def _other(trainer: Trainer, **terms: Any) -> Trainer:  # noqa: ANN401 - JSON is anything
    return Trainer(trainer.ledger, trainer.ledger.run(**({"name": "other", "event": LOUD} | terms)))


def test_reserved_curve_is_that_of_the_reservation_on_every_account(trainer: Trainer) -> None:
    before = trainer.rows()
    made = trainer.reserve(*PLAN, lease_seconds=60, key="k-1")
    after, answer = trainer.rows(), made.json()
    tables = {"accounts", "balances", "runs", "reservations", "reservation_items", "dp_events", "event_costs"}
    assert changed(before, after) == tables | {"idempotent_responses"}
    left = {"authorized": 0, "revoked": 0}
    assert answer["events"] == [{"event": LOUD, "count": 7} | left, {"event": QUIET, "count": 3} | left]
    assert (answer["status"], answer["steps_reserved"]) == ("active", 10)
    assert (answer["steps_authorized"], answer["steps_executed"]) == (0, None)
    assert trainer.ledger.get(f"/v1/reservations/{answer['id']}").json().items() <= answer.items()
    assert trainer.read()["reservation"] == answer["id"]
    _after(trainer, ((LOUD, 2),), PLAN)
    again = trainer.reserve(*PLAN, lease_seconds=60, key="k-1")
    assert (again.status_code, again.content, again.headers["idempotent-replayed"]) == (201, made.content, "true")
    is_refused(trainer.reserve(*PLAN, lease_seconds=5, key="k-1"), 422, "idempotency_key_reused")
    assert is_refused(trainer.reserve(*PLAN), 409, "reservation_state_conflict")["reservation"] == answer["id"]
    assert trainer.rows() == after


def test_steps_of_a_reservation_touch_the_rows_of_their_run_only(trainer: Trainer) -> None:
    held = trainer.reserved(*PLAN)
    before, above = trainer.rows(), trainer.balance()[:-1]
    answer = [trainer.steps(event=QUIET).json(), trainer.steps(events=counted((LOUD, 4), (QUIET, 2), (LOUD, 1))).json()]
    after = trainer.rows()
    assert [(each["reservation"], each["steps_remaining"]) for each in answer] == [(held, 2), (held, 2)]
    assert answer[-1]["binding_account"] == trainer.run
    assert changed(before, after) == {"accounts", "runs", "decisions", "decision_events", "reservation_items"}
    assert {row[1] for row in set(before["accounts"]) ^ set(after["accounts"])} == {trainer.run}
    assert trainer.balance()[:-1] == above
    assert trainer.balance()[-1] == (trainer.price((LOUD, 7), (QUIET, 3)), trainer.price((LOUD, 2)))
    assert [row[-1] for row in after["reservation_items"]] == [5, 3]
    assert trainer.sound()


OUTSIDE: list[dict[str, Any]] = [
    {"event": QUIET, "count": 4},
    {"event": LOUD, "count": 8},
    {"events": counted((LOUD, 1), ({"type": "laplace", "noise_multiplier": 200.0}, 1))},
    {"events": counted((LOUD, 4), (QUIET, 1), (LOUD, 4))},
]


def test_steps_outside_the_reservation_are_charged_to_the_accounts(trainer: Trainer) -> None:
    trainer.reserved(*PLAN)
    charged: list[tuple[dict[str, Any], int]] = [(LOUD, 2)]
    for body in OUTSIDE:
        answer = trainer.steps(**body).json()
        assert (answer["decision"], answer["reservation"]) == ("admitted", None)
        charged += [(item["event"], item["count"]) for item in trainer.history()[-1]["events"]]
        assert trainer.balance() == list(zip(trainer.costs(*charged), trainer.costs(*PLAN), strict=True))
    assert trainer.steps(count=7).json()["reservation"] is not None
    assert trainer.sound()


@pytest.mark.parametrize("with_run", [False, True])
def test_reservation_that_does_not_fit_is_refused_at_once_with_every_number(
    trainer: Trainer, *, with_run: bool
) -> None:
    """Whether it was asked for by a run, or with one: then there is no run afterwards."""

    def ask(count: int, key: str | None = None, event: dict[str, Any] = LOUD) -> Any:  # noqa: ANN401 - a reply
        body = {"name": "other", "budget": "mimic/icu-team", "reserve": counted((event, count)), "event": LOUD}
        return trainer.post("runs", body, key) if with_run else trainer.reserve((event, count), key=key)

    before = trainer.rows()
    refused = ask(10**6, "k-1")
    answer = is_refused(refused, 403, "budget_exceeded")
    of_steps = {"run", "first_step", "dry_run", "url", "attempt", "plan", "limit_change", "epsilon", "delta"}
    assert set(answer) >= REFUSED - of_steps
    binding = trainer.ledger.get(f"/v1/accounts/{answer['binding_account']}/limit").json()
    assert answer["limit"] == binding["limit"]
    assert (answer["decision"], answer["count"]) == ("refused", 10**6)
    assert answer["used"] == answer["used_including_reserved"] < 1 < answer["used_requested"]
    assert with_run or (more_noise(answer) or 0) > 60
    assert changed(before, trainer.rows()) == {"idempotent_responses", "audit_entries"}
    [event] = audited(trainer.ledger, f"action={'run' if with_run else 'reservation'}.refused")
    assert (event["after"]["count"], event["after"]["binding_account"]) == (10**6, answer["binding_account"])
    assert [item["id"] for item in trainer.ledger.get("/v1/runs").json()["items"]] == [trainer.run]
    fitting = answer["max_steps_that_fit"]
    for unfit in (ask(fitting + 1), ask(1, event=HUGE)):
        is_refused(unfit, 403, "budget_exceeded")
    is_refused(ask(fitting, "k-1"), 422, "idempotency_key_reused")
    made = ask(fitting).json()
    held = Trainer(trainer.ledger, made["id"]) if with_run else trainer
    assert [account.held for account in held.path()] == held.costs((LOUD, fitting))
    assert held.steps().json()["reservation"] == held.read()["reservation"] is not None
    again = ask(10**6, "k-1")
    assert (again.status_code, again.content, again.headers["idempotent-replayed"]) == (403, refused.content, "true")
    assert again.headers["content-type"] == "application/problem+json"
    assert trainer.sound()


@pytest.mark.parametrize("executed", [3, 6, 10])
def test_commit_spends_what_was_executed_and_returns_the_rest(trainer: Trainer, executed: int) -> None:
    """Three steps were authorised: the quiet ones. Further ones are taken in order, loud ones first."""
    held = trainer.reserved(*PLAN)
    trainer.steps(event=QUIET, count=3)
    for wrong in (2, 11):
        is_refused(trainer.act("complete", {"steps_executed": wrong}), 422, "invalid_request")
    answer = trainer.end(held, "commit", executed).json()
    assert (answer["status"], answer["steps_executed"], answer["steps_authorized"]) == ("committed", executed, executed)
    assert (trainer.read()["next_step"], trainer.read()["reservation"]) == (2 + executed, None)
    _after(trainer, ((LOUD, 2 + executed - 3), (QUIET, 3)), ())
    before = trainer.rows()
    assert trainer.end(held, "commit", executed).json() == answer
    assert trainer.rows() == before


def test_renewal_begins_the_lease_anew_and_shortens_none(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer.reserve(*PLAN, lease_seconds=600).json()
    moved(monkeypatch, seconds=500)
    answer = trainer.end(made["id"], "renew").json()
    assert (answer | {"expires_at": made["expires_at"]}).items() <= made.items()
    assert answer["expires_at"] > made["expires_at"]
    now = moved(monkeypatch, seconds=1000)
    assert trainer.steps().json()["reservation"] == made["id"]
    moved(monkeypatch, seconds=-1000)
    assert trainer.end(made["id"], "renew").json()["expires_at"] == answer["expires_at"]
    assert expire_reservations(trainer.ledger.database, now) == 0


def test_lapsed_lease_forfeits_and_the_budget_stays_spent(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    held = trainer.reserved(*PLAN, lease_seconds=600)
    trainer.steps(count=3)
    assert expire_reservations(trainer.ledger.database, moved(monkeypatch, seconds=590)) == 0
    now = moved(monkeypatch, seconds=601)
    assert [expire_reservations(trainer.ledger.database, now) for _ in range(2)] == [1, 0]
    assert _status(trainer, held)[0] == "forfeited"
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
    for _ in range(2):
        answer = is_refused(trainer.end(held, how, 0 if how == "commit" else None), 409, "reservation_closed")
        assert answer["reservation_status"] == "forfeited"
    expire_reservations(trainer.ledger.database, moved(monkeypatch, seconds=601))
    _after(trainer, ((LOUD, 3), *PLAN), ())


@pytest.mark.parametrize("action", ["complete", "abort"])
def test_run_ends_with_the_attested_steps(trainer: Trainer, action: str) -> None:
    held = trainer.reserved((LOUD, 10))
    trainer.steps(count=3)
    before = trainer.rows()
    for executed in (2, 11):
        is_refused(trainer.act(action, {"steps_executed": executed}), 422, "invalid_request")
    assert trainer.rows() == before
    ended = trainer.act(action, {"steps_executed": 7})
    assert (ended.json()["reservation"], ended.json()["next_step"]) == (None, 9)
    assert _status(trainer, held) == ("committed", 7)
    _after(trainer, ((LOUD, 9),), ())
    after = trainer.rows()
    assert trainer.act(action, {"steps_executed": 7}).json() == trainer.act(action).json() == ended.json()
    answer = is_refused(trainer.act(action, {"steps_executed": 8}), 409, "reservation_state_conflict")
    assert answer["steps_executed"] == 7
    assert trainer.rows() == after


def test_paused_run_keeps_its_reservation(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, 10))
    trainer.act("pause")
    for refused in (trainer.steps(), trainer.reserve((LOUD, 1))):
        is_refused(refused, 409, "run_state_conflict")
    assert trainer.end(held, "renew").status_code == 200
    trainer.act("resume")
    assert trainer.steps().json()["reservation"] == held
    trainer.act("pause")
    assert trainer.end(held, "commit", 5).json()["status"] == "committed"
    assert trainer.sound()


def test_quarantined_account_neither_reserves_nor_gives_back(trainer: Trainer) -> None:
    held, other = trainer.reserved((LOUD, 5)), _other(trainer)
    with tampering(trainer.ledger.database) as tx:
        set_account(tx, "mimic", quarantine_reason="its balance is wrong")
    before = trainer.rows()
    third = {"name": "third", "budget": "mimic/icu-team", "reserve": counted((LOUD, 1))}
    for asked in (
        *(trainer.end(held, "commit", 5), trainer.end(held, "void"), trainer.act("complete", {"steps_executed": 5})),
        *(trainer.act("abort"), trainer.act("attempts", {}), other.reserve((LOUD, 1)), other.steps()),
        *(other.steps(mode="report"), trainer.post("runs", third)),
    ):
        assert is_refused(asked, 409, "account_quarantined")["account"] == trainer.path()[0].id
    assert trainer.rows() == before


def test_one_request_ends_a_reservation_and_sets_the_next_one_aside(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    made = trainer.reserve((LOUD, 3), (QUIET, 7), preceding=after(first, 8)).json()
    assert (made["status"], made["steps_reserved"], made["next_step"]) == ("active", 10, 10)
    assert _status(trainer, first) == ("committed", 8)
    _after(trainer, ((LOUD, 10),), ((LOUD, 3), (QUIET, 7)))
    assert [(point["count"], point["next_step"]) for point in trainer.history()[1:]] == [(8, 10)]
    third = trainer.reserved((LOUD, 1), preceding=after(made["id"], 0))
    assert trainer.act("complete", {"steps_executed": 1}).json()["next_step"] == 11
    assert (_status(trainer, made["id"]), _status(trainer, third)) == (("committed", 0), ("committed", 1))
    _after(trainer, ((LOUD, 11),), ())


def test_refused_reservation_leaves_the_one_before_as_it_is(trainer: Trainer) -> None:
    first = trainer.reserved((LOUD, 10))
    before, balance = trainer.rows(), trainer.balance()
    refused = trainer.reserve((LOUD, 10**6), preceding=after(first, 4), key="k-1")
    fitting = is_refused(refused, 403, "budget_exceeded")[
        "max_steps_that_fit"
    ]  # counted with the reservation before ended
    assert changed(before, trainer.rows()) == {"idempotent_responses", "audit_entries"}
    assert (trainer.balance(), _status(trainer, first)) == (balance, ("active", None))
    is_refused(trainer.reserve((LOUD, fitting + 1), preceding=after(first, 4)), 403, "budget_exceeded")
    assert trainer.reserve((LOUD, fitting), preceding=after(first, 4)).status_code == 201
    assert within_limits(trainer.path())
    assert trainer.reserve((LOUD, 10**6), preceding=after(first, 4), key="k-1").content == refused.content
    assert trainer.sound()


def test_attested_steps_of_the_preceding_reservation_are_checked(trainer: Trainer) -> None:
    first, other = trainer.reserved((LOUD, 10)), _other(trainer)
    trainer.steps(count=4)
    before = trainer.rows()
    for executed in (3, 11):
        is_refused(trainer.reserve((LOUD, 1), preceding=after(first, executed)), 422, "invalid_request")
    is_refused(trainer.reserve((LOUD, 1), preceding=after("res_none", 1)), 409, "reservation_state_conflict")
    is_refused(other.reserve((LOUD, 1), preceding=after(first, 4)), 404, "not_found")
    assert is_refused(trainer.reserve((LOUD, 1)), 409, "reservation_state_conflict")["reservation"] == first
    assert trainer.rows() == before
    second = trainer.reserved((LOUD, 1), preceding=after(first, 4))
    answer = is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 4)), 409, "reservation_state_conflict")
    assert answer["reservation"] == second
    assert trainer.end(second, "void").status_code == 200
    is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 5)), 409, "reservation_closed")


def test_reservation_follows_on_none_that_was_forfeited(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trainer.reserved((LOUD, 10), lease_seconds=60)
    moved(monkeypatch, seconds=60)
    answer = is_refused(trainer.reserve((LOUD, 1), preceding=after(first, 5)), 409, "reservation_closed")
    assert answer["reservation_status"] == "forfeited"
    second = trainer.reserved((LOUD, 1))
    _after(trainer, ((LOUD, 12),), ((LOUD, 1),))
    assert trainer.act("attempts", {"first_step": 0}).json()["attempt"] == 2
    answer = is_refused(trainer.reserve((LOUD, 1), preceding=after(second, 1)), 412, "attempt_superseded")
    assert answer["current_attempt"] == 2
    is_refused(trainer.reserve((LOUD, 1), preceding=after(second, 1), attempt=2), 409, "reservation_closed")
    assert trainer.reserve((LOUD, 1), attempt=2).json()["next_step"] == 0
