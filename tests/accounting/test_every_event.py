"""Rules for every event, also at its bounds and for random ones; a type without a row of the table fails here."""

import json
from dataclasses import MISSING, fields
from functools import cache
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

import epsilon_ledger as sdk
from app.accounting import events as dp
from app.accounting.curves import EXHAUSTED, GRID_VERSION, HIGHEST, PURE, UNIT, RdpCurve, orders
from app.accounting.errors import AccountingError, InvalidEventError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation, batch_in, canonical, event_from_dict
from app.accounting.events.base import EVENT_TYPES, TYPE_BY_NAME
from app.accounting.exact_losses import UNBOUNDED_LOSSES, ExactLosses
from app.accounting.rdp import curve_over, event_curve
from app.api.schemas.events import Event
from tests.each import for_each
from tests.soak import few

from .event_strategies import EVENTS
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
    assert 1 <= case.event.curve_count() <= 1000
    assert dp.event_to_dict(case.event) == case.wire
    assert canonical(case.event) == json.dumps(case.wire, sort_keys=True, separators=(",", ":")).encode()
    assert dp.fingerprint(case.event).startswith(case.hash)
    for read in (event_from_dict(case.wire), dp.event_from_canonical(canonical(case.event))):
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
    for relation in set(NeighboringRelation) - case.relations:
        with pytest.raises(UnsupportedEventError, match=str(relation)):
            event_curve(case.event, relation)


@each_price
def test_price_is_finite_and_positive_or_nothing_and_grows_with_the_order(priced: Priced) -> None:
    curve = event_curve(*_event_and_relation(priced))
    assert curve.values.shape == GRID.shape
    assert curve.is_zero == (dp.without_no_ops(priced[0].event) == dp.NoOp())
    assert curve.values.min() > 0 or not curve.values.any()
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
    assert _price(dp.SelfComposed(event, 10**9), relation) == curve.times(10**9)
    assert _price(dp.Composed((dp.SelfComposed(event, 7), event)), relation) == curve.times(8)
    assert _price(dp.SelfComposed(dp.Composed((event,) * 2), 5), relation) == curve.times(10)
    for pair in ((event, other), (other, event)):
        assert _price(dp.Composed(pair), relation) == curve + _price(other, relation)


@each_price
def test_price_with_less_noise_more_sampling_or_more_steps_is_no_lower(priced: Priced) -> None:
    event, relation = _event_and_relation(priced)
    curve = _price(event, relation)
    pairs = zip(curve.exact, UNBOUNDED_LOSSES, strict=True)
    curve = curve.with_exact(ExactLosses(*(0 if loss == none else loss for loss, none in pairs)))
    for dearer in priced[0].dearer:  # a sample has no rho, though all records may have one
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
            assert batch_in(event) is not None or isinstance(event, dp.Zcdp)  # with a delta
            return
        assert dearer.covers(curve)
        curve = dearer


def _event_and_relation(priced: Priced) -> tuple[DpEvent, NeighboringRelation]:
    return priced[0].event, priced[1]


def test_every_type_of_event_has_a_row_a_helper_in_the_client_and_values_that_are_refused() -> None:
    assert {dp.type_name(case.event) for case in CASES} == set(TYPE_BY_NAME) <= set(sdk.__all__)
    assert {declared.name: cls for cls, declared in EVENT_TYPES.items()} == TYPE_BY_NAME
    public = {value for value in vars(dp).values() if isinstance(value, type) and issubclass(value, DpEvent)}
    assert public == {DpEvent, *EVENT_TYPES}
    for cls in EVENT_TYPES:
        assert set(REFUSED[cls]) == {field.name for field in fields(cls)}


def test_different_events_have_different_fingerprints() -> None:
    assert len({case.hash for case in CASES}) == len(CASES)


FEW = np.append(orders(GRID_VERSION)[::99], PURE)
NOISES = (1e-3, 0.0199, 0.2, 3.0, 1e3, 1e6)
PROBABILITIES = (5e-324, 1e-160, 1e-9, 0.5, 1 - 2**-53)
EPSILONS = (5e-324, 1e-20, 1e-3, 30.0, 1e4)

