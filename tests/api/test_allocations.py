"""Allocations: what of a limit is usable, what is kept for whom; and previews of what a plan would wait for."""

from typing import Any

import pytest

from tests.api.trainer import LOUD, Trainer, counted, is_refused, within_limits
from tests.api.waiting import START, Queued, Waiting
from tests.conftest import Ledger
from tests.waiting_plans import OVER_TEN_DAYS, allocate, ask, later, preview, waiting_of

DAY = 24 * 3600


@pytest.fixture
def office(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(ledger, monkeypatch)


def over_time(parts: int, days: int | None = None) -> dict[str, Any]:
    return {"type": "over_time", "over_seconds": (days or parts) * DAY, "parts": parts}


def share(account: str, **terms: float) -> dict[str, Any]:
    return {"account": account} | terms


def read(office: Waiting, account: str = "mimic", role: str = "viewer") -> dict[str, Any]:
    found: dict[str, Any] = office.ledger.get(f"/v1/accounts/{office.ids[account]}/allocation", role).json()
    return found


def test_allocation_is_read_replaced_and_removed(office: Waiting) -> None:
    reply = office.ledger.get(f"/v1/accounts/{office.ids['mimic']}/allocation")
    none = reply.json()
    assert (none["plans_only"], none["rule"], none["unlock"], none["shares"], none["revision"]) == (
        *(False, None, None, []),
        0,
    )
    assert (none["unlocked"], none["epsilon_limit"]) == (1.0, 3.0)
    body = {
        "rule": "dominant_share",
        "aging_seconds": 60,
        "unlock": over_time(4),
        "shares": [share("mimic/icu-team", minimum=0.25, maximum=0.5, weight=2.0)],
    }
    tag = reply.headers["etag"]
    put = office.put("mimic", body, tag)
    now = put.json()
    assert put.headers["etag"] != tag
    assert (now["plans_only"], now["rule"], now["aging_seconds"], now["revision"]) == (True, "dominant_share", 60, 1)
    assert now["unlock"] == over_time(4) | {"since": "2100-01-01T00:00:00Z"}
    named = {"account": office.ids["icu-team"], "account_path": "mimic/icu-team"}
    assert now["shares"] == [named | {"minimum": 0.25, "maximum": 0.5, "weight": 2.0}]
    assert (now["unlocked"], now["next_unlock_at"]) == (0.25, "2100-01-02T00:00:00Z")
    assert read(office) == now
    is_refused(office.put("mimic", None, tag), 412, "precondition_failed")
    is_refused(office.put("mimic", None, None), 428, "precondition_required")
    assert office.put("mimic", body, put.headers["etag"]).json()["revision"] == 1  # equal: neither written nor recorded
    office.later(days=1)
    changed = office.put("mimic", body | {"aging_seconds": 61}).json()
    assert changed["unlock"]["since"] == "2100-01-01T00:00:00Z"  # it goes on
    changed = office.put("mimic", body | {"unlock": over_time(5)}).json()
    assert changed["unlock"]["since"] == "2100-01-02T00:00:00Z"
    proposed = office.put("mimic", None)
    assert (proposed.status_code, proposed.json()["kind"]) == (201, "allocation"), "it would unlock the limit at once"
    assert office.put("mimic", None).json() == proposed.json()
    assert read(office)["plans_only"] is True
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    assert office.ledger.post(approval, None, "budget_admin").status_code == 403
    assert office.ledger.post(approval, None, "privacy_officer").status_code == 200
    assert read(office)["plans_only"] is False
    assert [each["after"]["revision"] for each in office.events("allocation.replaced")] == [1, 2, 3, 4]
    assert office.sound()


def test_proposed_unlock_is_approved_as_it_was_proposed(office: Waiting) -> None:
    first = {"rule": "first_come", "unlock": over_time(4, 40)}
    assert office.put("mimic", first).status_code == 200
    office.later(days=1)
    sooner = first | {"unlock": over_time(4, 20) | {"since": START.isoformat()}}
    proposed = office.put("mimic", sooner)
    assert proposed.status_code == 201, proposed.text
    assert proposed.json()["proposed"]["revision"] == 1
    assert office.put("mimic", first | {"aging_seconds": 61}).status_code == 200, "sharing takes one person"
    approval = f"/v1/proposals/{proposed.json()['id']}/approve"
    is_refused(office.ledger.post(approval, None, "privacy_officer"), 412, "precondition_failed")
    assert office.ledger.post(f"/v1/proposals/{proposed.json()['id']}/reject", None).status_code == 200
    again = office.put("mimic", sooner)
    assert again.status_code == 201, again.text
    approval = f"/v1/proposals/{again.json()['id']}/approve"
    assert office.ledger.post(approval, None, "privacy_officer").status_code == 200
    assert read(office)["unlock"] == over_time(4, 20) | {"since": "2100-01-01T00:00:00Z"}
    assert office.put("mimic", first | {"unlock": None}).status_code == 201
    assert office.sound()


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "a rule of a budget": ("icu-team", {"rule": "first_come"}),
    "parts of less than a second": ("mimic", {"unlock": over_time(5) | {"over_seconds": 4}}),
    "eleven years": ("mimic", {"unlock": over_time(11, 11 * 366)}),
    "a share of a stranger": ("mimic", {"shares": [share("eicu")]}),
    "a share of the population itself": ("mimic", {"shares": [share("mimic")]}),
    "a share of what is not directly under it": ("mimic", {"shares": [share("mimic/icu-team/study")]}),
    "shares of parts": ("wards", {"shares": [share("mimic/wards/a")]}),
    "more than the whole": (
        "mimic",
        {"shares": [share("mimic/icu-team", minimum=0.6), share("mimic/er", minimum=0.41)]},
    ),
    "a minimum above the maximum": ("mimic", {"shares": [share("mimic/er", minimum=0.5, maximum=0.4)]}),
    "a budget twice": ("mimic", {"shares": [share("mimic/er", minimum=0.1), share("mimic/er", minimum=0.2)]}),
}


