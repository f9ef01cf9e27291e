"""The client: where it sends, what it sends, and what it never shows."""

import math
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import numpy as np
import pytest

from epsilon_ledger import (
    ApprovalRequiredError,
    AsyncLedgerClient,
    AsyncRun,
    ComparedEpsilon,
    ConfigurationError,
    DataBlock,
    EventCount,
    LedgerClient,
    LedgerError,
    Limit,
    LimitNeeded,
    Plan,
    PlanItem,
    PlannedEventCount,
    Run,
    UnexpectedResponseError,
    composed,
    gaussian,
    mixture_of_gaussians,
    poisson_sampled,
    tree_aggregation,
)
from tests.sdk.fake_ledger import PROBLEM_JSON, RUN, RUN_ID, TRIES, FakeLedger, problem
from tests.sdk.wire import KEY, URL

LOUD, QUIET = gaussian(2.0), gaussian(3.0)
LIMIT, SENT_LIMIT = Limit(3.0, 1e-5), {"epsilon": 3.0, "delta": 1e-5}
ITEMS = [
    {"event": LOUD, "count": 5, "steps": 5, "steps_used": 4},
    {"event": QUIET, "count": None, "steps": 85, "steps_used": 0},
]
PLAN: dict[str, Any] = {"state": "active", "share": 0.96, "delta": 9.6e-06, "steps": 90, "steps_used": 4}
PLAN |= {"steps_reserved": 1, "steps_remaining": 85, "items": ITEMS}
PLANNED = [{"event": LOUD, "count": 5, "new": 1}, {"event": QUIET, "count": None}]
TIMES = {"created_at": "2026-11-21T08:00:00Z", "updated_at": "2026-11-21T08:00:00+00:00"}
ACCOUNT: dict[str, Any] = {"id": "pop_1", "name": "mimic", "path": "mimic", "limit": SENT_LIMIT, "plan": PLAN}
ACCOUNT |= (
    {"planned": PLANNED}
    | TIMES
    | {"epsilon": 0.0, "delta": 1e-5, "used": 0.0, "weights_frozen": False, "labels": {}, "links": [], "deployment": {}}
)
POPULATION = ACCOUNT | {"privacy_unit": "record", "neighboring_relation": "replace_one", "size": None, "newer": [1]}
BUDGET = ACCOUNT | {"id": "bud_1", "name": "icu", "path": "mimic/icu", "parent": "pop_1", "population": "pop_1"}
BUDGET |= {"planned": [], "plan": None}


def test_address_and_key_come_from_environment(monkeypatch: pytest.MonkeyPatch, ledger: FakeLedger) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_URL", "https://ledger.test/prefix/")
    monkeypatch.setenv("EPSILON_LEDGER_API_KEY", "key_from_env")
    with LedgerClient(transport=ledger) as client:
        client.get_run(RUN_ID)
    sent = ledger.requests[0]
    assert sent.url == f"https://ledger.test/prefix/v1/runs/{RUN_ID}"
    assert sent.headers["Authorization"] == "Bearer key_from_env"
    assert sent.headers["User-Agent"].startswith("epsilon-ledger-client/")


