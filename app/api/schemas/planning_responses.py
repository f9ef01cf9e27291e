"""Response schemas of stateless planning."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import TypeAliasType

from app.accounting.curves import PURE
from app.api.schemas.common import AnsweredEvent, ExtendedNumber, Output, example
from app.service.planning.costs import ADAPTIVE, CLASSIC, PLD, RDP

EPSILON_EXAMPLE: dict[str, Any] = {
    "epsilon": 3.847,
    "delta": 1e-5,
    "optimal_order": 5.9665,
    "accountants": [
        {"name": "rdp", "epsilon": 3.847, "optimal_order": 5.9665, "note": RDP},
        {"name": "pld", "epsilon": 3.5284, "optimal_order": None, "note": PLD},
        {"name": "adaptive", "epsilon": 3.85522, "optimal_order": None, "note": ADAPTIVE},
        {"name": "rdp_classic", "epsilon": 4.3762, "optimal_order": 6.3559, "note": CLASSIC},
    ],
    "warnings": [],
}
DELTA_EXAMPLE: dict[str, Any] = {
    "delta": 4.6147e-6,
    "epsilon": 4.0,
    "optimal_order": 6.1594,
    "accountants": [
        {"name": "rdp", "delta": 4.6147e-6, "optimal_order": 6.1594, "note": RDP},
        {"name": "pld", "delta": 8.991e-7, "optimal_order": None, "note": PLD},
        {"name": "rdp_classic", "delta": 6.9402e-5, "optimal_order": 5.9665, "note": CLASSIC},
    ],
    "warnings": [],
}
TRAJECTORY_EXAMPLE: dict[str, Any] = {
    "points": [{"step": 1, "epsilon": 0.76828}, {"step": 2500, "epsilon": 2.6682}, {"step": 5000, "epsilon": 3.847}],
    "steps": 5000,
    "delta": 1e-5,
    "warnings": [],
}
NOISE_MULTIPLIER_EXAMPLE: dict[str, Any] = {
    "noise_multiplier": 2.27807,
    "reachable": True,
    "event": {
        "type": "poisson_sampled",
        "sampling_probability": 0.01,
        "event": {"type": "gaussian", "noise_multiplier": 2.27807},
    },
    "epsilon": 2.0,
    "delta": 1e-5,
    "optimal_order": 10.086,
    "warnings": [],
}
SAMPLING_PROBABILITY_EXAMPLE: dict[str, Any] = {
    "sampling_probability": 0.00397641,
    "reachable": True,
    "event": {
        "type": "poisson_sampled",
        "sampling_probability": 0.00397641,
        "event": {"type": "gaussian", "noise_multiplier": 1.1},
    },
    "epsilon": 2.0,
    "delta": 1e-5,
    "optimal_order": 9.8294,
    "warnings": [],
}
MOST_STEPS_EXAMPLE: dict[str, Any] = {
    "steps": 1404,
    "epochs": 14,
    "epsilon": 1.9994,
    "epsilon_after_epochs": 1.9967,
    "delta": 1e-5,
    "optimal_order": 9.0008,
    "warnings": [],
}
LAPLACE_EXAMPLE: dict[str, Any] = {
    "scale": 4.3429,
    "bound": 10.0,
    "probability": 0.9,
    "noise_multiplier": 2.1715,
    "epsilon": 0.46052,
    "epsilon_basic": 46.052,
    "epsilon_rdp": 27.089,
    "optimal_order": 2.2416,
    "warnings": ["An epsilon above 20 is vacuous: it gives almost no protection."],
}

OptimalOrder = Annotated[ExtendedNumber | None, BeforeValidator(lambda order: "Infinity" if order == PURE else order)]
"""A Rényi order; infinity adds up the epsilons of pure mechanisms."""

_BEST_ORDER = (
    'The Rényi order at which the bound is smallest; at "Infinity" the epsilons of pure mechanisms are added up.'
)
_ALL_METHODS = "The plan by all applicable accounting methods, for comparison with other tools."

AccountantName = TypeAliasType(
    "AccountantName", Literal["rdp", "pld", "adaptive", "rdp_classic", "zcdp", "analytic_gaussian"]
)


class AccountantEpsilon(Output):
    """The epsilon of one accounting method."""

    name: AccountantName
    epsilon: ExtendedNumber = Field(validation_alias="value")
    optimal_order: OptimalOrder = Field(default=None, description="Null for a method without orders.")
    note: str


class AccountantDelta(Output):
    """The delta of one accounting method."""

    name: AccountantName
    delta: float = Field(validation_alias="value")
    optimal_order: OptimalOrder = Field(default=None, description="Null for a method without orders.")
    note: str


class EpsilonEstimate(Output):
    """The epsilon of a plan."""

    model_config = example(EPSILON_EXAMPLE)

    epsilon: ExtendedNumber
    delta: float
    optimal_order: OptimalOrder = Field(description=_BEST_ORDER)
    accountants: list[AccountantEpsilon] = Field(description=_ALL_METHODS)
    warnings: list[str]


class DeltaEstimate(Output):
    """The delta of a plan."""

    model_config = example(DELTA_EXAMPLE)

    delta: float = Field(description="1 without a bound at this epsilon.")
    epsilon: float
    optimal_order: OptimalOrder = Field(description=_BEST_ORDER)
    accountants: list[AccountantDelta] = Field(description=_ALL_METHODS)
    warnings: list[str]


class EpsilonTrajectoryPoint(Output):
    """The epsilon of a plan after a step."""

    step: int = Field(description="Number of steps, from 1.")
    epsilon: ExtendedNumber


class EpsilonTrajectory(Output):
    """The epsilon of a plan at the first step, the last, and evenly spread ones between them."""

    model_config = example(TRAJECTORY_EXAMPLE)

    points: list[EpsilonTrajectoryPoint]
    steps: int = Field(description="Number of steps of the plan.")
    delta: float
    warnings: list[str]


class CalibrationEstimate(Output):
    """The result of a calibration."""

    reachable: bool = Field(description="Whether any number suffices; if not, a warning explains why.")
    event: AnsweredEvent | None = Field(description="The event with this number, or null.")
    epsilon: float | None = Field(description="Of the whole plan with this number, if it is fixed in advance.")
    delta: float
    optimal_order: OptimalOrder = Field(description="The Rényi order at which that bound is smallest.")
    warnings: list[str]


class NoiseMultiplierEstimate(CalibrationEstimate):
    """The minimum noise with which the plan fits."""

    model_config = example(NOISE_MULTIPLIER_EXAMPLE)

    noise_multiplier: float | None = Field(
        validation_alias="value",
        description="Six digits, rounded up: the next smaller number does not fit. Null if none suffices.",
    )


class SamplingProbabilityEstimate(CalibrationEstimate):
    """The maximum sampling with which the plan fits."""

    model_config = example(SAMPLING_PROBABILITY_EXAMPLE)

    sampling_probability: float | None = Field(
        validation_alias="value",
        description="Six digits, rounded down: the next larger number does not fit. Null if none suffices.",
    )


class MaxStepsEstimate(Output):
    """The maximum number of steps."""

    model_config = example(MOST_STEPS_EXAMPLE)

    steps: int = Field(description="Maximum number that meets the target.")
    epochs: int | None = Field(description="Whole epochs in these steps; null without `steps_per_epoch`.")
    epsilon: float | None = Field(
        description="Of these steps and the other planned events; null if the latter exceed the target."
    )
    epsilon_after_epochs: float | None = Field(description="Of the whole epochs and the other planned events.")
    delta: float
    optimal_order: OptimalOrder = Field(description="The Rényi order at which `epsilon` is smallest.")
    warnings: list[str]


class LaplaceCost(Output):
    """Laplace noise and the cost of its releases."""

    model_config = example(LAPLACE_EXAMPLE)

    scale: float = Field(description="b: the noise's density falls like exp(-|x| / b).")
    bound: float = Field(description="Bound of the absolute noise in one coordinate, kept with `probability`.")
    probability: float
    noise_multiplier: float = Field(description="Scale over sensitivity, as in a `laplace` event.")
    epsilon: float = Field(description="Of one release; pure, no delta.")
    epsilon_basic: float = Field(description="Of all releases; pure, their sum.")
    epsilon_rdp: ExtendedNumber | None = Field(description="Of all releases at delta; null without one.")
    optimal_order: OptimalOrder = Field(default=None, description="The Rényi order at which `epsilon_rdp` is smallest.")
    warnings: list[str]
