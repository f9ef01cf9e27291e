"""Stateless planning on the wire: what is answered."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from app.accounting.events import event_to_dict
from app.accounting.orders import PURE
from app.api.schemas.common import AnsweredEvent, ExtendedNumber, Output
from app.api.schemas.planning_examples import (
    DELTA_EXAMPLE,
    EPSILON_EXAMPLE,
    LAPLACE_EXAMPLE,
    MOST_STEPS_EXAMPLE,
    NOISE_MULTIPLIER_EXAMPLE,
    SAMPLING_PROBABILITY_EXAMPLE,
    TRAJECTORY_EXAMPLE,
)
from app.service.json_numbers import json_finite, json_number
from app.service.planning.calibration import Solution, Steps
from app.service.planning.costs import AccountantReading, PlanCost, Trajectory
from app.service.planning.laplace import LaplaceCost as DomainLaplaceCost

OptimalOrder = Annotated[ExtendedNumber | None, BeforeValidator(lambda order: "Infinity" if order == PURE else order)]
"""A Rényi order; at infinity the epsilons of pure mechanisms are added up."""

AccountantName = Literal["rdp", "adaptive", "rdp_classic", "zcdp", "analytic_gaussian"]


class AccountantEpsilon(Output):
    """The epsilon that one way of accounting proves."""

    name: AccountantName
    epsilon: ExtendedNumber
    optimal_order: OptimalOrder = Field(default=None, description="Null for a way without orders.")
    note: str

    @classmethod
    def of(cls, reading: AccountantReading) -> "AccountantEpsilon":
        """A reading as it is answered."""
        return cls(
            name=reading.name,
            **json_finite(epsilon=reading.value),
            optimal_order=reading.optimal_order,
            note=reading.note,
        )


class AccountantDelta(Output):
    """The delta that one way of accounting proves."""

    name: AccountantName
    delta: float
    optimal_order: OptimalOrder = Field(default=None, description="Null for a way without orders.")
    note: str

    @classmethod
    def of(cls, reading: AccountantReading) -> "AccountantDelta":
        """A reading as it is answered."""
        return cls(name=reading.name, delta=reading.value, optimal_order=reading.optimal_order, note=reading.note)


class EpsilonEstimate(Output):
    """What the plan costs."""

    model_config = ConfigDict(json_schema_extra={"examples": [EPSILON_EXAMPLE]})

    epsilon: ExtendedNumber
    delta: float
    optimal_order: OptimalOrder = Field(
        description='The Rényi order at which the bound is smallest; at "Infinity" '
        "the epsilons of pure mechanisms are added up."
    )
    accountants: list[AccountantEpsilon] = Field(
        description="The same plan by several ways of accounting, those that apply, to compare with other tools."
    )
    warnings: list[str]

    @classmethod
    def of(cls, cost: PlanCost) -> "EpsilonEstimate":
        """A plan's cost as it is answered."""
        return cls(
            **json_finite(epsilon=cost.epsilon),
            delta=cost.delta,
            optimal_order=cost.optimal_order,
            accountants=[AccountantEpsilon.of(reading) for reading in cost.accountants],
            warnings=list(cost.warnings),
        )


class DeltaEstimate(Output):
    """What the plan costs."""

    model_config = ConfigDict(json_schema_extra={"examples": [DELTA_EXAMPLE]})

    delta: float = Field(description="1 if nothing is proven at this epsilon.")
    epsilon: float
    optimal_order: OptimalOrder = Field(
        description='The Rényi order at which the bound is smallest; at "Infinity" '
        "the epsilons of pure mechanisms are added up."
    )
    accountants: list[AccountantDelta] = Field(
        description="The same plan by several ways of accounting, those that apply, to compare with other tools."
    )
    warnings: list[str]

    @classmethod
    def of(cls, cost: PlanCost) -> "DeltaEstimate":
        """A plan's cost as it is answered."""
        return cls(
            delta=cost.delta,
            epsilon=cost.epsilon,
            optimal_order=cost.optimal_order,
            accountants=[AccountantDelta.of(reading) for reading in cost.accountants],
            warnings=list(cost.warnings),
        )


class EpsilonTrajectoryPoint(Output):
    """What the plan has cost after so many steps."""

    step: int = Field(description="How many steps were taken, from 1.")
    epsilon: ExtendedNumber


