"""What is true of every event; a new type joins by its examples, and one without an example fails here."""

import json
from dataclasses import MISSING, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

import epsilon_ledger as sdk
from app.accounting import events
from app.accounting import events as dp
from app.accounting.curves import EXHAUSTED, GRID_VERSION, HIGHEST, UNIT, orders
from app.accounting.errors import AccountingError, InvalidEventError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.events.base import NAME_BY_TYPE, TYPE_BY_NAME
from app.accounting.rdp import curve_over, event_curve
from app.api.schemas.events import Event
from tests.each import for_each

from .leaf_examples import LEAVES, Case
from .sampling_examples import SAMPLES
from .wrapper_examples import WRAPPERS

ALL_EXAMPLES = (*LEAVES, *SAMPLES, *WRAPPERS)
CASES = [case for examples in ALL_EXAMPLES for case in examples.cases]
REFUSED = [
    (examples.cases[0], field, value)
    for examples in ALL_EXAMPLES
    for field, values in examples.refused.items()
    for value in values
]
Priced = tuple[Case, NeighboringRelation]
"""An example and a relation that it has a price for."""


@cache
def _validator(reference: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": reference, "components": OPENAPI["components"]})


def _wire(case: Case) -> str:
    return dp.canonical(case.event).decode()


each_case = for_each(CASES, _wire)
each_price = for_each(
    [(case, relation) for case in CASES for relation in sorted(case.relations)],
    lambda priced: f"{_wire(priced[0])}, {priced[1]}",
)

SCHEMA: TypeAdapter[Any] = TypeAdapter(Event)
OPENAPI = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text())
GRID = orders(GRID_VERSION)


@each_case
def test_the_wire_form_is_this_one(case: Case) -> None:
    assert dp.event_to_dict(case.event) == case.wire
    assert dp.event_from_dict(case.wire) == case.event


@each_case
def test_it_survives_json(case: Case) -> None:
    assert dp.event_from_dict(json.loads(json.dumps(dp.event_to_dict(case.event)))) == case.event
    assert dp.event_from_canonical(dp.canonical(case.event)) == case.event
    assert hash(dp.event_from_canonical(dp.canonical(case.event))) == hash(case.event)


@each_case
def test_the_canonical_form_and_the_fingerprint_never_change(case: Case) -> None:
    assert dp.canonical(case.event) == json.dumps(case.wire, sort_keys=True, separators=(",", ":")).encode()
    assert dp.fingerprint(case.event) == case.hash


@each_case
def test_a_field_at_its_default_may_be_sent_and_is_left_out(case: Case) -> None:
    defaults = {field.name: field.default for field in fields(case.event) if field.default is not MISSING}
    assert dp.event_from_dict(defaults | dict(case.wire)) == case.event
    assert SCHEMA.validate_json(json.dumps(defaults | dict(case.wire))).domain == case.event
    assert all(case.wire.get(name, "left out") != default for name, default in defaults.items())


@each_case
def test_the_client_writes_exactly_it(case: Case) -> None:
    assert json.dumps(case.written, sort_keys=True, separators=(",", ":")).encode() == dp.canonical(case.event)


@each_case
def test_the_api_accepts_exactly_it(case: Case) -> None:
    assert SCHEMA.validate_json(dp.canonical(case.event)).domain == case.event
    for wire in (dict(case.wire) | {"sigma": 1.0}, dict(case.wire) | {"type": "x"}):
        with pytest.raises(ValidationError):
            SCHEMA.validate_json(json.dumps(wire))


@each_case
def test_openapi_knows_it(case: Case) -> None:
    mapping = OPENAPI["components"]["schemas"]["Event"]["discriminator"]["mapping"]
    validator = _validator(mapping[case.wire["type"]])
    assert validator.is_valid(dict(case.wire))
    assert not validator.is_valid(dict(case.wire) | {"sigma": 1.0})
    described = OPENAPI["components"]["schemas"][mapping[case.wire["type"]].rsplit("/", 1)[1]]
    assert set(described["properties"]) == {"type"} | {field.name for field in fields(case.event)}


@each_case
def test_an_unknown_field_is_refused(case: Case) -> None:
    with pytest.raises(InvalidEventError, match="unknown: 'sigma'"):
        dp.event_from_dict(dict(case.wire) | {"sigma": 1.0})


@each_case
def test_a_missing_field_is_refused(case: Case) -> None:
    for field in fields(case.event):
        if field.default is MISSING:
            wire = {name: value for name, value in case.wire.items() if name != field.name}
            with pytest.raises(InvalidEventError, match=f"missing: {field.name}"):
                dp.event_from_dict(wire)
            with pytest.raises(ValidationError):
                SCHEMA.validate_json(json.dumps(wire))


@for_each(REFUSED, lambda refused: f"{_wire(refused[0])}, {refused[1]}: {str(refused[2])[:100]}")
def test_a_value_out_of_bounds_is_refused(refused: tuple[Case, str, object]) -> None:
    case, field, value = refused
    wire = dict(case.wire) | {field: value}
    with pytest.raises(AccountingError) as refusal:
        dp.event_from_dict(wire)
    assert len(str(refusal.value)) < 500
    with pytest.raises((ValidationError, AccountingError)):
        assert SCHEMA.validate_python(wire).domain is None


