"""Requests of trainers for higher limits, and the alternatives of a refusal: each can be followed."""

from typing import Any

import httpx2
import pytest

from app.service import costing
from app.service.verification.verify import verify
from tests.api.trainer import LOUD, Trainer, approve, gaussian, hired, is_refused, issue
from tests.conftest import Ledger

LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def _hired(ledger: Ledger) -> Trainer:
    return hired(ledger, expected_steps=5000)


FURNISHED = {"trainer": _hired}


def _request(trainer: Trainer, epsilon: float = 9.0, role: str = "trainer", **more: Any) -> httpx2.Response:  # noqa: ANN401 - JSON is anything
    body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "All epochs."} | more
    return trainer.ledger.post(f"/v1/runs/{trainer.run}/limit-requests", body, role)


def _missing(refusal: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in refusal["unavailable_alternatives"]}


def _raise_limits(trainer: Trainer, refusal: dict[str, Any]) -> None:
    """Request all limits that a refusal names, and approve them."""
    [higher] = [each for each in refusal["alternatives"] if each["type"] == "higher_limit"]
    for limit in higher["limits"]:
        made = _request(trainer, limit["epsilon"], account=limit["account"])
        assert (made.status_code, made.json()["kind"], made.json()["account"]) == (201, "limit", limit["account"])
        own = trainer.ledger.post(f"/v1/proposals/{made.json()['id']}/approve", {}, "trainer")
        is_refused(own, 403, "permission_denied")
        approve(trainer.ledger, made)


def test_request_for_the_limits_of_a_refusal_lets_the_training_finish(trainer: Trainer) -> None:
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert refusal["steps_needed"] == 5000
    _raise_limits(trainer, refusal)
    assert [trainer.steps(count=1000).status_code for _ in range(5)] == [200] * 5
    assert verify(trainer.ledger.database).problems == ()


def test_limit_request_is_by_default_about_the_account_that_refused_last(trainer: Trainer) -> None:
    assert "Nothing was refused" in is_refused(_request(trainer), 422, "invalid_request")["detail"]
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    made = _request(trainer)
    assert (made.status_code, made.json()["account"]) == (201, refusal["binding_account"])
    assert _request(trainer).json() == made.json(), "some of several requests may have been made before an error"
    assert "waits for an approval" in is_refused(_request(trainer, 10.0), 422, "invalid_request")["detail"]


def test_limit_request_raises_and_is_about_accounts_that_the_run_charges(trainer: Trainer) -> None:
    trainer.ledger.budget("other-team")
    for epsilon, account, words in (
        *((epsilon, "mimic/icu-team", "Request a higher one") for epsilon in (1.0, 0.5)),
        (9.0, "mimic/other-team", "Send one of mimic, mimic/icu-team."),
    ):
        answer = is_refused(_request(trainer, epsilon, account=account), 422, "invalid_request")
        assert words in answer["detail"]
    assert _request(trainer, account="mimic").status_code == 201


@pytest.mark.parametrize("of", ["budget", "run"])
def test_key_of_a_budget_or_a_run_asks_for_the_population_and_withdraws(trainer: Trainer, of: str) -> None:
    ledger, scope = trainer.ledger, trainer.read()["budget"] if of == "budget" else trainer.run
    issue(ledger, "own", "trainer", scope)
    issue(ledger, "colleague", "privacy_officer", scope)
    made = _request(trainer, role="own", account="mimic")
    path = f"/v1/proposals/{made.json()['id']}"
    assert ledger.get(path, "own").json() == made.json()
    for what, role in (("approve", "colleague"), ("reject", "colleague"), ("approve", "own")):
        assert ledger.post(f"{path}/{what}", {}, role).status_code in {403, 404}
    assert ledger.get(path, "colleague").status_code in {403, 404}
    assert ledger.post(f"{path}/reject", {}, "own").json()["status"] == "withdrawn"
    ledger.budget("other-team")
    other = Trainer(ledger, ledger.run("mimic/other-team", event=LOUD))
    is_refused(_request(other, role="own", account="mimic"), 403, "permission_denied")


@pytest.mark.parametrize("rules", [{"max_delta": 1e-6}, {"require_delta_below_inverse_size": True}], ids=str)
def test_no_limit_is_offered_that_a_policy_forbids(trainer: Trainer, rules: dict[str, Any]) -> None:
    assert trainer.ledger.set_policy(rules).status_code == 200
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert _missing(refusal)["higher_limit"] == "policy"
    is_refused(_request(trainer), 403, "policy_violation")


def test_steps_beyond_the_declared_ones_are_not_offered_where_a_policy_refuses_them(ledger: Ledger) -> None:
    trainer = hired(ledger, expected_steps=600)
    assert ledger.set_policy({"deviations": "refuse"}).status_code == 200
    refusal = is_refused(trainer.steps(count=590, expected_steps=100_000), 403, "budget_exceeded")
    assert (refusal["steps_needed"], _missing(refusal)["more_noise"]) == (600, "policy")
    _raise_limits(trainer, refusal)
    assert trainer.steps(count=600).status_code == 200


def test_alternative_is_not_offered_where_no_noise_or_no_limit_suffices(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costing, "LITTLE_WORK", 10**9)  # search in this process
    ledger.population(limit={"epsilon": 3.0, "delta": 1e-3})
    ledger.budget(limit={"epsilon": 0.1, "delta": 1e-5}, planned=[{"event": LOUD}])
    trainer, failing = Trainer(ledger, ledger.run()), {"type": "epsilon_delta", "epsilon": 0.01, "delta": 1e-6}
    for event, count, kind in ((gaussian(1e5), 10**9, "more_noise"), (failing, 100, "higher_limit")):
        refusal = is_refused(trainer.steps(count=count, event=event), 403, "budget_exceeded")
        assert _missing(refusal)[kind] == "none_suffices"


def test_run_s_own_limit_is_offered_up_to_the_largest_of_a_policy(ledger: Ledger) -> None:
    ledger.population(limit={"epsilon": 50.0, "delta": 1e-5})
    budget = ledger.budget(limit={"epsilon": 50.0, "delta": 1e-5})
    assert ledger.set_policy({"max_epsilon": 1.5}, budget["id"]).status_code == 200
    for steps, fits in ((2000, False), (400, True)):
        trainer = Trainer(ledger, ledger.run(event=LOUD, limit=LIMIT, expected_steps=steps))
        refusal = is_refused(trainer.steps(count=steps), 403, "budget_exceeded")
        if fits:
            _raise_limits(trainer, refusal)
            assert trainer.steps(count=steps).status_code == 200
        else:
            assert _missing(refusal)["higher_limit"] == "policy"


def test_limit_request_of_an_ended_run_or_an_archived_account_is_refused(ledger: Ledger) -> None:
    """A run that has ended takes no step under a limit of its own, and an archived account none at all."""
    ledger.population()
    budget = str(ledger.budget()["id"])
    trainer = Trainer(ledger, ledger.run(event=LOUD, limit={"epsilon": 0.5, "delta": 1e-5}))
    is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert trainer.act("complete", {"reason": "budget_exhausted"}).status_code == 200
    is_refused(_request(trainer, account=trainer.run), 409, "run_state_conflict")
    made = _request(trainer, account=budget)  # another run may go on
    assert made.status_code == 201
    assert ledger.post(f"/v1/proposals/{made.json()['id']}/reject", {}, "privacy_officer").status_code == 200
    assert ledger.post(f"/v1/accounts/{budget}/archive", {}).status_code == 200
    is_refused(_request(trainer, account=budget), 409, "account_archived")
