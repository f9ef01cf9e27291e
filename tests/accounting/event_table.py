"""One table of events: each with its fingerprint, the relations that have a price for it, and dearer events."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

import epsilon_ledger as sdk
from app.accounting import events as dp
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.events.base import EVENT_TYPES

Relations = frozenset[NeighboringRelation]
ALL = frozenset(NeighboringRelation)
NOT_ADDED = ALL - {NeighboringRelation.ADD_OR_REMOVE_ONE}
REPLACED = frozenset({NeighboringRelation.REPLACE_ONE})


class Case:
    """An event with the first digits of its fingerprint, which ledgers keep for ever, and the relations with a price.

    Dearer events have less noise, more sampling or more steps; none may cost less, at any order. One is given whole,
    or by the fields in which it differs.
    """

    def __init__(
        self, event: DpEvent, digits: str, relations: Relations = ALL, /, *dearer: DpEvent | dict[str, Any]
    ) -> None:
        self.event, self.hash, self.relations = event, digits, relations
        self.dearer = [replace(event, **each) if isinstance(each, dict) else each for each in dearer]
        self.wire: Mapping[str, Any] = _written(event)
        """What the client's helpers write."""


def _written(value: object) -> Any:  # noqa: ANN401 - a value of JSON
    if isinstance(value, tuple):
        return [_written(each) for each in value]
    if not isinstance(value, DpEvent):
        return value
    chosen = {field.name: getattr(value, field.name) for field in fields(value)}
    defaults = {field.name: field.default for field in fields(value) if field.default is not MISSING}
    given = {name: _written(each) for name, each in chosen.items() if name not in defaults or each != defaults[name]}
    return getattr(sdk, EVENT_TYPES[type(value)].name)(**given)


SAMPLED = dp.PoissonSampled(0.01, dp.Gaussian(1.1))
MIXTURE = dp.MixtureOfGaussians(4.0, (0.0, 1.0, 2.0), (0.9801, 0.0198, 0.0001))
CLIPPING = dp.AdaptiveClipping(gradient_noise_multiplier=1.25, count_noise_stddev=12.8)
STATED = dp.EpsilonDelta(0.5, 1e-7)
TWO_RELEASES = dp.Composed((dp.Gaussian(1.5), dp.SelfComposed(dp.AdaptiveClipping(8), 3)))

