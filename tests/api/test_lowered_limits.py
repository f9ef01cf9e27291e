"""A limit that is lowered holds at once, also for reservations that were set aside before (ADR 0026)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.api.trainer import LOUD, Trainer, audited, hired, is_refused, within_limits
from tests.conftest import Ledger

MANY = 160
"""Steps of a reservation for which most of the budget is set aside: 199 would fit."""


def lower(trainer: Trainer, place: int, epsilon: float) -> str:
    """Lower the limit of an account of a trainer's path; return its id."""
    account = trainer.path()[place].id
    assert trainer.ledger.set_limit(account, epsilon, "budget_admin").status_code == 200
    return account


def another(trainer: Trainer, budget: str = "mimic/icu-team", **terms: Any) -> Trainer:  # noqa: ANN401 - JSON is anything
    return Trainer(trainer.ledger, trainer.ledger.run(budget, **({"name": "other", "event": LOUD} | terms)))


def until_refused(trainer: Trainer) -> tuple[int, dict[str, Any]]:
    """Take steps one by one; return how many were admitted, and the refusal."""
    count = 0
    while (reply := trainer.steps()).status_code == 200:
        count += 1
        assert count < MANY, "a lowered limit holds"
    return count, is_refused(reply, 403, "budget_exceeded")


def plan(trainer: Trainer, of: str) -> dict[str, Any]:
    return dict(trainer.ledger.get(f"/v1/reservations/{of}").json())


def _revoked(trainer: Trainer) -> list[dict[str, Any]]:
    """What the chain keeps of the reservations that the last change of a limit cut."""
    changes = [each for each in audited(trainer.ledger) if each["action"].endswith("limit_changed")]
    return list(changes[-1]["after"]["revoked"])


def _hired(ledger: Ledger) -> Trainer:
    """Whose population has little more than its budget: a filter tuned for far more would let nothing through."""
    trainer = hired(ledger, limit={"epsilon": 0.95, "delta": 1e-5})
    lower(trainer, 0, 1.05)
    return trainer


FURNISHED = {"trainer": _hired}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_steps_of_a_reservation_are_refused_from_the_moment_they_pass_a_lowered_limit(
    trainer: Trainer, place: int
) -> None:
    """Whichever account of the path was limited; the refusal names the change, and what was held is returned."""
    held = trainer.reserved((LOUD, MANY))
    assert trainer.steps(count=10).status_code == 200
    before = datetime.now(UTC)
    account = lower(trainer, place, 0.5)
    assert trainer.sound()
    taken, refused = until_refused(trainer)
    assert 0 < taken < MANY - 10
    assert within_limits(trainer.path())
    change = refused["limit_change"]
    assert refused["binding_account"] == account
    assert change["before"] == {"epsilon": [1.05, 1.0, 0.95][place], "delta": 1e-5}
    assert before <= datetime.fromisoformat(change["changed_at"]) <= datetime.now(UTC)
    assert f"from epsilon {change['before']['epsilon']:g}" in refused["detail"]
    assert change["actor"].startswith("key_")
    assert change["actor"] in refused["detail"]
    assert [account.spent for account in trainer.path()] == trainer.costs((LOUD, 10 + taken))
    assert all(account.held.is_zero for account in trainer.path())
    ended = plan(trainer, held)
    assert (ended["status"], ended["steps_executed"]) == ("committed", 10 + taken)
    assert ended["steps_revoked"] == MANY - 10 - taken
    [revoked] = _revoked(trainer)
    assert (revoked["reservation"], revoked["run"]) == (held, trainer.run)
    assert list(revoked["steps"].values()) == [MANY - 10 - taken]
    assert trainer.steps(count=1).status_code == 403
    assert trainer.act("complete", {"steps_executed": 10 + taken}).status_code == 200
    assert trainer.sound()


def test_newest_reservations_give_way_first(trainer: Trainer) -> None:
    second, third = another(trainer, name="second"), another(trainer, name="third")
    for each in (trainer, second, third):
        each.reserved((LOUD, 40))
    lower(trainer, 1, 0.55)
    assert trainer.steps(count=40).status_code == 200
    assert until_refused(third)[0] == 0
    taken, _ = until_refused(second)
    assert 0 < taken < 40
    assert within_limits(trainer.path())
    assert trainer.sound()
    assert [entry["run"] for entry in _revoked(trainer)] == [second.run, third.run]


def test_steps_executed_after_a_lowered_limit_are_charged(trainer: Trainer) -> None:
    """A trainer that takes its steps without asking one by one hears of the limit with its next call."""
    held = trainer.reserved((LOUD, MANY))
    lower(trainer, 1, 0.5)
    assert trainer.path()[0].held == trainer.costs((LOUD, MANY))[0]  # also what was revoked, until the reservation ends
    kept = MANY - plan(trainer, held)["steps_revoked"]
    answer = trainer.end(held, "commit", MANY - 20).json()
    assert (answer["steps_executed"], answer["steps_authorized"]) == (MANY - 20, MANY - 20)
    decided = [(point["decision"], point["count"]) for point in trainer.history()]
    assert decided == [("admitted", kept), ("reported", MANY - 20 - kept)]
    assert [account.spent for account in trainer.path()] == trainer.costs((LOUD, MANY - 20))
    assert all(account.held.is_zero for account in trainer.path())
    assert trainer.read()["status"] == "overdrawn"
    [alert] = trainer.ledger.get("/v1/alerts?type=account.exhausted").json()["items"]
    assert (alert["data"]["account_path"], alert["data"]["run"]) == ("mimic/icu-team", trainer.run)
    is_refused(another(trainer).steps(), 403, "budget_exceeded")
    assert trainer.sound()


def test_request_for_more_than_is_left_is_told_how_much_that_is(trainer: Trainer) -> None:
    held = trainer.reserved((LOUD, MANY))
    lower(trainer, 1, 0.5)
    left = MANY - plan(trainer, held)["steps_revoked"]
    before = trainer.rows()
    answer = is_refused(trainer.steps(count=left + 1, dry_run=True), 403, "budget_exceeded")
    assert (answer["max_steps_that_fit"], answer["dry_run"]) == (left, True)
    assert trainer.rows() == before
    assert is_refused(trainer.steps(count=left + 1), 403, "budget_exceeded")["max_steps_that_fit"] == left
    cut = trainer.steps(count=left + 1, on_exceed="truncate").json()
    assert (cut["count"], cut["requested_count"], cut["reservation"]) == (left, left + 1, held)
    ended = is_refused(trainer.end(held, "renew"), 409, "reservation_state_conflict")
    assert (ended["steps_authorized"], ended["steps_revoked"]) == (left, MANY - left)
    before = trainer.rows()
    assert is_refused(trainer.steps(dry_run=True), 403, "budget_exceeded")["limit_change"] is not None
    assert trainer.rows() == before
    assert trainer.sound()
