"""Events of every type over HTTP: priced, or refused by name; and none too deep or too dear to answer."""

import json
from typing import Any

import pytest

from app.accounting.events import NeighboringRelation, canonical
from tests.accounting.event_table import CASES, Case
from tests.api.conftest import SeededLedger
from tests.soak import in_turns

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}
LONG = {"type": "decay", "mode": "exp", "decay_rate": 1e-6, "steps": 1000, "event": GAUSSIAN}


def _epsilon(
    shared: SeededLedger, events: list[dict[str, Any]], relation: str = "add_or_remove_one"
) -> tuple[int, dict[str, Any]]:
    body = {"events": events, "delta": 1e-5, "neighboring_relation": relation}
    reply = shared.ledger.post("/v1/accounting/epsilon", body, "viewer")
    answer: dict[str, Any] = reply.json()
    return reply.status_code, answer


def _wrapped(wire: dict[str, Any], wrapper: str) -> dict[str, Any]:
    if wrapper == "composed":
        return {"type": "composed", "events": [wire]}
    return {"type": "self_composed", "event": wire, "count": 1}


@pytest.mark.parametrize(
    ("case", "relation"),
    in_turns(CASES, NeighboringRelation),
    ids=lambda value: canonical(value.event).decode() if isinstance(value, Case) else str(value),
)
def test_an_event_is_priced_where_it_has_a_bound_and_else_refused(
    shared: SeededLedger, case: Case, relation: NeighboringRelation
) -> None:
    status, answer = _epsilon(shared, [{"event": dict(case.wire)}], relation)
    if relation in case.relations:
        assert status == 200, answer
        assert answer["epsilon"] > 0
    else:
        assert (status, answer["code"]) == (422, "unsupported_event")
        assert str(relation) in answer["detail"]


@pytest.mark.parametrize("wrapper", ["composed", "self_composed"])
def test_an_event_may_be_nested_16_deep_and_no_deeper(shared: SeededLedger, wrapper: str) -> None:
    wire: dict[str, Any] = GAUSSIAN
    for depth in range(1, 301):
        if depth > 20 and depth % 40:
            wire = _wrapped(wire, wrapper)
            continue
        status, answer = _epsilon(shared, [{"event": wire}])
        if depth <= 16:
            assert status == 200, (depth, answer)
        else:
            assert (status, answer["code"]) == (422, "invalid_event"), (depth, answer)
            assert answer["detail"] == "The event is nested more than 16 deep; no mechanism needs that."
        wire = _wrapped(wire, wrapper)


@pytest.mark.parametrize("wrapper", ["composed", "self_composed"])
@pytest.mark.parametrize("depth", [450, 900, 1000, 2000])
def test_an_event_that_no_parser_reads_is_refused_too(shared: SeededLedger, wrapper: str, depth: int) -> None:
    opening = '{"type":"composed","events":[' if wrapper == "composed" else '{"type":"self_composed","count":1,"event":'
    closing = "]}" if wrapper == "composed" else "}"
    text = f'{{"delta":1e-5,"events":[{{"event":{opening * depth}{json.dumps(GAUSSIAN)}{closing * depth}}}]}}'
    headers = shared.ledger.headers("viewer") | {"Content-Type": "application/json"}
    reply = shared.ledger.http.post("/v1/accounting/epsilon", content=text.encode(), headers=headers)
    assert reply.status_code == 422
    assert reply.json()["code"] in {"invalid_event", "invalid_request"}
    assert "nested" in reply.json()["detail"]


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        ({"type": "composed", "events": [GAUSSIAN, LONG]}, "invalid_event", "more than 1000 curves"),
        ({**LONG, "decay_rate": 1.0}, "invalid_event", "falls below 0.001 at step"),
        ({**LONG, "mode": "step", "decay_rate": 1.0}, "invalid_event", "decay_rate is 1.0"),
        ({**LONG, "event": {"type": "laplace", "noise_multiplier": 1.0}}, "unsupported_event", "may hold a gaussian"),
        ({"type": "adaptive_clipping"}, "invalid_request", "either `noise_multiplier`"),
        (
            {"type": "sampled_without_replacement", "source_dataset_size": 5, "sample_size": 6, "event": GAUSSIAN},
            "invalid_event",
            "sample_size is 6",
        ),
        (
            {"type": "poisson_sampled", "sampling_probability": 0.5, "event": {"type": "zcdp", "rho": 1.0}},
            "unsupported_event",
            "does not amplify by sampling",
        ),
        ({"type": "group_privacy", "group_size": 10**6, "event": GAUSSIAN}, "unsupported_event", "A group of 1000000"),
        ({"type": "epsilon_delta", "epsilon": 1.0, "delta": 0.5}, "invalid_request", "less than 0.5"),
    ],
    ids=["too many curves", "no noise left", "rate", "decaying", "no form", "batch", "zcdp", "group", "delta"],
)
def test_what_an_event_cannot_be_is_refused_with_the_reason(
    shared: SeededLedger, event: dict[str, Any], code: str, words: str
) -> None:
    status, answer = _epsilon(shared, [{"event": event}])
    assert (status, answer["code"]) == (422, code)
    assert words in str(answer)


def test_a_request_takes_a_bounded_amount_of_work(shared: SeededLedger) -> None:
    sampled = [{"type": "poisson_sampled", "sampling_probability": q, "event": GAUSSIAN} for q in (0.1, 0.2)]
    long = [{"event": LONG | {"steps": 1000, "event": event}} for event in sampled]
    assert _epsilon(shared, [{"event": LONG}] * 300)[0] == 200  # it is computed once
    status, answer = _epsilon(shared, long)
    assert (status, answer["code"]) == (422, "computation_limit_exceeded")
    assert "Send fewer different events" in answer["detail"]
