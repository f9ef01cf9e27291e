"""Allocations: which part of a limit is usable, and for whom; and previews of what a reservation would wait for."""

from typing import Any

import httpx2
import pytest

from tests.api.trainer import LOUD, Trainer, approve, counted, is_refused, issue, within_limits
from tests.api.waiting import FITTING, START, Queued, Waiting, furnish_office, office
from tests.conftest import Ledger
from tests.waiting_reservations import OVER_TEN_DAYS, allocate, ask, later, preview

__all__ = ["office"]

DAY = 24 * 3600
FURNISHED = {"office": furnish_office}


def over_time(parts: int, days: int | None = None) -> dict[str, Any]:
    return {"type": "over_time", "over_seconds": (days or parts) * DAY, "parts": parts}


def share(account: str, **terms: float) -> dict[str, Any]:
    return {"account": account} | terms


def put(
    office: Waiting, account: str, allocation: dict[str, Any] | None, tag: str | None = "*", role: str = "budget_admin"
) -> httpx2.Response:
    body = {"allocation": allocation, "reason": "the teams share"}
    return office.ledger.put(f"/v1/accounts/{office.ids.get(account, account)}/allocation", body, role, tag)


def read(office: Waiting, account: str = "mimic") -> dict[str, Any]:
    return dict(office.ledger.get(f"/v1/accounts/{office.ids[account]}/allocation").json())


def test_allocation_is_read_replaced_and_removed(office: Waiting) -> None:
    reply = office.ledger.get(f"/v1/accounts/{office.ids['mimic']}/allocation")
    members = ("reservations_only", "rule", "unlock", "shares", "revision", "unlocked", "limit")
    whole = {"epsilon": 3.0, "delta": 1e-5}
    assert [reply.json()[name] for name in members] == [False, None, None, [], 0, 1.0, whole]
    shares = [share("mimic/icu-team", minimum=0.25, maximum=0.5, weight=2.0)]
    body = {"rule": "smallest_share", "aging_seconds": 60, "unlock": over_time(4), "shares": shares}
    tag = reply.headers["etag"]
    replaced = put(office, "mimic", body, tag)
    now = replaced.json()
    assert replaced.headers["etag"] != tag
    assert (now["reservations_only"], now["rule"], now["aging_seconds"], now["revision"]) == (
        True,
        "smallest_share",
        60,
        1,
    )
    assert now["unlock"] == over_time(4) | {"since": "2100-01-01T00:00:00Z"}
    named = {"account": office.ids["icu-team"], "account_path": "mimic/icu-team"}
    assert now["shares"] == [named | {"minimum": 0.25, "maximum": 0.5, "weight": 2.0}]
    assert (now["unlocked"], now["next_unlock_at"]) == (0.25, "2100-01-02T00:00:00Z")
    assert read(office) == now
    office.later(days=1)
    changed = put(office, "mimic", body | {"aging_seconds": 61}).json()
    assert changed["unlock"]["since"] == "2100-01-01T00:00:00Z"  # it goes on
    changed = put(office, "mimic", body | {"unlock": over_time(5)}).json()
    assert changed["unlock"]["since"] == "2100-01-02T00:00:00Z"
    proposed = put(office, "mimic", None)
    assert (proposed.status_code, proposed.json()["kind"]) == (201, "allocation"), "it would unlock the limit at once"
    assert read(office)["reservations_only"] is True
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    is_refused(office.ledger.post(approval, None, "budget_admin"), 403, "permission_denied")
    approve(office.ledger, proposed)
    assert read(office)["reservations_only"] is False
    assert [each["after"]["revision"] for each in office.events("allocation.replaced")] == [1, 2, 3, 4]
    assert office.sound()


