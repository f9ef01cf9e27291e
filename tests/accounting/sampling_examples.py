"""Examples of events on a sample, for test_every_event.py."""

import epsilon_ledger as sdk
from app.accounting import events as dp

from .leaf_examples import (
    ALL,
    COUNTS,
    EVENTS,
    MIXTURE,
    NOT_REPLACED,
    PROBABILITIES,
    REPLACED,
    SAMPLED_WIRE,
    Case,
    Examples,
)

POISSON_SAMPLED = Examples(
    cases=(
        Case(
            dp.PoissonSampled(0.01, dp.Gaussian(1.1)),
            SAMPLED_WIRE,
            "4f27ac7c5bf1246295cbc381eb96f5fd657fa4338d6ba8469c87b65560c6e45c",
            sdk.poisson_sampled(0.01, sdk.gaussian(1.1)),
            NOT_REPLACED,
            (
                dp.PoissonSampled(0.011, dp.Gaussian(1.1)),
                dp.PoissonSampled(0.01, dp.Gaussian(1.0)),
                dp.PoissonSampled(0.01, dp.Gaussian(1.1, "microbatch")),
                dp.PoissonSampled(0.01, dp.DiscreteGaussian(1.1)),
                dp.Gaussian(1.1),
            ),
        ),
        Case(
            dp.PoissonSampled(1, dp.Gaussian(1.1)),
            {**SAMPLED_WIRE, "sampling_probability": 1.0},
            "11d84e1067ecf39d5ed4fd468426db2d105ab9333f20ebb372060ed35c12da51",
            sdk.poisson_sampled(1, sdk.gaussian(1.1)),
            dearer=(dp.Gaussian(1.1),),
        ),
        Case(
            dp.PoissonSampled(0.05, dp.Composed((dp.Gaussian(1.5), dp.SelfComposed(dp.AdaptiveClipping(8), 3)))),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.05,
                "event": {
                    "type": "composed",
                    "events": [
                        {"type": "gaussian", "noise_multiplier": 1.5},
                        {
                            "type": "self_composed",
                            "event": {"type": "adaptive_clipping", "noise_multiplier": 8.0},
                            "count": 3,
                        },
                    ],
                },
            },
            "5a36c7a3ac97c9774c61589517d31540d707bf7e2894906b870236912b8dc068",
            sdk.poisson_sampled(
                0.05, sdk.composed([sdk.gaussian(1.5), sdk.self_composed(sdk.adaptive_clipping(8), 3)])
            ),
            NOT_REPLACED,
            (dp.PoissonSampled(0.05, dp.Composed((dp.Gaussian(1.5), dp.SelfComposed(dp.AdaptiveClipping(8), 4)))),),
        ),
        Case(
            dp.PoissonSampled(0.02, dp.Laplace(0.8)),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.02,
                "event": {"type": "laplace", "noise_multiplier": 0.8},
            },
            "609260c3b9854ac43d8e4abdc3b6c09de09bd85b74f294cf1fb55dd8162e1581",
            sdk.poisson_sampled(0.02, sdk.laplace(0.8)),
            NOT_REPLACED,
            (dp.PoissonSampled(0.021, dp.Laplace(0.8)), dp.PoissonSampled(0.02, dp.Laplace(0.79)), dp.Laplace(0.8)),
        ),
        Case(
            dp.PoissonSampled(0.02, dp.DiscreteGaussian(2)),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.02,
                "event": {"type": "discrete_gaussian", "noise_multiplier": 2.0},
            },
            "840579d787b28831704cb7262d5cd4ee003b0471aff14b7a63c495550223e9e8",
            sdk.poisson_sampled(0.02, sdk.discrete_gaussian(2)),
            NOT_REPLACED,
            (dp.PoissonSampled(0.021, dp.DiscreteGaussian(2)), dp.PoissonSampled(0.02, dp.DiscreteGaussian(1.9))),
        ),
        Case(
            dp.PoissonSampled(0.02, dp.DiscreteLaplace(0.5, 3)),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.02,
                "event": {"type": "discrete_laplace", "noise_parameter": 0.5, "sensitivity": 3},
            },
            "0915984332e75b87e028184b89588c29d3c8535c8478594258a33c680fa8e6ca",
            sdk.poisson_sampled(0.02, sdk.discrete_laplace(0.5, 3)),
            NOT_REPLACED,
            (
                dp.PoissonSampled(0.021, dp.DiscreteLaplace(0.5, 3)),
                dp.PoissonSampled(0.02, dp.DiscreteLaplace(0.51, 3)),
                dp.PoissonSampled(0.02, dp.DiscreteLaplace(0.5, 4)),
                dp.DiscreteLaplace(0.5, 3),
            ),
        ),
        Case(
            dp.PoissonSampled(0.1, dp.MixtureOfGaussians(*MIXTURE[0])),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.1,
                "event": {
                    "type": "mixture_of_gaussians",
                    "standard_deviation": 4.0,
                    "sensitivities": [0.0, 1.0, 2.0],
                    "sampling_probs": [0.9801, 0.0198, 0.0001],
                },
            },
            "100054c246bfec600bfc8e7a2724f225e4ec589acd506e85424cbfa449a0962f",
            sdk.poisson_sampled(0.1, sdk.mixture_of_gaussians(*MIXTURE[0])),
            NOT_REPLACED,
            (dp.PoissonSampled(0.11, dp.MixtureOfGaussians(*MIXTURE[0])), dp.MixtureOfGaussians(*MIXTURE[0])),
        ),
        Case(
            dp.PoissonSampled(0.9, dp.PermuteAndFlip(2)),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.9,
                "event": {"type": "permute_and_flip", "epsilon": 2.0},
            },
            "28e346f7c745060d68ccab9ac9eca72744b7b5c182e81cc78877a6a5794ea6b6",
            sdk.poisson_sampled(0.9, sdk.permute_and_flip(2)),
            ALL,
            (
                dp.PoissonSampled(0.91, dp.PermuteAndFlip(2)),
                dp.PoissonSampled(0.9, dp.PermuteAndFlip(2.1)),
                dp.PermuteAndFlip(2),
            ),
        ),
        Case(
            dp.PoissonSampled(0.9, dp.Exponential(2)),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.9,
                "event": {"type": "exponential", "epsilon": 2.0},
            },
            "659e9c7c4933192852012eee15cd180a24896f0f7a035ee91d3e8cdf99b2563c",
            sdk.poisson_sampled(0.9, sdk.exponential(2)),
            ALL,
            (
                dp.PoissonSampled(0.91, dp.Exponential(2)),
                dp.PoissonSampled(0.9, dp.Exponential(2.1)),
                dp.Exponential(2),
            ),
        ),
        Case(
            dp.PoissonSampled(0.1, dp.GroupPrivacy(2, dp.EpsilonDelta(0.5, 1e-7))),
            {
                "type": "poisson_sampled",
                "sampling_probability": 0.1,
                "event": {
                    "type": "group_privacy",
                    "group_size": 2,
                    "event": {"type": "epsilon_delta", "epsilon": 0.5, "delta": 1e-7},
                },
            },
            "e0e577d0c3fcc7e092b62721e5924a3e70cdc07c3098b8cb9f962f44c6c0f8b0",
            sdk.poisson_sampled(0.1, sdk.group_privacy(2, sdk.epsilon_delta(0.5, 1e-7))),
            ALL,
            (
                dp.PoissonSampled(0.11, dp.GroupPrivacy(2, dp.EpsilonDelta(0.5, 1e-7))),
                dp.PoissonSampled(0.1, dp.GroupPrivacy(3, dp.EpsilonDelta(0.5, 1e-7))),
                dp.PoissonSampled(0.1, dp.EpsilonDelta(1.0, 3e-7)),
                dp.GroupPrivacy(2, dp.EpsilonDelta(0.5, 1e-7)),
            ),
        ),
    ),
    refused={"sampling_probability": PROBABILITIES, "event": EVENTS},
)

