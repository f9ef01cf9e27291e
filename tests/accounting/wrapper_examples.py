"""Examples of events made of other events, for test_every_event.py."""

import epsilon_ledger as sdk
from app.accounting import events as dp

from .leaf_examples import COUNTS, EVENTS, GAUSSIAN_WIRE, NOT_REPLACED, SAMPLED_WIRE, Case, Examples

COMPOSED = Examples(
    cases=(
        Case(
            dp.Composed((dp.PoissonSampled(0.01, dp.Gaussian(1.1)), dp.Laplace(10), dp.EpsilonDelta(0.1, 1e-8))),
            {
                "type": "composed",
                "events": [
                    SAMPLED_WIRE,
                    {"type": "laplace", "noise_multiplier": 10.0},
                    {"type": "epsilon_delta", "epsilon": 0.1, "delta": 1e-8},
                ],
            },
            "83cb50b41bd5ecddfd0fa37fffe7db09917e71a43271a6ba41cd9fb4fc81380f",
            sdk.composed([sdk.poisson_sampled(0.01, sdk.gaussian(1.1)), sdk.laplace(10), sdk.epsilon_delta(0.1, 1e-8)]),
            NOT_REPLACED,
            (
                dp.Composed(
                    (
                        dp.PoissonSampled(0.01, dp.Gaussian(1.1)),
                        dp.Laplace(10),
                        dp.EpsilonDelta(0.1, 1e-8),
                        dp.Zcdp(1e-6),
                    )
                ),
            ),
        ),
    ),
    refused={"events": (None, 3, {}, [], [3], [[GAUSSIAN_WIRE]], [{}], [GAUSSIAN_WIRE] * 1001, GAUSSIAN_WIRE)},
)

SELF_COMPOSED = Examples(
    cases=(
        Case(
            dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.1)), 500),
            {"type": "self_composed", "event": SAMPLED_WIRE, "count": 500},
            "798470636c6bb6c175e8c50e0ee27074d685b4c3460e855cef361cebf384cd75",
            sdk.self_composed(sdk.poisson_sampled(0.01, sdk.gaussian(1.1)), 500),
            NOT_REPLACED,
            (dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.1)), 501),),
        ),
    ),
    refused={"count": COUNTS, "event": EVENTS},
)

REPEAT_AND_SELECT = Examples(
    cases=(
        Case(
            dp.RepeatAndSelect(dp.Gaussian(5), 10, 1),
            {
                "type": "repeat_and_select",
                "event": {"type": "gaussian", "noise_multiplier": 5.0},
                "mean": 10.0,
                "shape": 1.0,
            },
            "ff6e9be0bd52ffa4080ba4d8be794a6b4bb8a010453019ecac1d5db18822af44",
            sdk.repeat_and_select(sdk.gaussian(5), 10, 1),
            dearer=(
                dp.RepeatAndSelect(dp.Gaussian(4.9), 10, 1),
                dp.RepeatAndSelect(dp.Gaussian(5), 11, 1),
                dp.RepeatAndSelect(dp.SelfComposed(dp.Gaussian(5), 2), 10, 1),
            ),
        ),
        Case(
            dp.RepeatAndSelect(dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.1)), 100), 20, None),
            {
                "type": "repeat_and_select",
                "event": {"type": "self_composed", "event": SAMPLED_WIRE, "count": 100},
                "mean": 20.0,
                "shape": None,
            },
            "89d2114d8ccb6f04d0bb7c2948f1d0a9e42cc55aa34ef5deba181720e01637ce",
            sdk.repeat_and_select(sdk.self_composed(sdk.poisson_sampled(0.01, sdk.gaussian(1.1)), 100), 20, None),
            NOT_REPLACED,
            (dp.RepeatAndSelect(dp.SelfComposed(dp.PoissonSampled(0.01, dp.Gaussian(1.1)), 101), 20, None),),
        ),
    ),
    refused={
        "mean": (0.99, 1.1e9, "2", None, True),
        "shape": (-1, -0.99999, -2, 1.1e6, "1", True),
        "event": EVENTS,
    },
)

