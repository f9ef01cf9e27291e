"""A body of steps that is parsed once for each text means what strict parsing says, whatever is sent."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.accounting.errors import AccountingError
from app.api.schemas.steps import AuthorizeSteps
from app.api.strict_json import strict_loads
from app.http import step_bodies
from app.http.step_bodies import MOST_KEPT, StepBody, read_body
from app.ledger.errors import LedgerError
from tests.api.trainer import LOUD

EVENT = json.dumps(LOUD)
DECAY = '{"type": "decay", "mode": "exp", "decay_rate": 0.1, "steps": 9, "first_step": %s, "event": ' + EVENT + "}"
TEMPLATES = [
    *('{"first_step":%s}', '{"count":1,"first_step":%s}', '{"first_step": %s, "count": 2}', ' {"first_step" :%s\n}'),
    *('{"count":1,"first_step":%s,"attempt":1}', '{"first_step":%s,"expected_steps":%s}', '{"count":%s}', "%s"),
    *('{"first_step":%s,"first_step":%s}', '{"first_step":1,"first_step":%s}', '{"first\\u005fstep":%s}'),
    *('{"mode":"\\"first_step\\":%s,"}', '{"x":"\\"first_step\\":%s","first_step":%s}', '{"a":{"first_step":%s}}'),
    f'{{"event":{EVENT},"first_step":%s}}',
    f'{{"first_step":%s,"event":{EVENT},"count":3,"on_exceed":"truncate"}}',
    f'{{"events":[{{"event":{EVENT},"count":2}}],"first_step":%s}}',
    f'{{"event":{DECAY}}}',
    f'{{"event":{DECAY},"first_step":%s}}',
    f'{{"first_step":%s,"event":{DECAY}}}',
    f'{{"event":{DECAY},"first\\u005fstep":%s}}',
]
NUMBERS = [
    *("0", "1", "7", "419", "10", "999999999999999", "1000000000000000", "9007199254740992", "9007199254740993"),
    *("-0", "-1", "01", "00", "1.0", "1.", "1e3", "1E0", "0x1", "1_000", "+1", "NaN", "Infinity", '"1"', "true"),
    *("null", "[1]", "{}", " 5", "5 ", "5\n", "\t5", "", "5,", "5}", "5]", '5,"count":0', "\u0663", "9" * 5000),
]
PIECES = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    " ",
    "\n",
    "0",
    "1",
    "-",
    ".",
    "e",
    '"first_step":',
    "\x00",
    "\ufeff",
    "é",
]


def read_strictly(content: bytes) -> StepBody | None:
    try:
        body = AuthorizeSteps.model_validate(strict_loads(content))
        return StepBody(body.request("run", "key"), "attempt" in body.model_fields_set)
    except (LedgerError, AccountingError, ValidationError):
        return None


def _agree(text: str) -> None:
    content = text.encode("utf-8", "surrogatepass")
    assert read_body(content, "run", "key") == read_strictly(content), text


def _filled(template: str, *numbers: str) -> str:
    first, *others = template.split("%s")
    return first + "".join(number + part for number, part in zip(numbers * 2, others, strict=False))


@given(st.sampled_from(TEMPLATES), st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=4))
@example(f'{{"event":{DECAY},"first_step":%s}}', ["1", "2"])
def test_body_of_a_known_text_is_read_as_strict_parsing_reads_it(template: str, numbers: list[str]) -> None:
    for number in numbers:
        _agree(_filled(template, number, numbers[0]))


@given(
    st.sampled_from(TEMPLATES),
    st.integers(0, 10**16),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES)), min_size=1, max_size=3),
)
def test_body_with_changed_characters_is_read_as_strict_parsing_reads_it(
    template: str, number: int, changes: list[tuple[float, int, str]]
) -> None:
    text = _filled(template, str(number), str(number))
    _agree(text)
    for place, removed, piece in changes:
        at = round(place * len(text))
        text = text[:at] + piece + text[at + removed :]
    _agree(text)
    _agree(text.replace(str(number), str(number + 1)))


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_as_strict_parsing_reads_them(content: bytes) -> None:
    assert read_body(content, "run", "key") == read_strictly(content)


def test_repeated_body_is_parsed_once_for_all_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_bodies, "_kept", {})
    bodies = [b'{"count":1,"first_step":%d}' % step for step in range(1000)]
    assert read_body(bodies[0], "run", None) is not None
    monkeypatch.setattr(step_bodies, "strict_loads", None)
    for step, content in enumerate(bodies):
        body = read_body(content, "run", None)
        assert body is not None
        assert (body.request.first_step, body.request.items) == (step, ((None, 1),))


def test_number_of_kept_bodies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_bodies, "_kept", {})
    for count in range(1, 2 * MOST_KEPT):
        read_body(b'{"count":%d,"first_step":1}' % count, "run", None)
        assert 0 < len(step_bodies._kept) <= MOST_KEPT
