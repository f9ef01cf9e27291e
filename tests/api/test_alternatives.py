"""Requests of trainers for higher limits, and the alternatives of a refusal: each can be followed."""

from typing import Any

import pytest

from app.service.verification import verify
from tests.api.trainer import LOUD, Trainer, hired, is_refused, moved
from tests.conftest import Ledger


@pytest.fixture
def trainer(ledger: Ledger) -> Trainer:
    return hired(ledger, expected_steps=5000)


def _request(trainer: Trainer, epsilon: float = 4.0, **more: Any) -> Any:  # noqa: ANN401 - JSON is anything
    body = {"limit": {"epsilon": epsilon, "delta": 1e-5}, "reason": "All epochs."} | more
    return trainer.post(f"runs/{trainer.run}/limit-requests", body)


def test_request_for_the_limits_of_a_refusal_lets_the_training_finish(trainer: Trainer) -> None:
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


def test_limit_request_is_by_default_about_the_account_that_refused_last(trainer: Trainer) -> None:
    assert "Nothing was refused" in is_refused(_request(trainer), 422, "invalid_request")["detail"]
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    made = _request(trainer)
    assert (made.status_code, made.json()["account"]) == (201, refusal["binding_account"])
    assert "waits for an approval" in is_refused(_request(trainer), 422, "invalid_request")["detail"]


@pytest.mark.parametrize("epsilon", [1.0, 0.5])
def test_request_only_raises(trainer: Trainer, epsilon: float) -> None:
    answer = is_refused(_request(trainer, epsilon, account="mimic/icu-team"), 422, "invalid_request")
    assert "Request a higher one" in answer["detail"]


def test_limit_request_is_about_accounts_that_the_run_charges(trainer: Trainer) -> None:
    trainer.ledger.budget("other-team")
    answer = is_refused(_request(trainer, account="mimic/other-team"), 422, "invalid_request")
    assert "Send one of mimic, mimic/icu-team." in answer["detail"]
    assert _request(trainer, account="mimic").status_code == 201


def test_key_for_a_budget_asks_for_the_population_above_it(trainer: Trainer) -> None:
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


def test_key_of_a_run_reads_and_withdraws_its_requests(trainer: Trainer) -> None:
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


LIMIT = {"epsilon": 1.0, "delta": 1e-5}


def put_policy(ledger: Ledger, rules: dict[str, Any], account: str | None = None) -> None:
    """Set a policy as two persons do."""
    path = "/v1/policy" if account is None else f"/v1/accounts/{account}/policy"
    body = {"policy": rules, "reason": "The board has met."}
    answer = ledger.http.put(path, json=body, headers=ledger.headers() | {"If-Match": "*"})
    if answer.status_code == 201:
        approved = ledger.post(f"/v1/proposals/{answer.json()['id']}/approve", {}, "privacy_officer")
        assert approved.status_code == 200, approved.text
    else:
        assert answer.status_code == 200, answer.text


def offered(refusal: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in refusal["alternatives"]}


def missing(refusal: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in refusal["unavailable_alternatives"]}


def raise_limits(trainer: Trainer, refusal: dict[str, Any]) -> None:
    """Request all limits that a refusal names, and approve them."""
    for each in offered(refusal)["higher_limit"]["limits"]:
        limit = {"epsilon": each["epsilon"], "delta": each["delta"]}
        body = {"account": each["account"], "limit": limit, "reason": "All epochs."}
        made = trainer.post(f"runs/{trainer.run}/limit-requests", body)
        assert made.status_code == 201, made.text
        done = trainer.ledger.post(f"/v1/proposals/{made.json()['id']}/approve", {}, "privacy_officer")
        assert done.status_code == 200, done.text


RULES: dict[str, dict[str, Any]] = {
    "max_delta": {"max_delta": 1e-6},
    "below inverse size, of unknown size": {"require_delta_below_inverse_size": True},
}


@pytest.mark.parametrize("rules", RULES)
def test_no_limit_is_offered_that_a_policy_forbids(ledger: Ledger, rules: str) -> None:
    trainer = hired(ledger, expected_steps=5000)
    put_policy(ledger, RULES[rules])
    refusal = is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert missing(refusal)["higher_limit"] == "policy"
    body = {"limit": {"epsilon": 9.0, "delta": 1e-5}, "reason": "All epochs."}
    is_refused(trainer.post(f"runs/{trainer.run}/limit-requests", body), 403, "policy_violation")


@pytest.mark.parametrize(("steps", "fits"), [(400, True), (2000, False)])
def test_run_s_own_limit_is_offered_up_to_the_largest_of_a_policy(ledger: Ledger, steps: int, *, fits: bool) -> None:
    ledger.population(limit={"epsilon": 50.0, "delta": 1e-5})
    budget = ledger.budget(limit={"epsilon": 50.0, "delta": 1e-5})
    put_policy(ledger, {"max_epsilon": 1.5}, str(budget["id"]))
    trainer = Trainer(ledger, ledger.run(event=LOUD, limit=LIMIT, expected_steps=steps))
    refusal = is_refused(trainer.steps(count=steps), 403, "budget_exceeded")
    if not fits:
        assert missing(refusal)["higher_limit"] == "policy"
        return
    raise_limits(trainer, refusal)
    assert trainer.steps(count=steps).status_code == 200


def test_closed_budget_says_so_and_offers_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now = moved(monkeypatch, hours=0)
    ledger.population()
    ledger.budget(closes_at=now.replace(microsecond=0, year=now.year + 1).isoformat())
    trainer = Trainer(ledger, ledger.run(event=LOUD, expected_steps=5000))
    assert offered(is_refused(trainer.steps(count=4000), 403, "budget_exceeded"))
    moved(monkeypatch, days=400)
    assert "alternatives" not in is_refused(trainer.steps(count=4000), 403, "budget_closed")


def test_limit_request_of_an_ended_run_or_an_archived_account_is_refused(ledger: Ledger) -> None:
    """A run that has ended takes no step under a limit of its own, and an archived account none at all."""
    ledger.population()
    budget = ledger.budget()["id"]
    trainer = Trainer(ledger, ledger.run(event=LOUD, limit={"epsilon": 0.5, "delta": 1e-5}))
    is_refused(trainer.steps(count=4000), 403, "budget_exceeded")
    assert trainer.act("complete", {"reason": "budget_exhausted"}).status_code == 200
    higher = {"limit": {"epsilon": 2.0, "delta": 1e-5}, "reason": "All epochs."}
    requests = f"runs/{trainer.run}/limit-requests"
    is_refused(trainer.post(requests, higher | {"account": trainer.run}), 409, "run_state_conflict")
    made = trainer.post(requests, higher | {"account": budget})  # another run may go on
    assert made.status_code == 201
    assert ledger.post(f"/v1/proposals/{made.json()['id']}/reject", {}, "privacy_officer").status_code == 200
    assert ledger.post(f"/v1/accounts/{budget}/archive", {}).status_code == 200
    is_refused(trainer.post(requests, higher | {"account": budget}), 409, "account_archived")
