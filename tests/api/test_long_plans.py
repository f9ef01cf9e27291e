"""A long body of a plan is read by the process that calculates, and answered as a short one is."""

import json
from typing import Any

import httpx2
import pytest

from app.accounting.errors import PlanTooExpensiveError
from app.accounting.work import bounded
from app.api import strict_json
from app.api.plans import BYTES_PER_MICROSECOND, PLANS, answer_plan
from app.api.routers.planning import MOST_READ_HERE, routes
from app.ledger.errors import InvalidInputError
from tests.api.answer_validation import without_request_id
from tests.api.conftest import SeededLedger
from tests.api.test_planning_bad_input import GOOD

BAD: dict[str, Any] = {
    "no JSON": b'{"delta" 1}',
    "a key twice": b'{"delta": 1, "delta": 2}',
    "no object": b"[1]",
    "nothing": b"{}",
    "an unknown event": json.dumps({"delta": 1e-5, "events": [{"event": {"type": "gausian"}}]}).encode(),
    "a wrong number": json.dumps({"delta": 2, "events": [{"event": {"type": "zcdp", "rho": -1}}]}).encode(),
    "too many events": json.dumps({"delta": 1e-5, "events": [{}] * 1001}).encode(),
    "nested too deep": b'{"delta": 1e-5, "events": [{"event": '
    + b'{"type": "group_privacy", "event": ' * 20
    + b"1"
    + b"}" * 21
    + b"]}",
}


def _sent(shared: SeededLedger, what: str, content: bytes) -> httpx2.Response:
    headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
    return shared.ledger.http.post(f"/v1/accounting/{what}", content=content, headers=headers)


def _long(content: bytes) -> bytes:
    return content + b" " * MOST_READ_HERE


@pytest.mark.parametrize("what", GOOD)
def test_a_long_plan_is_answered_as_a_short_one_by_another_process(
    shared: SeededLedger, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = json.dumps(GOOD[what]).encode()
    short = _sent(shared, what, content)
    monkeypatch.setattr(strict_json, "strict_loads", None)  # whatever this process reads fails
    long = _sent(shared, what, _long(content))
    assert (long.status_code, long.headers["Content-Type"], long.json()) == (
        200,
        short.headers["Content-Type"],
        short.json(),
    )


@pytest.mark.parametrize("wrong", BAD)
def test_what_is_wrong_with_a_long_plan_is_told_as_of_a_short_one(shared: SeededLedger, wrong: str) -> None:
    short, long = (_sent(shared, "epsilon", content) for content in (BAD[wrong], _long(BAD[wrong])))
    assert 400 <= short.status_code < 500
    assert (long.status_code, long.headers["Content-Type"]) == (short.status_code, short.headers["Content-Type"])
    assert without_request_id(long) == without_request_id(short)


def test_reading_counts_as_work() -> None:
    content = json.dumps(GOOD["epsilon"]).encode()
    with bounded(50_000):
        assert json.loads(answer_plan("computeEpsilon", content))["epsilon"] > 0
        with pytest.raises(PlanTooExpensiveError):
            answer_plan("computeEpsilon", content + b" " * 50_000 * BYTES_PER_MICROSECOND)
    with pytest.raises(InvalidInputError):
        answer_plan("computeEpsilon", b"{}")


def test_every_operation_of_the_planner_is_known() -> None:
    assert {getattr(each, "unique_id", None) for each in routes.routes} == set(PLANS)
