"""A trainer requests a higher limit for a run; a person with the right decides."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, hired, is_refused
from tests.conftest import Ledger


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    return hired(ledger, expected_steps=5000)


def _request(trainer: Trainer, epsilon: float = 4.0, **more: Any) -> Any:  # noqa: ANN401 - JSON is anything
    body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "All epochs."} | more
    return trainer.post(f"runs/{trainer.run}/limit-requests", body)


def test_a_request_for_the_limits_of_a_refusal_lets_the_training_finish(trainer: Trainer) -> None:
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert refusal["steps_needed"] == 5000
    [higher] = [each for each in refusal["alternatives"] if each["type"] == "higher_limit"]
    for limit in higher["limits"]:
        made = _request(trainer, limit["epsilon"], account=limit["account"])
        assert (made.status_code, made.json()["kind"], made.json()["account"]) == (201, "limit", limit["account"])
        path = f"/v1/proposals/{made.json()['id']}"
        assert trainer.ledger.post(f"{path}/approve", {}, "trainer").status_code == 403
        assert trainer.ledger.post(f"{path}/approve", {}, "privacy_officer").status_code == 200
    for _ in range(5):
        assert trainer.steps(count=1000).status_code == 200
    assert verify(trainer.ledger.database).problems == ()


def test_by_default_it_is_about_the_account_that_refused_last(trainer: Trainer) -> None:
    assert "Nothing was refused" in is_refused(_request(trainer), 422, "invalid_request")["detail"]
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    made = _request(trainer)
    assert (made.status_code, made.json()["account"]) == (201, refusal["binding_account"])
    assert "waits for an approval" in is_refused(_request(trainer), 422, "invalid_request")["detail"]


@pytest.mark.parametrize("epsilon", [1.0, 0.5])
def test_a_request_only_raises(trainer: Trainer, epsilon: float) -> None:
    answer = is_refused(_request(trainer, epsilon, account="mimic/icu-team"), 422, "invalid_request")
    assert "Request a higher one" in answer["detail"]


def test_only_accounts_that_the_run_charges_are_asked_for(trainer: Trainer) -> None:
    trainer.ledger.budget("other-team")
    answer = is_refused(_request(trainer, account="mimic/other-team"), 422, "invalid_request")
    assert "Send one of mimic, mimic/icu-team." in answer["detail"]
    assert _request(trainer, account="mimic").status_code == 201


def test_a_key_for_a_budget_asks_for_the_population_above_it(trainer: Trainer) -> None:
    ledger = trainer.ledger
    budget = trainer.read()["budget"]
    made = ledger.post("/v1/api-keys", {"name": "team", "role": "trainer", "scope": budget}).json()
    ledger.keys["hospital", "team"] = made["key"]
    body = {"account": "mimic", "limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "All epochs."}
    made = ledger.post(f"/v1/runs/{trainer.run}/limit-requests", body, "team")
    assert made.status_code == 201
    request = f"/v1/proposals/{made.json()['id']}"
    colleague = ledger.post("/v1/api-keys", {"name": "colleague", "role": "privacy_officer", "scope": budget}).json()
    ledger.keys["hospital", "colleague"] = colleague["key"]
    assert ledger.get(request, "colleague").status_code in {403, 404}
    assert ledger.post(f"{request}/reject", {}, "colleague").status_code in {403, 404}
    assert ledger.get(request, "team").json()["status"] == "open"
    assert ledger.post(f"{request}/approve", {}, "team").status_code == 403
    assert ledger.post(f"{request}/reject", {}, "team").json()["status"] == "withdrawn"
    ledger.budget("other-team")
    other = ledger.run("mimic/other-team", event=LOUD)
    is_refused(ledger.post(f"/v1/runs/{other}/limit-requests", body, "team"), 403, "insufficient_scope")


def test_a_key_for_a_run_reads_and_withdraws_what_it_has_requested(trainer: Trainer) -> None:
    ledger = trainer.ledger
    for name in ("own", "other"):
        made = ledger.post("/v1/api-keys", {"name": name, "role": "trainer", "scope": trainer.run}).json()
        ledger.keys["hospital", name] = made["key"]
    body = {"account": "mimic", "limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "All epochs."}
    proposal = ledger.post(f"/v1/runs/{trainer.run}/limit-requests", body, "own").json()
    path = f"/v1/proposals/{proposal['id']}"
    assert ledger.get(path, "own").json() == proposal
    is_refused(ledger.get(path, "other"), 403, "insufficient_scope")
    is_refused(ledger.post(f"{path}/reject", {}, "other"), 403, "insufficient_scope")
    is_refused(ledger.post(f"{path}/approve", {}, "own"), 403, "insufficient_scope")
    assert ledger.post(f"{path}/reject", {}, "own").json()["status"] == "withdrawn"


def test_a_policy_limits_what_may_be_asked_for(trainer: Trainer) -> None:
    policy = {"policy": {"max_delta": 1e-6}, "reason": "The board has met."}
    assert trainer.ledger.post("/v1/policy", policy, If_Match="*").status_code in {200, 201, 405}
    answer = trainer.ledger.http.put("/v1/policy", json=policy, headers=trainer.ledger.headers() | {"If-Match": "*"})
    assert answer.status_code in {200, 201}, answer.text
    is_refused(_request(trainer, account="mimic"), 403, "policy_violation")