class EpsilonTrajectory(Output):
    """What the plan costs on its way: the first step, the last, and some spread evenly between them."""

    model_config = ConfigDict(json_schema_extra={"examples": [TRAJECTORY_EXAMPLE]})

    points: list[EpsilonTrajectoryPoint]
    steps: int = Field(description="How many the plan has in all.")
    delta: float
    warnings: list[str]

    @classmethod
    def of(cls, found: Trajectory) -> "EpsilonTrajectory":
        """A plan's way as it is answered."""
        points = [
            EpsilonTrajectoryPoint(step=point.step, **json_finite(epsilon=point.epsilon)) for point in found.points
        ]
        return cls(points=points, steps=found.steps, delta=found.delta, warnings=list(found.warnings))


class CalibrationEstimate(Output):
    """What makes the plan fit."""

    reachable: bool = Field(description="Whether any number is enough; if not, a warning says why.")
    event: AnsweredEvent | None = Field(description="The event with this number; null if none is enough.")
    epsilon: float | None = Field(description="Of the whole plan with this number, if it is fixed in advance.")
    delta: float
    optimal_order: OptimalOrder = Field(description="The Rényi order at which that bound is smallest.")
    warnings: list[str]


class NoiseMultiplierEstimate(CalibrationEstimate):
    """The least noise with which the plan fits."""

    model_config = ConfigDict(json_schema_extra={"examples": [NOISE_MULTIPLIER_EXAMPLE]})

    noise_multiplier: float | None = Field(
        description="Six digits, rounded up: the next number below does not fit. Null if none is enough."
    )

    @classmethod
    def of(cls, found: Solution, delta: float) -> "NoiseMultiplierEstimate":
        """A solution as it is answered."""
        return cls(noise_multiplier=found.value, **_solution(found, delta))


class SamplingProbabilityEstimate(CalibrationEstimate):
    """The most sampling with which the plan fits."""

    model_config = ConfigDict(json_schema_extra={"examples": [SAMPLING_PROBABILITY_EXAMPLE]})

    sampling_probability: float | None = Field(
        description="Six digits, rounded down: the next number above does not fit. Null if none is small enough."
    )

    @classmethod
    def of(cls, found: Solution, delta: float) -> "SamplingProbabilityEstimate":
        """A solution as it is answered."""
        return cls(sampling_probability=found.value, **_solution(found, delta))


class MaxStepsEstimate(Output):
    """How many steps fit."""

    model_config = ConfigDict(json_schema_extra={"examples": [MOST_STEPS_EXAMPLE]})

    steps: int = Field(description="The most that do not break the target; one more would.")
    epochs: int | None = Field(description="Whole epochs in these steps; null without `steps_per_epoch`.")
    epsilon: float | None = Field(
        description="Of so many steps and of what is planned besides; null if that alone breaks the target."
    )
    epsilon_after_epochs: float | None = Field(description="Of the whole epochs and of what is planned besides.")
    delta: float
    optimal_order: OptimalOrder = Field(description="The Rényi order at which `epsilon` is smallest.")
    warnings: list[str]

    @classmethod
    def of(cls, found: Steps, delta: float) -> "MaxStepsEstimate":
        """A number of steps as it is answered."""
        return cls(delta=delta, **asdict(found) | {"warnings": list(found.warnings)})


class LaplaceCost(Output):
    """Laplace noise, and what releases with it cost."""

    model_config = ConfigDict(json_schema_extra={"examples": [LAPLACE_EXAMPLE]})

    scale: float = Field(description="b: the noise's density falls like exp(-|x| / b).")
    bound: float = Field(description="The noise's absolute value in one coordinate is below it with `probability`.")
    probability: float
    noise_multiplier: float = Field(description="Scale over sensitivity: what a `laplace` event is charged by.")
    epsilon: float = Field(description="Of one release; pure, no delta.")
    epsilon_basic: float = Field(description="Of all releases; pure, their sum.")
    epsilon_rdp: ExtendedNumber | None = Field(description="Of all releases at delta; null without one.")
    optimal_order: OptimalOrder = Field(default=None, description="The Rényi order at which `epsilon_rdp` is smallest.")
    warnings: list[str]

    @classmethod
    def of(cls, cost: DomainLaplaceCost) -> "LaplaceCost":
        """Noise and its cost as they are answered."""
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
