"""What is wrong with a body is told in words for who wrote it: the member as it was sent, and what would be right."""

from typing import Any, get_args

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


KNOWN = f"is no event type; known: {ALL_TYPES}"
TYPED: list[tuple[object, str]] = [
    ("gausian", f"'gausian' {KNOWN}; did you mean gaussian?"),
    *((sent, f"'{sent}' {KNOWN}") for sent in ("quux", 5)),
    ("a\nb" + "x" * 5000, f"'a\\nb{'x' * 97}' {KNOWN}"),
]


def test_unknown_type_is_answered_with_the_known_ones_and_its_place(shared: SeededLedger) -> None:
    for sent, named in TYPED:
        answer = _told(shared, {"event": {"type": sent, "noise_multiplier": 1}})
        assert (answer["code"], answer["title"]) == ("unsupported_event", "Unsupported event")
        _is_the_only_fault(answer, "body.event.type", named)
    inside = {"type": "composed", "events": [GAUSSIAN, _sampled({"type": "laplce"})]}
    answer = _told(shared, {"events": [{"event": GAUSSIAN}, {"event": inside}]})
    _is_the_only_fault(answer, "body.events.1.event.events.1.event.type", f"'laplce' {KNOWN}; did you mean laplace?")


NOISE, SAMPLING = "event.noise_multiplier", "event.sampling_probability"
TREE = {"type": "tree_aggregation", "noise_multiplier": 1.0, "step_counts": []}
NESTED = {"poisson_sampled": {"gaussian": 1}}
GAUSSIAN_MEMBERS = "unknown member; known here: clipped, noise_multiplier, type"
EITHER = "send either `noise_multiplier`, or `gradient_noise_multiplier` and `count_noise_stddev`"
FAULTS: list[tuple[object, str, str]] = [
    ({"cuont": 1}, "cuont", f"unknown member; known here: {STEPS_MEMBERS}; did you mean count?"),
    ({"dry_run": True}, "dry_run", "is a query parameter: send ?dry_run=true"),
    ({"count": 4.5}, "count", "must be an integer"),
    ({"mode": 5}, "mode", "must be 'authorize' or 'report'"),
    ({"event": {"type": "gaussian"}}, "event.noise_multiplier", "is required"),
    ({"event": {**GAUSSIAN, "noise_multiplier": "1"}}, "event.noise_multiplier", "must be a number"),
    ({"events": {}}, "events", "must be a list"),
    ({"zzz": 1}, "zzz", f"unknown member; known here: {STEPS_MEMBERS}"),
    ({"event": {}}, "event", f"an event needs a `type`, one of {ALL_TYPES}"),
    ({"event": "gaussian"}, "event", "must be a JSON object"),
    ({"event": _sampled(None)}, "event.event", "must be a JSON object"),
    ({"events": []}, "events", "must hold at least 1 event"),
    ({"event": {"type": "composed", "events": []}}, "event.events", "must hold at least 1 event"),
    ({"event": TREE}, "event.step_counts", "must hold at least 1 item"),
    ({"event": {**GAUSSIAN, "noise_multiplier": 0}}, "event.noise_multiplier", "must be at least 0.001"),
    ({"event": _sampled({**GAUSSIAN, "noise_multiplier": 1e7})}, f"event.{NOISE}", "must be at most 1000000"),
    ({"event": _sampled(GAUSSIAN) | {"sampling_probability": -0.1}}, SAMPLING, "must be at least 0"),
    ({"event": {"type": "epsilon_delta", "epsilon": 1.0, "delta": 0.5}}, "event.delta", "must be less than 0.5"),
    ({"first_step": 2**53 + 1}, "first_step", f"must be at most {2**53}"),
    ({"event": {"type": "adaptive_clipping"}}, "event", EITHER),
    ({"event": {**GAUSSIAN, "gaussian": 1}}, "event.gaussian", GAUSSIAN_MEMBERS),
    ({"event": _sampled({**GAUSSIAN, **NESTED})}, "event.event.poisson_sampled", GAUSSIAN_MEMBERS),
    ({"count": 1, "events": [{"event": GAUSSIAN}]}, "", "send either `count` and `event`, or `events`, not both"),
    *((body, "", "must be a JSON object") for body in ([], "count", 7, True, [{"count": 1}])),
]


def test_fault_names_the_member_as_it_was_sent_and_what_would_be_right(shared: SeededLedger) -> None:
    for body, field, message in FAULTS:
        _is_the_only_fault(_told(shared, body), f"body.{field}".rstrip("."), message)


def test_missing_body_and_an_event_without_its_wrapper_are_told_once(shared: SeededLedger) -> None:
    reply = shared.ledger.http.post(f"/v1/runs/{shared.run}/steps", headers=shared.ledger.headers())
    assert reply.status_code == 422
    _is_the_only_fault(reply.json(), "body", "send a JSON object, at least {}")
    headers = shared.ledger.headers() | {"Content-Type": "application/json"}
    reply = shared.ledger.http.post(f"/v1/runs/{shared.run}/steps", content=b"null", headers=headers)
    _is_the_only_fault(reply.json(), "body", "must be a JSON object")
    for event in (GAUSSIAN, SAMPLED, {"type": "self_composed", "event": GAUSSIAN, "count": 2}):
        _is_the_only_fault(_told(shared, {"events": [{"event": GAUSSIAN}, event]}), "body.events.1", ITEM)
        answer = _told(shared, {"events": [event, event]}, "/v1/runs/{run}/reservations")
        assert [error["field"] for error in answer["errors"]] == ["body.events.0", "body.events.1"]


def test_detail_says_how_many_faults_it_leaves_out(shared: SeededLedger) -> None:
    for errors in (1, 3, 4, MAX_ERRORS, MAX_ERRORS + 1, 900):
        answer = _told(shared, {f"x{number}": 0 for number in range(errors)})
        assert len(answer["errors"]) == min(errors, MAX_ERRORS)
        assert answer["detail"].count("unknown member") == min(errors, 3)
        assert ("more" in answer["detail"]) == (errors > 3)
        assert errors <= 3 or answer["detail"].endswith(f"; and {errors - 3} more")
    answer = _told(shared, {"name": 5, "budget": "mimic/icu-team", "planned": 1}, "/v1/runs")
    assert answer["detail"] == "body.name: must be a string; body.planned: must be a list"
    answer = _told(shared, {"name": "", "budget": "mimic/icu-team"}, "/v1/runs")
    _is_the_only_fault(answer, "body.name", "must have at least 1 character")
    for delta in (0, -1, 1e-31):
        answer = _told(shared, {"delta": delta, "events": [{"event": GAUSSIAN}]}, "/v1/accounting/epsilon")
        _is_the_only_fault(answer, "body.delta", "must be at least 1e-30")
    answer = shared.ledger.post(f"/v1/runs/{shared.run}/steps", {}, Idempotency_Key="a b").json()
    assert [error["field"] for error in answer["errors"]] == ["header.Idempotency-Key"]
    answer = _told(shared, {}, "/v1/runs/{run}/steps?dry_run=maybe")
    _is_the_only_fault(answer, "query.dry_run", "must be true or false")
    for since, hint in (("soon", ""), ("2026-11-21T09:00:00+05:00", "; in an address, the + of a zone is written %2B")):
        detail = shared.ledger.get(f"/v1/audit-events?since={since}").json()["detail"]
        form = "as text such as 2026-11-21T09:00:00Z (RFC 3339)"
        assert detail == f"query.since: must be a time with its zone, {form}{hint}"
