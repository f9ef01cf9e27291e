"""A batch that is read by the texts of its items means what strict parsing says, whatever is sent."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.http import step_batches, step_bodies
from app.http.step_batches import MOST_NEW_ITEMS, MOST_PARSED_BYTES, read_batch, read_long_body
from app.http.step_bodies import MOST_KEPT, MOST_KEPT_BYTES
from tests.api.step_routes import JSON, NAMED, SHORT, USUAL, Ports, watched
from tests.api.test_fast_path import ports
from tests.api.test_step_bodies import PIECES, read_strictly
from tests.api.trainer import LOUD, QUIET, counted
from tests.conftest import SAMPLED

__all__ = ["ports"]

A, B = (json.dumps(event, separators=(",", ":")) for event in (LOUD, QUIET))
NESTED = f'{{"event":{A},"type":"poisson_sampled","sampling_probability":0.5}}'
"""Begins as an item does."""


def _composed(*events: str) -> str:
    return f'{{"type":"composed","events":[{",".join(events)}]}}'


ITEMS = [
    *(f'{{"event":{event},"count":{count}}}' for event in (A, B) for count in ("1", "2", "1000000000")),
    *(f'{{"count":{count},"event":{A}}}' for count in ("1", "7")),
    *(f'{{"event": {json.dumps(LOUD)}, "count": 1}}', f'{{"event":{A}}}', f'{{"event":{A} }}', f' {{"event":{A}}} '),
    *(f'{{"event":{_composed(*events)},"count":3}}' for events in ([A, B], [NESTED, NESTED], [NESTED])),
]
WRONG = [
    *(f'{{"event":{A},"count":{count}}}' for count in ("0", "1.0", "1e3", "01", "NaN", "null", '"1"', "1000000001")),
    *(f'{{"event":{A},"event":{A}}}', f'{{"event":{A},"x":1}}', f'{{"event":{A},}}', "{}", "1", "null", "[]", ""),
    *('{"event":{"type":"},{\\"event\\":"}}', f'{{"event":{A}', f'"event":{A}}}', f'{{"event":{A}}}}}', '{"event":1}'),
    *(f'{{"event":{A}}}],"attempt":1,"events":[{{"event":{A}}}', f'{{"event":{A}}}]', f'[{{"event":{A}}}]'),
]
HEADS = [
    *('{"events":[', '{"events": [', '{"first_step":5,"events":[', '{"attempt": 1, "events": [', '{ "events":['),
    *('{"events" :[', '{"a\\"events":[', '[{"events":[', '{"events":[],"events":[', '{"x":[1],"events":['),
    *(f'{{"events":[{ITEMS[0]},', f'{{"events" :[{ITEMS[0]},', '{"event":{"type":"composed","events":['),
    '{"events" :[{"event":{"type":"composed","events":[',
]
TAILS = [
    *("]}", "] }", ']}"', "]", "]}}", '],"first_step":7}', '],"first_step": 7,"attempt":1}', '],"attempt":0}'),
    *('],"count":1}', f'],"event":{A}}}', f'],"events":[{ITEMS[0]}]}}', ']},"count":1}]}', f"]}},{ITEMS[0]}]}}"),
    *('],"on_exceed":"truncate"}', '],"mode":"report"}', "]}\n", "]}{}", ",]}", f'],"event":{_composed(A)}}}'),
]
LONGER_PIECES = [*PIECES, ITEMS[0], "]}", '},{"event":', '"events":[']
COMMAS = [",", ", ", ",\n", " ,", ",,", ""]


def _agree(text: str) -> bool:
    """Compare both readings; return whether the batch was read by its items."""
    content = text.encode("utf-8", "surrogatepass")
    strict = read_strictly(content)
    assert read_long_body(content, "run", "key") == strict, text
    found = read_batch(content, "run", "key")
    assert found is None or found == strict, text
    return found is not None


mostly_first = st.just(0) | st.integers(0, 30)


@given(
    st.lists(st.sampled_from(ITEMS) | st.sampled_from(ITEMS + WRONG), min_size=1, max_size=8),
    *(mostly_first.map(lambda place, of=of: of[place % len(of)]) for of in (HEADS, TAILS, COMMAS)),  # type: ignore[misc]
)
@example([ITEMS[0]], '{"events" :[{"event":{"type":"composed","events":[', ']},"count":1}]}', ",")
def test_batch_of_known_items_is_read_as_strict_parsing_reads_it(
    items: list[str], head: str, tail: str, comma: str
) -> None:
    _agree(head + comma.join(items) + tail)
    _agree(head + comma.join(items * 2) + tail)


@given(
    st.lists(st.sampled_from(ITEMS), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(LONGER_PIECES)), max_size=3),
)
def test_batch_with_changed_characters_is_read_as_strict_parsing_reads_it(
    items: list[str], changes: list[tuple[float, int, str]]
) -> None:
    text = '{"events":[' + ",".join(items) + '],"first_step":3}'
    for place, removed, piece in changes:
        at = round(place * len(text))
        text = text[:at] + piece + text[at + removed :]
        _agree(text)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("first", ["event", "count"])
def test_usual_batch_is_read_by_its_items(separators: tuple[str, str], first: str) -> None:
    items = [dict(sorted({"event": event, "count": 1}.items(), reverse=first == "event")) for event in (LOUD, QUIET)]
    for rest in ({}, {"first_step": 4}, {"attempt": 1, "on_exceed": "truncate"}):
        assert _agree(json.dumps({"events": items * 500} | rest, separators=separators))
        assert _agree(json.dumps(rest | {"events": items * 500}, separators=separators))
        assert not _agree(json.dumps({"events": items * 501} | rest, separators=separators))


def test_long_batch_of_known_items_parses_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    content = ('{"events":[' + ",".join(ITEMS[:6] * 166) + '],"first_step":%d}').encode()
    assert len(content) > MOST_PARSED_BYTES
    assert read_long_body(content % 1, "run", None) is not None
    monkeypatch.setattr(step_bodies, "strict_loads", None)
    monkeypatch.setattr(step_batches, "strict_loads", None)
    body = read_long_body(content % 2, "run", None)
    assert body is not None
    assert (body.request.first_step, len(body.request.items), len(set(map(id, body.request.items)))) == (2, 996, 6)


def test_long_body_without_known_items_is_left_to_the_usual_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_batches, "_items", {})
    long = b'{"count":1}' + b" " * MOST_PARSED_BYTES
    assert read_long_body(long, "run", None) is None
    items = ",".join(f'{{"event":{A},"count":{count}}}' for count in range(1, MOST_NEW_ITEMS + 2))
    assert not _agree(f'{{"events":[{items}]}}')


def test_number_of_kept_items_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_batches, "_items", {})
    for begin in range(1, 2 * MOST_KEPT, MOST_NEW_ITEMS):
        numbers = range(begin, begin + MOST_NEW_ITEMS)
        items = ",".join(f'{{"event":{A},"count":{number}}}' for number in numbers)
        assert _agree(f'{{"events":[{items}]}}')
        assert sum(map(len, step_batches._items.values())) <= MOST_KEPT
    long = A.replace("{", "{" + " " * MOST_KEPT_BYTES, 1)
    assert not _agree(f'{{"events":[{{"event":{long},"count":1}}]}}')


def test_batch_of_one_route_is_repeated_by_the_other(ports: Ports) -> None:
    """The fast path reads it by the texts of its items; the fingerprint of the request is that of the parsed ones."""
    ledger, items = ports.seeded.ledger, counted((QUIET, 2), (SAMPLED, 1), (QUIET, 1)) * 333
    for first, second in ((SHORT, USUAL), (USUAL, SHORT)):
        population = f"b-{first}"
        ledger.population(population)
        ledger.budget("team", population)
        run, body = ledger.run(f"{population}/team"), {"events": items, "first_step": 0, "mode": "report"}
        content = json.dumps(body).encode()
        assert len(content) > MOST_PARSED_BYTES
        with watched() as asked:
            answers = [ports.ask(way, ports.request(content, JSON, NAMED, run=run)) for way in (first, second)]
            other = ports.ask(SHORT, ports.request(content.replace(b'"count": 2', b'"count": 3'), run=run))
        assert [answer.header(b"idempotent-replayed") for answer in answers] == [None, b"true"]
        assert (answers[0].status, answers[0].body, other.status) == (200, answers[1].body, 409)
        assert asked == [run] * 2
