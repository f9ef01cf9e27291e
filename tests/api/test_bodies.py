"""Bodies and paths beyond what the document says: no strict JSON, dear ones, deep ones, other types, other names."""

import base64
import json
from typing import Any

import httpx2
import pytest

from app.accounting.events import NeighboringRelation
from app.api.strict_json import MAX_BODY_BYTES, strict_loads
from app.ledger.errors import InvalidInputError
from tests.accounting.event_table import CASES
from tests.api.conftest import SeededLedger
from tests.api.test_endpoints import unchanged
from tests.api.trainer import is_refused

__all__ = ["unchanged"]

JSON = {"Content-Type": "application/json"}
STEPS, EPSILON, POPULATIONS = "/v1/runs/{run}/steps", "/v1/accounting/epsilon", "/v1/populations"
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 50.0}
OPENING = {"self_composed": '{"type":"self_composed","count":1,"event":', "composed": '{"type":"composed","events":['}
CLOSING = {"self_composed": "}", "composed": "]}"}


def post(shared: SeededLedger, path: str, content: bytes | str | dict[str, Any], **headers: str) -> httpx2.Response:
    """Send a body as an admin."""
    text = json.dumps(content, separators=(",", ":")) if isinstance(content, dict) else content
    sent = shared.ledger.headers() | JSON | {name.replace("_", "-"): value for name, value in headers.items()}
    where = path.format(**shared.ids() | {"run": shared.run})
    return shared.ledger.http.post(where, content=text, headers=sent)


TWICE = b'{"count": 1, "events": {}, "count": 1}'
NOT_STRICT: list[bytes] = [
    *(b"", b" \n", b'{"count": 1', b'{"count"}', b"{'count': 1}", b'{"count": 1,}', b'{"count": 1} // one'),
    *(b'{"count": 1} {"count": 1}', b'{"count": NaN}', b'[{"count": [1, {"b": -Infinity}]}]', b'{"count": -1e400}'),
    *(b'{"count": ' + b"9" * 10_000 + b"}", b'{"count": 0.' + b"9" * (1 << 19) + b"e999}", b'{"count": 0x10}'),
    *(b'{"count": 01}', b'{"count": +1}', b'{"count": 1.}', b'{"count": 1_0}', TWICE),
    *(b'{"count": 1, "c\\u006funt": 2}', b'{"events": [{"event": {"type": "gaussian", "type": "gaussian"}}]}'),
    # Halves of surrogate pairs, other encodings, zeros and control characters:
    *(b'{"name": "\\ud800"}', b'{"name": "\\udc00\\ud800"}', b'{"\\ud800": 1}', b'{"name": "\xed\xa0\x80"}'),
    *(b'{"name": "\xff"}', '{"name": "a"}'.encode("utf-16"), b'\xef\xbb\xbf{"name": "a"}', b'{"name": "a\\u0000b"}'),
    *(b'{"\\u0000": 1}', b'{"name": "a\x01b"}', b'{"name": "\\x41"}', b"\x00"),
    *(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"[" * 100_000),
]


def test_text_that_is_no_strict_json_is_refused() -> None:
    assert strict_loads(b'{"a": [1, {"b": 1.5}]}')
    for content in NOT_STRICT:
        with pytest.raises(InvalidInputError, match="count" if content == TWICE else "."):
            strict_loads(content)


def test_body_that_is_no_strict_object_is_an_invalid_request(shared: SeededLedger) -> None:
    """Steps are parsed past the framework; all other operations share a parser."""
    for path, contents in ((STEPS, NOT_STRICT[::2]), (POPULATIONS, NOT_STRICT[1::4])):
        for content in (*contents, b"null", b"true", b"1", b'"count"', b"[]", b'[["count", 1]]'):
            is_refused(post(shared, path, content), 422, "invalid_request")


TAKEN = ("application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/v1+json")
OTHERS = ("", "text/plain", "text/json", "application/x-www-form-urlencoded", "application/jsonx", "json")


def test_json_by_any_of_its_names_and_of_a_mebibyte_is_read_and_nothing_else(shared: SeededLedger) -> None:
    preview = f"{STEPS}?dry_run=true"
    for kind in TAKEN:
        assert post(shared, preview, b'{"count": 1}', Content_Type=kind).status_code == 200
    for encoding in ("identity", "Identity", "", " "):
        assert post(shared, preview, b"{}", Content_Encoding=encoding).status_code == 200
    assert post(shared, preview, b'{"count": 1' + b" " * (MAX_BODY_BYTES - 12) + b"}").status_code == 200
    for kind in OTHERS:
        is_refused(post(shared, preview, b"{}", Content_Type=kind), 415, "unsupported_media_type")
    for encoding in ("gzip", "GZIP", "br", "identity, gzip", "x"):
        answer = is_refused(post(shared, preview, b"{}", Content_Encoding=encoding), 415, "unsupported_media_type")
        assert answer["detail"] == "Compressed bodies are not taken; send the JSON as it is."


