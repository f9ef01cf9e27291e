"""Rules for every event; a new type joins by a row of the table, and a type without a row fails here."""

import json
from dataclasses import MISSING, fields
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

import epsilon_ledger as sdk
from app.accounting import events as dp
from app.accounting.curves import EXHAUSTED, GRID_VERSION, HIGHEST, UNIT, RdpCurve, orders
from app.accounting.errors import AccountingError, InvalidEventError, UnsupportedEventError
from app.accounting.events import (
    DpEvent,
    NeighboringRelation,
    batch_in,
    canonical,
    event_from_canonical,
    event_from_dict,
    event_to_dict,
    fingerprint,
    type_name,
)
from app.accounting.events.base import NAME_BY_TYPE, TYPE_BY_NAME
from app.accounting.rdp import curve_over, event_curve
from app.api.schemas.events import Event
from tests.each import for_each

from .event_table import CASES, REFUSED, Case

SCHEMA: TypeAdapter[Any] = TypeAdapter(Event)
OPENAPI = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text())
GRID = orders(GRID_VERSION)
SOME = GRID[np.append(np.arange(0, GRID.size, 60), GRID.size - 1)]
FIRST = {type(case.event): case for case in reversed(CASES)}
OUT_OF_BOUNDS = [
    (FIRST[cls], field, value)
    for cls, by_field in REFUSED.items()
    for field, values in by_field.items()
    for value in (*values, inf, -inf, nan)
]
Priced = tuple[Case, NeighboringRelation]
"""An event and a relation that it has a price for."""


def _wire(case: Case) -> str:
    return canonical(case.event).decode()


each_case = for_each(CASES, _wire)
each_price = for_each(
    [(case, relation) for case in CASES for relation in sorted(case.relations)],
    lambda priced: f"{_wire(priced[0])}, {priced[1]}",
)


