"""Stateless planning: bad input is refused by name, whatever is asked, and too much work is refused at once."""

import json
from typing import Any

import httpx2
import pytest

from tests.api.conftest import SeededLedger
from tests.api.test_bad_fields import DELTAS, EPSILONS, NO_COUNTS, NO_EVENTS, NO_LISTS, NO_NUMBERS, NO_TEXTS
from tests.conftest import SAMPLED
from tests.soak import thinned

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 50.0}
PLAN: dict[str, Any] = {"events": [{"event": SAMPLED, "count": 10}]}
TARGET: dict[str, Any] = {"event": SAMPLED, "epsilon": 2.0, "delta": 1e-5}
GOOD: dict[str, dict[str, Any]] = {
    "epsilon": PLAN | {"delta": 1e-5},
    "delta": PLAN | {"epsilon": 2.0},
    "trajectory": PLAN | {"delta": 1e-5, "max_points": 5},
    "noise-multiplier": TARGET | {"count": 10},
    "steps": TARGET | {"steps_per_epoch": 10},
    "sampling-probability": TARGET | {"count": 10},
    "laplace": {"scale": 1.0, "probability": 0.9, "l1_sensitivity": 2.0, "releases": 3, "delta": 1e-5},
}
SETTINGS: dict[str, list[str]] = {
    "neighboring_relation": [*NO_TEXTS, '"add_remove"'],
    "population_size": [*NO_NUMBERS, "0", "-1", "1.5", "1000000000001"],
    "batches": [*NO_TEXTS, '"Poisson"', '"random"'],
}
ZERO_IS_ENOUGH = [value for value in EPSILONS if value not in {"0", "-0.0", "1e-400"}]
PLANS: dict[str, list[str]] = {"events": [*NO_LISTS, "[]", "null"]}
TARGETS: dict[str, list[str]] = {
    "event": [*NO_EVENTS, "null"],
    "epsilon": EPSILONS,
    "delta": DELTAS,
    "other_events": [*NO_LISTS, "null"],
}
SIZES = [*NO_NUMBERS, "0", "-1", "1e-13", "1e13"]
FIELDS: dict[str, dict[str, list[str]]] = {
    "epsilon": PLANS | SETTINGS | {"delta": DELTAS},
    "delta": PLANS | SETTINGS | {"epsilon": ZERO_IS_ENOUGH},
    "trajectory": PLANS | SETTINGS | {"delta": DELTAS, "max_points": [*NO_COUNTS, "null", "2001"]},
    "noise-multiplier": TARGETS | SETTINGS | {"count": [*NO_COUNTS, "null"]},
    "steps": TARGETS | SETTINGS | {"steps_per_epoch": NO_COUNTS},
    "sampling-probability": TARGETS | SETTINGS | {"count": [*NO_COUNTS, "null"]},
    "laplace": {
        "scale": [*SIZES, "null"],
        "probability": [*NO_NUMBERS, "0", "1", "-0.1", "null"],
        "l1_sensitivity": [*SIZES, "null"],
        "releases": [*NO_COUNTS, "null"],
        "delta": [value for value in DELTAS if value != "null"],
        "bound": ["1.0", *SIZES],
    },
}
EACH_FIELD = [(what, field) for what, fields in FIELDS.items() for field in fields]


def send(shared: SeededLedger, what: str, text: str) -> httpx2.Response:
    headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
    return shared.ledger.http.post(f"/v1/accounting/{what}", content=text.encode(), headers=headers)


def refused(reply: httpx2.Response, status: int, code: str) -> str:
    assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    return str(reply.json()["detail"])


@pytest.mark.parametrize("what", GOOD)
def test_the_question_itself_is_good(shared: SeededLedger, what: str) -> None:
    assert send(shared, what, json.dumps(GOOD[what])).status_code == 200


@pytest.mark.parametrize(("what", "field"), EACH_FIELD)
def test_a_field_that_is_not_what_it_should_be_is_an_invalid_request(
    shared: SeededLedger, what: str, field: str
) -> None:
    for value in FIELDS[what][field]:
        text = json.dumps(GOOD[what] | {field: "@"}).replace('"@"', value)
        refused(send(shared, what, text), 422, "invalid_request")


@pytest.mark.parametrize("what", GOOD)
def test_an_unknown_field_is_an_invalid_request(shared: SeededLedger, what: str) -> None:
    for field in ("x", "sigma", "Delta", "org", "mode", "filter"):
        refused(send(shared, what, json.dumps(GOOD[what] | {field: 1})), 422, "invalid_request")


@pytest.mark.parametrize("what", GOOD)
def test_what_must_be_there_is_asked_for_by_name(shared: SeededLedger, what: str) -> None:
    may_be_left_out = {"max_points", "steps_per_epoch", "releases", "probability"}
    if what == "laplace":
        may_be_left_out |= {"delta"}
    for field in GOOD[what]:
        rest = {name: value for name, value in GOOD[what].items() if name != field}
        reply = send(shared, what, json.dumps(rest))
        if field in may_be_left_out:
            assert reply.status_code == 200, field
        else:
            assert field in refused(reply, 422, "invalid_request")


