"""Events: what is true of them beyond what test_every_event.py asks of every type."""

import json

import pytest
from hypothesis import given

from app.accounting import events as dp
from app.accounting.errors import AccountingError, InvalidEventError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.events.base import TYPE_BY_NAME

from .event_strategies import EVENTS

WIRE = {
    "type": "poisson_sampled",
    "sampling_probability": 0.01,
    "event": {"type": "gaussian", "noise_multiplier": 1.1},
}
EVENT = dp.PoissonSampled(0.01, dp.Gaussian(1.1))


def test_the_wire_form_is_nested_and_named_by_type() -> None:
    assert dp.event_to_dict(EVENT) == WIRE
    assert dp.event_from_dict(WIRE) == EVENT


@given(event=EVENTS)
def test_every_event_survives_the_wire_and_the_canonical_form(event: DpEvent) -> None:
    assert dp.event_from_dict(json.loads(json.dumps(dp.event_to_dict(event)))) == event
    assert dp.event_from_canonical(dp.canonical(event)) == event


@given(one=EVENTS, other=EVENTS)
def test_events_are_equal_exactly_if_their_canonical_bytes_are(one: DpEvent, other: DpEvent) -> None:
    assert (one == other) == (dp.canonical(one) == dp.canonical(other))


def test_the_canonical_form_and_the_fingerprint_never_change() -> None:
    # Fingerprints are stored in ledgers and chained: a change here breaks every ledger there is.
    assert dp.canonical(EVENT) == (
        b'{"event":{"noise_multiplier":1.1,"type":"gaussian"},"sampling_probability":0.01,"type":"poisson_sampled"}'
    )
    assert dp.fingerprint(EVENT) == "4f27ac7c5bf1246295cbc381eb96f5fd657fa4338d6ba8469c87b65560c6e45c"
    assert dp.fingerprint(dp.Gaussian(1)) == "8a92afb554d51a8c422609997000cd2bf697cd29e8ad650fa53111c2f7e7f904"


def test_an_integer_is_the_float_it_equals() -> None:
    assert dp.canonical(dp.PoissonSampled(1, dp.Gaussian(2))) == dp.canonical(dp.PoissonSampled(1.0, dp.Gaussian(2.0)))
    assert type(dp.Gaussian(2).noise_multiplier) is float


def test_minus_zero_is_zero() -> None:
    for event, same in (
        (dp.Zcdp(1, -0.0), dp.Zcdp(1)),
        (dp.EpsilonDelta(1, -0.0), dp.EpsilonDelta(1, 0)),
        (dp.RepeatAndSelect(dp.Gaussian(1), 2, -0.0), dp.RepeatAndSelect(dp.Gaussian(1), 2, 0)),
        (dp.Decay("exp", -0.0, 3, dp.Gaussian(1)), dp.Decay("exp", 0, 3, dp.Gaussian(1))),
    ):
        assert dp.canonical(event) == dp.canonical(same)


@pytest.mark.parametrize("z", [0, -1.0, 9.99e-4, 1e6 + 1, float("inf"), float("nan"), 10**400, -(10**400)])
def test_a_noise_multiplier_out_of_bounds_is_refused(z: float) -> None:
    with pytest.raises(InvalidEventError, match=r"must lie between 0\.001 and 1e\+06"):
        dp.Gaussian(z)


@pytest.mark.parametrize("q", [0, -0.1, 1.0000001, float("inf"), float("nan")])
def test_a_sampling_probability_out_of_bounds_is_refused(q: float) -> None:
    with pytest.raises(InvalidEventError, match="above 0 and at most 1"):
        dp.PoissonSampled(q, dp.Gaussian(1.0))


@pytest.mark.parametrize("value", [True, "1.1", None, [1.1], 1j])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidEventError, match="noise_multiplier must be a number"):
        dp.event_from_dict({"type": "gaussian", "noise_multiplier": value})
    with pytest.raises(InvalidEventError, match="sampling_probability must be a number"):
        dp.event_from_dict({**WIRE, "sampling_probability": value})


@pytest.mark.parametrize("smallest", [1e-3, 1e6])
def test_the_bounds_themselves_are_allowed(smallest: float) -> None:
    assert dp.noise_multiplier(dp.PoissonSampled(1, dp.Gaussian(smallest))) == smallest


@pytest.mark.parametrize(
    "wire", [{}, {"type": "laplacian"}, {"type": None}, {"type": ["gaussian"]}, {"type": "x" * 10**6}]
)
def test_an_unknown_type_is_refused_with_the_supported_ones(wire: object) -> None:
    with pytest.raises(UnsupportedEventError, match=r"supported are: adaptive_clipping, .* zcdp") as refusal:
        dp.event_from_dict(wire)
    assert len(str(refusal.value)) < 110 + len(", ".join(TYPE_BY_NAME))


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
        dp.event_from_dict(wire)


def wrapped(wire: object, wrapper: str) -> dict[str, object]:
    if wrapper == "composed":
        return {"type": "composed", "events": [wire]}
    return {"type": "poisson_sampled", "sampling_probability": 0.5, "event": wire}


@pytest.mark.parametrize("wrapper", ["poisson_sampled", "composed"])
def test_nesting_without_end_is_refused(wrapper: str) -> None:
    wire: dict[str, object] = {"type": "gaussian", "noise_multiplier": 1.1}
    for _ in range(100_000):
        wire = wrapped(wire, wrapper)
    with pytest.raises(InvalidEventError, match="nested more than 16 deep"):
        dp.event_from_dict(wire)


