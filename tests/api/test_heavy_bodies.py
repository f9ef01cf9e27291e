"""Bodies of up to a mebibyte that are made to be dear: a viewer can send them, and everybody waits meanwhile."""

import json
from typing import Any

import pytest

from tests.api.conftest import SeededLedger
from tests.processor import within
from tests.soak import in_turns

CPU_SECONDS = 2.0
"""Each of these took 3 to 30 seconds where a tenth of a second is enough."""

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}
STEPS, EPSILON, POPULATIONS = "/v1/runs/{run}/steps", "/v1/accounting/epsilon", "/v1/populations"
NUMBERS = [0.5] * 160_000


def _wrapped(event: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth - 1):
        event = {"type": "self_composed", "count": 1, "event": event}
    return event


def _trees(count: int) -> list[dict[str, Any]]:
    return [{"type": "tree_aggregation", "noise_multiplier": 1, "step_counts": [0] * 1000}] * count


def _keys(count: int) -> str:
    return ",".join(f'"{number:x}":0' for number in range(count))


def _ask(shared: SeededLedger, path: str, content: str | dict[str, Any]) -> dict[str, Any]:
    """What is answered, within the time that the body may take."""
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
    where, post = path.format(run=shared.run), shared.ledger.http.post
    reply = within(CPU_SECONDS, lambda: post(where, content=text.encode(), headers=headers))
    assert 400 <= reply.status_code < 500, reply.text[:300]
    assert len(reply.content) < 10_000
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.parametrize("path", [STEPS, EPSILON, POPULATIONS])
def test_a_key_that_stands_twice_among_very_many(shared: SeededLedger, path: str) -> None:
    answer = _ask(shared, path, f'{{{_keys(40_000)},"9c3f":0}}')
    assert (answer["code"], answer["detail"]) == ("invalid_request", "The key '9c3f' is given twice in one object.")


@pytest.mark.parametrize(("depth", "path"), in_turns([2, 15, 16, 17, 100, 200, 240, 254, 300], [STEPS, EPSILON]))
def test_a_long_list_deep_inside_of_an_event(shared: SeededLedger, path: str, depth: int) -> None:
    event = _wrapped(GAUSSIAN | {"x": NUMBERS}, depth)
    answer = _ask(shared, path, {"event": event} if path == STEPS else {"events": [{"event": event}], "delta": 1e-5})
    assert answer["code"] == ("invalid_event" if depth > 16 else "invalid_request")


WRONG: dict[str, dict[str, Any]] = {
    "items that are no events": {"event": {"type": "composed", "events": [{}] * 340_000}},
    "fields of events": {"event": {"type": "composed", "events": _trees(500)}},
    "fields of many events": {"events": [{"event": tree} for tree in _trees(500)]},
}


@pytest.mark.parametrize("what", WRONG)
def test_lists_inside_of_events_that_are_wrong_throughout(shared: SeededLedger, what: str) -> None:
    answer = _ask(shared, STEPS, WRONG[what])
    assert answer["code"] == "invalid_request"
    assert len(answer["errors"]) <= 20
    assert answer["errors"][0]["field"].startswith("body.event")


@pytest.mark.parametrize("path", [STEPS, EPSILON, POPULATIONS])
def test_fields_that_are_not_known_by_the_hundred_thousand(shared: SeededLedger, path: str) -> None:
    answer = _ask(shared, path, f"{{{_keys(100_000)}}}")
    assert answer["code"] == "invalid_request"
    assert [(error["field"], error["type"]) for error in answer["errors"]] == [("body", "too_many_errors")]
    assert "places of the body" in answer["detail"]


def test_fields_that_are_not_known_in_a_thousand_places(shared: SeededLedger) -> None:
    answer = _ask(shared, STEPS, f'{{"events":[{",".join(["{" + _keys(140) + "}"] * 1000)}]}}')
    assert [error["type"] for error in answer["errors"]] == ["too_many_errors"]


def test_what_is_wrong_in_some_hundred_places_is_still_told_by_name(shared: SeededLedger) -> None:
    answer = _ask(shared, STEPS, {"events": [{"event": GAUSSIAN, "x": 1, "count": 0}] * 400})
    assert [error["field"] for error in answer["errors"][:3]] == [
        "body.events.0.count",
        "body.events.0.x",
        "body.events.1.count",
    ]
    assert len(answer["errors"]) == 20


def test_what_is_wrong_with_every_event_of_the_longest_plan_is_told_by_name(shared: SeededLedger) -> None:
    wrong = {"type": "poisson_sampled", "probability": 0.1, "event": {"type": "gaussian", "scale": 1.0, "sigma": 2.0}}
    answer = _ask(shared, EPSILON, {"events": [{"event": wrong, "count": 1}] * 1000, "delta": 1e-5})
    assert answer["errors"][0]["field"] == "body.events.0.event.sampling_probability"
    assert answer["detail"].endswith("; and 4997 more")


def test_brackets_as_deep_as_one_likes(shared: SeededLedger) -> None:
    """Wherever the parser, the schema or the interpreter gives up, it is the request's fault and not the service's."""
    for depth in range(5, 1100, 27):
        for inner in ("[" * depth + "]" * depth, '{"event":' * depth + "1" + "}" * depth):
            for text in (f'{{"x":{inner}}}', f'{{"event":{{"type":"gaussian","x":{inner}}}}}', f'{{"event":{inner}}}'):
                answer = _ask(shared, STEPS, text)
                assert (answer["status"], answer["code"][:8]) == (422, "invalid_"), (depth, text[:40])


def test_a_number_is_not_taken_for_another_that_was_read_before(shared: SeededLedger) -> None:
    def status(noise: str) -> int:
        text = f'{{"delta": 1e-5, "events": [{{"event": {{"type": "gaussian", "noise_multiplier": {noise}}}}}]}}'
        headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
        return int(shared.ledger.http.post(EPSILON, content=text, headers=headers).status_code)

    assert [status(noise) for noise in ("1", "true", '"1"', "1.0", "[1]", "1e0", "null")] == [
        *(200, 422, 422, 200, 422, 200, 422)
    ]
