"""Examples of events that hold no other event, for test_every_event.py."""

from collections.abc import Mapping
from dataclasses import dataclass

import epsilon_ledger as sdk
from app.accounting import events as dp
from app.accounting.events import DpEvent, NeighboringRelation

ALL = frozenset(NeighboringRelation)
NOT_ADDED = ALL - {NeighboringRelation.ADD_OR_REMOVE_ONE}
NOT_REPLACED = ALL - {NeighboringRelation.REPLACE_ONE}
REPLACED = frozenset({NeighboringRelation.REPLACE_ONE})

GAUSSIAN_WIRE = {"type": "gaussian", "noise_multiplier": 1.1}
SAMPLED_WIRE = {"type": "poisson_sampled", "sampling_probability": 0.01, "event": GAUSSIAN_WIRE}
NOISES: tuple[object, ...] = (0, -1.0, 9.99e-4, 1.001e6, "1", None, True, [1.0])
PROBABILITIES: tuple[object, ...] = (0, -0.1, 1.001, "0.5", None, True)
COUNTS: tuple[object, ...] = (0, -1, 10**9 + 1, 2.0, "2", None, True, 10**400)
EVENTS: tuple[object, ...] = (None, 3, "gaussian", [GAUSSIAN_WIRE], {}, {"type": "gaussian"})


@dataclass(frozen=True)
class Case:
    """An event, and what it must always look like.

    Args:
        event: the event.
        wire: its wire form, with every float a float.
        hash: its fingerprint; ledgers keep it for ever.
        written: what the client's helper writes.
        relations: under which it has a price.
        dearer: events with less noise, more sampling or more steps; none may cost less, at any order.
    """

    event: DpEvent
    wire: Mapping[str, object]
    hash: str
    written: sdk.Event
    relations: frozenset[NeighboringRelation] = ALL
    dearer: tuple[DpEvent, ...] = ()


@dataclass(frozen=True)
class Examples:
    """Of one type of event.

    Args:
        cases: at least one, the first one plain.
        refused: for each field of the first case, values that nobody may send.
    """

    cases: tuple[Case, ...]
    refused: Mapping[str, tuple[object, ...]]


GAUSSIAN = Examples(
    cases=(
        Case(
            dp.Gaussian(1.1),
            GAUSSIAN_WIRE,
            "e9d556ba97b48ed510dbb91ece51cb17f1e384ceeedd488339f73e55026baa2e",
            sdk.gaussian(1.1),
            dearer=(dp.Gaussian(1.0), dp.Gaussian(1.1, "microbatch")),
        ),
        Case(
            dp.Gaussian(2, "microbatch"),
            {"type": "gaussian", "noise_multiplier": 2.0, "clipped": "microbatch"},
            "17cee6263eaed0a840d3d83b71a4392a1acd6ca3657681480600a895e20b3d2d",
            sdk.gaussian(2, clipped="microbatch"),
            dearer=(dp.Gaussian(1.9, "microbatch"),),
        ),
    ),
    refused={"noise_multiplier": NOISES, "clipped": ("batch", None, 1, True)},
)

LAPLACE = Examples(
    cases=(
        Case(
            dp.Laplace(1.5),
            {"type": "laplace", "noise_multiplier": 1.5},
            "390b137fd682a26db932745dac57d030ad7f4d902bf9944a9b387913cdbdb28d",
            sdk.laplace(1.5),
            dearer=(dp.Laplace(1.499),),
        ),
    ),
    refused={"noise_multiplier": NOISES},
)

DISCRETE_GAUSSIAN = Examples(
    cases=(
        Case(
            dp.DiscreteGaussian(4),
            {"type": "discrete_gaussian", "noise_multiplier": 4.0},
            "c0946acb6c8e4887048d810128806e2a5918792fc6d933d74e4abf1eb8f11053",
            sdk.discrete_gaussian(4),
            dearer=(dp.DiscreteGaussian(3.9),),
        ),
        Case(
            dp.DiscreteGaussian(4, 3),
            {"type": "discrete_gaussian", "noise_multiplier": 4.0, "sensitivity": 3},
            "4e85dde745be4057c6c34a38d05fd7986502cb1884a1622e943904fffc1420b8",
            sdk.discrete_gaussian(4, 3),
            dearer=(dp.DiscreteGaussian(3.9, 3),),
        ),
    ),
    refused={"noise_multiplier": NOISES, "sensitivity": (0, -1, 10**6 + 1, 2.0, "2", True, 10**400)},
)

