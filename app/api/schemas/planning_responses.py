"""Response schemas of stateless planning."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import TypeAliasType

from app.accounting.events import event_to_dict
from app.accounting.orders import PURE
from app.api.schemas.common import AnsweredEvent, ExtendedNumber, Output
from app.api.schemas.examples import example
from app.api.schemas.planning_examples import (
    DELTA_EXAMPLE,
    EPSILON_EXAMPLE,
    LAPLACE_EXAMPLE,
    MOST_STEPS_EXAMPLE,
    NOISE_MULTIPLIER_EXAMPLE,
    SAMPLING_PROBABILITY_EXAMPLE,
    TRAJECTORY_EXAMPLE,
)
from app.service.json_values import json_finite, json_number
from app.service.planning.calibration import Solution, Steps
from app.service.planning.costs import AccountantReading, PlanCost, Trajectory
from app.service.planning.costs import LaplaceCost as DomainLaplaceCost

OptimalOrder = Annotated[ExtendedNumber | None, BeforeValidator(lambda order: "Infinity" if order == PURE else order)]
"""A Rényi order; infinity adds up the epsilons of pure mechanisms."""

AccountantName = TypeAliasType("AccountantName", Literal["rdp", "adaptive", "rdp_classic", "zcdp", "analytic_gaussian"])


class AccountantEpsilon(Output):
    """The epsilon of one accounting method."""

    name: AccountantName
    epsilon: ExtendedNumber
    optimal_order: OptimalOrder = Field(default=None, description="Null for a method without orders.")
    note: str

    @classmethod
    def of(cls, reading: AccountantReading) -> "AccountantEpsilon":
        """Convert from the domain."""
        return cls(
            name=reading.name,
            **json_finite(epsilon=reading.value),
            optimal_order=reading.optimal_order,
            note=reading.note,
        )


class AccountantDelta(Output):
    """The delta of one accounting method."""

    name: AccountantName
    delta: float
    optimal_order: OptimalOrder = Field(default=None, description="Null for a method without orders.")
    note: str

    @classmethod
    def of(cls, reading: AccountantReading) -> "AccountantDelta":
        """Convert from the domain."""
        return cls(name=reading.name, delta=reading.value, optimal_order=reading.optimal_order, note=reading.note)


class EpsilonEstimate(Output):
    """The epsilon of a plan."""

    model_config = example(EPSILON_EXAMPLE)

    epsilon: ExtendedNumber
    delta: float
    optimal_order: OptimalOrder = Field(
        description='The Rényi order at which the bound is smallest; at "Infinity" '
        "the epsilons of pure mechanisms are added up."
    )
    accountants: list[AccountantEpsilon] = Field(
        description="The plan by all applicable accounting methods, for comparison with other tools."
    )
    warnings: list[str]

    @classmethod
    def of(cls, cost: PlanCost) -> "EpsilonEstimate":
        """Convert from the domain."""
        return cls(
            **json_finite(epsilon=cost.epsilon),
            delta=cost.delta,
            optimal_order=cost.optimal_order,
            accountants=[AccountantEpsilon.of(reading) for reading in cost.accountants],
            warnings=list(cost.warnings),
        )


class DeltaEstimate(Output):
    """The delta of a plan."""

    model_config = example(DELTA_EXAMPLE)

    delta: float = Field(description="1 without a bound at this epsilon.")
    epsilon: float
    optimal_order: OptimalOrder = Field(
        description='The Rényi order at which the bound is smallest; at "Infinity" '
        "the epsilons of pure mechanisms are added up."
    )
    accountants: list[AccountantDelta] = Field(
        description="The plan by all applicable accounting methods, for comparison with other tools."
    )
    warnings: list[str]

    @classmethod
    def of(cls, cost: PlanCost) -> "DeltaEstimate":
        """Convert from the domain."""
        return cls(
            delta=cost.delta,
            epsilon=cost.epsilon,
            optimal_order=cost.optimal_order,
            accountants=[AccountantDelta.of(reading) for reading in cost.accountants],
            warnings=list(cost.warnings),
        )


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

    @classmethod
    def of(cls, found: Trajectory) -> "EpsilonTrajectory":
        """Convert from the domain."""
        points = [
            EpsilonTrajectoryPoint(step=point.step, **json_finite(epsilon=point.epsilon)) for point in found.points
        ]
        return cls(points=points, steps=found.steps, delta=found.delta, warnings=list(found.warnings))


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
        description="Six digits, rounded up: the next smaller number does not fit. Null if none suffices."
    )

    @classmethod
    def of(cls, found: Solution, delta: float) -> "NoiseMultiplierEstimate":
        """Convert from the domain."""
        return cls(noise_multiplier=found.value, **_solution(found, delta))


class SamplingProbabilityEstimate(CalibrationEstimate):
    """The maximum sampling with which the plan fits."""

    model_config = example(SAMPLING_PROBABILITY_EXAMPLE)

    sampling_probability: float | None = Field(
        description="Six digits, rounded down: the next larger number does not fit. Null if none suffices."
    )

    @classmethod
    def of(cls, found: Solution, delta: float) -> "SamplingProbabilityEstimate":
        """Convert from the domain."""
        return cls(sampling_probability=found.value, **_solution(found, delta))


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

    @classmethod
    def of(cls, found: Steps, delta: float) -> "MaxStepsEstimate":
        """Convert from the domain."""
        return cls(delta=delta, **asdict(found) | {"warnings": list(found.warnings)})


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

    @classmethod
    def of(cls, cost: DomainLaplaceCost) -> "LaplaceCost":
        """Convert from the domain."""
        rdp = None if cost.epsilon_rdp is None else json_number(cost.epsilon_rdp)
        return cls(**asdict(cost) | {"epsilon_rdp": rdp, "warnings": list(cost.warnings)})


def _solution(found: Solution, delta: float) -> dict[str, Any]:
    return {
        "reachable": found.value is not None,
        "event": None if found.event is None else event_to_dict(found.event),
        "epsilon": found.epsilon,
        "delta": delta,
        "optimal_order": found.optimal_order,
        "warnings": list(found.warnings),
    }
