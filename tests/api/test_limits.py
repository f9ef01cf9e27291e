"""Limits: lowered by one person at once, raised by two, and by whom."""

from typing import Any

import httpx2
import pytest

from tests.api.conftest import POPULATION, SeededLedger
from tests.api.trainer import audited, is_refused, issue
from tests.conftest import SAMPLED

DELTA = 1e-5
WHY = "The study goes on."


def _ask(
    seeded: SeededLedger, epsilon: float, role: str = "planner", *, account: str = "", tag: str | None = "*"
) -> httpx2.Response:
    body = {"limit": {"epsilon": epsilon, "delta": DELTA}, "reason": WHY}
    sent = {} if tag is None else {"If_Match": tag}
    return seeded.ledger.post(f"/v1/accounts/{account or seeded.budget}/limit", body, role, **sent)


def _limit(seeded: SeededLedger) -> tuple[float, int]:
    shown: dict[str, Any] = seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").json()
    return shown["limit"]["epsilon"], shown["revision"]


def test_limit_is_lowered_by_one_person_at_once(seeded: SeededLedger) -> None:
    plan = {"events": [{"event": SAMPLED, "count": 10}]}
    assert seeded.ledger.post(f"/v1/runs/{seeded.run}/reservations", plan, "trainer").status_code == 201
    before = seeded.steps().json()["used"]
    reply = _ask(seeded, 0.9, "budget_admin")
    now = reply.json()
    assert (reply.status_code, now["limit"], now["revision"]) == (200, {"epsilon": 0.9, "delta": DELTA}, 1)
    assert reply.headers["ETag"] == seeded.ledger.get(f"/v1/accounts/{seeded.budget}/limit").headers["ETag"]
    assert seeded.ledger.get(f"/v1/budgets/{seeded.budget}").json()["limit"]["epsilon"] == 0.9
    answer = seeded.steps().json()
    assert (answer["decision"], answer["used"] > before * 3 / 2) == ("admitted", True)  # three steps of less
    again = is_refused(_ask(seeded, 0.9, "budget_admin"), 422, "invalid_request")
    assert again["detail"] == "The account has this limit already."
    assert seeded.sound()


def test_limit_is_raised_by_a_second_person(seeded: SeededLedger) -> None:
    made = _ask(seeded, 2.0)
    assert (made.status_code, made.json()["status"], "ETag" in made.headers) == (201, "open", False)
    assert _limit(seeded) == (1.0, 0)
    path = f"/v1/proposals/{made.json()['id']}"
    for role in ("planner", "budget_admin"):
        is_refused(seeded.ledger.post(f"{path}/approve", {}, role), 403, "permission_denied")
    reply = seeded.ledger.post(f"{path}/approve", {"reason": "The board agrees."}, "privacy_officer")
    assert (reply.status_code, reply.json()["status"], _limit(seeded)) == (200, "approved", (2.0, 1))
    _, changed = audited(seeded.ledger, f"subject={seeded.budget}")
    assert (changed["action"], changed["reason"]) == ("budget.limit_changed", WHY)
    assert [changed[side]["limit"]["epsilon"] for side in ("before", "after")] == [1.0, 2.0]
    told = [(event["action"], event["reason"]) for event in audited(seeded.ledger, f"subject={made.json()['id']}")]
    assert told == [("limit.proposed", WHY), ("limit.approved", "The board agrees.")]
    assert seeded.sound()