@pytest.mark.parametrize(
    ("url", "key", "said"),
    [
        *((url, KEY, "address") for url in ("ledger.test", "ftp://ledger.test", "http://", "http://[::1")),
        *((f"http://ledger.test{end}", KEY, "address") for end in ("?a=1", "#a")),
        ("https://me:s3cr3t@ledger.test", KEY, "user name"),
        *((URL, key, "API key") for key in ("s3cr3t\n", "s3cr3t s3cr3t", "s3cr3t\u2028", "sécret s3cr3t")),
        (None, KEY, "EPSILON_LEDGER_URL"),
        (URL, None, "EPSILON_LEDGER_API_KEY"),
    ],
)
def test_unusable_address_or_key_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, url: str | None, key: str | None, said: str
) -> None:
    monkeypatch.delenv("EPSILON_LEDGER_URL", raising=False)
    monkeypatch.delenv("EPSILON_LEDGER_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match=said) as caught:
        LedgerClient(url, key)
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


def test_key_is_never_shown(client: LedgerClient, run: Run, ledger: FakeLedger) -> None:
    shown = [repr(client), str(client), repr(run), repr(run.state), repr(run.authorize())]
    shown.extend(repr(value) for value in vars(client).values())
    for fault in (
        httpx2.ConnectError("refused"),
        httpx2.Response(403, text="no"),
        problem(401, "unauthenticated"),
        problem(422, "invalid_request", errors=[{"field": "x"}]),
    ):
        ledger.answers(*[fault] * TRIES)
        with pytest.raises(LedgerError) as caught:
            client.get_run(RUN_ID)
        shown.extend(["".join(traceback.format_exception(caught.value)), repr(caught.value), str(vars(caught.value))])
        ledger.faults.clear()
    assert not [text for text in shown if KEY in text or KEY.split(".")[1] in text]
    assert repr(client) == f"<LedgerClient {URL}>"
    for made in (LedgerClient, AsyncLedgerClient, Run, AsyncRun):  # a debugger shows objects whose constructors failed
        assert repr(made.__new__(made)).startswith(f"<{made.__name__} not ")


def test_population_is_created_and_read(client: LedgerClient, ledger: FakeLedger) -> None:
    ledger.answers(*[httpx2.Response(201, json=POPULATION)] * 2)
    relation: dict[str, Any] = {"privacy_unit": "record", "neighboring_relation": "replace_one"}
    made = client.create_population("mimic", **relation, limit=LIMIT)
    assert ledger.bodies[0] == {"name": "mimic", **relation, "limit": SENT_LIMIT}
    assert made.limit == LIMIT
    assert isinstance(made.limit.epsilon, float)
    assert made.planned == ({"event": LOUD, "count": 5}, {"event": QUIET, "count": None})
    items = (PlanItem(LOUD, 5, 5, 4), PlanItem(QUIET, None, 85, 0))
    assert made.plan == Plan("active", 0.96, 9.6e-6, 90, 4, 1, 85, items)
    assert made.size is None
    assert made.created_at == datetime(2026, 11, 21, 8, tzinfo=UTC)
    assert client.get_population("pop_1") == made
    waiting = {"id": "prp_1", "reason": "The population mimic: another person has to approve it.", "status": "open"}
    ledger.answers(httpx2.Response(202, json=waiting))
    with pytest.raises(ApprovalRequiredError, match=r"approve it\. Until .* prp_1, it does not exist") as caught:
        client.create_population("mimic", **relation, limit=LIMIT)
    assert caught.value.proposal == "prp_1"


SAMPLED = poisson_sampled(0.1, QUIET)
PLANS: dict[str, tuple[Any, Any]] = {
    "bare events": ([LOUD], [{"event": LOUD}]),
    "pairs": ([(LOUD, 3)], [{"event": LOUD, "count": 3}]),
    "mixed": (
        ((LOUD, np.int64(3)), EventCount(event=QUIET, count=2), SAMPLED),
        [{"event": LOUD, "count": 3}, {"event": QUIET, "count": 2}, {"event": SAMPLED}],
    ),
    "as it was answered": (
        [PlannedEventCount(event=LOUD, count=5), PlannedEventCount(event=LOUD, count=None)],
        [{"event": LOUD, "count": 5}, {"event": LOUD}],
    ),
    "nothing": ([], []),
}


def test_plan_is_events_with_counts_of_which_last_may_be_bare(client: LedgerClient, ledger: FakeLedger) -> None:
    for given, sent in PLANS.values():
        ledger.requests.clear()
        ledger.answers(httpx2.Response(201, json=BUDGET))
        client.create_budget("icu", parent="mimic", limit=LIMIT, planned=given)
        client.create_run("icu", budget="mimic/icu", limit=LIMIT, planned=given)
        assert [body["planned"] for body in ledger.bodies] == [sent, sent]


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"limit": 3.0}, TypeError, r"limit must be a Limit, such as Limit\(.*, not 3.0"),
    ({"limit": (3.0, 1e-5)}, TypeError, "limit must be a Limit"),
    ({"composition": "disjoint"}, TypeError, "composition must be a ParallelComposition"),
    ({"opens_at": "2027-01-01"}, TypeError, "opens_at must be a datetime, such as .* not '2027-01-01'"),
    ({"block": "may"}, TypeError, "block must be a DataBlock"),
    ({"block": DataBlock("may", "june")}, TypeError, "data_from must be a datetime"),  # type: ignore[arg-type]
    ({"planned": LOUD}, TypeError, "planned must be a list, such as"),
    ({"ownr": "ada"}, TypeError, "'ownr' is no argument: metadata has display_name, description, owner"),
    ({"links": ["https://x.example"]}, TypeError, r"links must be a list of Link\(title, url\), not of 'https"),
    ({"labels": ["team"]}, TypeError, "labels must be a mapping, such as .* not .'team'."),
    *(
        ({"planned": planned}, TypeError, "planned holds events, or events with counts")
        for planned in ([LOUD, 3], [(LOUD,)], ["gaussian"])
    ),
    ({"planned": [(LOUD, 0)]}, ValueError, "count must be at least 1"),
    ({"planned": [(LOUD, 1.5)]}, TypeError, "count must be a whole number"),
]


