"""A plan that does not fit waits until it does; it is granted as a whole, once, or ends without a grant."""

from datetime import timedelta
from typing import Any, NoReturn

import pytest

from app.ledger.errors import LedgerUnavailableError
from app.service.runs.lost import end_lost_runs
from app.service.scheduling import grants
from tests.api.trainer import HUGE, LOUD, QUIET, counted, is_refused, within_limits
from tests.api.waiting import FITTING, LIMIT, Queued, Waiting
from tests.conftest import Ledger
from tests.persistence.dump import changed


@pytest.fixture
def office(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(ledger, monkeypatch)


@pytest.mark.both_databases
def test_a_plan_that_waits_is_granted_once_another_is_returned(office: Waiting) -> None:
    held = office.held(150)
    waits = office.queued(100)
    found = waits.read()
    assert (found["status"], found["wait_until"]) == ("waiting", found["expires_at"])
    assert (found["granted_at"], found["claimed_at"], found["priority"]) == (None, None, 0)
    seen = found["waiting"]
    assert (seen["rule"], seen["position"], seen["plans"], seen["aged"]) == ("first_come", 1, 1, False)
    assert waits.lacks() == [("mimic/icu-team", "reserved")]
    is_refused(waits.trainer.steps(), 409, "run_state_conflict")
    assert office.granted() == 0
    office.later(minutes=5)
    assert held.end("commit", 50).status_code == 200
    assert office.granted() == 1
    now = waits.read()
    assert (now["status"], now["granted_at"], now["waiting"]) == ("active", _shown(office.now), None)
    assert now["expires_at"] == _shown(office.now + timedelta(seconds=now["lease_seconds"]))
    assert waits.status == ("active", "active")
    assert waits.trainer.steps(count=100).json()["reservation"] == waits.plan
    [granted] = office.events("reservation.granted")
    assert (granted["subject"], granted["after"]["rule"]) == (waits.plan, "first_come")
    assert granted["after"]["waited_seconds"] == pytest.approx(300, abs=1)
    alerts = {each["type"] for each in office.ledger.get("/v1/alerts").json()["items"]}
    assert "reservation.granted" in alerts
    assert within_limits(waits.trainer.path())
    assert office.sound()


def _shown(at: Any) -> str:  # noqa: ANN401 - a time
    return str(at.isoformat().replace("+00:00", "Z"))


@pytest.mark.parametrize(("how", "executed"), [("commit", 20), ("void", None)])
def test_what_a_reservation_returns_lets_the_next_plan_in(office: Waiting, how: str, executed: int | None) -> None:
    held, waits = office.held(FITTING), office.queued(FITTING - 20)
    assert office.granted() == 0
    assert held.end(how, executed).status_code == 200
    assert office.granted() == 1
    assert waits.status == ("active", "active")
    assert office.sound()


def test_what_is_forfeited_lets_no_plan_in(office: Waiting) -> None:
    office.held(FITTING, lease_seconds=60)
    waits = office.queued(1)
    office.later(seconds=61)
    assert (office.lapsed(), office.granted()) == (1, 0)
    assert waits.lacks() == [("mimic/icu-team", "limit")]


@pytest.mark.both_databases
def test_a_plan_that_is_never_claimed_is_returned_and_a_claimed_one_forfeited(office: Waiting) -> None:
    held = office.held(FITTING)
    plans = [office.queued(60, name, lease_seconds=60) for name in ("idle", "renewed", "stepped")]
    held.end("void")
    assert office.granted() == 3
    renewed = plans[1].end("renew").json()
    assert renewed["claimed_at"] == _shown(office.now)
    assert plans[2].trainer.steps().status_code == 200
    office.later(seconds=61)
    assert office.lapsed() == 3
    assert [plan.read()["status"] for plan in plans] == ["voided", "forfeited", "forfeited"]
    price = plans[0].trainer.price
    assert plans[0].trainer.balance()[1] == (price((LOUD, 120)), price())
    assert plans[0].trainer.balance()[2] == (price(), price())
    assert plans[0].trainer.read()["status"] == "active"
    assert office.sound()


@pytest.mark.parametrize("action", ["abort", "attempts"])
@pytest.mark.parametrize("claimed", [True, False])
def test_the_end_of_a_granted_plan_charges_it_if_it_was_claimed(office: Waiting, action: str, *, claimed: bool) -> None:
    held, waits = office.held(FITTING), office.queued(50)
    held.end("void")
    office.granted()
    if claimed:
        waits.end("renew")
    assert waits.trainer.act(action, {}).status_code in {200, 201}
    assert waits.read()["status"] == ("forfeited" if claimed else "voided")
    assert waits.trainer.balance()[1][0] == waits.trainer.price((LOUD, 50 if claimed else 0))
    assert office.sound()


def test_a_plan_is_granted_when_a_limit_is_raised_and_not_when_it_is_lowered(office: Waiting) -> None:
    office.held(150)
    waits = office.queued(150)
    office.limit("icu-team", 0.95)
    assert office.granted() == 0
    office.limit("icu-team", 1.0)
    assert office.granted() == 0
    office.limit("icu-team", 2.0)
    assert office.granted() == 1
    assert waits.status == ("active", "active")
    assert within_limits(waits.trainer.path())
    assert office.sound()


def test_a_lowered_limit_is_not_passed_by_a_plan_that_waits(office: Waiting) -> None:
    held = office.held(150)
    waits = office.queued(150)
    office.limit("icu-team", 0.6)
    held.end("void")
    assert office.granted() == 0
    assert waits.lacks() == [("mimic/icu-team", "limit")]
    office.limit("icu-team", 1.0)
    assert office.granted() == 1
    assert within_limits(waits.trainer.path())
    assert office.sound()


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(seconds=-1), timedelta(days=366, seconds=1)])
def test_a_plan_waits_until_a_later_time_within_a_year(office: Waiting, ahead: timedelta) -> None:
    office.held(FITTING)
    office.later(milliseconds=1)
    before = office.now + timedelta(milliseconds=1)
    answer = is_refused(office.register(1, wait_until=(before + ahead).isoformat()), 422, "invalid_request")
    assert "wait_until" in answer["detail"]
    office.later(milliseconds=-1)
    assert office.register(1, wait_until=(before + timedelta(days=366)).isoformat()).status_code == 201


