"""The client: where it sends, what it sends, and what it never shows."""

import math
import traceback
from datetime import UTC, datetime
from typing import Any

import httpx2
import numpy as np
import pytest

from epsilon_ledger import (
    AccountantEpsilon,
    ApprovalRequiredError,
    AsyncLedgerClient,
    AsyncRun,
    ConfigurationError,
    DataBlock,
    EventCount,
    LedgerClient,
    LedgerError,
    Limit,
    Plan,
    PlanItem,
    PlannedEventCount,
    Run,
    UnexpectedResponseError,
    gaussian,
    poisson_sampled,
)
from tests.sdk.fake_ledger import KEY, PROBLEM_JSON, RUN, RUN_ID, TRIES, URL, FakeLedger, Fault, problem

PLAN = {
    "state": "active",
    "share": 0.96,
    "delta": 9.6e-06,
    "steps": 90,
    "steps_used": 4,
    "steps_reserved": 1,
    "steps_left": 85,
    "items": [
        {"event": {"type": "gaussian", "noise_multiplier": 2.0}, "count": 5, "steps": 5, "steps_used": 4},
        {"event": {"type": "gaussian", "noise_multiplier": 3.0}, "count": None, "steps": 85, "steps_used": 0},
    ],
}
ACCOUNT = {
    "id": "pop_000000000000001",
    "name": "mimic",
    "path": "mimic",
    "limit": {"epsilon": 3, "delta": 1e-5},
    "plan": PLAN,
    "planned": [
        {"event": {"type": "gaussian", "noise_multiplier": 2.0}, "count": 5, "new": 1},
        {"event": {"type": "gaussian", "noise_multiplier": 3.0}, "count": None},
    ],
    "epsilon": 0.0,
    "epsilon_rdp": 0.0,
    "weights_frozen": False,
    "labels": {},
    "links": [],
    "created_at": "2026-11-21T08:00:00Z",
    "updated_at": "2026-11-21T08:00:00+00:00",
    "of_tomorrow": [1, 2],
}
POPULATION = ACCOUNT | {"privacy_unit": "record", "neighboring_relation": "replace_one", "size": None}
BUDGET = ACCOUNT | {
    "id": "bud_1",
    "path": "mimic/icu",
    "parent": "pop_000000000000001",
    "population": "pop_000000000000001",
    "planned": [],
    "plan": None,
}


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", "https://ledger.test/prefix/")
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "key_from_env")
    with LedgerClient(transport=httpx2.MockTransport(ledger)) as client:
        client.get_run(RUN_ID)
    sent = ledger.requests[0]
    assert sent.url == f"https://ledger.test/prefix/v1/runs/{RUN_ID}"
    assert sent.headers["Authorization"] == "Bearer key_from_env"
    assert sent.headers["User-Agent"].startswith("epsilon-ledger-client/")


