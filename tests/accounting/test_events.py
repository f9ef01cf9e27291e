"""Events: wire form, bounds and parameters, beyond the rules for every type in test_every_event.py."""

import json

import pytest
from hypothesis import given

from app.accounting import events as dp
from app.accounting.errors import AccountingError, InvalidEventError, UnsupportedEventError
from app.accounting.events import DpEvent, NeighboringRelation, canonical, event_from_dict, fingerprint
from app.accounting.events import noise_multiplier as noise_of
from app.accounting.events import sampling_probability as probability_of
from app.accounting.events.base import TYPE_BY_NAME
from tests.each import for_each

from .event_strategies import EVENTS

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 1.1}
WIRE = {"type": "poisson_sampled", "sampling_probability": 0.01, "event": GAUSSIAN}
LONG = dp.Decay("exp", 1e-4, 600, dp.Gaussian(5))


@given(one=EVENTS, other=EVENTS)
def test_event_survives_its_forms_and_is_equal_if_its_canonical_bytes_are(one: DpEvent, other: DpEvent) -> None:
    assert event_from_dict(json.loads(json.dumps(dp.event_to_dict(one)))) == one
    assert dp.event_from_canonical(canonical(one)) == one
    assert (one == other) == (canonical(one) == canonical(other))


def test_fingerprint_of_an_event_never_changes() -> None:
    # Fingerprints are stored in ledgers and chained: a change here breaks every ledger there is.
    event = dp.PoissonSampled(0.01, dp.Gaussian(1.1))
    assert canonical(event) == (
        b'{"event":{"noise_multiplier":1.1,"type":"gaussian"},"sampling_probability":0.01,"type":"poisson_sampled"}'
    )
    assert fingerprint(event) == "4f27ac7c5bf1246295cbc381eb96f5fd657fa4338d6ba8469c87b65560c6e45c"
    assert fingerprint(dp.Gaussian(1)) == "8a92afb554d51a8c422609997000cd2bf697cd29e8ad650fa53111c2f7e7f904"


def test_number_of_an_event_is_the_float_it_equals_and_no_zero_is_negative() -> None:
    assert type(dp.Gaussian(2).noise_multiplier) is float
    for event, same in (
        (dp.PoissonSampled(1, dp.Gaussian(2)), dp.PoissonSampled(1.0, dp.Gaussian(2.0))),
        (dp.Zcdp(1, -0.0), dp.Zcdp(1)),
        (dp.EpsilonDelta(1, -0.0), dp.EpsilonDelta(1, 0)),
        (dp.RepeatAndSelect(dp.Gaussian(1), 2, -0.0), dp.RepeatAndSelect(dp.Gaussian(1), 2, 0)),
        (dp.Decay("exp", -0.0, 3, dp.Gaussian(1)), dp.Decay("exp", 0, 3, dp.Gaussian(1))),
    ):
        assert canonical(event) == canonical(same)


def _nested(value: object, wrapper: str) -> object:
    for _ in range(100_000):
        value = {"type": "composed", "events": [value]} if wrapper == "composed" else {**WIRE, "event": value}
    return value


def _endless() -> object:
    found: list[object] = []
    for _ in range(100_000):
        found = [found]
    return found


REFUSED: list[tuple[object, str]] = [
    (None, "must be an object"),
    ("gaussian", "must be an object"),
    ([WIRE], "must be an object"),
    ({"type": "gaussian"}, "missing: noise_multiplier; unknown: none"),
    ({**GAUSSIAN, "sigma": 2}, "missing: none; unknown: 'sigma'"),
    ({**WIRE, "event": 3}, "must be the event that happened to the sample"),
    ({**WIRE, "event": {"type": "gaussian"}}, "missing: noise_multiplier"),
    *(({**GAUSSIAN, "noise_multiplier": z}, r"must lie between 0\.001 and 1e\+06") for z in (0, 9.99e-4, 1e6 + 1)),
    *(({**GAUSSIAN, "noise_multiplier": z}, r"must lie between 0\.001 and 1e\+06") for z in (10**400, -(10**400))),
    ({**GAUSSIAN, "noise_multiplier": float("inf")}, "with infinite noise nothing is released, which is a no_op event"),
    *(({**WIRE, "sampling_probability": q}, "must lie between 0 and 1") for q in (-0.1, 1.0000001, float("inf"))),
    *(({**GAUSSIAN, "noise_multiplier": it}, "noise_multiplier must be a number") for it in (True, "1.1", None, 1j)),
    *(({**WIRE, "sampling_probability": it}, "sampling_probability must be a number") for it in (True, [1.1])),
    *((_nested(GAUSSIAN, wrapper), "nested more than 16 deep") for wrapper in ("poisson_sampled", "composed")),
    *(
        ({"type": "self_composed", "event": GAUSSIAN, "count": sign * 10**digits}, "is a number without end, but it")
        for digits in (60, 400, 5000)
        for sign in (1, -1)
    ),
    ({"type": "self_composed", "event": GAUSSIAN, "count": 10**39}, f"count is {10**39}, but it must"),
    *(
        ({"type": "adaptive_clipping"} | form, "either noise_multiplier")
        for form in (
            *({}, {"gradient_noise_multiplier": 1.0}, {"count_noise_stddev": 1.0}),
            {"noise_multiplier": 1.0, "count_noise_stddev": 0},
            {"noise_multiplier": 1.0, "gradient_noise_multiplier": 1.0, "count_noise_stddev": 1.0},
        )
    ),
    *(
        (
            {"type": "decay", "event": GAUSSIAN, "mode": mode, "decay_rate": rate, "first_step": first, "steps": n},
            "step",
        )
        for mode, rate, first, n in (
            ("time", 1.0, 0, 1102),
            ("step", 0.5, 5, 7),
            ("exp", 1.0, 0, 9),
            ("exp", 1e6, 1, 1),
        )
    ),
]