def test_proposed_unlock_is_approved_as_it_was_proposed(office: Waiting) -> None:
    first = {"rule": "first_come", "unlock": over_time(4, 40)}
    assert put(office, "mimic", first).status_code == 200
    office.later(days=1)
    sooner = first | {"unlock": over_time(4, 20) | {"since": START.isoformat()}}
    proposed = put(office, "mimic", sooner)
    assert (proposed.status_code, proposed.json()["proposed"]["revision"]) == (201, 1)
    assert put(office, "mimic", first | {"aging_seconds": 61}).status_code == 200, "sharing takes one person"
    path = f"/v1/proposals/{proposed.json()['id']}"
    is_refused(office.ledger.post(f"{path}/approve", None, "privacy_officer"), 412, "precondition_failed")
    assert office.ledger.post(f"{path}/reject", None).status_code == 200
    approve(office.ledger, put(office, "mimic", sooner))
    assert read(office)["unlock"] == over_time(4, 20) | {"since": "2100-01-01T00:00:00Z"}
    assert put(office, "mimic", first | {"unlock": None}).status_code == 201
    assert office.sound()


TOO_MUCH = [share("mimic/icu-team", minimum=0.6), share("mimic/er", minimum=0.41)]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("icu-team", {"rule": "first_come"}),
    ("mimic", {"unlock": over_time(5) | {"over_seconds": 4}}),
    ("mimic", {"unlock": over_time(11, 11 * 366)}),
    *(("mimic", {"shares": [share(account)]}) for account in ("eicu", "mimic", "mimic/icu-team/study")),
    ("wards", {"shares": [share("mimic/wards/a")]}),
    ("mimic", {"shares": TOO_MUCH}),
    ("mimic", {"shares": [share("mimic/er", minimum=0.5, maximum=0.4)]}),
    ("mimic", {"shares": [share("mimic/er", minimum=0.1), share("mimic/er", minimum=0.2)]}),
]


def test_allocation_that_contradicts_its_account_is_refused(office: Waiting) -> None:
    office.team("er")
    office.team("study", "mimic/icu-team")
    office.ledger.population("eicu")
    office.team("wards", composition="parallel", attestation="a patient lies in one ward")
    office.team("a", "mimic/wards")
    for account, allocation in BAD:
        reply = put(office, account, allocation)
        answer = reply.status_code, reply.json().get("code")
        assert answer in {(422, "invalid_request"), (404, "not_found")}, (allocation, reply.text)
        assert read(office, account)["revision"] == 0
    issue(office.ledger, "narrow", "budget_admin", office.ids["icu-team"])
    is_refused(put(office, "mimic", {"rule": "first_come"}, role="narrow"), 403, "permission_denied")
    assert put(office, "icu-team", {}, role="narrow").status_code == 200
    is_refused(put(office, office.ledger.run(), {}), 404, "not_found")


def test_account_with_an_allocation_admits_steps_of_reservations_only(office: Waiting) -> None:
    before = Trainer(office.ledger, office.ledger.run(name="before", event=LOUD))
    assert before.steps(count=3).status_code == 200
    office.allocate("icu-team")
    answer = is_refused(before.steps(count=1), 403, "reservation_required")
    assert (answer["account"], answer["account_path"]) == (office.ids["icu-team"], "mimic/icu-team")
    for body in ({"dry_run": True}, {"on_exceed": "truncate"}, {"events": counted((LOUD, 1))}):
        is_refused(before.steps(**body), 403, "reservation_required")
    plan = before.reserved((LOUD, 10))
    assert before.steps(count=4, dry_run=True).json()["decision"] == "admitted"
    assert before.steps(count=10).json()["reservation"] == plan
    is_refused(before.steps(count=1), 403, "reservation_required")
    assert before.steps(count=2, mode="report").json()["decision"] == "reported"
    sweep = {"name": "s", "budget": "mimic/icu-team", "trials": {"mean": 4.0, "events": counted((LOUD, 5))}}
    reply = office.ledger.post("/v1/experiments", sweep | {"charging_mode": "repeat_and_select"})
    is_refused(reply, 403, "reservation_required")
    before.end(plan, "commit", 10)
    put(office, "icu-team", None)
    assert before.steps(count=1).status_code == 200
    assert before.read()["next_step"] == 16
    assert office.sound()


