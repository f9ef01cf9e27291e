"""Events: bounds, wire form, canonical form and fingerprints."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounting.errors import AccountingError, InvalidEventError, UnsupportedEventError
from app.accounting.events import (
    DpEvent,
    Gaussian,
    NeighboringRelation,
    PoissonSampled,
    canonical,
    event_from_canonical,
    event_from_dict,
    event_to_dict,
    fingerprint,
    noise_multiplier,
    with_noise_multiplier,
)

WIRE = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}
EVENT = PoissonSampled(0.01, Gaussian(1.1))

GAUSSIANS = st.builds(Gaussian, st.floats(1e-3, 1e6))
EVENTS = st.recursive(
    GAUSSIANS, lambda inner: st.builds(PoissonSampled, st.floats(0, 1, exclude_min=True), inner), max_leaves=4
)


def test_the_wire_form_is_nested_and_named_by_type() -> None:
    assert event_to_dict(EVENT) == WIRE
    assert event_from_dict(WIRE) == EVENT


@given(event=EVENTS)
def test_every_event_survives_the_wire_and_the_canonical_form(event: DpEvent) -> None:
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    assert event_from_canonical(canonical(event)) == event


@given(one=EVENTS, other=EVENTS)
def test_events_are_equal_exactly_if_their_canonical_bytes_are(one: DpEvent, other: DpEvent) -> None:
    assert (one == other) == (canonical(one) == canonical(other))


def test_the_canonical_form_and_the_fingerprint_never_change() -> None:
    # Fingerprints are stored in ledgers and chained: a change here breaks every ledger there is.
    assert canonical(EVENT) == (
        b'{"event":{"noise_multiplier":1.1,"type":"gaussian"},"sampling_probability":0.01,"type":"poisson_sampled"}'
    )
    assert fingerprint(EVENT) == "4f27ac7c5bf1246295cbc381eb96f5fd657fa4338d6ba8469c87b65560c6e45c"
    assert fingerprint(Gaussian(1)) == "8a92afb554d51a8c422609997000cd2bf697cd29e8ad650fa53111c2f7e7f904"


def test_an_integer_is_the_float_it_equals() -> None:
    assert canonical(PoissonSampled(1, Gaussian(2))) == canonical(PoissonSampled(1.0, Gaussian(2.0)))
    assert type(Gaussian(2).noise_multiplier) is float


@pytest.mark.parametrize("z", [0, -1.0, 9.99e-4, 1e6 + 1, float("inf"), float("nan"), 10**400, -(10**400)])
def test_a_noise_multiplier_out_of_bounds_is_refused(z: float) -> None:
    with pytest.raises(InvalidEventError, match=r"must lie between 0\.001 and 1e\+06"):
        Gaussian(z)


@pytest.mark.parametrize("q", [0, -0.1, 1.0000001, float("inf"), float("nan")])
def test_a_sampling_probability_out_of_bounds_is_refused(q: float) -> None:
    with pytest.raises(InvalidEventError, match="above 0 and at most 1"):
        PoissonSampled(q, Gaussian(1.0))


@pytest.mark.parametrize("value", [True, "1.1", None, [1.1], 1j])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidEventError, match="noise_multiplier must be a number"):
        event_from_dict({"type": "gaussian", "noise_multiplier": value})
    with pytest.raises(InvalidEventError, match="sampling_probability must be a number"):
        event_from_dict({**WIRE, "sampling_probability": value})


@pytest.mark.parametrize("smallest", [1e-3, 1e6])
def test_the_bounds_themselves_are_allowed(smallest: float) -> None:
    assert noise_multiplier(PoissonSampled(1, Gaussian(smallest))) == smallest


@pytest.mark.parametrize(
    "wire", [{}, {"type": "laplace"}, {"type": None}, {"type": ["gaussian"]}, {"type": "x" * 10**6}]
)
def test_an_unknown_type_is_refused_with_the_supported_ones(wire: object) -> None:
    with pytest.raises(UnsupportedEventError, match="supported are: gaussian, poisson_sampled") as refusal:
        event_from_dict(wire)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (None, "must be an object"),
        ("gaussian", "must be an object"),
        ([WIRE], "must be an object"),
        ({"type": "gaussian"}, "missing: noise_multiplier; unknown: none"),
        ({"type": "gaussian", "noise_multiplier": 1.1, "sigma": 2}, "missing: none; unknown: 'sigma'"),
        ({**WIRE, "event": 3}, "must be the event that happened to the sample"),
        ({**WIRE, "event": {"type": "gaussian"}}, "missing: noise_multiplier"),
    ],
)
def test_a_malformed_event_is_refused_with_what_is_wrong(wire: object, words: str) -> None:
    with pytest.raises(InvalidEventError, match=words):
        event_from_dict(wire)


def test_nesting_without_end_is_refused() -> None:
    wire: dict[str, object] = {"type": "gaussian", "noise_multiplier": 1.1}
    for _ in range(100_000):
        wire = {"type": "poisson_sampled", "sampling_probability": 0.5, "event": wire}
    with pytest.raises(InvalidEventError, match="nested more than 16 deep"):
        event_from_dict(wire)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"3"])
def test_bytes_that_are_no_event_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidEventError):
        event_from_canonical(data)


def test_the_noise_is_found_and_replaced_inside_a_sample() -> None:
    assert noise_multiplier(EVENT) == 1.1
    assert with_noise_multiplier(EVENT, 2) == PoissonSampled(0.01, Gaussian(2.0))
    with pytest.raises(InvalidEventError):
        with_noise_multiplier(EVENT, 0)


def test_errors_and_relations_have_their_stable_names() -> None:
    assert (InvalidEventError.code, UnsupportedEventError.code) == ("invalid_event", "unsupported_event")
    assert issubclass(InvalidEventError, AccountingError)
    assert issubclass(UnsupportedEventError, AccountingError)
    assert list(NeighboringRelation) == ["add_or_remove_one", "replace_one", "replace_special"]