@pytest.mark.parametrize(
    ("wire", "words"), REFUSED, ids=lambda value: str(value)[:60] if isinstance(value, str) else ""
)
def test_malformed_event_is_refused_with_the_reason(wire: object, words: str) -> None:
    with pytest.raises(InvalidEventError, match=words):
        event_from_dict(wire)


@for_each(
    [{}, *({"type": value} for value in (None, ["gaussian"], "laplacian", "x" * 10**6, _endless()))], lambda _: "a type"
)
def test_unknown_type_is_refused_with_the_supported_ones(wire: object) -> None:
    with pytest.raises(UnsupportedEventError, match=r"supported are: adaptive_clipping, .* zcdp") as refusal:
        event_from_dict(wire)
    assert len(str(refusal.value)) < 110 + len(", ".join(TYPE_BY_NAME))


def test_lists_without_end_are_refused_shortly() -> None:
    for wire in (
        *({"type": "composed", "events": _endless()}, {"type": "gaussian", "noise_multiplier": _endless()}),
        {"type": "tree_aggregation", "noise_multiplier": 1.0, "step_counts": _endless()},
    ):
        with pytest.raises(AccountingError) as refusal:
            event_from_dict(wire)
        assert len(str(refusal.value)) < 110 + len(", ".join(TYPE_BY_NAME))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"3"])
def test_bytes_without_an_event_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidEventError):
        dp.event_from_canonical(data)


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
        (dp.Composed((dp.Composed((dp.Gaussian(1),) * 500),) * 2), 1000),
    ],
    ids=lambda value: str(value)[:80],
)
def test_event_has_a_number_of_curves(event: DpEvent, curves: int) -> None:
    assert event.curve_count() == curves


def test_event_takes_at_most_1000_curves() -> None:
    for steps in (1_001, 20_000, 10**7):
        assert dp.Decay("time", 1e-5, steps, dp.Gaussian(5)).curve_count() <= 1000
    half = dp.Composed((dp.Gaussian(1),) * 500)
    for parts in ((half, half, dp.Gaussian(1)), (LONG, LONG), (half,) * 1000):
        with pytest.raises(InvalidEventError, match="more than 1000 curves"):
            dp.Composed(parts)


def test_schedule_of_other_steps_than_gaussian_ones_is_refused() -> None:
    clipping = dp.AdaptiveClipping(gradient_noise_multiplier=1, count_noise_stddev=1)
    composed = (dp.Composed((dp.Gaussian(1),)), dp.SelfComposed(dp.Gaussian(1), 2))
    for event in (dp.Laplace(1), *composed, dp.PoissonSampled(0.1, dp.Laplace(1)), clipping):
        with pytest.raises(UnsupportedEventError, match="may hold a gaussian event"):
            dp.Decay("time", 0.1, 5, event)