LEAVES = (
    Case(dp.Gaussian(1.1), "e9d556ba97b48ed5", ALL, {"noise_multiplier": 1.0}, {"clipped": "microbatch"}),
    Case(dp.Gaussian(2, "microbatch"), "17cee6263eaed0a8", ALL, {"noise_multiplier": 1.9}),
    Case(dp.Laplace(1.5), "390b137fd682a26d", ALL, {"noise_multiplier": 1.499}),
    Case(dp.Laplace(epsilon=0.1), "a0f5c9118108ad0b", ALL, {"epsilon": 0.101}, dp.EpsilonDelta(0.1)),
    Case(dp.DiscreteGaussian(4), "c0946acb6c8e4887", ALL, {"noise_multiplier": 3.9}),
    Case(dp.DiscreteGaussian(4, 3), "4e85dde745be4057", ALL, {"noise_multiplier": 3.9}),
    Case(
        *(dp.DiscreteLaplace(0.5, 3), "0f268d1e70535d3b", ALL),
        *({"noise_parameter": 0.51}, {"sensitivity": 4}, dp.DiscreteLaplace(1.5, 1)),
    ),
    Case(dp.RandomizedResponse(0.5, 10), "d91f2cdd59169250", NOT_ADDED, {"noise_parameter": 0.49}),
    Case(dp.Exponential(0.5), "81cf265f4fc9b5c0", ALL, {"epsilon": 0.51}, dp.EpsilonDelta(0.5)),
    Case(
        *(dp.PermuteAndFlip(0.5), "c43ad093eb50f0b1", ALL),
        *({"epsilon": 0.51}, dp.EpsilonDelta(0.5), dp.DiscreteLaplace(0.5, 1)),
    ),
    Case(dp.Zcdp(0.5), "1bdce789b7dab8fd", ALL, {"rho": 0.51}, {"xi": 0.01}, dp.Gaussian(1.0)),
    Case(dp.Zcdp(0.5, 0.25), "ace9e90f9014186a"),
    Case(dp.Zcdp(0.5, delta=1e-6), "ca425b5df9df9954", ALL, {"rho": 0.51}, {"delta": 1.1e-6}),
    Case(dp.NoOp(), "b81b922ba7d1b941"),
    Case(dp.EpsilonDelta(0, 1e-6), "99d6a1983da4541f", ALL, {"delta": 1.1e-6}, {"epsilon": 0.1}),
    Case(dp.EpsilonDelta(0.5), "c59f822b02f1f30d", ALL, {"epsilon": 0.51}, {"delta": 1e-300}),
    Case(dp.EpsilonDelta(1, 1e-6), "227f063c559de67f", ALL, {"delta": 1.1e-6}, {"epsilon": 1.1}),
    Case(
        *(MIXTURE, "bf4ce8d19fe48aa5", ALL, {"standard_deviation": 3.9}, {"sensitivities": (0, 1.1, 2.1)}),
        *({"sampling_probs": (0.98, 0.0198, 0.0002)}, dp.Gaussian(2.0)),
    ),
    Case(dp.MixtureOfGaussians(2.0, (1.0, 0.5), (0.25, 0.75)), "0a08d05b276b5410", ALL, dp.Gaussian(2.0)),
    Case(
        *(dp.TreeAggregation(6, (100, 50)), "4ae95e00824abe6c", NOT_ADDED),
        *({"noise_multiplier": 5.9}, {"step_counts": (100, 200)}, {"step_counts": (50, 101)}),
    ),
    Case(
        *(dp.AdaptiveClipping(1.0), "4ce22fccd9f3f160", ALL, dp.AdaptiveClipping(0.9)),
        dp.AdaptiveClipping(gradient_noise_multiplier=1.0, count_noise_stddev=100),
    ),
    Case(CLIPPING, "c1af856be35846ce", ALL, {"count_noise_stddev": 12.7}, {"gradient_noise_multiplier": 1.24}),
)


def _sampled(q: float, event: DpEvent, digits: str, relations: Relations, *dearer: DpEvent) -> Case:
    """Make the case of an event on a sample: dearer are a larger sample, all records, and samples of dearer events."""
    samples = ({"event": each} for each in dearer)
    larger = {"sampling_probability": round(q * 1.01, 9)}
    return Case(dp.PoissonSampled(q, event), digits, relations, larger, event, *samples)


SAMPLES = (
    _sampled(
        *(0.01, dp.Gaussian(1.1), "4f27ac7c5bf12462", ALL),
        *(dp.Gaussian(1.0), dp.Gaussian(1.1, "microbatch"), dp.DiscreteGaussian(1.1)),
    ),
    Case(dp.PoissonSampled(0, dp.Gaussian(1.1)), "33fdec7a96ce6887", ALL, {"sampling_probability": 1e-9}),
    Case(dp.PoissonSampled(1, dp.Gaussian(1.1)), "11d84e1067ecf39d", ALL, dp.Gaussian(1.1)),
    _sampled(
        *(0.05, TWO_RELEASES, "5a36c7a3ac97c977", ALL),
        dp.Composed((dp.Gaussian(1.5), dp.SelfComposed(dp.AdaptiveClipping(8), 4))),
    ),
    _sampled(0.02, dp.Laplace(0.8), "609260c3b9854ac4", ALL, dp.Laplace(0.79)),
    _sampled(0.02, dp.DiscreteGaussian(2), "840579d787b28831", ALL, dp.DiscreteGaussian(1.9)),
    _sampled(
        *(0.02, dp.DiscreteLaplace(0.5, 3), "0915984332e75b87", ALL),
        *(dp.DiscreteLaplace(0.51, 3), dp.DiscreteLaplace(0.5, 4)),
    ),
    _sampled(0.1, MIXTURE, "100054c246bfec60", ALL),
    _sampled(0.9, dp.PermuteAndFlip(2), "28e346f7c745060d", ALL, dp.PermuteAndFlip(2.1)),
    _sampled(0.9, dp.Exponential(2), "659e9c7c49331928", ALL, dp.Exponential(2.1)),
    _sampled(
        *(0.1, dp.GroupPrivacy(2, STATED), "e0e577d0c3fcc7e0", ALL),
        *(dp.GroupPrivacy(3, STATED), dp.EpsilonDelta(1.0, 3e-7)),
    ),
    Case(
        *(dp.SampledWithoutReplacement(60000, 256, dp.Gaussian(2.2)), "6179f14eafc15ec7", REPLACED),
        *({"sample_size": 257}, {"sample_size": 60000}, {"event": dp.Gaussian(2.1)}),
        {"event": dp.GroupPrivacy(2, dp.Gaussian(2.2))},
    ),
    Case(
        *(dp.TruncatedPoissonSampled(60000, 0.004, 320, dp.Gaussian(1.1)), "5c6a939f55d9f931", ALL),
        *({"sampling_probability": 0.0041}, {"event": dp.Gaussian(1.0)}),
    ),
    Case(
        *(dp.TruncatedPoissonSampled(1000, 0.05, 50, dp.AdaptiveClipping(4)), "ad5244d5292a66f8", ALL),
        {"event": dp.GroupPrivacy(2, dp.AdaptiveClipping(4))},
    ),
    Case(
        *(dp.SampledWithReplacement(60000, 256, dp.Gaussian(20)), "02654318f8992d96", REPLACED),
        *({"sample_size": 257}, {"event": dp.Gaussian(19)}, {"event": dp.GroupPrivacy(2, dp.Gaussian(20))}),
    ),
)