def test_wrong_argument_is_named_before_anything_is_sent(client: LedgerClient, ledger: FakeLedger) -> None:
    for wrong, error, said in WRONG:
        with pytest.raises(error, match=said):
            client.create_budget("icu", **{"parent": "mimic", "limit": LIMIT, **wrong})
    for start in ("2026-01-01", datetime(2026, 1, 1, tzinfo=UTC), None):
        with pytest.raises(TypeError, match="start must be a date"):
            client.create_blocks("bud_1", "month", start=start, count=3, limit=LIMIT)  # type: ignore[arg-type]
    assert ledger.requests == []


NO_LIST: dict[str, Callable[[LedgerClient, Any], object]] = {
    "budgets": lambda client, text: client.create_run("icu", budgets=text),
    "budgets of a sweep": lambda client, text: client.create_experiment("sweep", budgets=text),
    "events": lambda client, text: client.compute_epsilon(text, delta=1e-5),
    "events of a run": lambda client, text: client.get_run(RUN_ID).authorize(events=text),
    "events of a trial": lambda client, text: client.create_experiment("sweep", budget="a/b", events=text, mean=2.0),
    "events of a mechanism": lambda _, text: composed(text),
    "other_events": lambda client, text: client.find_max_steps(LOUD, epsilon=1.0, delta=1e-5, other_events=text),
    "reserve": lambda client, text: client.create_run("icu", budget="a/b", reserve=text),
    "events of a reservation": lambda client, text: client.get_run(RUN_ID).reserve(text),
    "events that may wait": lambda client, text: client.preview_wait("a/b", text),
    "planned": lambda client, text: client.create_run("icu", budget="a/b", planned=text),
    "links": lambda client, text: client.create_run("icu", budget="a/b", links=text),
    "addresses": lambda client, text: client.create_receiver("email", addresses=text),
    "types": lambda client, text: client.create_receiver(url="https://a.example", types=text),
    "thresholds": lambda client, text: client.replace_alert_settings("a/b", thresholds=text),
    "sensitivities": lambda _, text: mixture_of_gaussians(1.0, text, [1.0]),
    "sampling_probs": lambda _, text: mixture_of_gaussians(1.0, [1.0], text),
    "step_counts": lambda _, text: tree_aggregation(1.0, text),
}


@pytest.mark.parametrize("argument", NO_LIST)
def test_text_or_one_item_in_place_of_a_list_is_named_before_anything_is_sent(
    client: LedgerClient, ledger: FakeLedger, argument: str
) -> None:
    for wrong in ("mimic/icu-team", EventCount(event=LOUD, count=1), 3):
        with pytest.raises(TypeError, match=rf"^{argument.partition(' ')[0]} must be a list, such as \[.*, not "):
            NO_LIST[argument](client, wrong)
    assert {request.method for request in ledger.requests} <= {"GET"}


