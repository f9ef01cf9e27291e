"""Stateless planning on the wire."""

from pydantic import ConfigDict, Field

from app.api.schemas.common import CountedEvent, Delta, Input, Output, Relation
from app.api.schemas.examples import EXAMPLE_EVENT
from app.service.planning import PlanCost


class EpsilonIn(Input):
    """A plan, fixed in advance."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"events": [{"event": EXAMPLE_EVENT, "count": 5000}], "delta": 1e-5}]}
    )

    events: list[CountedEvent] = Field(min_length=1, description="At most 1,000.")
    delta: Delta
    neighboring_relation: Relation = "add_or_remove_one"


class EpsilonOut(Output):
    """What the plan costs."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "epsilon": 3.847,
                    "epsilon_infinite": False,
                    "delta": 1e-5,
                    "optimal_order": 5.9665,
                    "warnings": [],
                }
            ]
        }
    )

    epsilon: float | None = Field(description="Null if infinite.")
    epsilon_infinite: bool
    delta: float
    optimal_order: float | None = Field(description="The Rényi order at which the bound is smallest.")
    warnings: list[str]

    @classmethod
    def of(cls, cost: PlanCost) -> "EpsilonOut":
        """A plan's cost as it is answered."""
        infinite = cost.epsilon == float("inf")
        return cls(
            epsilon=None if infinite else cost.epsilon,
            epsilon_infinite=infinite,
            delta=cost.delta,
            optimal_order=cost.optimal_order,
            warnings=list(cost.warnings),
        )