def test_arguments_go_before_the_environment(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", "https://other.test")
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "other")
    with LedgerClient(URL, KEY, transport=httpx2.MockTransport(ledger)) as client:
        client.get_run(RUN_ID)
    assert ledger.requests[0].url.host == "ledger.test"
    assert ledger.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPSILON_LEDGER_URL", raising=False)
    monkeypatch.delenv("EPSILON_LEDGER_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="EPSILON_LEDGER_URL"):
        LedgerClient(api_key=KEY)
    with pytest.raises(ConfigurationError, match="EPSILON_LEDGER_API_KEY"):
        LedgerClient(URL)


@pytest.mark.parametrize(
    "url",
    ["ledger.test", "ftp://ledger.test", "http://", "http://ledger.test?a=1", "http://ledger.test#a", "http://[::1"],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        LedgerClient(url, KEY)


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigurationError, match="user name") as caught:
        LedgerClient("https://me:hunter2@ledger.test", KEY)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["s3cr3t\n", "s3cr3t s3cr3t", "s3cr3t\u2028", "sécret s3cr3t"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigurationError, match="API key") as caught:
        LedgerClient(URL, key)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_the_key_is_never_shown(client: LedgerClient, run: Run, ledger: FakeLedger) -> None:
    shown = [repr(client), str(client), repr(run), repr(run.state), repr(run.authorize())]
    shown.extend(repr(value) for value in vars(client).values())
    for fault in (
        httpx2.ConnectError("refused"),
        httpx2.Response(403, text="no"),
        problem(401, "unauthenticated"),
        problem(422, "invalid_request", errors=[{"field": "x"}]),
    ):
        ledger.faults.extend([Fault(instead=fault)] * TRIES)
        with pytest.raises(LedgerError) as caught:
            client.get_run(RUN_ID)
        shown.extend(["".join(traceback.format_exception(caught.value)), repr(caught.value), str(vars(caught.value))])
        ledger.faults.clear()
    assert not [text for text in shown if KEY in text or KEY.split(".")[1] in text]
    assert repr(client) == f"<LedgerClient {URL}>"


@pytest.mark.parametrize("made", [LedgerClient, AsyncLedgerClient, Run, AsyncRun], ids=lambda made: made.__name__)
def test_what_could_not_be_made_can_be_shown(made: type[object]) -> None:
    """A debugger, or a report with local variables, shows objects whose constructors have failed."""
    assert repr(made.__new__(made)).startswith(f"<{made.__name__} not ")


def test_populations(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(instead=httpx2.Response(201, json=POPULATION))] * 2)
    made = client.create_population(
        "mimic", privacy_unit="record", neighboring_relation="replace_one", limit=Limit(3.0, 1e-5)
    )
    assert ledger.bodies[0] == {
        "name": "mimic",
        "privacy_unit": "record",
        "neighboring_relation": "replace_one",
        "limit": {"epsilon": 3.0, "delta": 1e-5},
    }
    assert made.limit == Limit(3.0, 1e-5)
    assert isinstance(made.limit.epsilon, float)
    assert made.planned == ({"event": gaussian(2.0), "count": 5}, {"event": gaussian(3.0), "count": None})
    items = (PlanItem(gaussian(2.0), 5, 5, 4), PlanItem(gaussian(3.0), None, 85, 0))
    assert made.plan == Plan("active", 0.96, 9.6e-6, 90, 4, 1, 85, items)
    assert made.size is None
    assert made.created_at == datetime(2026, 11, 21, 8, tzinfo=UTC)
    assert client.get_population("pop_000000000000001") == made