GROUP_PRIVACY = Examples(
    cases=(
        Case(
            dp.GroupPrivacy(4, dp.PoissonSampled(0.001, dp.Gaussian(8))),
            {
                "type": "group_privacy",
                "group_size": 4,
                "event": {
                    "type": "poisson_sampled",
                    "sampling_probability": 0.001,
                    "event": {"type": "gaussian", "noise_multiplier": 8.0},
                },
            },
            "90f09852c0b297b6df2b6b71e3116df177cdbe128305499550a53be3bfef6188",
            sdk.group_privacy(4, sdk.poisson_sampled(0.001, sdk.gaussian(8))),
            NOT_REPLACED,
            (
                dp.GroupPrivacy(5, dp.PoissonSampled(0.001, dp.Gaussian(8))),
                dp.GroupPrivacy(4, dp.PoissonSampled(0.0011, dp.Gaussian(8))),
                dp.GroupPrivacy(4, dp.PoissonSampled(0.001, dp.Gaussian(7.9))),
            ),
        ),
    ),
    refused={"group_size": (10**6 + 1, *COUNTS), "event": EVENTS},
)

DECAY = Examples(
    cases=(
        Case(
            dp.Decay("time", 6e-4, 50, dp.PoissonSampled(0.01, dp.Gaussian(1.1))),
            {"type": "decay", "mode": "time", "decay_rate": 6e-4, "steps": 50, "event": SAMPLED_WIRE},
            "d576d893a1591b38e01f399a6b28f0f9285efaf857308736b3ce6ce942b558e4",
            sdk.decay("time", 6e-4, sdk.poisson_sampled(0.01, sdk.gaussian(1.1)), steps=50),
            NOT_REPLACED,
            (
                dp.Decay("time", 6e-4, 51, dp.PoissonSampled(0.01, dp.Gaussian(1.1))),
                dp.Decay("time", 7e-4, 50, dp.PoissonSampled(0.01, dp.Gaussian(1.1))),
                dp.Decay("time", 6e-4, 50, dp.PoissonSampled(0.01, dp.Gaussian(1.0))),
                dp.Decay("time", 6e-4, 50, dp.PoissonSampled(0.01, dp.Gaussian(1.1)), first_step=1),
            ),
        ),
        Case(
            dp.Decay("step", 0.01, 100, dp.AdaptiveClipping(5), first_step=50),
            {
                "type": "decay",
                "mode": "step",
                "decay_rate": 0.01,
                "steps": 100,
                "first_step": 50,
                "event": {"type": "adaptive_clipping", "noise_multiplier": 5.0},
            },
            "1d8fc4e247bc3d3d4ecd3defc81b83bc4a5c5978262b258f68d5c025a420e42c",
            sdk.decay("step", 0.01, sdk.adaptive_clipping(5), steps=100, first_step=50),
            dearer=(dp.Decay("step", 0.011, 100, dp.AdaptiveClipping(5), first_step=50),),
        ),
        Case(
            dp.Decay("exp", 0, 10, dp.Gaussian(5)),
            {
                "type": "decay",
                "mode": "exp",
                "decay_rate": 0.0,
                "steps": 10,
                "event": {"type": "gaussian", "noise_multiplier": 5.0},
            },
            "e9fcbe869130cb9e2506135fb8fe9e7360dd825b36e548151f1d665b623981f1",
            sdk.decay("exp", 0, sdk.gaussian(5), steps=10),
            dearer=(dp.Decay("exp", 1e-9, 10, dp.Gaussian(5)), dp.SelfComposed(dp.Gaussian(5), 10)),
        ),
    ),
    refused={
        "mode": ("linear", None, 1, True),
        "decay_rate": (-1e-9, 1.1e6, "0", None, True),
        "steps": (10**7 + 1, *COUNTS),
        "first_step": (-1, 10**9 + 1, 1.0, "1", None, True),
        "event": (*EVENTS, {"type": "laplace", "noise_multiplier": 1.0}),
    },
)

WRAPPERS = (
    COMPOSED,
    SELF_COMPOSED,
    REPEAT_AND_SELECT,
    GROUP_PRIVACY,
    DECAY,
)
