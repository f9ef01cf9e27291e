"""Replies about waiting reservations that no ledger of today sends: nothing is released for them."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from epsilon_ledger import (
    EventCount,
    LedgerClient,
    LedgerError,
    NotFoundError,
    ReservationNotGrantedError,
    Run,
    UnexpectedResponseError,
    Waiting,
    gaussian,
)
from tests.sdk.fake_ledger import RUN, problem
from tests.sdk.wire import KEY, URL, Wire, with_policy

PLAN = [EventCount(event=gaussian(2.0), count=5)]
LACKS: dict[str, Any] = {"account": "bud_1", "account_path": "mimic/icu-team", "reason": "a_reason_of_tomorrow"}
LACKS |= {"requested": "Infinity", "available": 0}
WAITING: dict[str, Any] = {
    "rule": "a_rule_of_tomorrow",
    "position": 1,
    "reservations": 1,
    "aged": False,
    "score": "Infinity",
}
WAITING |= {"lacks": [LACKS], "estimated_at": "2026-11-28T08:00:00Z", "a_member_of_a_newer_ledger": {"x": 1}}
RESERVATION: dict[str, Any] = {"id": "res_1", "run": "run_1", "attempt": 1, "status": "waiting", "lease_seconds": 3600}
RESERVATION |= {"events": [PLAN[0] | {"authorized": 0, "revoked": 0}], "steps_reserved": 5, "steps_authorized": 0}
RESERVATION |= {"steps_revoked": 0, "steps_executed": None}


def reservation(members: dict[str, Any]) -> dict[str, Any]:
    granted = "2026-11-27T08:00:00Z" if members.get("status") == "active" else None
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return RESERVATION | {"granted_at": granted, "expires_at": expires} | members


@dataclass(eq=False, kw_only=True)
class WaitingLedger(Wire):
    """Lets every reservation wait; `looks` are the members of its reservation at each look, the last one for ever.

    A look may be a response instead. `claimed` are the members of the answer to the claim.
    """

    looks: list[dict[str, Any] | httpx2.Response] = field(default_factory=list)
    claimed: dict[str, Any] = field(default_factory=lambda: {"status": "active"})
    run: dict[str, Any] = field(default_factory=dict)

    def arrive(self, request: httpx2.Request) -> httpx2.Response:
        match request.method, request.url.path.split("/")[2:]:
            case "POST", ["runs"]:
                return httpx2.Response(201, json=RUN | {"status": "waiting", "waiting_reservation": "res_1"} | self.run)
            case "GET", ["runs", _]:
                return httpx2.Response(200, json=RUN | {"reservation": "res_1"})
            case "GET", _:
                look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
                return look if isinstance(look, httpx2.Response) else httpx2.Response(200, json=reservation(look))
            case _, [*_, "claim"]:
                return httpx2.Response(200, json=reservation(self.claimed))
        return httpx2.Response(200, json=reservation({"status": "cancelled"}))


def open_run(ledger: WaitingLedger, **terms: Any) -> Run:  # noqa: ANN401 - passed on
    client = with_policy(LedgerClient(URL, KEY, transport=ledger, max_attempts=2), sleep=lambda _: None)
    return client.create_run("icu", budget="mimic", reserve=PLAN, wait=timedelta(hours=1), **terms)


def test_each_reason_and_each_end_is_told() -> None:
    seen: list[Waiting] = []
    lacks = [LACKS | {"reason": "closed", "opens_at": "2027-01-01T00:00:00Z"}]
    closed, fits = (WAITING | {"lacks": each, "estimated_at": None} for each in (lacks, []))
    looks: list[Any] = [{"waiting": each} for each in (None, WAITING, WAITING, closed, fits)]
    ledger = WaitingLedger(looks=[*looks, {"status": "active"}])
    before = datetime.now(UTC)
    open_run(ledger, on_wait=seen.append)
    sent = datetime.fromisoformat(json.loads(ledger.requests[0].content)["wait_until"])
    assert before <= sent - timedelta(hours=1) <= datetime.now(UTC)  # by this machine's clock
    needs = "a_reason_of_tomorrow: needs more than all of the limit, 0 % is left"
    assert [str(told).partition("; ")[2] for told in seen] == [
        f"waits for mimic/icu-team ({needs}); expected at 2026-11-28 08:00:00 UTC",
        "waits for mimic/icu-team (closed, opens at 2027-01-01 00:00:00 UTC)",
        "it fits, others are served first",
    ]
    for status in ("voided", "a_status_of_tomorrow"):
        with pytest.raises(ReservationNotGrantedError, match=f"it is {status}") as caught:
            open_run(WaitingLedger(looks=[{"status": status}]))
        assert (caught.value.reservation_status, caught.value.waiting) == (status, None)
    approval = WaitingLedger(run={"status": "pending", "waiting_reservation": None})
    assert (open_run(approval).status, approval.asked) == ("pending", ["runs"])


BAD: dict[str, tuple[list[Any], dict[str, Any], type[LedgerError]]] = {
    "type": ([{"steps_reserved": "five"}], {}, UnexpectedResponseError),
    "member": ([{"waiting": {"position": 1}}], {}, UnexpectedResponseError),
    "html": ([httpx2.Response(200, text="<html>")], {}, UnexpectedResponseError),
    "gone": ([problem(404, "not_found")], {}, NotFoundError),
    "claim of an ended plan": ([{"status": "active"}], {"status": "forfeited"}, UnexpectedResponseError),
    "claim of another plan": ([{"status": "active"}], {"status": "active", "id": "res_2"}, UnexpectedResponseError),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_reply_leaves_reservation_and_says_how_to_go_on(name: str) -> None:
    looks, claimed, error = BAD[name]
    ledger = WaitingLedger(looks=looks, claimed=claimed)
    with pytest.raises(error) as caught:
        open_run(ledger)
    [note] = caught.value.__notes__
    assert "get_run('run_1').wait_for_reservation() waits on for it" in note
    assert "cancel" not in ledger.asked