def test_a_time_to_wait_until_has_a_zone(office: Waiting) -> None:
    for until in ("2100-01-02", "2100-01-02T00:00:00", 5, True, "soon"):
        is_refused(office.register(1, wait_until=until), 422, "invalid_request")


def test_a_plan_that_fits_does_not_wait(office: Waiting) -> None:
    reply = office.register(FITTING)
    assert (reply.json()["status"], reply.json()["waiting_reservation"]) == ("active", None)
    found = office.ledger.get(f"/v1/reservations/{reply.json()['reservation']}").json()
    assert (found["status"], found["wait_until"], found["granted_at"]) == ("active", None, None)
    assert office.sound()


@pytest.mark.parametrize("count", [FITTING + 1, 10**6])
def test_a_plan_that_never_fits_is_refused_at_once(office: Waiting, count: int) -> None:
    office.held(1)
    answer = is_refused(office.register(count), 403, "budget_exceeded")
    assert answer["binding_account_path"] == "mimic/icu-team"
    is_refused(office.register(1, event=HUGE), 403, "budget_exceeded")
    assert office.queue() == []


def test_a_refusal_of_a_plan_that_never_fits_keeps_the_preceding_one(office: Waiting) -> None:
    held = office.held(10)
    before = held.trainer.rows()
    preceding = {"reservation": held.plan, "steps_executed": 5}
    reply = held.trainer.reserve((LOUD, 10**6), wait_until=office.until(), preceding=preceding)
    is_refused(reply, 403, "budget_exceeded")
    assert held.read()["status"] == "active"
    assert changed(before, held.trainer.rows()) <= {"audit_entries", "audit_heads", "dp_events", "organisations"}