def test_allocation_that_contradicts_its_account_is_refused(office: Waiting) -> None:
    office.team("er")
    office.team("study", "mimic/icu-team")
    office.ledger.population("eicu")
    office.team("wards", composition="parallel", attestation="a patient lies in one ward")
    office.team("a", "mimic/wards")
    for what, (account, allocation) in BAD.items():
        reply = office.put(office.ids[account], allocation)
        answer = reply.status_code, reply.json().get("code")
        assert answer in {(422, "invalid_request"), (404, "not_found")}, (what, reply.text)
        assert read(office, account)["revision"] == 0


def test_key_of_a_budget_replaces_the_allocation_of_that_budget_only(office: Waiting) -> None:
    key = office.ledger.post("/v1/api-keys", {"role": "budget_admin", "scope": office.ids["icu-team"]})
    office.ledger.keys["hospital", "narrow"] = key.json()["key"]
    is_refused(office.put("mimic", {"rule": "first_come"}, role="narrow"), 403, "insufficient_scope")
    assert office.put(office.ids["icu-team"], {}, role="narrow").status_code == 200
    run = office.ledger.run()
    is_refused(office.put(run, {}), 404, "not_found")


@pytest.mark.both_databases
def test_account_with_an_allocation_admits_steps_of_plans_only(office: Waiting) -> None:
    before = Trainer(office.ledger, office.ledger.run(name="before", event=LOUD))
    assert before.steps(count=3).status_code == 200
    office.allocate("icu-team")
    answer = is_refused(before.steps(count=1), 403, "plan_required")
    assert (answer["account"], answer["account_path"]) == (office.ids["icu-team"], "mimic/icu-team")
    is_refused(before.steps(count=1, dry_run=True), 403, "plan_required")
    is_refused(before.steps(count=1, on_exceed="truncate"), 403, "plan_required")
    is_refused(before.steps(events=counted((LOUD, 1))), 403, "plan_required")
    plan = before.reserved((LOUD, 10))
    assert before.steps(count=4, dry_run=True).json()["decision"] == "admitted"
    assert before.steps(count=10).json()["reservation"] == plan
    is_refused(before.steps(count=1), 403, "plan_required")
    assert before.steps(count=2, mode="report").json()["decision"] == "reported"
    before.end(plan, "commit", 10)
    office.put(office.ids["icu-team"], None)
    assert before.steps(count=1).status_code == 200
    assert before.read()["next_step"] == 16
    assert office.sound()


def test_sweep_that_is_charged_at_once_is_no_plan(office: Waiting) -> None:
    office.allocate("mimic")
    body = {
        "name": "sweep",
        "budget": "mimic/icu-team",
        "charging_mode": "repeat_and_select",
        "trials": {"mean": 4.0, "events": counted((LOUD, 5))},
    }
    is_refused(office.ledger.post("/v1/experiments", body), 403, "plan_required")
    each = office.ledger.post(
        "/v1/experiments", {"name": "each", "budget": "mimic/icu-team", "charging_mode": "each_run"}
    )
    assert each.status_code == 201, each.text
    held = office.held(10, budget="mimic/icu-team/each")
    assert held.trainer.steps(count=10).json()["reservation"] == held.plan
    assert office.sound()