PARTS = (SAMPLED, dp.Laplace(10), dp.EpsilonDelta(0.1, 1e-8))
WRAPPERS = (
    Case(dp.Composed(PARTS), "83cb50b41bd5ecdd", ALL, {"events": (*PARTS, dp.Zcdp(1e-6))}),
    Case(dp.SelfComposed(SAMPLED, 200), "aa855b7c6b513e6c", ALL, {"count": 201}),
    Case(
        *(dp.RepeatAndSelect(dp.Gaussian(5), 10, 1), "ff6e9be0bd52ffa4", ALL),
        *({"event": dp.Gaussian(4.9)}, {"mean": 11}, {"event": dp.SelfComposed(dp.Gaussian(5), 2)}),
    ),
    Case(
        *(dp.RepeatAndSelect(dp.SelfComposed(SAMPLED, 100), 20, None), "89d2114d8ccb6f04", ALL),
        {"event": dp.SelfComposed(SAMPLED, 101)},
    ),
    Case(
        *(dp.GroupPrivacy(4, dp.PoissonSampled(0.001, dp.Gaussian(8))), "90f09852c0b297b6", ALL),
        *({"group_size": 5}, {"event": dp.PoissonSampled(0.0011, dp.Gaussian(8))}),
        {"event": dp.PoissonSampled(0.001, dp.Gaussian(7.9))},
    ),
    Case(
        *(dp.Decay("time", 6e-4, 50, SAMPLED), "d576d893a1591b38", ALL, {"steps": 51}, {"decay_rate": 7e-4}),
        *({"event": dp.PoissonSampled(0.01, dp.Gaussian(1.0))}, {"first_step": 1}),
    ),
    Case(
        *(dp.Decay("step", 0.01, 100, dp.AdaptiveClipping(5), first_step=50), "1d8fc4e247bc3d3d", ALL),
        {"decay_rate": 0.011},
    ),
    Case(
        *(dp.Decay("exp", 0, 10, dp.Gaussian(5)), "e9fcbe869130cb9e", ALL, {"decay_rate": 1e-9}),
        dp.SelfComposed(dp.Gaussian(5), 10),
    ),
)
CASES = (*LEAVES, *SAMPLES, *WRAPPERS)

