"""Response schemas of stateless planning."""

from typing import Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from app.api.schemas.common import AnsweredEvent, ExtendedNumber, Output

_COMPARISONS = "What other accountants print for the plan: a comparison, not what an account needs."
_TIGHTEST = (
    "The smallest that is proven for events fixed in advance, at the full delta: by the best Rényi order or, where "
    "every event has one, by the privacy loss distribution. It depends on no limit and no declared plan."
)
_UNDECLARED = "Events that cannot be planned get a warning, and the number of an account without a plan."
_WITH_PLAN = "If the account declares all events as `planned`. " + _UNDECLARED
_WITHOUT_PLAN = "If it declares none."
_REACHED = "Of the whole plan, with the number `with_plan`; never above the target."

AccountantName = TypeAliasType(
    "AccountantName",
    Literal[
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


class LimitNeeded(Output):
    """The smallest epsilon of an account's limit, with this delta, under which it admits all events; six digits."""

    with_plan: ExtendedNumber = Field(description=_WITH_PLAN)
    without_plan: ExtendedNumber = Field(description=_WITHOUT_PLAN)


class LimitDeltaNeeded(Output):
    """The smallest delta of an account's limit, with this epsilon, under which it admits all events; six digits."""

    with_plan: float = Field(description=_WITH_PLAN + " 1 if none suffices.")
    without_plan: float = Field(description=_WITHOUT_PLAN)


class NumberThatFits(Output):
    """A parameter of six digits with which an account admits all events: the next better number does not fit."""

    with_plan: float | None = Field(description=_WITH_PLAN + " Null if no number suffices.")
    without_plan: float | None = Field(description=_WITHOUT_PLAN)


class StepsThatFit(Output):
    """The maximum number of steps that an account admits."""

    with_plan: int = Field(description=_WITH_PLAN)
    without_plan: int = Field(description=_WITHOUT_PLAN)


class ComparedEpsilon(Output):
    """The epsilon of another accountant."""

    name: AccountantName
    epsilon: ExtendedNumber = Field(validation_alias="value")
    note: str


class ComparedDelta(Output):
    """The delta of another accountant."""

    name: AccountantName
    delta: float = Field(validation_alias="value")
    note: str


class EpsilonEstimate(Output):
    """The epsilon of a plan, and the limit that an account needs for it."""

    epsilon: ExtendedNumber = Field(description=_TIGHTEST)
    delta: float
    limit_needed: LimitNeeded
    comparisons: list[ComparedEpsilon] = Field(description=_COMPARISONS)
    warnings: list[str]


class DeltaEstimate(Output):
    """The delta of a plan, and of the limit that an account needs for it."""

    delta: float = Field(description=_TIGHTEST + " 1 without a bound at this epsilon.")
    epsilon: float
    limit_needed: LimitDeltaNeeded | None = Field(description="Null at epsilon 0: no limit has it.")
    comparisons: list[ComparedDelta] = Field(description=_COMPARISONS)
    warnings: list[str]


class EpsilonTrajectoryPoint(Output):
    """The epsilon of a plan after a step."""

    step: int = Field(description="Number of steps, from 1.")
    epsilon: ExtendedNumber = Field(
        description=_TIGHTEST + " The distribution is computed at 32 of the points; those between have the smaller one "
        "of their Rényi bound and the next point's epsilon."
    )
    limit_needed_with_plan: ExtendedNumber = Field(
        description="The epsilon of an account's limit, with this delta, under which it admits these steps if it "
        "declares them as `planned`: at most 0.3 % above the smallest. It is computed at 32 of the points; those "
        "between have that of the next. " + _UNDECLARED
    )


class EpsilonTrajectory(Output):
    """The epsilon of a plan at the first step, the last, and evenly spread ones between them; it never decreases."""

    points: list[EpsilonTrajectoryPoint]
    steps: int = Field(description="Number of steps of the plan.")
    delta: float
    warnings: list[str]


class CalibrationEstimate(Output):
    """The result of a calibration to the limit of an account."""

    reachable: bool = Field(description="Whether any number suffices; if not, a warning explains why.")
    event: AnsweredEvent | None = Field(description="The event with the number `with_plan`, or null.")
    epsilon: float | None = Field(description=_REACHED + " Null if no number suffices.")
    delta: float
    warnings: list[str]


class NoiseMultiplierEstimate(CalibrationEstimate):
    """The minimum noise with which the plan fits."""

    noise_multiplier: NumberThatFits = Field(validation_alias="value", description="Rounded up.")


class SamplingProbabilityEstimate(CalibrationEstimate):
    """The maximum sampling with which the plan fits."""

    sampling_probability: NumberThatFits = Field(validation_alias="value", description="Rounded down.")


class MaxStepsEstimate(Output):
    """The maximum number of steps."""

    steps: StepsThatFit
    epochs: int | None = Field(description="Whole epochs in the steps `with_plan`; null without `steps_per_epoch`.")
    epsilon: float | None = Field(description=_REACHED + " Null if the other events exceed the target.")
    epsilon_after_epochs: float | None = Field(description="The same for the whole epochs.")
    delta: float
    warnings: list[str]


class LaplaceCost(Output):
    """Laplace noise and the cost of its releases."""

    scale: float = Field(description="b: the noise's density falls like exp(-|x| / b).")
    bound: float = Field(description="Bound of the absolute noise in one coordinate, kept with `probability`.")
    probability: float
    noise_multiplier: float = Field(description="Scale over sensitivity, as in a `laplace` event.")
    epsilon: float = Field(description="Of all releases, at delta if one was sent, else pure.")
    epsilon_per_release: float = Field(description="Of one release; pure.")
    warnings: list[str]
