"""Response schemas of stateless planning."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import TypeAliasType

from app.accounting.curves import PURE
from app.api.schemas.common import AnsweredEvent, ExtendedNumber, Output

OptimalOrder = Annotated[ExtendedNumber | None, BeforeValidator(lambda order: "Infinity" if order == PURE else order)]
"""A Rényi order; infinity adds up the epsilons of pure mechanisms."""

_BEST_ORDER = (
    'The Rényi order at which the bound is smallest; at "Infinity" the epsilons of pure mechanisms are added up.'
)
_ALL_METHODS = "The plan by all applicable accounting methods, for comparison with other tools."

_IN_PROCESS = "As an in-process Rényi accountant prints it, for events fixed in advance."
_UNDECLARED = "Events that cannot be planned get a warning, and the number of an account without a plan."
_WITHOUT_PLAN = "The same for an account that declares no plan, by Rényi orders alone."

AccountantName = TypeAliasType(
    "AccountantName",
    Literal[
        "plan_filter",
        "renyi_filter",
        "rdp",
        "pld",
        "rdp_classic",
        "zcdp",
        "analytic_gaussian",
        "optimal_composition",
        "advanced_composition",
        "basic_composition",
        "textbook",
    ],
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

    epsilon: ExtendedNumber = Field(description=_IN_PROCESS)
    delta: float
    required_epsilon: ExtendedNumber = Field(
        validation_alias="required",
        description="The smallest epsilon of a limit with this delta under which an account that declares the events "
        "as `planned` admits all of them; six digits, rounded up. " + _UNDECLARED,
    )
    optimal_order: OptimalOrder = Field(description=_BEST_ORDER)
    accountants: list[AccountantEpsilon] = Field(description=_ALL_METHODS)
    warnings: list[str]


class DeltaEstimate(Output):
    """The delta of a plan."""

    delta: float = Field(description=_IN_PROCESS + " 1 without a bound at this epsilon.")
    epsilon: float
    required_delta: float | None = Field(
        validation_alias="required",
        description="The smallest delta of a limit with this epsilon under which an account that declares the events "
        "as `planned` admits all of them; six digits, rounded up; 1 if none does. Null at epsilon 0: no limit has it. "
        + _UNDECLARED,
    )
    optimal_order: OptimalOrder = Field(description=_BEST_ORDER)
    accountants: list[AccountantDelta] = Field(description=_ALL_METHODS)
    warnings: list[str]


class EpsilonTrajectoryPoint(Output):
    """The epsilon of a plan after a step."""

    step: int = Field(description="Number of steps, from 1.")
    epsilon: ExtendedNumber = Field(description=_IN_PROCESS)
    required_epsilon: ExtendedNumber = Field(
        description="The smallest epsilon of a limit with this delta under which an account that declares these steps "
        "as `planned` admits all of them, within 0.3 %; never below it. It is computed at 32 of the points, and the "
        "last one; those between have that of the next. " + _UNDECLARED
    )


class EpsilonTrajectory(Output):
    """The epsilon of a plan at the first step, the last, and evenly spread ones between them; it never decreases."""

    points: list[EpsilonTrajectoryPoint]
    steps: int = Field(description="Number of steps of the plan.")
    delta: float
    warnings: list[str]


class CalibrationEstimate(Output):
    """The result of a calibration: for an account whose `planned` events are the whole plan."""

    reachable: bool = Field(description="Whether any number suffices; if not, a warning explains why.")
    event: AnsweredEvent | None = Field(description="The event with this number, or null.")
    epsilon: float | None = Field(
        description="Of the whole plan with this number, as an in-process Rényi accountant prints it; where that "
        "is above the target, by privacy loss distributions. Never above the target."
    )
    delta: float
    optimal_order: OptimalOrder = Field(description="The Rényi order at which that epsilon is smallest.")
    warnings: list[str]


class NoiseMultiplierEstimate(CalibrationEstimate):
    """The minimum noise with which the plan fits."""

    noise_multiplier: float | None = Field(
        validation_alias="value",
        description="Six digits, rounded up: the next smaller number does not fit. Null if none suffices. "
        + _UNDECLARED,
    )
    noise_multiplier_without_plan: float | None = Field(
        validation_alias="value_without_plan", description=_WITHOUT_PLAN
    )


class SamplingProbabilityEstimate(CalibrationEstimate):
    """The maximum sampling with which the plan fits."""

    sampling_probability: float | None = Field(
        validation_alias="value",
        description="Six digits, rounded down: the next larger number does not fit. Null if none suffices. "
        + _UNDECLARED,
    )
    sampling_probability_without_plan: float | None = Field(
        validation_alias="value_without_plan", description=_WITHOUT_PLAN
    )


class MaxStepsEstimate(Output):
    """The maximum number of steps."""

    steps: int = Field(
        description="Maximum number that an account admits whose `planned` events are these. " + _UNDECLARED
    )
    steps_without_plan: int = Field(description=_WITHOUT_PLAN)
    epochs: int | None = Field(description="Whole epochs in these steps; null without `steps_per_epoch`.")
    epsilon: float | None = Field(
        description="Of these steps and the other planned events, as an in-process Rényi accountant prints it; "
        "where that is above the target, by privacy loss distributions. Never above the target. Null if the other "
        "events exceed the target."
    )
    epsilon_after_epochs: float | None = Field(description="The same for the whole epochs.")
    delta: float
    optimal_order: OptimalOrder = Field(description="The Rényi order at which `epsilon` is smallest.")
    warnings: list[str]


class LaplaceCost(Output):
    """Laplace noise and the cost of its releases."""

    scale: float = Field(description="b: the noise's density falls like exp(-|x| / b).")
    bound: float = Field(description="Bound of the absolute noise in one coordinate, kept with `probability`.")
    probability: float
    noise_multiplier: float = Field(description="Scale over sensitivity, as in a `laplace` event.")
    epsilon: float = Field(description="Of one release; pure, no delta.")
    epsilon_basic: float = Field(description="Of all releases; pure, their sum.")
    epsilon_rdp: ExtendedNumber | None = Field(description="Of all releases at delta; null without one.")
    optimal_order: OptimalOrder = Field(default=None, description="The Rényi order at which `epsilon_rdp` is smallest.")
    warnings: list[str]