Values = tuple[object, ...]
GAUSSIAN_WIRE = {"type": "gaussian", "noise_multiplier": 1.1}
NOISES: Values = (0, -1.0, 9.99e-4, 1.001e6, "1", None, True, [1.0])
PROBABILITIES: Values = (0, -0.1, 1.001, "0.5", None, True)
COUNTS: Values = (0, -1, 10**9 + 1, 2.0, "2", None, True, 10**400)
SENSITIVITIES: Values = (0, -1, 10**6 + 1, 2.0, "2", True, 10**400)
EPSILONS: Values = (0, -1, 10001, "1", None, True)
HELD: Values = (None, 3, "gaussian", [GAUSSIAN_WIRE], {}, {"type": "gaussian"})
NOT_LISTS: Values = (1.0, None, [], [1.0], {"1": 1})
SIZES = (*NOT_LISTS, [0, 1, "2"], [0, 1, -1], [0, 0, 0], [0, 1, 1.1e9], [1.0] * 65)
SHARES = (*NOT_LISTS, [1, 0, 0], [0.5, 0.5, 0.1], [0.9, 0.2, -0.1], [0.5, 0.5, "0"])
STEPS: Values = (3, None, [], [0], [2.0], [True], ["1"], [[1]], [10**9 + 1], [1] * 1001, {"1": 1})
PLACES = {"source_dataset_size": COUNTS, "sample_size": COUNTS, "event": HELD}

REFUSED: dict[type[DpEvent], Mapping[str, Values]] = {
    dp.NoOp: {},
    dp.Gaussian: {"noise_multiplier": NOISES, "clipped": ("batch", None, 1, True)},
    dp.Laplace: {"noise_multiplier": NOISES, "epsilon": (0.1, 0.0, 1e-7, 1.1e3, "1", True)},
    dp.DiscreteGaussian: {"noise_multiplier": NOISES, "sensitivity": SENSITIVITIES},
    dp.DiscreteLaplace: {"noise_parameter": (*EPSILONS, [1.0]), "sensitivity": (*SENSITIVITIES, None)},
    dp.RandomizedResponse: {"noise_parameter": PROBABILITIES, "num_buckets": (1, *COUNTS)},
    dp.Exponential: {"epsilon": EPSILONS},
    dp.PermuteAndFlip: {"epsilon": EPSILONS},
    dp.Zcdp: {
        "rho": (0, -1, 1.1e6, "1", None, True),
        "xi": (-1e-9, 1.1e6, "1", None, True),
        "delta": (-1e-9, 0.5, "0", None, True),
    },
    dp.EpsilonDelta: {"epsilon": EPSILONS[1:], "delta": (-1e-9, 0.5, "0", None, True)},
    dp.MixtureOfGaussians: {
        "standard_deviation": (0, -1.0, 1e-10, 1.1e9, 1e-3, "1", None, True, [1.0]),
        "sensitivities": SIZES,
        "sampling_probs": SHARES,
    },
    dp.TreeAggregation: {"noise_multiplier": NOISES, "step_counts": STEPS},
    dp.AdaptiveClipping: dict.fromkeys(("gradient_noise_multiplier", "count_noise_stddev"), (1.0,))
    | {"noise_multiplier": NOISES},
    dp.PoissonSampled: {"sampling_probability": PROBABILITIES[1:], "event": HELD},
    dp.SampledWithoutReplacement: PLACES | {"source_dataset_size": (255, *COUNTS), "sample_size": (60001, *COUNTS)},
    dp.TruncatedPoissonSampled: dict.fromkeys(("source_dataset_size", "truncated_batch_size"), COUNTS)
    | {"sampling_probability": PROBABILITIES[1:], "event": HELD},
    dp.SampledWithReplacement: PLACES,
    dp.Composed: {"events": (None, 3, {}, [], [3], [[GAUSSIAN_WIRE]], [{}], [GAUSSIAN_WIRE] * 1001, GAUSSIAN_WIRE)},
    dp.SelfComposed: {"count": COUNTS, "event": HELD},
    dp.RepeatAndSelect: {"event": HELD}
    | {"mean": (0.99, 1.1e9, "2", None, True), "shape": (-1, -0.99999, -2, 1.1e6, "1", True)},
    dp.GroupPrivacy: {"group_size": (10**6 + 1, *COUNTS), "event": HELD},
    dp.Decay: {
        "mode": ("linear", None, 1, True),
        "decay_rate": (-1e-9, 1.1e6, "0", None, True),
        "steps": (10**7 + 1, *COUNTS),
        "first_step": (-1, 10**9 + 1, 1.0, "1", None, True),
        "event": (*HELD, {"type": "laplace", "noise_multiplier": 1.0}),
    },
}
"""For each field of the first case of a type, values that are refused."""