DISCRETE_LAPLACE = Examples(
    cases=(
        Case(
            dp.DiscreteLaplace(0.5, 3),
            {"type": "discrete_laplace", "noise_parameter": 0.5, "sensitivity": 3},
            "0f268d1e70535d3b2b097f41cebc3a9d1da3169f4c78764e46b732fd08b7011e",
            sdk.discrete_laplace(0.5, 3),
            dearer=(dp.DiscreteLaplace(0.51, 3), dp.DiscreteLaplace(0.5, 4), dp.DiscreteLaplace(1.5, 1)),
        ),
    ),
    refused={
        "noise_parameter": (0, -1, 10001, "1", None, True, [1.0]),
        "sensitivity": (0, -1, 10**6 + 1, 2.0, "2", None, True, 10**400),
    },
)

RANDOMIZED_RESPONSE = Examples(
    cases=(
        Case(
            dp.RandomizedResponse(0.5, 10),
            {"type": "randomized_response", "noise_parameter": 0.5, "num_buckets": 10},
            "d91f2cdd5916925053c16c70c8fc470c7f133f1dfdd6c7928a1e382b19ac1e41",
            sdk.randomized_response(0.5, 10),
            NOT_ADDED,
            (dp.RandomizedResponse(0.49, 10),),
        ),
    ),
    refused={"noise_parameter": PROBABILITIES, "num_buckets": (1, *COUNTS)},
)

EXPONENTIAL = Examples(
    cases=(
        Case(
            dp.Exponential(0.5),
            {"type": "exponential", "epsilon": 0.5},
            "81cf265f4fc9b5c031efd8e14776c1ffd79baae0123700d9f8ce872a3980db69",
            sdk.exponential(0.5),
            dearer=(dp.Exponential(0.51), dp.EpsilonDelta(0.5)),
        ),
    ),
    refused={"epsilon": (0, -1, 10001, "1", None, True)},
)

PERMUTE_AND_FLIP = Examples(
    cases=(
        Case(
            dp.PermuteAndFlip(0.5),
            {"type": "permute_and_flip", "epsilon": 0.5},
            "c43ad093eb50f0b1fe202951e841b08ffca1687e1ca4986809cc0b0966dd85d3",
            sdk.permute_and_flip(0.5),
            dearer=(dp.PermuteAndFlip(0.51), dp.EpsilonDelta(0.5), dp.DiscreteLaplace(0.5, 1)),
        ),
    ),
    refused={"epsilon": (0, -1, 10001, "1", None, True)},
)

ZCDP = Examples(
    cases=(
        Case(
            dp.Zcdp(0.5),
            {"type": "zcdp", "rho": 0.5},
            "1bdce789b7dab8fd20fb30383c313d43ce9813c6461cc476414c67701f9fec92",
            sdk.zcdp(0.5),
            dearer=(dp.Zcdp(0.51), dp.Zcdp(0.5, 0.01), dp.Gaussian(1.0)),
        ),
        Case(
            dp.Zcdp(0.5, 0.25),
            {"type": "zcdp", "rho": 0.5, "xi": 0.25},
            "ace9e90f9014186a9a24ea8957fe2d277bfa61a4d342345c3b3e5b5db1e3b319",
            sdk.zcdp(0.5, 0.25),
        ),
    ),
    refused={"rho": (0, -1, 1.1e6, "1", None, True), "xi": (-1e-9, 1.1e6, "1", None, True)},
)

EPSILON_DELTA = Examples(
    cases=(
        Case(
            dp.EpsilonDelta(0.5),
            {"type": "epsilon_delta", "epsilon": 0.5},
            "c59f822b02f1f30d93ad483f9cd96229572fab792c06006b37112c21c320d991",
            sdk.epsilon_delta(0.5),
            dearer=(dp.EpsilonDelta(0.51), dp.EpsilonDelta(0.5, 1e-300)),
        ),
        Case(
            dp.EpsilonDelta(1, 1e-6),
            {"type": "epsilon_delta", "epsilon": 1.0, "delta": 1e-6},
            "227f063c559de67f5cebaeac149dd3dd923b08638fe3a582477035ec57747990",
            sdk.epsilon_delta(1, 1e-6),
            dearer=(dp.EpsilonDelta(1, 1.1e-6), dp.EpsilonDelta(1.1, 1e-6)),
        ),
    ),
    refused={"epsilon": (0, -1, 10001, "1", None, True), "delta": (-1e-9, 0.5, "0", None, True)},
)

