"""Bad input, field by field: each is refused by name, and the ledger is the same afterwards."""

import sys

import pytest

from tests.api.conftest import SeededLedger
from tests.soak import in_turns

# `@` stands for the value that is tried; {run} for a run's id.
POPULATION = (
    '{"name": "n", "privacy_unit": "user", "neighboring_relation": "add_or_remove_one", '
    '"limit": {"epsilon": 1.0, "delta": 1e-5}'
)
BUDGET = '{"name": "n", "parent": "mimic", "limit": {"epsilon": 1.0, "delta": 1e-5}'
RUN = '{"name": "n", "budget": "mimic/icu-team"'
GAUSSIAN = '{"type": "gaussian", "noise_multiplier": 50}'
NO_NUMBERS = ['"1"', "true", "[]", "{}", "NaN", "1e400", "10" + "0" * 29]
NO_NUMBER_ANYWHERE = ["false", "[1]", '""', "Infinity", "-Infinity", "-1e400", "-10" + "0" * 29]
NO_NUMBER_ANYWHERE += ["0x10", "01", "+1", ".5", "1.", "1e", "1_0", "\u0661", "--1"]
"""What the parser refuses, or every schema of a number: tried where each of them is met first."""

NO_COUNTS = [*NO_NUMBERS, "0", "-1", "1.5", "1.0", "1e3", "1000000001", "9223372036854775808"]
NO_TEXTS = ["5", "true", "[]", "{}", '["a"]', '""', "null", "NaN", "a", "'a'"]
NO_LIMITS = ["5", '"1"', "true", "[]", "[1, 1e-5]", "{}", '{"epsilon": 1}', '{"delta": 1e-5}']
NO_EVENTS = ["5", '"gaussian"', "true", "[]", "{}", '{"noise_multiplier": 50}', '{"type": "gaussian"}']
NO_LISTS = ["5", "true", "{}", '"x"', "[5]", "[null]", "[[]]", "[{}]", '[{"count": 1}]', f"[{GAUSSIAN}]"]

