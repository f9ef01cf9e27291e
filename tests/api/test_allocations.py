"""Allocations: what of a limit is usable, what is kept for whom, and that steps need a plan."""

from datetime import timedelta
from typing import Any

import pytest

from app.persistence.clock import Clock, Moment
from tests.api.trainer import LOUD, Trainer, counted, is_refused, within_limits
from tests.api.waiting import FITTING, START, Queued, Waiting
from tests.conftest import Ledger

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


@pytest.mark.both_databases
def test_an_allocation_is_read_replaced_and_removed(office: Waiting) -> None:
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


def test_a_proposed_unlock_is_approved_as_it_was_proposed(office: Waiting) -> None:
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
    "a rule that nobody knows": ("mimic", {"rule": "last_come"}),
    "no parts": ("mimic", {"unlock": over_time(0, 1)}),
    "too many parts": ("mimic", {"unlock": over_time(1001)}),
    "parts of less than a second": ("mimic", {"unlock": over_time(5) | {"over_seconds": 4}}),
    "eleven years": ("mimic", {"unlock": over_time(11, 11 * 366)}),
    "no plans": ("mimic", {"unlock": {"type": "by_plans", "plans": 0}}),
    "a share of a stranger": ("mimic", {"shares": [share("eicu")]}),
    "a share of the population itself": ("mimic", {"shares": [share("mimic")]}),
    "a share of what is not directly under it": ("mimic", {"shares": [share("mimic/icu-team/study")]}),
    "shares of parts": ("wards", {"shares": [share("mimic/wards/a")]}),
    "more than the whole": (
        "mimic",
        {"shares": [share("mimic/icu-team", minimum=0.6), share("mimic/er", minimum=0.41)]},
    ),
    "a minimum above the maximum": ("mimic", {"shares": [share("mimic/er", minimum=0.5, maximum=0.4)]}),
    "no maximum": ("mimic", {"shares": [share("mimic/er", maximum=0.0)]}),
    "no weight": ("mimic", {"shares": [share("mimic/er", weight=0.0)]}),
    "a budget twice": ("mimic", {"shares": [share("mimic/er", minimum=0.1), share("mimic/er", minimum=0.2)]}),
    "an age below 0": ("mimic", {"aging_seconds": -1}),
}


def test_what_makes_no_sense_is_refused(office: Waiting) -> None:
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


def test_a_budget_has_one_share_whatever_it_is_called(office: Waiting) -> None:
    shares = [share(office.ids["icu-team"], minimum=0.1), share("mimic/icu-team", minimum=0.2)]
    is_refused(office.put("mimic", {"shares": shares}), 422, "invalid_request")


def test_minimums_are_added_as_they_are_written(office: Waiting) -> None:
    office.team("er")
    office.team("ward")
    minimums = {"mimic/icu-team": 0.3, "mimic/er": 0.3, "mimic/ward": 0.4}
    office.allocate("mimic", shares=[share(name, minimum=each) for name, each in minimums.items()])


def test_who_may_not_manage_accounts_replaces_no_allocation(office: Waiting) -> None:
    for role in ("trainer", "viewer", "auditor"):
        is_refused(office.put("mimic", {"rule": "first_come"}, role=role), 403, "insufficient_scope")
    stranger = office.put(office.ids["mimic"], {"rule": "first_come"}, organisation="clinic", role="admin")
    is_refused(stranger, 404, "not_found")
    key = office.ledger.post("/v1/api-keys", {"role": "budget_admin", "scope": office.ids["icu-team"]})
    office.ledger.keys["hospital", "narrow"] = key.json()["key"]
    is_refused(office.put("mimic", {"rule": "first_come"}, role="narrow"), 403, "insufficient_scope")
    assert office.put(office.ids["icu-team"], {}, role="narrow").status_code == 200
    run = office.ledger.run()
    is_refused(office.put(run, {}), 404, "not_found")


@pytest.mark.both_databases
def test_an_account_with_an_allocation_admits_steps_of_plans_only(office: Waiting) -> None:
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


def test_a_step_beyond_a_plan_is_not_charged_directly(office: Waiting) -> None:
    office.allocate("mimic")
    held = office.held(10)
    is_refused(held.trainer.steps(count=11), 403, "plan_required")
    assert held.trainer.steps(count=10).json()["reservation"] == held.plan
    assert held.read()["status"] == "active"
    assert office.sound()


def test_a_sweep_that_is_charged_at_once_is_no_plan(office: Waiting) -> None:
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