SAMPLED_WITHOUT_REPLACEMENT = Examples(
    cases=(
        Case(
            dp.SampledWithoutReplacement(60000, 256, dp.Gaussian(2.2)),
            {
                "type": "sampled_without_replacement",
                "source_dataset_size": 60000,
                "sample_size": 256,
                "event": {"type": "gaussian", "noise_multiplier": 2.2},
            },
            "6179f14eafc15ec7681cf2843c38119cebcea375b37a23bd735991d94266dbbe",
            sdk.sampled_without_replacement(60000, 256, sdk.gaussian(2.2)),
            REPLACED,
            (
                dp.SampledWithoutReplacement(60000, 257, dp.Gaussian(2.2)),
                dp.SampledWithoutReplacement(60000, 256, dp.Gaussian(2.1)),
                dp.SampledWithoutReplacement(60000, 60000, dp.Gaussian(2.2)),
                dp.SampledWithoutReplacement(60000, 256, dp.GroupPrivacy(2, dp.Gaussian(2.2))),
            ),
        ),
    ),
    refused={
        "source_dataset_size": (255, *COUNTS),
        "sample_size": (60001, *COUNTS),
        "event": EVENTS,
    },
)

TRUNCATED_POISSON_SAMPLED = Examples(
    cases=(
        Case(
            dp.TruncatedPoissonSampled(60000, 0.004, 320, dp.Gaussian(1.1)),
            {
                "type": "truncated_poisson_sampled",
                "source_dataset_size": 60000,
                "sampling_probability": 0.004,
                "truncated_batch_size": 320,
                "event": {"type": "gaussian", "noise_multiplier": 1.1},
            },
            "5c6a939f55d9f931324a25c7150a496bf4ef613c7bcc4a5ec587eec943dc50d3",
            sdk.truncated_poisson_sampled(60000, 0.004, 320, sdk.gaussian(1.1)),
            dearer=(
                dp.TruncatedPoissonSampled(60000, 0.0041, 320, dp.Gaussian(1.1)),
                dp.TruncatedPoissonSampled(60000, 0.004, 320, dp.Gaussian(1.0)),
            ),
        ),
        Case(
            dp.TruncatedPoissonSampled(1000, 0.05, 50, dp.AdaptiveClipping(4)),
            {
                "type": "truncated_poisson_sampled",
                "source_dataset_size": 1000,
                "sampling_probability": 0.05,
                "truncated_batch_size": 50,
                "event": {"type": "adaptive_clipping", "noise_multiplier": 4.0},
            },
            "ad5244d5292a66f84e495bb94d07bca89bb3dc613c9b8b6fada37633ff8b7d1d",
            sdk.truncated_poisson_sampled(1000, 0.05, 50, sdk.adaptive_clipping(4)),
            dearer=(dp.TruncatedPoissonSampled(1000, 0.05, 50, dp.GroupPrivacy(2, dp.AdaptiveClipping(4))),),
        ),
    ),
    refused={
        "source_dataset_size": COUNTS,
        "sampling_probability": PROBABILITIES,
        "truncated_batch_size": COUNTS,
        "event": EVENTS,
    },
)

SAMPLED_WITH_REPLACEMENT = Examples(
    cases=(
        Case(
            dp.SampledWithReplacement(60000, 256, dp.Gaussian(20)),
            {
                "type": "sampled_with_replacement",
                "source_dataset_size": 60000,
                "sample_size": 256,
                "event": {"type": "gaussian", "noise_multiplier": 20.0},
            },
            "02654318f8992d9668e7ee13d140e3b3d6aef54b26cd43353628dca46436d063",
            sdk.sampled_with_replacement(60000, 256, sdk.gaussian(20)),
            REPLACED,
            (
                dp.SampledWithReplacement(60000, 257, dp.Gaussian(20)),
                dp.SampledWithReplacement(60000, 256, dp.Gaussian(19)),
                dp.SampledWithReplacement(60000, 256, dp.GroupPrivacy(2, dp.Gaussian(20))),
            ),
        ),
    ),
    refused={"source_dataset_size": COUNTS, "sample_size": COUNTS, "event": EVENTS},
)

SAMPLES = (POISSON_SAMPLED, SAMPLED_WITHOUT_REPLACEMENT, TRUNCATED_POISSON_SAMPLED, SAMPLED_WITH_REPLACEMENT)