def keys(count: int) -> str:
    return ",".join(f'"{number:x}":0' for number in range(count))


def test_very_many_keys_are_refused_with_one_error(shared: SeededLedger) -> None:
    answer = is_refused(post(shared, STEPS, f'{{{keys(40_000)},"9c3f":0}}'), 422, "invalid_request")
    assert answer["detail"] == "The key '9c3f' is given twice in one object."
    answer = is_refused(post(shared, STEPS, f"{{{keys(20_000)}}}"), 422, "invalid_request")
    assert [(error["field"], error["type"]) for error in answer["errors"]] == [("body", "too_many_errors")]
    assert "places of the body" in answer["detail"]


TREES = [{"type": "tree_aggregation", "noise_multiplier": 1, "step_counts": [0] * 1000}] * 20
WRONG: dict[str, dict[str, Any] | str] = {
    "items that are no events": {"event": {"type": "composed", "events": [{}] * 20_000}},
    "fields of many events": {"events": [{"event": tree} for tree in TREES]},
    "unknown fields of a hundred events": f'{{"events":[{",".join(["{" + keys(140) + "}"] * 100)}]}}',
    "a long key": {"x" * 500_000: 1},
    "a long type": {"event": {"type": "x" * 500_000}},
    "a long value": {"mode": "x" * 500_000},
}


@pytest.mark.parametrize("name", WRONG)
def test_body_that_is_wrong_throughout_is_refused_briefly(shared: SeededLedger, name: str) -> None:
    reply = post(shared, STEPS, WRONG[name])
    assert is_refused(reply, 422, reply.json()["code"])["code"] in {"invalid_request", "unsupported_event"}
    assert len(reply.json()["errors"]) <= 20
    assert len(reply.content) < 20_000


def test_faults_of_some_hundred_places_are_answered_by_name(shared: SeededLedger) -> None:
    answer = post(shared, STEPS, {"events": [{"event": GAUSSIAN, "x": 1, "count": 0}] * 400}).json()
    fields = [error["field"] for error in answer["errors"]]
    assert fields[:3] == ["body.events.0.count", "body.events.0.x", "body.events.1.count"]
    assert len(fields) == 20
    wrong = {"type": "poisson_sampled", "probability": 0.1, "event": {"type": "gaussian", "scale": 1.0, "sigma": 2.0}}
    answer = post(shared, EPSILON, {"events": [{"event": wrong, "count": 1}] * 300, "delta": 1e-5}).json()
    assert answer["errors"][0]["field"] == "body.events.0.event.sampling_probability"
    assert answer["detail"].endswith("; and 1497 more")


@pytest.mark.parametrize(("path", "wrapper"), [(STEPS, "self_composed"), (EPSILON, "composed")])
def test_event_may_be_nested_16_deep_and_no_deeper(shared: SeededLedger, path: str, wrapper: str) -> None:
    begin, end = ('{"event":', "}") if path == STEPS else ('{"delta":1e-5,"events":[{"event":', "}]}")
    for depth in (16, 17, 254, 260, 300, 450, 2000):
        event = OPENING[wrapper] * (depth - 1) + json.dumps(GAUSSIAN) + CLOSING[wrapper] * (depth - 1)
        reply = post(shared, f"{path}?dry_run=true" if path == STEPS else path, begin + event + end)
        if depth <= 16:
            assert reply.status_code == 200, depth
        elif depth <= 300:
            detail = "The event is nested more than 16 deep; no mechanism needs that."
            assert is_refused(reply, 422, "invalid_event")["detail"] == detail, depth
        else:  # later parsers read as many
            assert (reply.status_code, "nested" in reply.json()["detail"]) == (422, True), depth


def test_brackets_of_any_depth_are_the_fault_of_the_request(shared: SeededLedger) -> None:
    for depth in (5, 17, 99, 300, 450, 1100):
        for inner in ("[" * depth + "]" * depth, '{"event":' * depth + "1" + "}" * depth):
            for text in (f'{{"x":{inner}}}', f'{{"event":{{"type":"gaussian","x":{inner}}}}}', f'{{"event":{inner}}}'):
                reply = post(shared, STEPS, text)
                assert (reply.status_code, reply.json()["code"][:8]) == (422, "invalid_"), (depth, text[:40])