def test_laplace_noise_has_a_scale_or_a_bound_and_not_both(shared: SeededLedger) -> None:
    for body in ({"l1_sensitivity": 1}, {"l1_sensitivity": 1, "scale": 1, "bound": 1}):
        assert "`scale` or `bound`" in refused(send(shared, "laplace", json.dumps(body)), 422, "invalid_request")


WITH_EVENTS = [what for what in GOOD if what != "laplace"]


def with_event(what: str, event: dict[str, Any]) -> dict[str, Any]:
    return GOOD[what] | ({"event": event} if "event" in GOOD[what] else {"events": [{"event": event}]})


@pytest.mark.parametrize("what", WITH_EVENTS)
def test_an_unknown_event_is_unsupported(shared: SeededLedger, what: str) -> None:
    refused(send(shared, what, json.dumps(with_event(what, {"type": "bogus"}))), 422, "unsupported_event")


@pytest.mark.parametrize("what", WITH_EVENTS)
def test_an_event_without_a_bound_under_the_relation_is_unsupported(shared: SeededLedger, what: str) -> None:
    body = GOOD[what] | {"neighboring_relation": "replace_one"}
    assert "replace_one" in refused(send(shared, what, json.dumps(body)), 422, "unsupported_event")


@pytest.mark.parametrize("what", ["noise-multiplier", "sampling-probability"])
def test_an_event_without_the_parameter_asked_for_is_unsupported(shared: SeededLedger, what: str) -> None:
    body = with_event(what, {"type": "exponential", "epsilon": 0.1})
    assert "no single" in refused(send(shared, what, json.dumps(body)), 422, "unsupported_event")


def test_an_event_that_does_not_fit_besides_is_named(shared: SeededLedger) -> None:
    body = TARGET | {"count": 1, "other_events": [{"event": {"type": "bogus"}}]}
    refused(send(shared, "noise-multiplier", json.dumps(body)), 422, "unsupported_event")
    body = TARGET | {"count": 1, "other_events": [{"event": GAUSSIAN, "count": 0}]}
    assert "other_events.0.count" in refused(send(shared, "noise-multiplier", json.dumps(body)), 422, "invalid_request")


@pytest.mark.parametrize("what", thinned(WITH_EVENTS, 2))
def test_a_thousand_events_are_answered_and_one_more_is_too_many(shared: SeededLedger, what: str) -> None:
    for events, status in ((1000, 200), (1001, 413)):
        some = [{"event": GAUSSIAN}] * events
        body = GOOD[what] | ({"other_events": some} if "event" in GOOD[what] else {"events": some})
        assert send(shared, what, json.dumps(body)).status_code == status


@pytest.mark.parametrize("what", WITH_EVENTS)
def test_more_work_than_a_request_may_make_is_refused_at_once(shared: SeededLedger, what: str) -> None:
    decay = {"type": "decay", "mode": "time", "decay_rate": 1e-4, "steps": 1000, "event": SAMPLED}
    some = [{"event": decay | {"first_step": index}} for index in range(10)]
    body = GOOD[what] | ({"other_events": some} if "event" in GOOD[what] else {"events": some})
    refused(send(shared, what, json.dumps(body)), 422, "computation_limit_exceeded")


def test_many_selections_are_too_much_work_for_one_request(shared: SeededLedger) -> None:
    events: list[dict[str, object]] = [{"type": "gaussian", "noise_multiplier": 5.0 + index} for index in range(100)]
    for _ in range(13):
        events = [{"type": "repeat_and_select", "mean": 2.0, "shape": None, "event": event} for event in events]
    body = {"events": [{"event": event} for event in events], "delta": 1e-5}
    reply = shared.ledger.post("/v1/accounting/epsilon", body)
    assert (reply.status_code, reply.json()["code"]) == (422, "computation_limit_exceeded")


@pytest.mark.parametrize(
    ("path", "more"), [("epsilon", {"delta": 1e-5}), ("delta", {"epsilon": 10_000.0}), ("delta", {"epsilon": 0.0})]
)
@pytest.mark.parametrize(
    ("event", "count"),
    [
        ({"type": "randomized_response", "noise_parameter": 5e-324, "num_buckets": 2}, 1),
        ({"type": "self_composed", "count": 10**9, "event": {"type": "gaussian", "noise_multiplier": 1e-3}}, 10**9),
    ],
    ids=["a survey without noise", "a release of everything"],
)
def test_what_protects_nobody_is_answered(
    shared: SeededLedger, path: str, more: dict[str, object], event: dict[str, object], count: int
) -> None:
    body = {"events": [{"event": event, "count": count}], "neighboring_relation": "replace_one"} | more
    reply = shared.ledger.post(f"/v1/accounting/{path}", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["warnings"]