MIXTURE = dp.MixtureOfGaussians(1.5, (0, 1), (0.5, 0.5))
NOISY = [
    *(dp.Gaussian(1.5, "microbatch"), dp.Laplace(1.5), dp.DiscreteGaussian(1.5), dp.TreeAggregation(1.5, (3, 4))),
    *(dp.AdaptiveClipping(1.5), dp.PoissonSampled(0.01, dp.Gaussian(1.5))),
    *(dp.SampledWithoutReplacement(10, 2, dp.Gaussian(1.5)), dp.SampledWithReplacement(10, 2, dp.Gaussian(1.5))),
    dp.TruncatedPoissonSampled(10, 0.3, 2, dp.GroupPrivacy(2, dp.Gaussian(1.5))),
    dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.5)), 3),
    *(dp.RepeatAndSelect(dp.Gaussian(1.5), 3, None), dp.GroupPrivacy(3, dp.Gaussian(1.5))),
    dp.Decay("time", 0.1, 5, dp.PoissonSampled(0.01, dp.AdaptiveClipping(1.5)), 3),
]
WITHOUT_ONE_NOISE = [
    *(dp.RandomizedResponse(0.5, 2), dp.Exponential(1), dp.DiscreteLaplace(1, 2), dp.PermuteAndFlip(1)),
    *(MIXTURE, dp.PoissonSampled(0.1, MIXTURE), dp.Zcdp(1), dp.EpsilonDelta(1)),
    dp.AdaptiveClipping(gradient_noise_multiplier=1, count_noise_stddev=1),
    *(dp.Composed((dp.Gaussian(1), dp.Gaussian(1))), dp.PoissonSampled(0.1, dp.Exponential(1))),
    dp.SelfComposed(dp.Composed((dp.Gaussian(1),)), 2),
]
SAMPLED = [
    dp.PoissonSampled(0.25, dp.Composed((dp.Gaussian(1), dp.Gaussian(2)))),
    *(dp.PoissonSampled(0.25, MIXTURE), dp.PoissonSampled(0.25, dp.DiscreteLaplace(1, 2))),
    dp.TruncatedPoissonSampled(10, 0.25, 2, dp.Gaussian(1)),
    dp.SelfComposed(dp.PoissonSampled(0.25, dp.Laplace(1)), 3),
    dp.RepeatAndSelect(dp.PoissonSampled(0.25, dp.Laplace(1)), 3, 1),
    dp.GroupPrivacy(3, dp.PoissonSampled(0.25, dp.Gaussian(1))),
    dp.Decay("exp", 0.1, 5, dp.PoissonSampled(0.25, dp.Gaussian(1))),
]
WITHOUT_ONE_PROBABILITY = [
    *(dp.Gaussian(1), MIXTURE, dp.Composed((dp.PoissonSampled(0.1, dp.Gaussian(1)),))),
    *(dp.SampledWithoutReplacement(10, 2, dp.Gaussian(1)), dp.SampledWithReplacement(10, 2, dp.Gaussian(1))),
]


@for_each(NOISY)
def test_one_noise_multiplier_is_found_and_replaced(event: DpEvent) -> None:
    assert noise_of(event) == 1.5
    noisier = dp.with_noise_multiplier(event, 2)
    assert noise_of(noisier) == 2
    assert dp.with_noise_multiplier(noisier, 1.5) == event
    assert noise_of(dp.with_noise_multiplier(dp.PoissonSampled(1, dp.Gaussian(1)), 1e-3)) == 1e-3
    with pytest.raises(InvalidEventError):
        dp.with_noise_multiplier(event, 0)


@for_each(SAMPLED)
def test_one_sampling_probability_is_found_and_replaced(event: DpEvent) -> None:
    assert probability_of(event) == 0.25
    rarer = dp.with_sampling_probability(event, 0.125)
    assert probability_of(rarer) == 0.125
    assert dp.with_sampling_probability(rarer, 0.25) == event
    with pytest.raises(InvalidEventError):
        dp.with_sampling_probability(event, -1e-9)


@for_each([*WITHOUT_ONE_NOISE, *WITHOUT_ONE_PROBABILITY])
def test_event_without_one_noise_multiplier_or_sampling_probability_is_refused(event: DpEvent) -> None:
    if event in WITHOUT_ONE_NOISE:
        with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
            noise_of(event)
        with pytest.raises(UnsupportedEventError, match="no single noise multiplier"):
            dp.with_noise_multiplier(event, 2)
    if event in WITHOUT_ONE_PROBABILITY:
        with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
            probability_of(event)
        with pytest.raises(UnsupportedEventError, match="no single sampling probability"):
            dp.with_sampling_probability(event, 0.5)


def test_errors_and_relations_have_their_stable_names() -> None:
    assert (InvalidEventError.code, UnsupportedEventError.code) == ("invalid_event", "unsupported_event")
    assert issubclass(InvalidEventError, AccountingError)
    assert issubclass(UnsupportedEventError, AccountingError)
    assert list(NeighboringRelation) == ["add_or_remove_one", "replace_one", "replace_special"]