@pytest.mark.both_databases
def test_a_limit_is_unlocked_over_time(office: Waiting) -> None:
    """In four parts, of which each lets in a quarter of the steps at most."""
    office.allocate("icu-team", unlock=over_time(4))
    plans = [office.queued(FITTING // 4 + 10, f"run{place}", wait_until=office.until(days=9)) for place in range(4)]
    assert plans[0].lacks() == [("mimic/icu-team", "locked")]
    seen = plans[0].read()["waiting"]
    assert seen["estimated_at"] == "2100-01-02T00:00:00Z"
    granted = []
    for _ in range(5):
        granted.append(office.granted())
        assert within_limits(plans[0].trainer.path())
        office.later(days=1)
    assert sum(granted) == 3
    assert granted[0] == 0
    assert plans[3].lacks() == [("mimic/icu-team", "reserved")]
    assert read(office, "icu-team")["unlocked"] == 1.0
    assert office.sound()


def test_a_limit_that_is_unlocked_later_admits_nothing_yet(office: Waiting) -> None:
    office.allocate("icu-team", unlock=over_time(1) | {"since": office.until(days=2)})
    assert read(office, "icu-team")["unlocked"] == 0.0
    is_refused(office.register(1, wait_until=None), 403, "budget_exceeded")
    waits = office.queued(FITTING, wait_until=office.until(days=9))
    office.later(days=1, hours=23)
    assert office.granted() == 0
    office.later(hours=2)
    assert office.granted() == 1
    assert waits.read()["status"] == "active"


def test_nothing_more_is_unlocked_by_a_clock_that_is_not_sure(office: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    office.allocate("icu-team", unlock=over_time(2))
    office.queued(FITTING, wait_until=office.until(days=9))
    late = office.now + timedelta(days=1)
    monkeypatch.setattr(Clock, "moment", lambda _, **__: Moment(late, late - timedelta(seconds=2)))
    assert office.granted() == 0
    monkeypatch.setattr(Clock, "moment", lambda _, **__: Moment(late + timedelta(seconds=2), late))
    assert office.granted() == 1


@pytest.mark.both_databases
def test_a_limit_is_unlocked_by_the_runs_that_ask(office: Waiting) -> None:
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


def test_what_a_budget_is_promised_is_kept_from_others_until_its_window_ends(office: Waiting) -> None:
    """Two windows; of each the one team is promised a half."""
    office.limit("mimic", 1.0)
    office.team("er")
    office.allocate("mimic", rule="first_come", unlock=over_time(2), shares=[share("mimic/er", minimum=0.5)])
    others = [office.queued(60, f"other{place}", wait_until=office.until(days=9)) for place in range(3)]
    assert office.granted() == 0  # a quarter of 219 steps, and of epsilon, is about this
    taken = _steps_that_fit(office, "mimic/icu-team", "probe")
    own = _steps_that_fit(office, "mimic/er", "own")
    assert 0 < taken < own
    assert others[0].lacks() == [("mimic", "promised")]
    office.later(days=1)
    assert office.granted() >= 1
    assert within_limits(others[0].trainer.path())
    assert office.sound()


def _steps_that_fit(office: Waiting, budget: str, name: str) -> int:
    """The most steps of a plan that would be set aside at once for one that asks first."""
    low, high = 0, FITTING + 1
    while high - low > 1:
        middle = (low + high) // 2
        reply = office.register(middle, f"{name}{middle}", budget=budget, wait_until=None)
        if reply.status_code == 201:
            office.ledger.post(f"/v1/reservations/{reply.json()['reservation']}/void", None, "trainer")
            low = middle
        else:
            assert reply.json()["code"] in {"budget_exceeded", "plans_waiting"}, reply.text
            high = middle
    return low


def test_a_minimum_is_kept_for_good_without_windows(office: Waiting) -> None:
    office.limit("mimic", 1.0)
    office.team("er")
    office.allocate("mimic", shares=[share("mimic/er", minimum=0.5)])
    half = _steps_that_fit(office, "mimic/icu-team", "a")
    assert 0 < half < FITTING
    office.held(half, "b")
    is_refused(office.register(1, wait_until=None), 403, "budget_exceeded")
    waits = office.queued(1)
    assert waits.lacks() == [("mimic", "promised")]
    promised = office.held(half, "c", budget="mimic/er")
    promised.end("void")
    assert office.granted() == 0
    office.allocate("mimic")
    assert office.granted() == 1
    assert office.sound()


def test_a_budget_gets_no_more_than_its_maximum(office: Waiting) -> None:
    office.limit("mimic", 1.0)
    office.team("er")
    office.allocate("mimic", shares=[share("mimic/icu-team", maximum=0.25)])
    most = _steps_that_fit(office, "mimic/icu-team", "a")
    assert 0 < most < FITTING // 2
    held = office.held(most, "b")
    waits = office.queued(most, "c")
    is_refused(office.register(1, "d", wait_until=None), 403, "budget_exceeded")
    office.held(most, "e", budget="mimic/er")
    held.end("void")
    assert office.granted() == 1
    assert waits.read()["status"] == "active"
    assert office.sound()


def test_a_smaller_allocation_takes_nothing_back(office: Waiting) -> None:
    held = office.held(FITTING)
    office.allocate("icu-team", unlock=over_time(10))
    assert held.read()["status"] == "active"
    assert held.trainer.steps(count=FITTING).json()["reservation"] == held.plan
    assert within_limits(held.trainer.path())
    assert office.sound()


def test_plans_of_a_weightier_budget_come_first_by_their_dominant_share(office: Waiting) -> None:
    office.limit("mimic", 1.0)
    office.team("er")
    office.allocate(
        "mimic", rule="dominant_share", aging_seconds=None, shares=[share("mimic/er", weight=4.0)], unlock=over_time(2)
    )
    office.held(20, "before")
    for name, count, budget in (("a", 180, "icu-team"), ("b", 120, "icu-team"), ("c", 150, "er")):
        office.queued(count, name, budget=f"mimic/{budget}", wait_until=office.until(days=9))
    assert office.queue() == ["c", "b", "a"]
    office.later(days=1)
    assert office.granted() == 1
    assert office.queue() == ["b", "a"]
    [granted] = office.events("reservation.granted")
    assert granted["after"]["rule"] == "dominant_share"
    assert office.sound()