ONE_OF_EACH_TYPE = {type(case.event): case for case in CASES}.values()


def test_event_of_each_type_is_taken_where_it_has_a_bound_and_else_refused(shared: SeededLedger) -> None:
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    for case in ONE_OF_EACH_TYPE:
        reply = post(shared, f"{STEPS}?dry_run=true", {"event": dict(case.wire)})
        if relation in case.relations:
            assert reply.json()["decision"] in {"admitted", "refused"}, case
        else:
            assert str(relation) in is_refused(reply, 422, "unsupported_event")["detail"]


LONG = {"type": "decay", "mode": "exp", "decay_rate": 1e-6, "steps": 1000, "event": GAUSSIAN}
BATCH = {"type": "sampled_without_replacement", "source_dataset_size": 5, "sample_size": 6, "event": GAUSSIAN}
IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    (LONG | {"decay_rate": 1.0}, "invalid_event", "falls below 0.001 at step"),
    (LONG | {"event": {"type": "laplace", "noise_multiplier": 1.0}}, "unsupported_event", "may hold a gaussian"),
    (BATCH, "invalid_event", "sample_size is 6"),
    ({"type": "group_privacy", "group_size": 10**6, "event": GAUSSIAN}, "unsupported_event", "A group of 1000000"),
]


def test_impossible_event_is_refused_with_the_reason(shared: SeededLedger) -> None:
    for event, code, words in IMPOSSIBLE:
        assert words in str(is_refused(post(shared, STEPS, {"event": event}), 422, code))


def test_number_is_not_taken_for_another_that_was_read_before(shared: SeededLedger) -> None:
    texts = ("1", "true", '"1"', "1.0", "[1]", "1e0", "null")
    body = '{"delta": 1e-5, "events": [{"event": {"type": "gaussian", "noise_multiplier": %s}}]}'
    found = [post(shared, EPSILON, body % text).status_code for text in texts]
    assert found == [200, 422, 422, 200, 422, 200, 422]


PLACES = ("x", "%FF", "LTE", "YQ", "MS41", "KzE", "IDE")
CURSORS = ("!", "x", "é", "病", "_w", "-", "====", "a b", "x" * 201, "%FF", "/w==", "\u00a0")


def test_cursor_of_no_list_is_refused_and_one_beyond_a_history_shows_nothing(shared: SeededLedger) -> None:
    history = f"runs/{shared.run}/history"
    cursors = [("populations", cursor) for cursor in CURSORS] + [(history, cursor) for cursor in PLACES]
    for path, cursor in cursors:
        is_refused(shared.ledger.get(f"/v1/{path}?after={cursor}"), 422, "invalid_request")
    for position in ("1000000", "9" * 60):
        cursor = base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")
        reply = shared.ledger.get(f"/v1/{history}?after={cursor}")
        assert (reply.status_code, reply.json()["points"]) == (200, [])


PATHS = ("/v1", "/v1/", "/v2/runs", "/v1/run", "/v1/runs/a/b", "/v1/runs/a/steps/1", "/.env", "/v1/runs/", "/healthz/")


FIND = {
    "populations": ("population", "GET /v1/populations?name= finds a population by its name, such as mimic"),
    "budgets": ("budget", "GET /v1/budgets?path= finds a budget by its path, such as mimic/icu-team"),
    "runs": ("run", "GET /v1/runs?path= finds runs by their path, such as mimic/icu-team/model"),
}


def test_missing_path_is_no_redirect_and_a_name_for_an_id_answered_with_how_to_find_the_id(
    shared: SeededLedger,
) -> None:
    """A redirect would be built from the Host header of the request, and a client would send its key there."""
    for path in PATHS:
        for method in ("GET", "POST", "DELETE"):
            sent = {"headers": shared.ledger.headers(), "follow_redirects": False}
            is_refused(shared.ledger.http.request(method, path, **sent), 404, "not_found")  # type: ignore[arg-type]
    for query in ("budgets?parent=nowhere", "budgets?parent=mimic/", "runs?budget=mimic/nobody"):
        is_refused(shared.ledger.get(f"/v1/{query}"), 404, "not_found")
    for kind, (name, remedy) in FIND.items():
        told = f"There is no {name} with the id '{{}}' in your organisation"
        assert shared.ledger.get(f"/v1/{kind}/resnet").json()["detail"] == f"{told.format('resnet')}; {remedy}."
        missing = f"{'pop' if kind == 'populations' else kind[:3]}_0"
        assert shared.ledger.get(f"/v1/{kind}/{missing}").json()["detail"] == f"{told.format(missing)}."