@pytest.mark.parametrize("how", ["issued both", "rotated often"])
def test_one_person_with_two_keys_is_one_person(seeded: SeededLedger, how: str) -> None:
    keys, own = seeded.ledger.keys, ("hospital", "other")
    keys["hospital", "first"] = keys[own] = keys["hospital", "privacy_officer"]
    for _ in range(5 if how == "rotated often" else 0):
        rotation = f"/v1/api-keys/{keys[own].partition('.')[0]}/rotate"
        keys[own] = seeded.ledger.post(rotation, {"overlap_seconds": 3600}, "other").json()["key"]
    for name in ("first", "other") if how == "issued both" else ():
        issue(seeded.ledger, name, "privacy_officer", by="privacy_officer")
    made = _ask(seeded, 2.0, "first")
    assert made.status_code == 201, made.text
    path = f"/v1/proposals/{made.json()['id']}/approve"
    for role in ("first", "other"):
        is_refused(seeded.ledger.post(path, {}, role), 403, "permission_denied")
    assert _limit(seeded) == (1.0, 0)
    assert seeded.ledger.post(path, {}, "admin").status_code == 200


def test_proposal_is_about_the_limit_that_it_was_made_for_and_is_decided_once(seeded: SeededLedger) -> None:
    made = _ask(seeded, 2.0).json()
    assert made["id"] in is_refused(_ask(seeded, 2.5), 422, "invalid_request")["detail"]
    assert _ask(seeded, 0.9, "budget_admin").status_code == 200
    path = f"/v1/proposals/{made['id']}"
    is_refused(seeded.ledger.post(f"{path}/approve", {}, "privacy_officer"), 412, "precondition_failed")
    assert seeded.ledger.get(path).json()["status"] == "open"
    assert seeded.ledger.post(f"{path}/reject", {"reason": "A mistake."}, "planner").json()["status"] == "withdrawn"
    for what in ("approve", "reject"):
        is_refused(seeded.ledger.post(f"{path}/{what}", {}, "privacy_officer"), 409, "proposal_closed")
    proposals = f"/v1/proposals?account={seeded.budget}&status="
    assert [each["id"] for each in seeded.ledger.get(f"{proposals}withdrawn").json()["items"]] == [made["id"]]
    assert seeded.ledger.get(f"{proposals}open").json()["items"] == []
    assert _ask(seeded, 2.0).status_code == 201


def test_lists_about_an_account_take_its_id_or_path_and_show_its_subtree(seeded: SeededLedger) -> None:
    seeded.ledger.budget("other")
    made = _ask(seeded, 2.0).json()["id"]
    for account in (seeded.budget, "mimic/icu-team", "mimic"):
        assert made in [each["id"] for each in seeded.ledger.get(f"/v1/proposals?account={account}").json()["items"]]
        assert seeded.ledger.get(f"/v1/alerts?account={account}").json()["items"], account
    for path in ("/v1/proposals", "/v1/alerts"):
        assert seeded.ledger.get(f"{path}?account=mimic/other").json()["items"] == []
        is_refused(seeded.ledger.get(f"{path}?account=nope"), 404, "not_found")


def test_run_without_a_limit_of_its_own_has_none_to_change(seeded: SeededLedger) -> None:
    is_refused(seeded.ledger.get(f"/v1/accounts/{seeded.run}/limit"), 404, "not_found")
    is_refused(_ask(seeded, 1.0, account=seeded.run), 404, "not_found")


def test_run_s_delta_is_below_one_over_the_size_of_each_of_its_populations(seeded: SeededLedger) -> None:
    for name, size in (("small", 100), ("large", 1_000)):
        seeded.ledger.population(name, size=size, limit={"epsilon": 3.0, "delta": 1e-4})
        seeded.ledger.budget("team", name, limit={"epsilon": 2.0, "delta": 1e-4})
    body = {"name": "both", "budgets": ["small/team", "large/team"], "limit": {"epsilon": 1.0, "delta": 1e-5}}
    run = seeded.ledger.post("/v1/runs", body).json()["id"]
    for delta in (2e-2, 5e-3):
        is_refused(seeded.ledger.set_limit(run, 1.0, "planner", delta), 422, "delta_too_large")
    large = POPULATION | {"size": 1000, "limit": {"epsilon": 1.0, "delta": 0.7}}
    refused = is_refused(seeded.ledger.post("/v1/populations", large), 422, "delta_too_large")
    assert "delta 0.7 is not below 1/1000 = 0.001" in refused["detail"]