def test_limit_is_unlocked_by_the_runs_that_ask(office: Waiting) -> None:
    """By ten of them; a run that asks again, or that is refused, counts no more than once."""
    office.allocate("icu-team", unlock={"type": "by_plans", "plans": 10})
    assert read(office, "icu-team")["arrivals"] == 0
    first = office.queued(60, "first", wait_until=office.until(days=9))
    assert read(office, "icu-team")["arrivals"] == 1
    assert first.cancel().status_code == 200
    run = Queued(office, office.ledger.run(name="again", event=LOUD), "")
    for _ in range(3):
        run.plan = run.trainer.reserve((LOUD, 100), wait_until=office.until(days=9)).json()["id"]
        assert run.cancel().status_code == 200
    assert read(office, "icu-team")["arrivals"] == 2
    is_refused(run.trainer.reserve((LOUD, 100)), 403, "budget_exceeded")
    assert read(office, "icu-team")["arrivals"] == 2
    waits = office.queued(100, "waits", wait_until=office.until(days=9))
    asked = 3
    while waits.read()["status"] == "waiting":
        assert office.register(1, f"small{asked}").status_code == 201
        asked += 1
        office.granted()
        assert asked <= 10
    assert asked == 5  # a hundred of 219 steps are nearly a half
    assert within_limits(waits.trainer.path())
    assert read(office, "icu-team")["unlocked"] == asked / 10
    assert office.sound()


@pytest.fixture
def locked(ledger: Ledger) -> str:
    """A population of which a tenth is unlocked."""
    population = str(ledger.population(limit={"epsilon": 3.0, "delta": 1e-5})["id"])
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    allocate(ledger, population, unlock=OVER_TEN_DAYS)
    return population


@pytest.mark.parametrize("steps", [1, 800, 5000, 100_000])
def test_plan_gets_the_place_that_its_preview_has(ledger: Ledger, locked: str, steps: int) -> None:
    del locked
    for name, count in (("first", 800), ("second", 30)):
        ask(ledger, name, count)
    said = preview(ledger, "mimic/icu-team", steps).json()
    arrived = ask(ledger, "newcomer", steps)
    if said == {"fits": False, "waiting": None}:
        assert arrived.json()["code"] == "budget_exceeded"
        return
    assert arrived.status_code == 201, arrived.text
    assert said["fits"] == (arrived.json()["status"] == "active")
    if said["fits"]:
        assert said["waiting"] is None
        return
    became = waiting_of(ledger, arrived.json())
    assert [each.pop("available") for each in became["lacks"]] == pytest.approx(
        [each.pop("available") for each in said["waiting"]["lacks"]], rel=1e-6
    )
    assert became == said["waiting"]


def test_preview_is_itself_an_arrival_that_unlocks(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    ledger.budget(limit={"epsilon": 3.0, "delta": 1e-5})
    allocate(ledger, population, unlock={"type": "by_plans", "plans": 2})
    assert preview(ledger, "mimic/icu-team", 10).json()["fits"]
    assert ledger.get(f"/v1/accounts/{population}/allocation").json()["arrivals"] == 0


def test_closed_account_is_waited_for_or_refuses(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget(opens_at=later(24))
    [short] = preview(ledger, "mimic/icu-team", 10).json()["waiting"]["lacks"]
    assert (short["reason"], short["opens_at"] is not None) == ("closed", True)


def test_policies_and_kinds_of_accounts_hold_for_previews(ledger: Ledger) -> None:
    population = str(ledger.population()["id"])
    ledger.budget()
    parts = {"composition": "parallel", "attestation": "Each patient is in one ward."}
    ledger.budget("wards", **parts)
    assert preview(ledger, "mimic/wards", 1).json()["code"] == "invalid_request"
    assert preview(ledger, "nowhere", 1).status_code == 404
    noisier = {"policy": {"min_noise_multiplier": 2.0}, "reason": "Less."}
    headers = ledger.headers("privacy_officer") | {"If-Match": "*"}
    assert ledger.http.put(f"/v1/accounts/{population}/policy", json=noisier, headers=headers).status_code == 200
    assert preview(ledger, "mimic/icu-team", 1).json()["code"] == "policy_violation"


def test_preview_stays_within_the_scope_of_a_key(ledger: Ledger) -> None:
    ledger.population()
    budget = str(ledger.budget()["id"])
    ledger.budget("others")
    made = ledger.post("/v1/api-keys", {"role": "viewer", "scope": budget}).json()
    ledger.keys["hospital", "bound"] = made["key"]
    assert preview(ledger, "mimic/icu-team", 1, "bound").json() == {"fits": True, "waiting": None}
    assert preview(ledger, "mimic/others", 1, "bound").json()["code"] == "insufficient_scope"