EPSILONS = [*NO_NUMBERS, "null", "0", "-0.0", "-1", "10000.001", "1e-400"]
DELTAS = [*NO_NUMBERS, "null", "0", "0.5", "1", "-1e-5", "1e-31", "1e-400", "0.50000000000000001"]
NOISES = [*NO_NUMBERS, "null", "0", "-1", "-1.1", "1e-4", "0.00099", "1e7", "1000000.1", "1e-400"]
SAMPLINGS = [*NO_NUMBERS, "null", "0", "-0.0", "-0.1", "1.1", "1.0000001", "1e-400"]
EVENT_TEMPLATES = {
    "noise": ('{"type": "gaussian", "noise_multiplier": @}', NOISES),
    "sampled noise": (
        '{"type": "poisson_sampled", "sampling_probability": 0.01, "event": ' + GAUSSIAN.replace("50", "@") + "}",
        NOISES,
    ),
    "sampling": ('{"type": "poisson_sampled", "sampling_probability": @, "event": ' + GAUSSIAN + "}", SAMPLINGS),
    "sampled event": ('{"type": "poisson_sampled", "sampling_probability": 0.01, "event": @}', [*NO_EVENTS, "null"]),
    "unknown field": ('{"type": "gaussian", "noise_multiplier": 50, @}', ['"x": 1', '"sigma": null', '"": 0']),
    "both": ('{"type": "gaussian", "noise_multiplier": 50, "sampling_probability": @}', ["0.01", "null"]),
    "twice": ('{"type": "gaussian", "noise_multiplier": 50, "noise_multiplier": @}', ["50", "60", "1e-4"]),
}
PLACES = {
    "/v1/populations": POPULATION + ', "planned": [{"event": @, "count": 2}]}',
    "/v1/budgets": BUDGET + ', "planned": [{"event": @}]}',
    "/v1/runs": RUN + ', "event": @}',
    "/v1/runs ": RUN + ', "planned": [{"event": @}]}',
    "/v1/runs/{run}/steps": '{"event": @}',
    "/v1/runs/{run}/steps ": '{"events": [{"event": ' + GAUSSIAN + '}, {"event": @}]}',
    "/v1/accounting/epsilon": '{"delta": 1e-5, "events": [{"event": @}]}',
}
NO_LEASES = [*NO_NUMBERS, "0", "-1", "1.5", "604801", "null"]
FIELDS = [
    ("/v1/populations", POPULATION.replace("1.0", "@") + "}", [*EPSILONS, *NO_NUMBER_ANYWHERE]),
    ("/v1/populations", POPULATION.replace("1e-5", "@") + "}", DELTAS),
    ("/v1/populations", POPULATION.replace('"n"', "@") + "}", NO_TEXTS),
    ("/v1/populations", POPULATION.replace('"user"', "@") + "}", [*NO_TEXTS, '"a/b"', '" a"', '"a\\n"']),
    (
        "/v1/populations",
        POPULATION.replace('"add_or_remove_one"', "@") + "}",
        [*NO_TEXTS, '"add_remove"', '"REPLACE_ONE"'],
    ),
    ("/v1/populations", POPULATION.replace('{"epsilon": 1.0, "delta": 1e-5}', "@") + "}", [*NO_LIMITS, "null"]),
    ("/v1/populations", POPULATION + ', "size": @}', [*NO_NUMBERS, "0", "-1", "1.5", "1.0", "1000000000001"]),
    ("/v1/populations", POPULATION + ', "planned": @}', [*NO_LISTS, "null"]),
    (
        "/v1/populations",
        POPULATION + ", @}",
        ['"x": 1', '"filter": "adaptive"', '"id": "pop_1"', '"name": "n"', '"parent": null', '"size": 5, "size": 5'],
    ),
    ("/v1/budgets", BUDGET.replace("1.0", "@") + "}", EPSILONS),
    ("/v1/budgets", BUDGET.replace("1e-5", "@") + "}", DELTAS),
    ("/v1/budgets", BUDGET.replace('"mimic"', "@") + "}", [*NO_TEXTS, '"' + "x" * 2001 + '"']),
    ("/v1/budgets", BUDGET.replace('{"epsilon": 1.0, "delta": 1e-5}', "@") + "}", [*NO_LIMITS, "null"]),
    ("/v1/budgets", BUDGET + ", @}", ['"x": 1', '"privacy_unit": "user"', '"size": 5', '"parent": "mimic"']),
    ("/v1/runs", RUN.replace('"mimic/icu-team"', "@") + "}", [*NO_TEXTS, '"' + "x" * 2001 + '"']),
    ("/v1/runs", RUN + ', "event": @}', NO_EVENTS),
    ("/v1/runs", RUN + ', "limit": @}', NO_LIMITS),
    ("/v1/runs", RUN + ', "limit": {"epsilon": @, "delta": 1e-5}}', EPSILONS),
    ("/v1/runs", RUN + ', "limit": {"epsilon": 1, "delta": @}}', DELTAS),
    ("/v1/runs", RUN + ', "limit": {"epsilon": 1, "delta": 1e-5, @}}', ['"x": 1', '"epsilon": 1']),
    ("/v1/runs", RUN + ', "privacy_unit": @}', [text for text in NO_TEXTS if text != "null"]),
    ("/v1/runs", RUN + ", @}", ['"x": 1', '"status": "active"', '"next_step": 0', '"attempt": 2', '"name": "m"']),
    ("/v1/runs/{run}/steps", '{"count": @}', [*NO_COUNTS, *NO_NUMBER_ANYWHERE]),
    ("/v1/runs/{run}/steps", '{"event": @}', NO_EVENTS),
    ("/v1/runs/{run}/steps", '{"first_step": @}', [*NO_NUMBERS, "-1", "1.0", "0.5", "9007199254740993"]),
    ("/v1/runs/{run}/steps", '{"events": @}', [*NO_LISTS, "[]"]),
    ("/v1/runs/{run}/steps", '{"events": [{"event": ' + GAUSSIAN + ', "count": @}]}', [*NO_COUNTS, "null"]),
    ("/v1/runs/{run}/steps", '{"events": [{"event": ' + GAUSSIAN + "}], @}", ['"count": 1', '"event": ' + GAUSSIAN]),
    ("/v1/runs/{run}/steps", '{"events": [{"event": ' + GAUSSIAN + ", @}]}", ['"x": 1', '"count": 1, "count": 1']),
    ("/v1/runs/{run}/steps", '{"mode": @}', ['"AUTHORIZE"', '""', "null", "5"]),
    (
        "/v1/runs/{run}/steps",
        "{@}",
        ['"x": 1', '"dry_run": true', '"attempts": 1', '"count": 1, "count": 1', '"Count": 1'],
    ),
    ("/v1/runs/{run}/steps", '{"attempt": @}', [*NO_NUMBERS, "0", "-1", "1.5", "null", "2147483648"]),
    ("/v1/runs/{run}/steps", '{"on_exceed": @}', ['"TRUNCATE"', '""', "null", "5"]),
    ("/v1/runs/{run}/steps", '{"mode": "report", "on_exceed": @}', ['"truncate"']),
    ("/v1/runs/{run}/reservations", '{"plan": @}', [*NO_LISTS, "[]", "null"]),
    ("/v1/runs/{run}/reservations", '{"plan": [{"event": @}]}', NO_EVENTS),
    ("/v1/runs/{run}/reservations", '{"plan": [{"event": ' + GAUSSIAN + '}], "lease_seconds": @}', NO_LEASES),
    ("/v1/runs/{run}/attempts", '{"first_step": @}', [*NO_NUMBERS, "-1", "0.5"]),
    ("/v1/runs/{run}/complete", '{"steps_executed": @}', [*NO_NUMBERS, "-1", "0.5"]),
    ("/v1/runs", RUN + ', "plan": @}', [*NO_LISTS, "null"]),
    ("/v1/runs", RUN + ', "lease_seconds": @}', NO_LEASES),
    (
        "/v1/accounting/epsilon",
        '{"delta": @, "events": [{"event": ' + GAUSSIAN + "}]}",
        [*DELTAS, *NO_NUMBER_ANYWHERE],
    ),
    ("/v1/accounting/epsilon", '{"delta": 1e-5, "events": @}', [*NO_LISTS, "[]", "null"]),
    ("/v1/accounting/epsilon", '{"delta": 1e-5, "events": [{"event": ' + GAUSSIAN + ', "count": @}]}', NO_COUNTS),
    (
        "/v1/accounting/epsilon",
        '{"delta": 1e-5, "events": [{"event": ' + GAUSSIAN + "}], @}",
        ['"x": 1', '"delta": 1e-5'],
    ),
]


