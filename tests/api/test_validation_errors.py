"""What is wrong with a body is told in words for who wrote it: the member as it was sent, and what would be right."""

from typing import Any, get_args

import pytest

from app.api.schemas.events import Event
from app.api.validation_errors import MAX_ERRORS
from tests.api.conftest import SeededLedger
from tests.conftest import SAMPLED

TYPES = sorted(
    get_args(kind.model_fields["type"].annotation)[0] for kind in get_args(Event.model_fields["root"].annotation)
)
ALL_TYPES = ", ".join(TYPES)
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 50.0}
STEPS_MEMBERS = "attempt, count, event, events, expected_steps, first_step, mode, on_exceed"
ITEM = 'each item is {"event": {...}, "count": n}'


def _sampled(event: object) -> dict[str, object]:
    return {"type": "poisson_sampled", "sampling_probability": 0.5, "event": event}


def _told(shared: SeededLedger, body: object, path: str = "/v1/runs/{run}/steps") -> dict[str, Any]:
    reply = shared.ledger.post(path.format(run=shared.run), body)
    assert reply.status_code == 422, reply.text
    answer: dict[str, Any] = reply.json()
    assert answer["code"] in {"invalid_request", "unsupported_event"}
    return answer


def _is_the_only_fault(answer: dict[str, Any], field: str, message: str) -> None:
    assert [(error["field"], error["message"]) for error in answer["errors"]] == [(field, message)]
    assert answer["detail"] == f"{field}: {message}"


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ("gausian", "'gausian' is no event type; known: {all}; did you mean gaussian?"),
        ("Gaussian", "'Gaussian' is no event type; known: {all}; did you mean gaussian?"),
        ("poisson-sampled", "'poisson-sampled' is no event type; known: {all}; did you mean poisson_sampled?"),
        ("quux", "'quux' is no event type; known: {all}"),
        ("", "'' is no event type; known: {all}"),
        (5, "'5' is no event type; known: {all}"),
        ("a\nb" + "x" * 5000, "'a\\nb" + "x" * 97 + "' is no event type; known: {all}"),
    ],
)
def test_unknown_type_is_answered_with_the_known_ones(shared: SeededLedger, sent: object, named: str) -> None:
    answer = _told(shared, {"event": {"type": sent, "noise_multiplier": 1}})
    assert (answer["code"], answer["title"]) == ("unsupported_event", "Unsupported event")
    _is_the_only_fault(answer, "body.event.type", named.replace("{all}", ALL_TYPES))