MIXTURE = ((4.0, (0.0, 1.0, 2.0), (0.9801, 0.0198, 0.0001)), (2.0, (1.0, 0.5), (0.25, 0.75)))
MIXTURE_OF_GAUSSIANS = Examples(
    cases=(
        Case(
            dp.MixtureOfGaussians(*MIXTURE[0]),
            {
                "type": "mixture_of_gaussians",
                "standard_deviation": 4.0,
                "sensitivities": [0.0, 1.0, 2.0],
                "sampling_probs": [0.9801, 0.0198, 0.0001],
            },
            "bf4ce8d19fe48aa53797728755ffcbcdc94f45f87f0b34fee2e71e6998151f70",
            sdk.mixture_of_gaussians(*MIXTURE[0]),
            dearer=(
                dp.MixtureOfGaussians(3.9, *MIXTURE[0][1:]),
                dp.MixtureOfGaussians(4.0, (0, 1.1, 2.1), MIXTURE[0][2]),
                dp.MixtureOfGaussians(4.0, (0, 1, 2), (0.98, 0.0198, 0.0002)),
                dp.Gaussian(2.0),
            ),
        ),
        Case(
            dp.MixtureOfGaussians(*MIXTURE[1]),
            {
                "type": "mixture_of_gaussians",
                "standard_deviation": 2.0,
                "sensitivities": [1.0, 0.5],
                "sampling_probs": [0.25, 0.75],
            },
            "0a08d05b276b541072667b624d03776ac4fa23a3da31a60d0a1a450bff667d4a",
            sdk.mixture_of_gaussians(*MIXTURE[1]),
            dearer=(dp.Gaussian(2.0),),
        ),
    ),
    refused={
        "standard_deviation": (0, -1.0, 1e-10, 1.1e9, 1e-3, "1", None, True, [1.0]),
        "sensitivities": (
            1.0,
            None,
            [],
            [1.0],
            [0, 1, "2"],
            [0, 1, -1],
            [0, 0, 0],
            [0, 1, 1.1e9],
            [1.0] * 65,
            {"1": 1},
        ),
        "sampling_probs": (
            1.0,
            None,
            [],
            [1.0],
            [1, 0, 0],
            [0.5, 0.5, 0.1],
            [0.9, 0.2, -0.1],
            [0.5, 0.5, "0"],
            {"1": 1},
        ),
    },
)

TREE_AGGREGATION = Examples(
    cases=(
        Case(
            dp.TreeAggregation(6, (100, 50)),
            {"type": "tree_aggregation", "noise_multiplier": 6.0, "step_counts": [100, 50]},
            "4ae95e00824abe6cb41218173ff79c3a0cbd9d105780069c5c21102d72a6b349",
            sdk.tree_aggregation(6, (100, 50)),
            NOT_ADDED,
            (dp.TreeAggregation(5.9, (100, 50)), dp.TreeAggregation(6, (100, 200)), dp.TreeAggregation(6, (50, 101))),
        ),
    ),
    refused={
        "noise_multiplier": NOISES,
        "step_counts": (3, None, [], [0], [2.0], [True], ["1"], [[1]], [10**9 + 1], [1] * 1001, {"1": 1}),
    },
)

ADAPTIVE_CLIPPING = Examples(
    cases=(
        Case(
            dp.AdaptiveClipping(1.0),
            {"type": "adaptive_clipping", "noise_multiplier": 1.0},
            "4ce22fccd9f3f160b7172e3b32f319b6fecaa35e97344478a603d39bf952f731",
            sdk.adaptive_clipping(1.0),
            dearer=(
                dp.AdaptiveClipping(0.9),
                dp.AdaptiveClipping(gradient_noise_multiplier=1.0, count_noise_stddev=100),
            ),
        ),
        Case(
            dp.AdaptiveClipping(gradient_noise_multiplier=1.25, count_noise_stddev=12.8),
            {"type": "adaptive_clipping", "gradient_noise_multiplier": 1.25, "count_noise_stddev": 12.8},
            "c1af856be35846ce1ce5aeaacb672fd962ea2dfddd118058e7129239d1c5426d",
            sdk.adaptive_clipping(gradient_noise_multiplier=1.25, count_noise_stddev=12.8),
            dearer=(
                dp.AdaptiveClipping(gradient_noise_multiplier=1.25, count_noise_stddev=12.7),
                dp.AdaptiveClipping(gradient_noise_multiplier=1.24, count_noise_stddev=12.8),
            ),
        ),
    ),
    refused={"noise_multiplier": NOISES, "gradient_noise_multiplier": (1.0,), "count_noise_stddev": (1.0,)},
)

LEAVES = (
    GAUSSIAN,
    LAPLACE,
    DISCRETE_GAUSSIAN,
    DISCRETE_LAPLACE,
    RANDOMIZED_RESPONSE,
    EXPONENTIAL,
    PERMUTE_AND_FLIP,
    ZCDP,
    EPSILON_DELTA,
    MIXTURE_OF_GAUSSIANS,
    TREE_AGGREGATION,
    ADAPTIVE_CLIPPING,
)
