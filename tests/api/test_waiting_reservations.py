"""A reservation that does not fit waits until it does; it is granted as a whole, once, or ends without a grant.

The queue's rules are held by `tests/ledger/scheduling/` and, with money, by the machine and the races of
`tests/service`.
"""

from datetime import datetime, timedelta

import pytest

from app.service.maintenance import expire_reservations
from tests.api.trainer import HUGE, LOUD, approve, is_refused, issue, within_limits
from tests.api.waiting import FITTING, Queued, Waiting, furnish_office, office

__all__ = ["office"]

FURNISHED = {"office": furnish_office}


def _queue(office: Waiting, account: str = "mimic") -> list[str]:
    """The names of the runs that wait, the next one first."""
    answer = office.ledger.get(f"/v1/accounts/{office.ids[account]}/queue").json()
    positions = [each["reservation"]["waiting"]["position"] for each in answer["items"]]
    assert positions == list(range(1, answer["reservations"] + 1))
    return [each["run_path"].rpartition("/")[2] for each in answer["items"]]


def _shown(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def test_reservation_that_waits_is_granted_once_another_is_returned(office: Waiting) -> None:
    held = office.held(150)
    waits = office.queued(100)
    found = waits.read()
    assert (found["status"], found["wait_until"]) == ("waiting", found["expires_at"])
    assert (found["granted_at"], found["claimed_at"], found["priority"]) == (None, None, 0)
    seen = found["waiting"]
    assert (seen["rule"], seen["position"], seen["reservations"], seen["aged"]) == ("first_come", 1, 1, False)
    assert [(each["account_path"], each["reason"]) for each in seen["lacks"]] == [("mimic/icu-team", "reserved")]
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
    assert "reservation.granted" in {each["type"] for each in office.ledger.get("/v1/alerts").json()["items"]}
    assert within_limits(waits.trainer.path())
    assert office.sound()


def test_reservation_that_is_never_claimed_is_returned_and_a_claimed_one_forfeited(office: Waiting) -> None:
    held = office.held(FITTING)
    plans = [office.queued(40, name, lease_seconds=60) for name in ("idle", "claimed", "stepped", "aborted", "taken")]
    held.end("void")
    assert office.granted() == 5
    assert plans[1].end("claim").json()["claimed_at"] == _shown(office.now)
    assert plans[2].trainer.steps().status_code == 200
    plans[4].end("claim")
    for plan, action in ((plans[3], "abort"), (plans[4], "attempts")):
        assert plan.trainer.act(action, {}).status_code in {200, 201}
    office.later(seconds=61)
    assert expire_reservations(office.ledger.database, office.now) == 3
    statuses = [plan.read()["status"] for plan in plans]
    assert statuses == ["voided", "forfeited", "forfeited", "voided", "forfeited"]
    price = plans[0].trainer.price
    assert plans[0].trainer.balance()[1:] == [(price((LOUD, 120)), price()), (price(), price())]
    assert plans[0].trainer.read()["status"] == "active"
    assert office.sound()


def test_reservation_that_never_fits_is_refused_at_once_and_another_waits_within_a_year(office: Waiting) -> None:
    office.held(FITTING)
    for count in (FITTING + 1, 10**6):
        assert is_refused(office.register(count), 403, "budget_exceeded")["binding_account_path"] == "mimic/icu-team"
    is_refused(office.register(1, event=HUGE), 403, "budget_exceeded")
    assert _queue(office) == []
    for ahead in (timedelta(0), timedelta(seconds=-1), timedelta(days=366, seconds=1)):
        until = office.now + timedelta(milliseconds=1) + ahead
        answer = is_refused(office.register(1, wait_until=until.isoformat()), 422, "invalid_request")
        assert "wait_until" in answer["detail"]
    until = office.now + timedelta(milliseconds=1, days=366)
    assert office.register(1, wait_until=until.isoformat()).status_code == 201


def test_reservation_of_an_active_run_waits(office: Waiting) -> None:
    held = office.held(180)
    other = office.held(10, "other")
    preceding = {"reservation": other.plan, "steps_executed": 5}
    reply = other.trainer.reserve((LOUD, 45), wait_until=office.until(), preceding=preceding, key="again")
    assert (reply.status_code, reply.json()["status"]) == (202, "waiting"), reply.text
    waits = Queued(office, other.run, reply.json()["id"])
    assert other.status == ("committed", "active")
    assert (other.trainer.read()["reservation"], other.trainer.read()["waiting_reservation"]) == (None, waits.plan)
    second = other.trainer.reserve((LOUD, 1), wait_until=office.until())
    assert is_refused(second, 409, "reservation_state_conflict")["reservation"] == waits.plan
    is_refused(other.trainer.reserve((LOUD, 1)), 409, "reservation_state_conflict")
    assert other.trainer.steps(count=2).json()["reservation"] is None  # it may go on without a reservation meanwhile
    held.end("void")
    assert office.granted() == 1
    again = other.trainer.reserve((LOUD, 45), wait_until=reply.json()["wait_until"], preceding=preceding, key="again")
    assert (again.status_code, again.json()) == (202, reply.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert other.trainer.steps(count=45).json()["reservation"] == waits.plan
    assert office.sound()


def test_first_answer_is_repeated_whatever_became_of_the_reservation(office: Waiting) -> None:
    held, until = office.held(FITTING), office.until()
    first = office.register(50, wait_until=until, key="one")
    plan = Queued(office, first.json()["id"], first.json()["waiting_reservation"])
    for change in (lambda: None, lambda: held.end("void"), office.granted, lambda: plan.end("void")):
        change()
        again = office.register(50, wait_until=until, key="one")
        assert (again.status_code, again.json()) == (201, first.json())
    is_refused(office.register(51, wait_until=until, key="one"), 422, "idempotency_key_reused")
    assert len(office.events("reservation.queued")) == 1


def test_granted_reservation_is_renewed_once_it_is_claimed(office: Waiting) -> None:
    held = office.held(FITTING)
    waits, steps = (office.queued(40, name, lease_seconds=60) for name in ("claims", "steps"))
    held.end("void")
    assert office.granted() == 2
    before = waits.read()
    refused = is_refused(waits.end("renew"), 409, "reservation_state_conflict")
    assert refused["detail"].endswith(
        "no trainer has claimed it yet. Claim it first: POST /v1/reservations/{id}/claim."
    )
    assert waits.read() == before
    claimed = waits.end("claim").json()
    assert (claimed["claimed_at"], claimed["expires_at"]) == (
        _shown(office.now),
        _shown(office.now + timedelta(seconds=60)),
    )
    office.later(seconds=30)
    again, renewed = waits.end("claim").json(), waits.end("renew").json()
    assert again == renewed == claimed | {"expires_at": renewed["expires_at"]}
    assert renewed["expires_at"] > claimed["expires_at"]
    assert steps.trainer.steps().status_code == 200
    assert steps.end("renew").json()["claimed_at"] is None
    assert office.sound()


def test_reservation_that_waits_is_not_settled_and_its_run_has_not_begun(office: Waiting) -> None:
    office.held(FITTING)
    waits = office.queued(50)
    before = waits.trainer.rows()
    for how, executed in (("commit", 5), ("void", None), ("claim", None), ("renew", None)):
        is_refused(waits.end(how, executed), 409, "reservation_state_conflict")
    for action in ("pause", "resume", "complete", "attempts"):
        is_refused(waits.trainer.act(action, {} if action == "attempts" else None), 409, "run_state_conflict")
    is_refused(waits.trainer.reserve((LOUD, 1)), 409, "run_state_conflict")
    assert waits.trainer.rows() == before


def test_active_run_takes_its_reservation_with_it(office: Waiting) -> None:
    office.held(150)
    for action in ("abort", "complete", "attempts"):
        held = Queued(office, office.ledger.run(name="open", event=LOUD), "")
        held.plan = held.trainer.reserve((LOUD, 100), wait_until=office.until()).json()["id"]
        assert held.trainer.act(action, {}).status_code in {200, 201}
        assert (held.read()["status"], _queue(office)) == ("cancelled", [])
    assert office.sound()


def test_reservation_that_has_waited_in_vain_expires(office: Waiting) -> None:
    held = office.held(FITTING)
    waits = office.queued(50)
    open_run = Queued(office, office.ledger.run(name="open", event=LOUD), "")
    open_run.plan = open_run.trainer.reserve((LOUD, 100), wait_until=office.until(hours=1)).json()["id"]
    assert office.expired() == 0
    office.later(hours=1)
    held.end("void")
    office.later(days=1)
    assert [office.expired(), office.expired(), office.granted()] == [2, 0, 0]
    assert (waits.status, open_run.status) == (("expired", "aborted"), ("expired", "active"))
    assert waits.trainer.read()["end_reason"] == "not_granted"
    alerts = [each["type"] for each in office.ledger.get("/v1/alerts").json()["items"]]
    assert alerts.count("reservation.expired") == 2
    assert office.sound()


def test_reservation_is_cancelled_once_while_it_waits(office: Waiting) -> None:
    held = office.held(FITTING)
    waits = office.queued(50)
    is_refused(waits.cancel("viewer"), 403, "permission_denied")
    cancelled = waits.cancel("trainer", "a smaller one will do")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert waits.status == ("cancelled", "aborted")
    assert waits.trainer.read()["end_reason"] == "not_granted"
    before = waits.trainer.rows()
    assert waits.cancel().json() == cancelled.json()
    missing = Queued(office, held.run, "res_missing")
    for reply in (waits.prioritize(1), held.cancel(), held.prioritize(5)):
        is_refused(reply, 409, "reservation_state_conflict")
    for reply in (missing.cancel(), missing.prioritize(5)):
        is_refused(reply, 404, "not_found")
    assert waits.trainer.rows() == before
    [event] = office.events("reservation.cancelled")
    assert event["reason"] == "a smaller one will do"
    assert office.sound()


def test_reservation_with_a_higher_priority_is_served_first(office: Waiting) -> None:
    held = office.held(FITTING)
    first, second, third = (office.queued(120, name) for name in ("a", "b", "c"))
    assert _queue(office) == ["a", "b", "c"]
    assert [third.prioritize(5).json()["priority"], first.prioritize(-5).json()["priority"]] == [5, -5]
    assert _queue(office) == _queue(office, "icu-team") == ["c", "b", "a"]
    before = third.trainer.rows()
    assert third.prioritize(5).status_code == 200  # it has it already
    is_refused(third.prioritize(6, "trainer"), 403, "permission_denied")
    assert third.trainer.rows() == before
    held.end("void")
    assert office.granted() == 1
    assert [each.read()["status"] for each in (first, second, third)] == ["waiting", "waiting", "active"]
    assert len(office.events("reservation.prioritized")) == 2
    assert office.sound()


def test_reservation_directly_under_its_population_has_a_place(office: Waiting) -> None:
    office.allocate("mimic", unlock={"type": "by_reservations", "reservations": 10})
    office.queued(200, "direct", budget="mimic")
    office.queued(200, "team")
    assert _queue(office) == ["direct", "team"]


def test_reservation_waits_for_what_other_parts_hold(office: Waiting) -> None:
    office.team("wards", composition="parallel", max_partitions_per_unit=2, attestation="at most two wards each")
    for part in ("a", "b"):
        office.team(part, "mimic/wards")
    office.held(200, budget="mimic/wards/a")
    waits = office.queued(200, budget="mimic/wards/b")
    lacks = [(each["account_path"], each["reason"]) for each in waits.read()["waiting"]["lacks"]]
    assert lacks == [("mimic/wards", "reserved")]


def test_barred_reservation_under_a_population_is_tried_again(office: Waiting) -> None:
    office.ledger.population("eicu", limit={"epsilon": 1.0, "delta": 1e-5})
    held = office.held(FITTING, budget="eicu")
    office.queued(FITTING, budget="eicu")
    assert office.ledger.set_policy({"min_noise_multiplier": 70.0}).status_code == 200
    held.end("void")
    assert office.granted() == 0
    approve(office.ledger, office.ledger.set_policy({}))
    assert office.granted() == 0
    office.later(minutes=1)
    assert office.granted() == 1


def test_closed_account_is_waited_for_if_it_opens_later(office: Waiting) -> None:
    office.team("quarter", opens_at=office.until(hours=1), closes_at=office.until(days=2))
    office.team("study", "mimic/quarter")
    waits = office.queued(50, budget="mimic/quarter/study")
    seen = waits.read()["waiting"]
    [lack] = seen["lacks"]
    assert (lack["account_path"], lack["reason"], lack["opens_at"]) == ("mimic/quarter", "closed", seen["estimated_at"])
    assert office.granted() == 0
    office.later(hours=1)
    assert office.granted() == 1
    office.later(days=2)
    is_refused(office.register(1, "late", budget="mimic/quarter/study"), 403, "account_closed")
    assert office.sound()


def test_run_that_needs_approval_reserves_nothing_and_does_not_wait(office: Waiting) -> None:
    assert office.ledger.set_policy({"approval_above_epsilon": 0.01}, office.ids["icu-team"]).status_code == 200
    for count in (50, FITTING):
        run = office.register(count, f"pending{count}").json()
        assert (run["status"], run["reservation"], run["waiting_reservation"]) == ("pending", None, None)
    assert office.granted() == 0
    assert office.events("reservation.queued") == []
    assert office.sound()


def test_key_reaches_reservations_of_its_account_only(office: Waiting) -> None:
    office.team("er")
    office.held(FITTING)
    office.held(FITTING, "there", budget="mimic/er")
    here, there = office.queued(50), office.queued(50, "other", budget="mimic/er")
    issue(office.ledger, "narrow", "budget_admin", office.ids["icu-team"])
    for reply in (there.cancel("narrow"), there.prioritize(1, "narrow"), here.prioritize(1, "narrow")):
        is_refused(reply, 403, "permission_denied")  # a priority is one among all reservations of the population
    paths = [f"/v1/accounts/{office.ids[name]}/queue" for name in ("mimic", "er", "icu-team")]
    queues = [office.ledger.get(path, "narrow") for path in paths]
    assert [reply.status_code for reply in queues] == [403, 403, 200]
    assert queues[2].json()["reservations"] == 1
    assert here.cancel("narrow").status_code == 200