def test_lists_without_end_are_refused() -> None:
    endless: list[object] = []
    for _ in range(100_000):
        endless = [endless]
    for wire in (
        {"type": "composed", "events": endless},
        {"type": "gaussian", "noise_multiplier": endless},
        {"type": "tree_aggregation", "noise_multiplier": 1.0, "step_counts": endless},
        {"type": endless},
    ):
        with pytest.raises(AccountingError) as refusal:
            dp.event_from_dict(wire)
        assert len(str(refusal.value)) < 110 + len(", ".join(TYPE_BY_NAME))


@pytest.mark.parametrize("digits", [60, 400, 5000])
def test_a_count_without_end_is_refused_in_a_short_message(digits: int) -> None:
    for count in (10**digits, -(10**digits)):
        with pytest.raises(InvalidEventError, match="is a number without end, but it must lie between 1 and"):
            dp.SelfComposed(dp.Gaussian(1), count)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gradient_noise_multiplier": 1.0},
        {"count_noise_stddev": 1.0},
        {"noise_multiplier": 1.0, "count_noise_stddev": 0},
        {"noise_multiplier": 1.0, "gradient_noise_multiplier": 1.0, "count_noise_stddev": 1.0},
    ],
)
def test_adaptive_clipping_has_exactly_one_of_its_forms(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidEventError, match="either noise_multiplier"):
        dp.event_from_dict({"type": "adaptive_clipping"} | fields)


LONG = dp.Decay("exp", 1e-4, 600, dp.Gaussian(5))


@pytest.mark.parametrize(
    ("event", "curves"),
    [
        (dp.Gaussian(1), 1),
        (dp.SelfComposed(dp.Gaussian(1), 10**9), 1),
        (dp.PoissonSampled(0.1, dp.Composed((dp.Gaussian(1), dp.Gaussian(2)))), 2),
        (dp.PoissonSampled(1, LONG), 600),
        (dp.SampledWithoutReplacement(10, 10, dp.SelfComposed(LONG, 2)), 600),
        (dp.Composed((dp.Gaussian(1), dp.GroupPrivacy(2, dp.Composed((dp.Laplace(1), dp.Zcdp(1)))))), 3),
        (LONG, 600),
        (dp.RepeatAndSelect(dp.SelfComposed(LONG, 2), 3, 1), 601),
        (dp.RepeatAndSelect(dp.Gaussian(1), 3, None), 9),
    ],
    ids=str,
)
def test_an_event_says_how_many_curves_it_takes(event: DpEvent, curves: int) -> None:
    assert event.curve_count() == curves


@pytest.mark.parametrize("steps", [1_001, 20_000, 10**7])
def test_a_long_schedule_takes_no_more_curves_than_a_short_one(steps: int) -> None:
    assert dp.Decay("time", 1e-5, steps, dp.Gaussian(5)).curve_count() <= 1000


def test_an_event_takes_at_most_1000_curves() -> None:
    half = dp.Composed((dp.Gaussian(1),) * 500)
    assert dp.Composed((half, half)).curve_count() == 1000
    for parts in ((half, half, dp.Gaussian(1)), (LONG, LONG), (half,) * 1000):
        with pytest.raises(InvalidEventError, match="more than 1000 curves"):
            dp.Composed(parts)


@pytest.mark.parametrize(
    "event",
    [
        dp.Laplace(1),
        dp.Composed((dp.Gaussian(1),)),
        dp.SelfComposed(dp.Gaussian(1), 2),
        dp.PoissonSampled(0.1, dp.Laplace(1)),
    ],
)
def test_only_gaussian_steps_may_decay(event: DpEvent) -> None:
    with pytest.raises(UnsupportedEventError, match="may hold a gaussian event"):
        dp.Decay("time", 0.1, 5, event)
    with pytest.raises(UnsupportedEventError, match="may hold a gaussian event"):
        dp.Decay("time", 0.1, 5, dp.AdaptiveClipping(gradient_noise_multiplier=1, count_noise_stddev=1))


@pytest.mark.parametrize(
    ("mode", "rate", "first", "steps"),
    [("time", 1.0, 0, 1001), ("step", 0.5, 5, 6), ("exp", 1.0, 0, 8), ("exp", 1e6, 1, 1)],
)
def test_a_schedule_whose_noise_vanishes_is_refused(mode: str, rate: float, first: int, steps: int) -> None:
    wire = {"type": "decay", "mode": mode, "decay_rate": rate, "first_step": first, "steps": steps}
    with pytest.raises(InvalidEventError, match="step"):
        dp.event_from_dict(wire | {"event": {"type": "gaussian", "noise_multiplier": 1.0}})


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"3"])
def test_bytes_that_are_no_event_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidEventError):
        dp.event_from_canonical(data)


def test_errors_and_relations_have_their_stable_names() -> None:
    assert (InvalidEventError.code, UnsupportedEventError.code) == ("invalid_event", "unsupported_event")
    assert issubclass(InvalidEventError, AccountingError)
    assert issubclass(UnsupportedEventError, AccountingError)
    assert list(NeighboringRelation) == ["add_or_remove_one", "replace_one", "replace_special"]