def test_run_is_created_with_its_terms(
    client: LedgerClient, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_run("icu", budget="mimic/icu", collect_metadata=False)
    monkeypatch.setenv("EPSILON_LEDGER_COLLECT_METADATA", "0")
    planned = [EventCount(event=LOUD, count=5)]
    relation: dict[str, Any] = {"privacy_unit": "record", "neighboring_relation": "add_or_remove_one"}
    client.create_run("icu", budget="bud_1", event=LOUD, limit=LIMIT, planned=planned, **relation)
    terms = {"event": LOUD, "limit": SENT_LIMIT, "planned": planned} | relation
    assert ledger.bodies == [{"name": "icu", "budget": "mimic/icu"}, {"name": "icu", "budget": "bud_1"} | terms]


def test_history_is_read_in_pages(client: LedgerClient, ledger: FakeLedger) -> None:
    point = {"position": 0, "decision": "admitted", "first_step": 0, "count": 2, "next_step": 2, "epsilon": 0.5}
    point |= {"delta": 1e-5, "events": [{"event": LOUD, "count": 2}], "accounts": ["pop_1", "bud_1", RUN_ID]}
    point |= {"created_at": "2026-11-21T08:00:00Z"}
    points = [point, point | {"events_truncated": False}, point | {"events_truncated": True}]
    page = {"run": RUN_ID, "points": points, "decisions": 9, "next": "abc="}
    ledger.answers(*[httpx2.Response(200, json=page)] * 2)
    found = client.get_run_history(RUN_ID, max_points=10)
    assert (found.decisions, found.next_cursor, found.points[0].accounts[1]) == (9, "abc=", "bud_1")
    assert [point.events_truncated for point in found.points] == [None, False, True]
    client.get_run_history(RUN_ID, after=found.next_cursor)
    assert [request.url.query for request in ledger.requests] == [b"max_points=10", b"max_points=500&after=abc%3D"]


def test_infinite_epsilon_is_infinite_number(client: LedgerClient, ledger: FakeLedger) -> None:
    methods = [
        {"name": "rdp", "epsilon": 1.5, "note": "n"},
        {"name": "textbook", "epsilon": "Infinity", "note": "t"},
    ]
    both: dict[str, object] = {"delta": 1e-5, "warnings": ["w"], "comparisons": methods}
    finite = both | {"epsilon": 1.2, "limit_needed": {"with_plan": 1.25, "without_plan": 1.5}}
    infinite = both | {"epsilon": "Infinity", "limit_needed": {"with_plan": "Infinity", "without_plan": "Infinity"}}
    ledger.answers(*(httpx2.Response(200, json=answer) for answer in (finite, infinite)))
    events = [EventCount(event=LOUD, count=5)]
    found = client.compute_epsilon(events, delta=1e-5)
    assert (found.epsilon, found.limit_needed, found.warnings) == (1.2, LimitNeeded(1.25, 1.5), ("w",))
    assert found.comparisons == (ComparedEpsilon("rdp", 1.5, "n"), ComparedEpsilon("textbook", math.inf, "t"))
    unbounded = client.compute_epsilon(events, delta=1e-5, neighboring_relation="replace_one")
    assert unbounded.epsilon == unbounded.limit_needed.with_plan == math.inf
    sent = {"events": events, "delta": 1e-5}
    assert ledger.bodies == [sent, sent | {"neighboring_relation": "replace_one"}]


def test_id_and_path_cannot_leave_their_place(client: LedgerClient, ledger: FakeLedger) -> None:
    for ask, reference in ((client.get_proposal, "../budgets?x=1"), (client.get_run, "mimic/icu&status=paused#x")):
        with pytest.raises(UnexpectedResponseError):  # the answer is a run, neither a proposal nor a page
            ask(reference)
    assert [request.url.raw_path for request in ledger.requests] == [
        b"/v1/proposals/..%2Fbudgets%3Fx%3D1",
        b"/v1/runs?path=mimic%2Ficu%26status%3Dpaused%23x",
    ]


WRONG_MEMBERS: list[Any] = [
    *({"epsilon": value} for value in (None, "1.0", True)),
    *({"next_step": value} for value in (1.0, True)),
    *({"name": None}, {"event": 5}, {"created_at": "yesterday"}, {"created_at": 5}),
]
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
UNREADABLE = [
    *((httpx2.Response(200, json=RUN | changed), next(iter(changed))) for changed in WRONG_MEMBERS),
    *((httpx2.Response(200, content=content), "cannot be read") for content in (b"[]", b'"text"', b"null")),
    (httpx2.Response(200, content=DEEP), "answered 200 without readable JSON"),
    (
        httpx2.Response(403, content=DEEP, headers={"Content-Type": PROBLEM_JSON}),
        "answered 403 .*, which is not the ledger's way to say no",
    ),
    (httpx2.Response(200, json=RUN | {"epsilon": 10**400}), "epsilon: expected a number that a float can hold"),
]


@pytest.mark.parametrize(("answer", "said"), UNREADABLE)
def test_unreadable_answer_is_refused(
    client: LedgerClient, ledger: FakeLedger, answer: httpx2.Response, said: str
) -> None:
    ledger.answers(answer)
    with pytest.raises(UnexpectedResponseError, match=said):
        client.get_run(RUN_ID)
