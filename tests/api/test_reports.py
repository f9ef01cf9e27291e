"""Reports: what has happened is charged, whatever the limits and the state of the run say."""

from typing import Any

import pytest

from app.ledger.accounts.account import MOST_USED
from tests.api.test_refusals import more_noise
from tests.api.trainer import HUGE, LOUD, QUIET, Trainer, counted, hired, is_refused
from tests.conftest import Ledger
from tests.epsilons import tightest


def _hired(ledger: Ledger) -> Trainer:
    """A trainer that took two steps."""
    trainer = hired(ledger)
    assert trainer.steps(count=2).status_code == 200
    return trainer


FURNISHED = {"trainer": _hired}


def test_report_that_fits_is_charged_as_a_request(trainer: Trainer) -> None:
    response = trainer.steps(mode="report", count=5, first_step=2).json()
    assert (response["decision"], response["overdrawn"], response["next_step"]) == ("reported", False, 7)
    assert response["steps_remaining"] == trainer.read()["steps_remaining"]
    assert (trainer.read()["status"], trainer.history()[-1]["decision"]) == ("active", "reported")
    assert {spent for spent, _ in trainer.balance()} == {trainer.price((LOUD, 7))}
    assert trainer.steps(first_step=7).status_code == 200
    assert trainer.sound()


def test_report_over_the_limit_is_charged_and_freezes_the_run(trainer: Trainer) -> None:
    assert trainer.read()["warnings"] == []
    response = trainer.steps(mode="report", count=1000).json()
    assert (response["decision"], response["overdrawn"], response["steps_remaining"]) == ("reported", True, 0)
    assert response["used"] > 1
    assert response["epsilon"] == pytest.approx(tightest((LOUD, 1002)), rel=5e-3)
    assert {spent for spent, _ in trainer.balance()} == {trainer.price((LOUD, 1002))}
    assert trainer.read()["status"] == "overdrawn"
    acts = [trainer.act("pause"), trainer.act("resume"), trainer.act("attempts", {})]
    for reply in (*acts, trainer.steps(), trainer.reserve((QUIET, 1))):
        assert is_refused(reply, 409, "run_state_conflict")["run_status"] == "overdrawn"
    assert trainer.steps(mode="report", count=3).json()["overdrawn"]
    assert trainer.path()[0].spent == trainer.price((LOUD, 1005))
    assert trainer.act("complete").json()["status"] == "completed"
    assert trainer.steps(event=HUGE, mode="report").json()["overdrawn"]
    ledger = trainer.ledger
    above = [ledger.get(path).json()["items"][0] for path in ("/v1/budgets", "/v1/populations")]
    for shown in (trainer.read(), *above):
        assert any("More is spent than a limit allows" in warning for warning in shown["warnings"]), shown
    assert trainer.sound()


@pytest.mark.parametrize("state", ["pause", "complete", "abort"])
def test_report_is_charged_in_any_state(trainer: Trainer, state: str) -> None:
    reached = trainer.act(state).json()["status"]
    response = trainer.steps(mode="report", count=5)
    assert (response.status_code, response.json()["decision"]) == (200, "reported")
    assert (trainer.read()["status"], trainer.path()[0].spent) == (reached, trainer.price((LOUD, 7)))
    assert trainer.steps(mode="report", count=1000).json()["overdrawn"]
    assert trainer.path()[0].spent == trainer.price((LOUD, 1007))
    assert trainer.sound()


def test_report_without_a_number_is_taken_from_an_attempt_that_was_fenced_off(trainer: Trainer) -> None:
    assert trainer.act("attempts", {"first_step": 1}).json()["attempt"] == 2
    late: dict[str, Any] = {"mode": "report", "count": 3, "attempt": 1}
    is_refused(trainer.steps(**late, first_step=2), 412, "attempt_superseded")
    response = trainer.steps(**late, key="k")
    assert (response.status_code, response.json()["attempt"], response.json()["first_step"]) == (200, 2, 1)
    assert trainer.steps(**late, key="k").content == response.content
    assert trainer.path()[0].spent == trainer.price((LOUD, 5))
    assert trainer.sound()


def test_run_that_shares_an_overdrawn_account_is_refused(trainer: Trainer) -> None:
    """The population has room for the budget's epsilon 1 and for more; the report takes all of it."""
    ledger = trainer.ledger
    ledger.budget("other")
    other = Trainer(ledger, ledger.run("mimic/other", event=LOUD))
    assert other.steps().status_code == 200
    assert trainer.steps(mode="report", count=2000).json()["overdrawn"]
    response = is_refused(other.steps(), 403, "budget_exceeded")
    assert response["binding_account_path"] == "mimic"
    assert (response["max_steps_that_fit"], more_noise(response)) == (0, None)
    assert is_refused(other.reserve((QUIET, 1)), 403, "budget_exceeded")["binding_account_path"] == "mimic"
    is_refused(other.steps(event=QUIET, on_exceed="truncate"), 403, "budget_exceeded")
    assert (other.read()["status"], other.read()["steps_remaining"]) == ("active", 0)
    assert trainer.sound()


def test_infinite_loss_is_read_and_listed_and_refuses_steps_with_numbers(trainer: Trainer) -> None:
    """Each answer is compared with the document by the witness."""
    other = Trainer(trainer.ledger, trainer.ledger.run(name="other", event=LOUD))
    trainer.steps(mode="report", event=HUGE, count=10**9)
    assert trainer.read()["epsilon"] == pytest.approx(10**9 / HUGE["noise_multiplier"] ** 2 / 2, rel=1e-5)
    trainer.steps(mode="report", event={"type": "epsilon_delta", "epsilon": 0.1, "delta": 0.01})
    for where in ("budgets", "populations"):
        listed = trainer.ledger.get(f"/v1/{where}").json()["items"]
        read = [trainer.ledger.get(f"/v1/{where}/{item['id']}").json() for item in listed]
        assert read == listed
        assert [(item["epsilon"], item["used"]) for item in read] == [("Infinity", MOST_USED)]
    assert trainer.read()["epsilon"] == "Infinity"
    bodies: list[dict[str, Any]] = [{}, {"count": 7}, {"events": counted((QUIET, 1), (LOUD, 1))}]
    for body in (*bodies, {"on_exceed": "truncate"}):
        for dry_run in (True, False):
            response = is_refused(other.steps(**body, dry_run=dry_run), 403, "budget_exceeded")
            assert response["max_steps_that_fit"] == 0
    is_refused(other.reserve((QUIET, 1)), 403, "budget_exceeded")
    assert trainer.sound()