@each_case
def test_nan_and_infinity_are_refused_in_every_field(case: Case) -> None:
    for field in fields(case.event):
        for value in (inf, -inf, float("nan")):
            with pytest.raises(AccountingError):
                dp.event_from_dict(dict(case.wire) | {field.name: value})
            with pytest.raises((ValidationError, AccountingError)):
                assert SCHEMA.validate_python(dict(case.wire) | {field.name: value}).domain is None


@each_case
def test_a_relation_has_a_price_or_is_refused(case: Case) -> None:
    for relation in NeighboringRelation:
        if relation in case.relations:
            assert event_curve(case.event, relation).values.shape == GRID.shape
        else:
            with pytest.raises(UnsupportedEventError) as refusal:
                event_curve(case.event, relation)
            assert str(relation) in str(refusal.value)


@each_price
def test_the_price_is_finite_positive_and_grows_with_the_order(priced: Priced) -> None:
    case, relation = priced
    curve = event_curve(case.event, relation)
    assert curve.values.min() > 0
    assert curve.values[GRID <= HIGHEST].max() < EXHAUSTED
    steps = np.diff(curve.values.astype(np.float64))
    assert np.all(steps >= -1 - 1e-12 * curve.values[1:])  # rounding may make a step down of a unit
    assert 0 <= curve.delta_value() < 0.5


@each_price
def test_composed_n_times_it_costs_n_times(priced: Priced) -> None:
    case, relation = priced
    curve = event_curve(case.event, relation)
    for count in (1, 3, 1000, 10**9):
        assert event_curve(dp.SelfComposed(case.event, count), relation) == curve.times(count)
    assert event_curve(dp.Composed((case.event,) * 3), relation) == curve.times(3)
    assert event_curve(dp.Composed((dp.SelfComposed(case.event, 7), case.event)), relation) == curve.times(8)
    assert event_curve(dp.SelfComposed(dp.Composed((case.event,) * 2), 5), relation) == curve.times(10)


@each_price
def test_composed_with_another_it_costs_the_sum(priced: Priced) -> None:
    case, relation = priced
    other = dp.Zcdp(0.01, 0.1)
    expected = event_curve(case.event, relation) + event_curve(other, relation)
    assert event_curve(dp.Composed((case.event, other)), relation) == expected
    assert event_curve(dp.Composed((other, case.event)), relation) == expected


@each_price
def test_some_orders_cost_what_they_cost_among_all(priced: Priced) -> None:
    case, relation = priced
    places = np.array([0, 17, 400, 900, GRID.size - 1])
    some, among_all = curve_over(case.event, GRID[places], relation), event_curve(case.event, relation).at(places)
    assert some.nats() == pytest.approx(among_all.nats(), rel=1e-12, abs=2 * UNIT)
    assert some.delta == among_all.delta


@each_price
def test_less_noise_more_sampling_and_more_steps_never_cost_less(priced: Priced) -> None:
    case, relation = priced
    curve = event_curve(case.event, relation)
    for event in case.dearer:
        dearer = event_curve(event, relation)
        assert np.all(dearer.values >= curve.values), event
        assert dearer.delta >= curve.delta, event


@each_price
def test_a_group_of_more_records_never_costs_less(priced: Priced) -> None:
    case, relation = priced
    curve = event_curve(case.event, relation)
    assert event_curve(dp.GroupPrivacy(1, case.event), relation) == curve
    for size in (2, 3):
        try:
            dearer = event_curve(dp.GroupPrivacy(size, case.event), relation)
        except UnsupportedEventError:
            assert dp.batch_in(case.event) is not None
            return
        assert np.all(dearer.values >= curve.values)
        assert dearer.delta >= curve.delta
        curve = dearer


@each_case
def test_it_takes_a_bounded_number_of_curves(case: Case) -> None:
    assert 1 <= case.event.curve_count() <= 1000


def test_every_registered_type_has_examples() -> None:
    tested = [dp.type_name(examples.cases[0].event) for examples in ALL_EXAMPLES]
    assert sorted(tested) == sorted(TYPE_BY_NAME)
    assert {name: cls for cls, name in NAME_BY_TYPE.items()} == TYPE_BY_NAME
    public = {value for value in vars(events).values() if isinstance(value, type) and issubclass(value, DpEvent)}
    assert public == {DpEvent, *NAME_BY_TYPE}


def test_the_examples_of_a_type_are_of_that_type_and_try_all_of_its_fields() -> None:
    for examples in ALL_EXAMPLES:
        assert len({type(case.event) for case in examples.cases}) == 1
        assert set(examples.refused) == {field.name for field in fields(examples.cases[0].event)}


def test_every_type_has_a_helper_in_the_client() -> None:
    assert set(TYPE_BY_NAME) <= set(sdk.__all__)


def test_different_events_have_different_fingerprints() -> None:
    assert len({case.hash for case in CASES}) == len(CASES)