SIMPLE: list[DpEvent] = [
    *(make(z) for make in (dp.Gaussian, dp.Laplace, dp.DiscreteGaussian) for z in NOISES),
    *(dp.Gaussian(z, "microbatch") for z in NOISES),
    *(dp.TreeAggregation(z, (10**9, 1)) for z in NOISES),
    *(dp.Exponential(epsilon) for epsilon in EPSILONS),
    *(dp.MixtureOfGaussians(z, (0, 0.1, 1), (0.5, 0.5 - 1e-300, 1e-300)) for z in NOISES),
    *(dp.MixtureOfGaussians(z, (0.5, 1), (1 - 1e-9, 1e-9)) for z in NOISES),
    *(dp.PermuteAndFlip(epsilon) for epsilon in EPSILONS),
    *(dp.DiscreteLaplace(epsilon, distance) for epsilon, distance in product(EPSILONS, (1, 2, 65, 10**6))),
    *(dp.EpsilonDelta(epsilon, delta) for epsilon, delta in product(EPSILONS, (0.0, 5e-324, 0.49))),
    *(dp.RandomizedResponse(p, k) for p, k in product(PROBABILITIES, (2, 10**9))),
    *(dp.Zcdp(5e-324), dp.Zcdp(1e6, 1e6)),
]
BATCHES: list[DpEvent] = [
    dp.SampledWithoutReplacement(10**9, size, dp.Gaussian(z)) for size, z in product((1, 10**3, 10**9 - 1), NOISES)
]
BATCHES += [
    dp.TruncatedPoissonSampled(size, q, most, dp.Gaussian(z))
    for size, q, most, z in product((1, 10**9), PROBABILITIES[::2], (1, 10**9), NOISES[::3])
]
BATCHES += [
    dp.SampledWithReplacement(size, places, dp.Gaussian(z))
    for size, places, z in product((1, 2, 10**9), (1, 30, 10**9), NOISES[::3])
]
SEARCHES = [
    dp.RepeatAndSelect(leaf, mean, shape)
    for leaf, mean, shape in product(SIMPLE[::13], (1, 1 + 1e-12, 1e9), (-0.9999, 0, 1e6, None))
]
GROUPS = [dp.GroupPrivacy(size, leaf) for leaf, size in product(SIMPLE[::3], (2, 10**6))]


@for_each([*SIMPLE, *BATCHES, *SEARCHES, *GROUPS])
def test_an_event_at_its_bounds_has_a_price_or_is_refused(event: DpEvent) -> None:
    for relation in NeighboringRelation:
        _check(event, relation)


@for_each(product(SIMPLE, PROBABILITIES))
def test_sample_at_the_bounds_costs_at_most_all_records(case: tuple[DpEvent, float]) -> None:
    event, q = case
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if _check(dp.PoissonSampled(q, event), relation):
        sampled, everybody = (curve_over(each, FEW, relation) for each in (dp.PoissonSampled(q, event), event))
        # Both are computed to 1e-13 or better, then rounded up.
        room = np.minimum(everybody.values // 10**12 + 1, EXHAUSTED - everybody.values)
        assert np.all(sampled.values <= everybody.values + room)
        assert sampled.delta <= everybody.delta


@few(60)
@example(
    event=dp.MixtureOfGaussians(1.0, (0.0, 1e-290, 10.0), (0.9, 0.09, 0.01)), relation=NeighboringRelation.REPLACE_ONE
)
@example(event=dp.PoissonSampled(0, dp.DiscreteGaussian(1.0)), relation=NeighboringRelation.REPLACE_ONE)
@given(event=EVENTS, relation=st.sampled_from(list(NeighboringRelation)))
def test_any_event_has_a_price_or_is_refused(event: DpEvent, relation: NeighboringRelation) -> None:
    _check(event, relation)


def _check(event: DpEvent, relation: NeighboringRelation) -> bool:
    """Say whether an event has a price, which grows with the order; else its refusal is short."""
    curve, words = None, ""
    try:
        with np.errstate(all="raise", under="ignore"):
            curve = curve_over(event, FEW, relation)
    except UnsupportedEventError as refusal:
        words = str(refusal)
    if curve is None:
        assert 20 < len(words) < 700
        return False
    values = curve.values.astype(np.float64)
    assert np.all(np.diff(values) >= -1 - 1e-12 * values[1:])
    return True