def test_a_population_that_another_person_opens_is_told_as_proposed(client: LedgerClient, ledger: FakeLedger) -> None:
    waiting = {"id": "prp_1", "reason": "The population mimic: another person has to approve it.", "status": "open"}
    ledger.faults.append(Fault(instead=httpx2.Response(202, json=waiting)))
    with pytest.raises(ApprovalRequiredError, match=r"The population mimic: another person.* prp_1") as caught:
        client.create_population(
            "mimic", privacy_unit="record", neighboring_relation="replace_one", limit=Limit(3.0, 1e-5)
        )
    assert caught.value.proposal == "prp_1"


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("limit", 3.0, r"limit must be a Limit, such as Limit\(.*, not 3.0"),
        ("limit", (3.0, 1e-5), "limit must be a Limit"),
        ("composition", "disjoint", "composition must be a ParallelComposition"),
        ("opens_at", "2027-01-01", "opens_at must be a datetime, such as .* not '2027-01-01'"),
        ("block", "may", "block must be a DataBlock"),
        ("block", DataBlock("may", "june"), "data_from must be a datetime"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_type_is_named_before_anything_is_sent(
    client: LedgerClient, ledger: FakeLedger, name: str, value: object, right: str
) -> None:
    given: dict[str, Any] = {"parent": "mimic", "limit": Limit(3.0, 1e-5)} | {name: value}
    with pytest.raises(TypeError, match=right):
        client.create_budget("icu", **given)
    assert ledger.requests == []


@pytest.mark.parametrize("start", ["2026-01-01", datetime(2026, 1, 1, tzinfo=UTC), None])
def test_the_start_of_blocks_is_a_day(client: LedgerClient, ledger: FakeLedger, start: Any) -> None:  # noqa: ANN401 - anything is given
    with pytest.raises(TypeError, match="start must be a date"):
        client.create_blocks("bud_000000000000001", "month", start=start, count=3, limit=Limit(1.0, 1e-5))
    assert ledger.requests == []


def test_budgets(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.extend([Fault(instead=httpx2.Response(201, json=BUDGET))] * 2)
    planned = [EventCount(event=gaussian(2.0), count=5)]
    made = client.create_budget("icu", parent="mimic", limit=Limit(3.0, 1e-5), planned=planned)
    assert ledger.bodies[0] == {
        "name": "icu",
        "parent": "mimic",
        "limit": {"epsilon": 3.0, "delta": 1e-5},
        "planned": planned,
    }
    assert (made.parent, made.planned, made.plan) == ("pop_000000000000001", (), None)
    assert client.get_budget("bud_1") == made


PLANS: dict[str, tuple[Any, Any]] = {
    "bare events": ([gaussian(2.0)], [{"event": gaussian(2.0)}]),
    "pairs": ([(gaussian(2.0), 3)], [{"event": gaussian(2.0), "count": 3}]),
    "mixed": (
        ((gaussian(2.0), np.int64(3)), EventCount(event=gaussian(4.0), count=2), poisson_sampled(0.1, gaussian(3.0))),
        [
            {"event": gaussian(2.0), "count": 3},
            {"event": gaussian(4.0), "count": 2},
            {"event": poisson_sampled(0.1, gaussian(3.0))},
        ],
    ),
    "as it was answered": (
        [PlannedEventCount(event=gaussian(2.0), count=5), PlannedEventCount(event=gaussian(2.0), count=None)],
        [{"event": gaussian(2.0), "count": 5}, {"event": gaussian(2.0)}],
    ),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_events_with_counts_of_which_the_last_may_be_bare(
    client: LedgerClient, ledger: FakeLedger, name: str
) -> None:
    ledger.faults.append(Fault(instead=httpx2.Response(201, json=BUDGET)))
    given, sent = PLANS[name]
    client.create_budget("icu", parent="mimic", limit=Limit(3.0, 1e-5), planned=given)
    client.create_run("icu", budget="mimic/icu", limit=Limit(3.0, 1e-5), planned=given)
    assert [body["planned"] for body in ledger.bodies] == [sent, sent]


@pytest.mark.parametrize(
    ("planned", "error", "told"),
    [
        (gaussian(2.0), TypeError, "planned must be a list of events"),
        ([gaussian(2.0), 3], TypeError, "planned holds events, or events with counts"),
        ([(gaussian(2.0),)], TypeError, "planned holds events, or events with counts"),
        (["gaussian"], TypeError, "planned holds events, or events with counts"),
        ([(gaussian(2.0), 0)], ValueError, "count must be at least 1"),
        ([(gaussian(2.0), 1.5)], TypeError, "count must be a whole number"),
    ],
)
def test_what_is_no_plan_is_named_before_anything_is_sent(
    client: LedgerClient,
    ledger: FakeLedger,
    planned: Any,  # noqa: ANN401 - anything is given
    error: type[Exception],
    told: str,
) -> None:
    with pytest.raises(error, match=told):
        client.create_budget("icu", parent="mimic", limit=Limit(3.0, 1e-5), planned=planned)
    assert ledger.requests == []


def test_runs(client: LedgerClient, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_run("icu", budget="mimic/icu", collect_metadata=False)
    monkeypatch.setenv("EPSILON_LEDGER_COLLECT_METADATA", "0")
    client.create_run(
        "icu",
        budget="bud_1",
        event=gaussian(2.0),
        limit=Limit(1.0, 1e-6),
        planned=[EventCount(event=gaussian(2.0), count=5)],
        privacy_unit="record",
        neighboring_relation="add_or_remove_one",
    )
    assert ledger.bodies == [
        {"name": "icu", "budget": "mimic/icu"},
        {
            "name": "icu",
            "budget": "bud_1",
            "event": {"type": "gaussian", "noise_multiplier": 2.0},
            "limit": {"epsilon": 1.0, "delta": 1e-6},
            "planned": [{"event": {"type": "gaussian", "noise_multiplier": 2.0}, "count": 5}],
            "privacy_unit": "record",
            "neighboring_relation": "add_or_remove_one",
        },
    ]


def test_history(client: LedgerClient, ledger: FakeLedger) -> None:
    point = {
        "position": 0,
        "decision": "admitted",
        "first_step": 0,
        "count": 2,
        "next_step": 2,
        "epsilon": 0.5,
        "delta": 1e-5,
        "events": [{"event": {"type": "gaussian", "noise_multiplier": 2.0}, "count": 2}],
        "accounts": ["pop_000000000000001", "bud_1", RUN_ID],
        "created_at": "2026-11-21T08:00:00Z",
    }
    points = [point, point | {"events_truncated": False}, point | {"events_truncated": True}]
    page = {"run": RUN_ID, "points": points, "decisions": 9, "next": "abc="}
    ledger.faults.extend([Fault(instead=httpx2.Response(200, json=page))] * 2)
    found = client.get_run_history(RUN_ID, max_points=10)
    assert (found.decisions, found.next_cursor, found.points[0].accounts[1]) == (9, "abc=", "bud_1")
    assert [point.events_truncated for point in found.points] == [None, False, True]
    client.get_run_history(RUN_ID, after=found.next_cursor)
    assert [request.url.query for request in ledger.requests] == [b"max_points=10", b"max_points=500&after=abc%3D"]


def test_epsilon(client: LedgerClient, ledger: FakeLedger) -> None:
    methods = [
        {"name": "rdp", "epsilon": 1.5, "optimal_order": 8, "note": "n"},
        {"name": "textbook", "epsilon": "Infinity", "optimal_order": None, "note": "t"},
    ]
    finite: dict[str, object] = {
        "epsilon": 1.5,
        "delta": 1e-5,
        "required_epsilon": 1.25,
        "optimal_order": 8,
        "accountants": methods,
        "warnings": ["w"],
    }
    infinite: dict[str, object] = {
        "epsilon": "Infinity",
        "delta": 1e-5,
        "required_epsilon": "Infinity",
        "optimal_order": None,
        "accountants": [],
        "warnings": [],
    }
    ledger.faults.extend(Fault(instead=httpx2.Response(200, json=answer)) for answer in (finite, infinite))
    events = [EventCount(event=gaussian(2.0), count=5)]
    found = client.compute_epsilon(events, delta=1e-5)
    assert (found.epsilon, found.required_epsilon, found.optimal_order, found.warnings) == (1.5, 1.25, 8.0, ("w",))
    assert found.accountants == (
        AccountantEpsilon("rdp", 1.5, 8.0, "n"),
        AccountantEpsilon("textbook", math.inf, None, "t"),
    )
    unbounded = client.compute_epsilon(events, delta=1e-5, neighboring_relation="replace_one")
    assert unbounded.epsilon == unbounded.required_epsilon == math.inf
    assert ledger.bodies == [
        {"events": events, "delta": 1e-5},
        {"events": events, "delta": 1e-5, "neighboring_relation": "replace_one"},
    ]


def test_an_id_cannot_leave_its_place_in_the_path(client: LedgerClient, ledger: FakeLedger) -> None:
    with pytest.raises(UnexpectedResponseError):  # the answer is a run, not a proposal
        client.get_proposal("../budgets?x=1")
    assert ledger.requests[0].url.raw_path == b"/v1/proposals/..%2Fbudgets%3Fx%3D1"


def test_a_path_cannot_leave_its_place_in_the_query(client: LedgerClient, ledger: FakeLedger) -> None:
    with pytest.raises(UnexpectedResponseError):  # the answer is a run, not a page
        client.get_run("mimic/icu&status=paused#x")
    assert ledger.requests[0].url.raw_path == b"/v1/runs?path=mimic%2Ficu%26status%3Dpaused%23x"


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": None},
        {"epsilon": "1.0"},
        {"epsilon": True},
        {"next_step": 1.0},
        {"next_step": True},
        {"name": None},
        {"event": 5},
        {"created_at": "yesterday"},
        {"created_at": 5},
    ],
    ids=str,
)
def test_a_member_of_the_wrong_type_is_named(
    client: LedgerClient, ledger: FakeLedger, changed: dict[str, object]
) -> None:
    ledger.faults.append(Fault(instead=httpx2.Response(200, json=RUN | changed)))
    with pytest.raises(UnexpectedResponseError, match=next(iter(changed))):
        client.get_run(RUN_ID)


@pytest.mark.parametrize("answer", [b"[]", b'"text"', b"null", b'{"run": "run_1", "points": {}, "decisions": 1}'])
def test_an_answer_of_another_shape_is_refused(client: LedgerClient, ledger: FakeLedger, answer: bytes) -> None:
    ledger.faults.append(Fault(instead=httpx2.Response(200, content=answer)))
    with pytest.raises(UnexpectedResponseError, match="cannot be read"):
        client.get_run_history(RUN_ID)


@pytest.mark.parametrize("status", [200, 403])
def test_an_answer_that_is_nested_too_deeply_is_refused(client: LedgerClient, ledger: FakeLedger, status: int) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    headers = {"Content-Type": "application/json" if status == 200 else PROBLEM_JSON}
    ledger.faults.append(Fault(instead=httpx2.Response(status, content=deep, headers=headers)))
    with pytest.raises(UnexpectedResponseError):
        client.get_run(RUN_ID)


def test_a_number_that_no_float_can_hold_is_refused(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.faults.append(Fault(instead=httpx2.Response(200, json=RUN | {"epsilon": 10**400})))
    with pytest.raises(UnexpectedResponseError, match="epsilon: expected a number that a float can hold"):
        client.get_run(RUN_ID)


def test_a_closed_client_says_so(ledger: FakeLedger) -> None:
    client = LedgerClient(URL, KEY, transport=httpx2.MockTransport(ledger))
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.get_run(RUN_ID)