@pytest.mark.both_databases
def test_the_plan_of_an_active_run_waits(office: Waiting) -> None:
    held = office.held(180)
    other = office.held(10, "other")
    preceding = {"reservation": other.plan, "steps_executed": 5}
    reply = other.trainer.reserve((LOUD, 45), wait_until=office.until(), preceding=preceding, key="again")
    assert (reply.status_code, reply.json()["status"]) == (202, "waiting"), reply.text
    waits = Queued(office, other.run, reply.json()["id"])
    assert other.read()["status"] == "committed"
    assert other.trainer.read()["status"] == "active"
    assert (other.trainer.read()["reservation"], other.trainer.read()["waiting_reservation"]) == (None, waits.plan)
    second = other.trainer.reserve((LOUD, 1), wait_until=office.until())
    answer = is_refused(second, 409, "reservation_state_conflict")
    assert answer["reservation"] == waits.plan
    is_refused(other.trainer.reserve((LOUD, 1)), 409, "reservation_state_conflict")
    assert other.trainer.steps(count=2).json()["reservation"] is None  # it may go on without a plan meanwhile
    held.end("void")
    assert office.granted() == 1
    again = other.trainer.reserve((LOUD, 45), wait_until=reply.json()["wait_until"], preceding=preceding, key="again")
    assert (again.status_code, again.json()) == (202, reply.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert other.trainer.steps(count=45).json()["reservation"] == waits.plan
    assert office.sound()


def test_the_first_answer_is_repeated_whatever_became_of_the_plan(office: Waiting) -> None:
    held = office.held(FITTING)
    until = office.until()
    first = office.register(50, wait_until=until, key="one")
    plan = Queued(office, first.json()["id"], first.json()["waiting_reservation"])
    for change in (lambda: None, lambda: held.end("void"), office.granted, lambda: plan.end("void")):
        change()
        again = office.register(50, wait_until=until, key="one")
        assert (again.status_code, again.json()) == (201, first.json())
    is_refused(office.register(51, wait_until=until, key="one"), 422, "idempotency_key_reused")
    assert len(office.events("reservation.queued")) == 1


@pytest.mark.parametrize("how", ["commit", "void", "renew"])
def test_a_plan_that_waits_has_nothing_to_settle(office: Waiting, how: str) -> None:
    office.held(FITTING)
    waits = office.queued(50)
    before = waits.trainer.rows()
    is_refused(waits.end(how, 5 if how == "commit" else None), 409, "reservation_state_conflict")
    assert waits.trainer.rows() == before


@pytest.mark.parametrize("action", ["pause", "resume", "complete", "attempts"])
def test_a_run_that_waits_has_not_begun(office: Waiting, action: str) -> None:
    office.held(FITTING)
    waits = office.queued(50)
    before = waits.trainer.rows()
    is_refused(waits.trainer.act(action, {} if action == "attempts" else None), 409, "run_state_conflict")
    is_refused(waits.trainer.reserve((LOUD, 1)), 409, "run_state_conflict")
    assert waits.trainer.rows() == before


def test_an_aborted_run_waits_no_more(office: Waiting) -> None:
    held, waits = office.held(FITTING), office.queued(50)
    assert waits.trainer.act("abort").json()["end_reason"] == "aborted"
    assert waits.status == ("cancelled", "aborted")
    held.end("void")
    assert office.granted() == 0
    assert waits.trainer.act("abort").status_code == 200
    assert office.sound()


@pytest.mark.parametrize("action", ["abort", "complete", "attempts"])
def test_an_active_run_takes_its_plan_with_it(office: Waiting, action: str) -> None:
    office.held(150)
    run = office.ledger.run(name="open", event=LOUD)
    held = Queued(office, run, "")
    held.plan = held.trainer.reserve((LOUD, 100), wait_until=office.until()).json()["id"]
    assert held.trainer.act(action, {}).status_code in {200, 201}
    assert held.read()["status"] == "cancelled"
    assert office.queue() == []
    assert office.sound()


def test_a_paused_run_gets_its_plan_once_it_is_resumed(office: Waiting) -> None:
    held = office.held(150)
    waits = Queued(office, office.ledger.run(name="open", event=LOUD), "")
    waits.plan = waits.trainer.reserve((LOUD, 100), wait_until=office.until()).json()["id"]
    waits.trainer.act("pause")
    held.end("void")
    assert office.granted() == 0
    waits.trainer.act("resume")
    assert office.granted() == 1
    assert waits.status == ("active", "active")
    assert office.sound()


@pytest.mark.both_databases
def test_a_plan_that_has_waited_in_vain_expires(office: Waiting) -> None:
    held = office.held(FITTING)
    waits = office.queued(50)
    open_run = Queued(office, office.ledger.run(name="open", event=LOUD), "")
    open_run.plan = open_run.trainer.reserve((LOUD, 100), wait_until=office.until(hours=1)).json()["id"]
    assert office.expired() == 0
    office.later(hours=1)
    held.end("void")
    office.later(days=1)
    assert office.expired() == 2
    assert office.expired() == office.granted() == 0
    assert (waits.status, open_run.status) == (("expired", "aborted"), ("expired", "active"))
    assert waits.trainer.read()["end_reason"] == "not_granted"
    alerts = [each["type"] for each in office.ledger.get("/v1/alerts").json()["items"]]
    assert alerts.count("reservation.expired") == 2
    assert office.sound()


def test_a_plan_whose_time_is_over_is_not_granted_any_more(office: Waiting) -> None:
    """Though nobody has ended it yet."""
    held, waits = office.held(FITTING), office.queued(50)
    behind = office.queued(150, "behind", wait_until=office.until(days=3))
    office.later(days=2)
    held.end("void")
    assert office.granted() == 1
    assert (waits.read()["status"], behind.read()["status"]) == ("waiting", "active")
    assert office.expired() == 1
    assert office.sound()


@pytest.mark.both_databases
def test_a_plan_is_cancelled_once(office: Waiting) -> None:
    office.held(FITTING)
    waits = office.queued(50)
    is_refused(office.ledger.post(f"/v1/reservations/{waits.plan}/cancel", {}), 422, "invalid_request")
    is_refused(waits.cancel("viewer"), 403, "insufficient_scope")
    cancelled = waits.cancel("trainer", "a smaller one will do")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert waits.status == ("cancelled", "aborted")
    assert waits.trainer.read()["end_reason"] == "not_granted"
    before = waits.trainer.rows()
    assert waits.cancel().json() == cancelled.json()
    assert waits.trainer.rows() == before
    [event] = office.events("reservation.cancelled")
    assert event["reason"] == "a smaller one will do"
    is_refused(waits.prioritize(1), 409, "reservation_state_conflict")
    assert office.sound()


def test_a_plan_that_does_not_wait_is_not_cancelled(office: Waiting) -> None:
    held = office.held(50)
    for reply in (held.cancel(), held.prioritize(5)):
        is_refused(reply, 409, "reservation_state_conflict")
    missing = Queued(office, held.run, "res_missing")
    for reply in (missing.cancel(), missing.prioritize(5)):
        is_refused(reply, 404, "not_found")


def test_a_plan_with_a_higher_priority_is_served_first(office: Waiting) -> None:
    held = office.held(FITTING)
    first, second, third = (office.queued(120, name) for name in ("a", "b", "c"))
    assert office.queue() == ["a", "b", "c"]
    assert third.prioritize(5).json()["priority"] == 5
    assert first.prioritize(-5).json()["priority"] == -5
    assert office.queue() == office.queue("icu-team") == ["c", "b", "a"]
    before = third.trainer.rows()
    assert third.prioritize(5).status_code == 200  # it has it already
    assert third.trainer.rows() == before
    for priority in (-101, 101):
        is_refused(third.prioritize(priority), 422, "invalid_request")
    is_refused(third.prioritize(6, "trainer"), 403, "insufficient_scope")
    held.end("void")
    assert office.granted() == 1
    assert [each.read()["status"] for each in (first, second, third)] == ["waiting", "waiting", "active"]
    assert len(office.events("reservation.prioritized")) == 2
    assert office.sound()


def test_several_plans_are_granted_in_one_look_in_the_order_of_arrival(office: Waiting) -> None:
    held = office.held(FITTING)
    plans = [office.queued(count, f"run{place}") for place, count in enumerate((60, 60, 100, 70, 9))]
    held.end("void")
    assert office.granted() == 4
    assert [plan.read()["status"] for plan in plans] == ["active", "active", "waiting", "active", "active"]
    granted = office.events("reservation.granted")
    assert [each["subject"] for each in granted] == [plans[place].plan for place in (0, 1, 3, 4)]
    overtaken = [[each["reservation"] for each in one["after"]["overtaken"]] for one in granted]
    assert overtaken == [[], [], [plans[2].plan], [plans[2].plan]]
    assert within_limits(plans[0].trainer.path())
    assert office.sound()


def test_a_plan_that_does_not_wait_comes_after_those_that_do(office: Waiting) -> None:
    held = office.held(150)
    waits = office.queued(100)
    held.end("commit", 50)
    is_refused(office.register(90, "late", wait_until=None), 409, "plans_waiting")
    assert office.register(90, "late").json()["status"] == "waiting"
    assert office.register(49, "small", wait_until=None).status_code == 201  # it fits beside the plan that waits
    assert office.granted() == 1
    assert waits.read()["status"] == "active"
    assert office.sound()


def test_a_plan_that_has_waited_for_long_is_delayed_by_no_younger_one(office: Waiting) -> None:
    office.allocate("mimic", rule="first_come", aging_seconds=3600)
    first, second = office.held(110, "a"), office.held(109, "b")
    old = office.queued(150, "old")
    office.later(hours=1)
    young = office.queued(80, "young")
    assert old.read()["waiting"]["aged"]
    assert not young.read()["waiting"]["aged"]
    first.end("void")
    assert office.granted() == 0
    is_refused(office.register(80, "late", wait_until=None), 409, "plans_waiting")
    second.end("void")
    assert office.granted() == 1
    assert (old.read()["status"], young.read()["status"]) == ("active", "waiting")
    assert office.sound()


@pytest.mark.parametrize("how", ["cancelled", "deprioritized", "expired", "paused", "never fits"])
def test_whatever_ends_the_turn_of_a_plan_lets_those_behind_it_in(office: Waiting, how: str) -> None:
    """Nothing is returned then, and yet a plan that fits is not delayed any more."""
    office.team("er")
    office.allocate("mimic", rule="first_come", aging_seconds=60)
    first, second = office.held(110, "a"), office.held(109, "b")
    run = Queued(office, office.ledger.run(name="old", event=LOUD, limit=LIMIT), "")
    until = office.until(hours=1)
    run.plan = run.trainer.reserve((LOUD, 150), wait_until=until).json()["id"]
    office.later(minutes=1)
    young = office.queued(50, "young")
    first.end("void")
    assert office.granted() == 0
    if how == "cancelled":
        run.cancel()
    elif how == "deprioritized":
        run.prioritize(-1)
    elif how == "expired":
        office.later(hours=1)
        assert office.expired() == 1
    elif how == "paused":
        run.trainer.act("pause")
    else:
        office.ids["old"] = run.run
        office.limit("old", 0.5)
    assert office.granted() == 1
    assert young.read()["status"] == "active"
    assert second.read()["status"] == "active"
    assert office.sound()


def test_a_plan_that_a_policy_forbids_meanwhile_keeps_no_other_waiting(office: Waiting) -> None:
    held = office.held(FITTING)
    forbidden, allowed = office.queued(150, "loud"), office.queued(300, "quiet", event=QUIET)
    policy = {"policy": {"min_noise_multiplier": 80.0}, "reason": "The board has met."}
    headers = office.ledger.headers("privacy_officer") | {"If-Match": "*"}
    reply = office.ledger.http.put(f"/v1/accounts/{office.ids['icu-team']}/policy", json=policy, headers=headers)
    assert reply.status_code == 200, reply.text
    held.end("void")
    assert office.granted() == 1
    assert (forbidden.read()["status"], allowed.read()["status"]) == ("waiting", "active")
    assert office.sound()


def test_a_plan_that_could_not_be_granted_is_tried_again_after_a_minute(
    office: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> NoReturn:
        raise LedgerUnavailableError("A price is missing.")

    held = office.held(FITTING)
    waits, other = office.queued(150), office.queued(100, "other")
    held.end("commit", 50)
    with monkeypatch.context() as broken:
        broken.setattr(grants, "price_plan", unavailable)
        assert office.granted() == 0
    assert office.granted() == 0
    office.later(minutes=1)
    assert office.granted() == 1
    assert (waits.read()["status"], other.read()["status"]) == ("active", "waiting")
    assert office.sound()


def test_a_closed_account_is_waited_for_if_it_opens_later(office: Waiting) -> None:
    office.team("quarter", opens_at=office.until(hours=1), closes_at=office.until(days=2))
    office.team("study", "mimic/quarter")
    waits = office.queued(50, budget="mimic/quarter/study")
    seen = waits.read()["waiting"]
    assert [(each["account_path"], each["reason"]) for each in seen["lacks"]] == [("mimic/quarter", "closed")]
    assert seen["lacks"][0]["opens_at"] == seen["estimated_at"]
    assert office.granted() == 0
    office.later(hours=1)
    assert office.granted() == 1
    office.later(days=2)
    is_refused(office.register(1, "late", budget="mimic/quarter/study"), 403, "budget_closed")
    assert office.sound()


def test_the_plan_of_a_run_waits_for_an_account_that_opens_again_but_not_if_it_never_fits(office: Waiting) -> None:
    office.team("study", opens_at=office.until(hours=2))
    is_refused(office.register(10**6, budget="mimic/study"), 403, "budget_exceeded")
    is_refused(office.register(10, budget="mimic/study", wait_until=None), 403, "budget_closed")


def test_nothing_waits_for_an_archived_account(office: Waiting) -> None:
    office.held(FITTING)
    waits = office.queued(50)
    reply = office.ledger.post(f"/v1/accounts/{office.ids['icu-team']}/archive", {"reason": "The study is over."})
    if reply.status_code == 200:
        is_refused(office.register(10, "late"), 409, "account_archived")
        is_refused(waits.trainer.reserve((LOUD, 1)), 409, "run_state_conflict")
    assert waits.cancel().status_code == 200
    assert office.sound()


def test_a_run_that_needs_approval_reserves_nothing_and_does_not_wait(office: Waiting) -> None:
    policy = {"policy": {"approval_above_epsilon": 0.01}, "reason": "The board has met."}
    headers = office.ledger.headers("privacy_officer") | {"If-Match": "*"}
    reply = office.ledger.http.put(f"/v1/accounts/{office.ids['icu-team']}/policy", json=policy, headers=headers)
    assert reply.status_code == 200, reply.text
    for count in (50, FITTING):
        reply = office.register(count, f"pending{count}")
        assert (reply.status_code, reply.json()["status"]) == (201, "pending"), reply.text
        assert (reply.json()["reservation"], reply.json()["waiting_reservation"]) == (None, None)
    assert office.granted() == 0
    assert office.events("reservation.queued") == []
    assert office.sound()


@pytest.mark.both_databases
def test_a_run_waits_for_all_its_budgets(office: Waiting) -> None:
    """Of two populations: it is granted once both have room."""
    office.ids["eicu"] = str(office.ledger.population("eicu")["id"])
    office.team("er", "eicu")
    here, there = office.held(FITTING, "here"), office.held(FITTING, "there", budget="eicu/er")
    waits = office.queued(100, budget=None, budgets=["mimic/icu-team", "eicu/er"])
    assert sorted(waits.lacks()) == [("eicu/er", "reserved"), ("mimic/icu-team", "reserved")]
    assert office.queue("mimic") == ["waits"]
    assert office.queue("er") == ["waits"]
    here.end("void")
    assert office.granted() == 0
    assert waits.lacks() == [("eicu/er", "reserved")]
    there.end("void")
    assert office.granted() == 1
    assert within_limits(waits.trainer.path())
    assert office.sound()


def test_plans_wait_under_an_account_that_is_composed_in_parallel(office: Waiting) -> None:
    office.ledger.budget(
        "wards", "mimic", composition="parallel", attestation="a patient lies in one ward", limit=LIMIT
    )
    for name in ("a", "b"):
        office.team(name, "mimic/wards")
    held = office.held(FITTING, budget="mimic/wards/a")
    beside = office.held(FITTING, "beside", budget="mimic/wards/b")
    waits = [office.queued(100, f"run-{name}", budget=f"mimic/wards/{name}") for name in ("a", "b")]
    held.end("void")
    assert office.granted() == 1
    assert [plan.read()["status"] for plan in waits] == ["active", "waiting"]
    beside.end("commit", 99)
    assert office.granted() == 1
    assert within_limits(waits[1].trainer.path())
    assert office.sound()


def test_what_a_run_that_waits_reports_is_recorded(office: Waiting) -> None:
    held, waits = office.held(FITTING), office.queued(50)
    assert waits.trainer.steps(count=5, mode="report").json()["decision"] == "reported"
    assert waits.trainer.read()["status"] in {"waiting", "overdrawn"}
    held.end("void")
    office.granted()
    office.later(days=2)
    office.expired()
    assert office.sound()


def test_a_trainer_that_waits_is_not_lost(office: Waiting) -> None:
    office.held(150, lease_seconds=7 * 24 * 3600)
    waits = Queued(office, office.ledger.run(name="open", event=LOUD), "")
    waits.plan = waits.trainer.reserve((LOUD, 100), wait_until=office.until(days=9)).json()["id"]
    office.later(days=5)
    assert end_lost_runs(office.ledger.database, office.now, timedelta(days=1)) == 0
    assert waits.status == ("waiting", "active")


def test_plans_of_another_organisation_are_unknown(office: Waiting) -> None:
    office.held(FITTING)
    waits = office.queued(50)
    stranger = office.ledger.headers("admin", "clinic")
    for path, body in (("cancel", {"reason": "x"}), ("prioritize", {"priority": 1, "reason": "x"})):
        reply = office.ledger.http.post(f"/v1/reservations/{waits.plan}/{path}", json=body, headers=stranger)
        is_refused(reply, 404, "not_found")
    is_refused(office.ledger.get(f"/v1/accounts/{office.ids['mimic']}/queue", "admin", "clinic"), 404, "not_found")
    assert waits.read()["status"] == "waiting"


def test_a_key_reaches_plans_of_its_account_only(office: Waiting) -> None:
    office.team("er")
    office.held(FITTING)
    office.held(FITTING, "there", budget="mimic/er")
    here, there = office.queued(50), office.queued(50, "other", budget="mimic/er")
    key = office.ledger.post("/v1/api-keys", {"role": "budget_admin", "scope": office.ids["icu-team"]})
    assert key.status_code == 201, key.text
    office.ledger.keys["hospital", "narrow"] = key.json()["key"]
    for reply in (there.cancel("narrow"), there.prioritize(1, "narrow"), here.prioritize(1, "narrow")):
        is_refused(reply, 403, "insufficient_scope")  # a priority is one among all plans of the population
    for account in ("mimic", "er"):
        is_refused(office.ledger.get(f"/v1/accounts/{office.ids[account]}/queue", "narrow"), 403, "insufficient_scope")
    assert office.ledger.get(f"/v1/accounts/{office.ids['icu-team']}/queue", "narrow").json()["plans"] == 1
    assert here.cancel("narrow").status_code == 200


def test_who_asks_for_what_it_lacks_changes_nothing(office: Waiting) -> None:
    held = office.held(FITTING)
    waits = office.queued(counted((LOUD, 50), (QUIET, 20))[0]["count"])
    before = waits.trainer.rows()
    for _ in range(2):
        waits.read()
        office.queue()
    office.granted()
    assert waits.trainer.rows() == before
    held.end("void")
    office.queue()  # it fits now, and nobody has granted it yet
    assert waits.read()["waiting"]["lacks"] == []
    assert office.granted() == 1