@cache
def _validator(reference: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": reference, "components": OPENAPI["components"]})


@cache
def _price(event: DpEvent, relation: NeighboringRelation) -> RdpCurve:
    return curve_over(event, SOME, relation)


@each_case
def test_event_has_one_wire_form_that_the_client_writes_and_one_fingerprint(case: Case) -> None:
    assert event_to_dict(case.event) == case.wire
    assert canonical(case.event) == json.dumps(case.wire, sort_keys=True, separators=(",", ":")).encode()
    assert fingerprint(case.event).startswith(case.hash)
    for read in (event_from_dict(case.wire), event_from_canonical(canonical(case.event))):
        assert read == case.event
        assert hash(read) == hash(case.event)


@each_case
def test_event_is_read_by_the_api_with_its_defaults_and_without(case: Case) -> None:
    defaults = {field.name: field.default for field in fields(case.event) if field.default is not MISSING}
    assert all(case.wire.get(name, "left out") != default for name, default in defaults.items())
    assert event_from_dict(defaults | dict(case.wire)) == case.event
    for wire in (case.wire, defaults | dict(case.wire)):
        assert SCHEMA.validate_json(json.dumps(wire)).domain == case.event


@each_case
def test_event_is_described_by_openapi_with_all_its_fields(case: Case) -> None:
    mapping = OPENAPI["components"]["schemas"]["Event"]["discriminator"]["mapping"]
    validator = _validator(mapping[case.wire["type"]])
    assert validator.is_valid(dict(case.wire))
    assert not validator.is_valid(dict(case.wire) | {"sigma": 1.0})
    described = OPENAPI["components"]["schemas"][mapping[case.wire["type"]].rsplit("/", 1)[1]]
    assert set(described["properties"]) == {"type"} | {field.name for field in fields(case.event)}


@each_case
def test_event_with_an_unknown_or_a_missing_field_is_refused(case: Case) -> None:
    wires = {"unknown: 'sigma'": dict(case.wire) | {"sigma": 1.0}}
    for field in fields(case.event):
        if field.default is MISSING:
            wires[f"missing: {field.name}"] = {name: value for name, value in case.wire.items() if name != field.name}
    for words, wire in wires.items():
        with pytest.raises(InvalidEventError, match=words):
            event_from_dict(wire)
        with pytest.raises(ValidationError):
            SCHEMA.validate_json(json.dumps(wire))
    with pytest.raises(ValidationError):
        SCHEMA.validate_json(json.dumps(dict(case.wire) | {"type": "x"}))


@for_each(OUT_OF_BOUNDS, lambda refused: f"{_wire(refused[0])}, {refused[1]}: {str(refused[2])[:100]}")
def test_event_with_a_value_out_of_bounds_is_refused_shortly(refused: tuple[Case, str, object]) -> None:
    case, field, value = refused
    wire = dict(case.wire) | {field: value}
    with pytest.raises(AccountingError) as refusal:
        event_from_dict(wire)
    assert len(str(refusal.value)) < 500
    with pytest.raises((ValidationError, AccountingError)):
        assert SCHEMA.validate_python(wire).domain is None


@each_case
def test_event_without_a_price_under_a_relation_is_refused_with_its_name(case: Case) -> None:
    assert 1 <= case.event.curve_count() <= 1000
    for relation in set(NeighboringRelation) - case.relations:
        with pytest.raises(UnsupportedEventError, match=str(relation)):
            event_curve(case.event, relation)


@each_price
def test_price_is_finite_and_positive_and_grows_with_the_order(priced: Priced) -> None:
    curve = event_curve(*_event_and_relation(priced))
    assert curve.values.shape == GRID.shape
    assert curve.values.min() > 0
    assert curve.values[GRID <= HIGHEST].max() < EXHAUSTED
    steps = np.diff(curve.values.astype(np.float64))
    assert np.all(steps >= -1 - 1e-12 * curve.values[1:])  # rounding may make a step down of a unit
    assert 0 <= curve.delta_value() < 0.5
    among_all = curve.at(np.searchsorted(GRID, SOME))
    some = _price(*_event_and_relation(priced))
    assert some.nats() == pytest.approx(among_all.nats(), rel=1e-12, abs=2 * UNIT)
    assert some.delta == among_all.delta


@each_price
def test_price_of_a_composition_is_the_sum_of_its_parts(priced: Priced) -> None:
    event, relation = _event_and_relation(priced)
    curve, other = _price(event, relation), dp.Zcdp(0.01, 0.1)
    for count in (1, 3, 10**9):
        assert _price(dp.SelfComposed(event, count), relation) == curve.times(count)
    assert _price(dp.Composed((dp.SelfComposed(event, 7), event)), relation) == curve.times(8)
    assert _price(dp.SelfComposed(dp.Composed((event,) * 2), 5), relation) == curve.times(10)
    for pair in ((event, other), (other, event)):
        assert _price(dp.Composed(pair), relation) == curve + _price(other, relation)


@each_price
def test_price_with_less_noise_more_sampling_or_more_steps_is_no_lower(priced: Priced) -> None:
    event, relation = _event_and_relation(priced)
    curve = _price(event, relation)
    for dearer in priced[0].dearer:
        assert _price(dearer, relation).covers(curve), dearer


@each_price
def test_price_of_a_larger_group_is_no_lower(priced: Priced) -> None:
    event, relation = _event_and_relation(priced)
    curve = _price(event, relation)
    assert _price(dp.GroupPrivacy(1, event), relation) == curve
    for size in (2, 3):
        try:
            dearer = _price(dp.GroupPrivacy(size, event), relation)
        except UnsupportedEventError:
            assert batch_in(event) is not None
            return
        assert dearer.covers(curve)
        curve = dearer


def _event_and_relation(priced: Priced) -> tuple[DpEvent, NeighboringRelation]:
    return priced[0].event, priced[1]


def test_every_type_of_event_has_a_row_a_helper_in_the_client_and_values_that_are_refused() -> None:
    assert {type_name(case.event) for case in CASES} == set(TYPE_BY_NAME) <= set(sdk.__all__)
    assert {name: cls for cls, name in NAME_BY_TYPE.items()} == TYPE_BY_NAME
    public = {value for value in vars(dp).values() if isinstance(value, type) and issubclass(value, DpEvent)}
    assert public == {DpEvent, *NAME_BY_TYPE}
    for cls in NAME_BY_TYPE:
        assert set(REFUSED[cls]) == {field.name for field in fields(cls)}


def test_different_events_have_different_fingerprints() -> None:
    assert len({case.hash for case in CASES}) == len(CASES)