def _refused(shared: SeededLedger, path: str, text: str, codes: set[str]) -> None:
    target = path.strip().replace("{run}", shared.run)
    headers = shared.ledger.headers() | {"Content-Type": "application/json"}
    reply = shared.ledger.http.post(target, content=text.encode(), headers=headers)
    assert reply.status_code == 422, f"{text} -> {reply.status_code} {reply.text}"
    assert reply.headers["content-type"] == "application/problem+json", text
    assert reply.json()["code"] in codes, text
    assert len(reply.json()["detail"]) > 10, text


@pytest.mark.parametrize(("path", "template", "values"), FIELDS, ids=[f"{path} {text}" for path, text, _ in FIELDS])
def test_a_field_that_is_not_what_it_should_be_is_an_invalid_request(
    shared: SeededLedger, path: str, template: str, values: list[str]
) -> None:
    before = shared.rows()
    for value in values:
        _refused(shared, path, template.replace("@", value), {"invalid_request"})
    assert shared.rows() == before


@pytest.mark.parametrize(("what", "path"), in_turns(EVENT_TEMPLATES, PLACES))
def test_an_event_out_of_its_bounds_is_refused_wherever_it_stands(shared: SeededLedger, path: str, what: str) -> None:
    template, values = EVENT_TEMPLATES[what]
    before = shared.rows()
    for value in values:
        _refused(shared, path, PLACES[path].replace("@", template.replace("@", value)), {"invalid_request"})
    assert shared.rows() == before


def _sampled(event: str, sampling: float = 0.5) -> str:
    return f'{{"type": "poisson_sampled", "sampling_probability": {sampling}, "event": {event}}}'


UNSUPPORTED = {
    "an unknown type": '{"type": "bogus"}',
    "an unknown type with known fields": '{"type": "Gaussian", "noise_multiplier": 1.0}',
    "an unknown type inside": _sampled('{"type": "bogus"}'),
    "sampling of a sample": _sampled(_sampled(GAUSSIAN)),
    "sampling of a sample of everything": _sampled(_sampled(GAUSSIAN, 1.0)),
    "a whole of a sample of a sample": _sampled(_sampled(_sampled(GAUSSIAN)), 1.0),
}


@pytest.mark.parametrize(("path", "what"), in_turns(PLACES, UNSUPPORTED))
def test_an_event_without_a_sound_bound_is_unsupported_wherever_it_stands(
    shared: SeededLedger, path: str, what: str
) -> None:
    before = shared.rows()
    _refused(shared, path, PLACES[path].replace("@", UNSUPPORTED[what]), {"unsupported_event"})
    assert shared.rows() == before


DEPTHS = [16, 17, 200, *range(250, 280, 6), 2000]
"""Of wrappers; from 250 to 280 the schema would have found them too deep."""

CODES_OF_2000 = {"invalid_request"} | ({"invalid_event"} if sys.version_info >= (3, 12) else set())
"""Python 3.11's parser does not read so many; later ones may."""


@pytest.mark.parametrize(("path", "wrapper"), in_turns(PLACES, ["poisson_sampled", "self_composed"]))
def test_an_event_that_is_nested_too_deep_is_refused(shared: SeededLedger, path: str, wrapper: str) -> None:
    opening = {
        "poisson_sampled": '{"type": "poisson_sampled", "sampling_probability": 1, "event": ',
        "self_composed": '{"type": "self_composed", "count": 1, "event": ',
    }[wrapper]
    before = shared.rows()
    for depth in DEPTHS:
        event = opening * depth + GAUSSIAN + "}" * depth
        _refused(shared, path, PLACES[path].replace("@", event), CODES_OF_2000 if depth == 2000 else {"invalid_event"})
    assert shared.rows() == before


def test_the_fields_are_named_that_are_wrong(shared: SeededLedger) -> None:
    body = {"events": [{"event": {"type": "gaussian", "noise_multiplier": 0}}, {"event": {}, "count": 0}], "x": 1}
    reply = shared.ledger.post(f"/v1/runs/{shared.run}/steps", body)
    fields = {error["field"] for error in reply.json()["errors"]}
    assert "body.x" in fields
    assert any(field.startswith("body.events.0.event") and field.endswith("noise_multiplier") for field in fields)
    assert "body.events.1.count" in fields