def test_unknown_type_is_answered_with_its_place(shared: SeededLedger) -> None:
    inside = {"type": "composed", "events": [GAUSSIAN, _sampled({"type": "laplce"})]}
    answer = _told(shared, {"events": [{"event": GAUSSIAN}, {"event": inside}]})
    words = f"'laplce' is no event type; known: {ALL_TYPES}; did you mean laplace?"
    _is_the_only_fault(answer, "body.events.1.event.events.1.event.type", words)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"cuont": 1}, "cuont", f"unknown member; known here: {STEPS_MEMBERS}; did you mean count?"),
        ({"dry_run": True}, "dry_run", "is a query parameter: send ?dry_run=true"),
        ({"count": "4"}, "count", "must be an integer"),
        ({"count": 4.5}, "count", "must be an integer"),
        ({"mode": 5}, "mode", "must be 'authorize' or 'report'"),
        ({"event": {"type": "gaussian"}}, "event.noise_multiplier", "is required"),
        ({"event": {**GAUSSIAN, "noise_multiplier": "1"}}, "event.noise_multiplier", "must be a number"),
        ({"events": {}}, "events", "must be a list"),
        ({"zzz": 1}, "zzz", f"unknown member; known here: {STEPS_MEMBERS}"),
        ({"event": {}}, "event", f"an event needs a `type`, one of {ALL_TYPES}"),
        ({"event": {"event": GAUSSIAN}}, "event", f"an event needs a `type`, one of {ALL_TYPES}"),
        ({"event": []}, "event", "must be a JSON object"),
        ({"event": "gaussian"}, "event", "must be a JSON object"),
        ({"event": _sampled(None)}, "event.event", "must be a JSON object"),
        ({"events": [7]}, "events.0", "must be a JSON object"),
        ({"events": []}, "events", "must hold at least 1 event"),
        ({"event": {"type": "composed", "events": []}}, "event.events", "must hold at least 1 event"),
        (
            {"event": {"type": "tree_aggregation", "noise_multiplier": 1.0, "step_counts": []}},
            "event.step_counts",
            "must hold at least 1 item",
        ),
        ({"event": {**GAUSSIAN, "noise_multiplier": 0}}, "event.noise_multiplier", "must be at least 0.001"),
        (
            {"event": _sampled({**GAUSSIAN, "noise_multiplier": 1e7})},
            "event.event.noise_multiplier",
            "must be at most 1000000",
        ),
        (
            {"event": _sampled(GAUSSIAN) | {"sampling_probability": 0}},
            "event.sampling_probability",
            "must be greater than 0",
        ),
        ({"event": {"type": "epsilon_delta", "epsilon": 1.0, "delta": 0.5}}, "event.delta", "must be less than 0.5"),
        ({"first_step": 2**53 + 1}, "first_step", f"must be at most {2**53}"),
        (
            {"event": {"type": "adaptive_clipping"}},
            "event",
            "send either `noise_multiplier`, or `gradient_noise_multiplier` and `count_noise_stddev`",
        ),
        (
            {"event": {**GAUSSIAN, "gaussian": 1}},
            "event.gaussian",
            "unknown member; known here: clipped, noise_multiplier, type",
        ),
        (
            {"event": _sampled({**GAUSSIAN, "poisson_sampled": {"gaussian": 1}})},
            "event.event.poisson_sampled",
            "unknown member; known here: clipped, noise_multiplier, type",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_fault_names_the_member_as_it_was_sent_and_what_would_be_right(
    shared: SeededLedger, body: object, field: str, message: str
) -> None:
    _is_the_only_fault(_told(shared, body), f"body.{field}", message)


def test_two_forms_at_once_are_refused_in_one_sentence(shared: SeededLedger) -> None:
    answer = _told(shared, {"count": 1, "events": [{"event": GAUSSIAN}]})
    _is_the_only_fault(answer, "body", "send either `count` and `event`, or `events`, not both")


@pytest.mark.parametrize("body", [[], "count", 7, True, [{"count": 1}], None])
def test_body_must_be_an_object(shared: SeededLedger, body: object) -> None:
    headers = {"Content-Type": "application/json"}
    path = f"/v1/runs/{shared.run}/steps"
    if body is None:  # the test client would leave it out
        reply = shared.ledger.http.post(path, content=b"null", headers=shared.ledger.headers() | headers)
        _is_the_only_fault(reply.json(), "body", "must be a JSON object")
    else:
        _is_the_only_fault(_told(shared, body), "body", "must be a JSON object")


def test_body_must_be_there(shared: SeededLedger) -> None:
    reply = shared.ledger.http.post(f"/v1/runs/{shared.run}/steps", headers=shared.ledger.headers())
    assert reply.status_code == 422
    _is_the_only_fault(reply.json(), "body", "send a JSON object, at least {}")


@pytest.mark.parametrize("delta", [0, 0.0, -1, 1e-31])
def test_smallest_delta_is_written_briefly(shared: SeededLedger, delta: float) -> None:
    answer = _told(shared, {"delta": delta, "events": [{"event": GAUSSIAN}]}, "/v1/accounting/epsilon")
    _is_the_only_fault(answer, "body.delta", "must be at least 1e-30")


@pytest.mark.parametrize("event", [GAUSSIAN, SAMPLED, {"type": "self_composed", "event": GAUSSIAN, "count": 2}])
def test_event_without_its_wrapper_is_told_once(shared: SeededLedger, event: dict[str, object]) -> None:
    answer = _told(shared, {"events": [{"event": GAUSSIAN}, event]})
    _is_the_only_fault(answer, "body.events.1", ITEM)
    answer = _told(shared, {"plan": [event, event]}, "/v1/runs/{run}/reservations")
    assert [error["field"] for error in answer["errors"]] == ["body.plan.0", "body.plan.1"]


@pytest.mark.parametrize("errors", [1, 3, 4, 5, MAX_ERRORS, MAX_ERRORS + 1, 900])
def test_detail_says_how_many_faults_it_leaves_out(shared: SeededLedger, errors: int) -> None:
    answer = _told(shared, {f"x{number}": 0 for number in range(errors)})
    assert len(answer["errors"]) == min(errors, MAX_ERRORS)
    assert answer["detail"].count("unknown member") == min(errors, 3)
    if errors <= 3:
        assert "more" not in answer["detail"]
    else:
        assert answer["detail"].endswith(f"; and {errors - 3} more")


def test_header_that_is_wrong_keeps_its_name(shared: SeededLedger) -> None:
    answer = shared.ledger.post(f"/v1/runs/{shared.run}/steps", {}, Idempotency_Key="a b").json()
    assert [error["field"] for error in answer["errors"]] == ["header.Idempotency-Key"]


def test_other_types_are_told_in_the_same_words(shared: SeededLedger) -> None:
    body = {"name": 5, "budget": "mimic/icu-team", "planned": 1}
    answer = _told(shared, body, "/v1/runs")
    assert answer["detail"] == "body.name: must be a string; body.planned: must be a list"
    answer = _told(shared, {"name": "", "budget": "mimic/icu-team"}, "/v1/runs")
    _is_the_only_fault(answer, "body.name", "must have at least 1 character")


@pytest.mark.parametrize(
    ("since", "message"),
    [
        ("soon", "must be a time such as 2026-11-21T09:00:00Z"),
        ("2026-11-21T09:00:00", "must have a time zone, such as 2026-11-21T09:00:00Z"),
    ],
)
def test_time_is_told_by_an_example(shared: SeededLedger, since: str, message: str) -> None:
    answer = shared.ledger.get(f"/v1/audit-events?since={since}").json()
    assert answer["detail"] == f"query.since: {message}"


def test_flag_of_a_query_is_told_its_values(shared: SeededLedger) -> None:
    answer = _told(shared, {}, "/v1/runs/{run}/steps?dry_run=maybe")
    _is_the_only_fault(answer, "query.dry_run", "must be true or false")