def test_limit_is_unlocked_by_the_runs_that_ask(office: Waiting) -> None:
    """By ten of them; a run that asks again, or that is refused, counts no more than once."""
    office.allocate("icu-team", unlock={"type": "by_reservations", "reservations": 10})
    assert read(office, "icu-team")["arrivals"] == 0
    first = office.queued(60, "first", wait_until=office.until(days=9))
    assert read(office, "icu-team")["arrivals"] == 1
    assert first.cancel().status_code == 200
    run = Queued(office, office.ledger.run(name="again", event=LOUD), "")
    for _ in range(2):
        run.plan = run.trainer.reserve((LOUD, 100), wait_until=office.until(days=9)).json()["id"]
        assert run.cancel().status_code == 200
    is_refused(run.trainer.reserve((LOUD, 100)), 403, "budget_exceeded")
    assert read(office, "icu-team")["arrivals"] == 2
    waits, asked = office.queued(100, "waits", wait_until=office.until(days=9)), 3
    while waits.read()["status"] == "waiting":
        assert office.register(1, f"small{asked}").status_code == 201
        asked += 1
        office.granted()
        assert asked <= 10
    assert asked == 5  # a hundred of 219 steps are nearly a half
    assert within_limits(waits.trainer.path())
    assert read(office, "icu-team")["unlocked"] == asked / 10
    assert office.sound()


def test_minimum_that_its_budget_has_taken_is_promised_no_more(office: Waiting) -> None:
    office.team("er")
    office.allocate("mimic", shares=[share("mimic/icu-team", weight=2.0), share("mimic/er", minimum=0.95)])
    office.held(FITTING, budget="mimic/er")
    office.held(20, "small")


@pytest.mark.parametrize("steps", [1, 5000, 100_000])
def test_reservation_gets_the_place_that_its_preview_has(ledger: Ledger, steps: int) -> None:
    population = str(ledger.population()["id"])
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    for name, count in (("first", 800), ("second", 30)):
        ask(ledger, name, count)
    said = preview(ledger, "mimic/icu-team", steps).json()
    arrived = ask(ledger, "newcomer", steps)
    if said == {"fits": False, "waiting": None}:
        is_refused(arrived, 403, "budget_exceeded")
        return
    assert arrived.status_code == 201, arrived.text
    assert said["fits"] == (arrived.json()["status"] == "active")
    if said["fits"]:
        assert said["waiting"] is None
        return
    became = ledger.get(f"/v1/reservations/{arrived.json()['waiting_reservation']}").json()["waiting"]
    for share in ("requested", "available"):
        shares = [[each.pop(share) for each in waiting["lacks"]] for waiting in (became, said["waiting"])]
        assert shares[0] == pytest.approx(shares[1], rel=1e-6)
    assert became == said["waiting"]


def test_preview_is_an_arrival_and_obeys_policies_kinds_and_scopes(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    budget = str(ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
    ledger.budget("quarter", opens_at=later(24))
    ledger.budget("wards", composition="parallel", attestation="Each patient is in one ward.")
    waiting = preview(ledger, "mimic/quarter", 10).json()["waiting"]
    [short] = waiting["lacks"]
    assert (short["reason"], short["opens_at"] is not None) == ("closed", True)
    assert waiting["estimated_at"] == short["opens_at"]
    assert preview(ledger, population, 1).json()["fits"]
    issue(ledger, "bound", "viewer", budget)
    assert preview(ledger, "mimic/icu-team", 1, "bound").json() == {"fits": True, "waiting": None}
    is_refused(preview(ledger, "mimic/quarter", 1, "bound"), 403, "permission_denied")
    is_refused(preview(ledger, "mimic/wards", 1), 422, "invalid_request")
    is_refused(preview(ledger, "nowhere", 1), 404, "not_found")
    allocate(ledger, population, unlock={"type": "by_reservations", "reservations": 2})
    assert preview(ledger, "mimic/icu-team", 10).json()["fits"]
    assert ledger.get(f"/v1/accounts/{population}/allocation").json()["arrivals"] == 0
    assert ledger.set_policy({"min_noise_multiplier": 2.0}, population).status_code == 200
    is_refused(preview(ledger, "mimic/icu-team", 1), 403, "policy_violation")
