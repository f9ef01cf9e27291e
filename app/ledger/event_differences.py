"""The parameters in which two events differ by more than their last place."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.accounting.events import DpEvent, type_name
from app.accounting.pld.margins import MARGIN

Value = float | str | None


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """A parameter of an event that is not as planned."""

    parameter: str
    planned: Value
    sent: Value

    def facts(self) -> dict[str, Any]:
        """Get the fields recorded with a decision."""
        return asdict(self)


def differing_parameters(planned: DpEvent, sent: DpEvent) -> Iterator[PlanDifference]:
    """List the parameters that differ by more than the last place; `type` if the events are of different kinds."""
    if type(planned) is not type(sent):
        yield PlanDifference("type", type_name(planned), type_name(sent))
        return
    for field in fields(planned):
        one, other = getattr(planned, field.name), getattr(sent, field.name)
        if isinstance(one, DpEvent) and isinstance(other, DpEvent):
            yield from differing_parameters(one, other)
        elif isinstance(one, float) and isinstance(other, float):
            if abs(one - other) > MARGIN * abs(one):
                yield PlanDifference(field.name, one, other)
        elif one != other:
            yield PlanDifference(field.name, _value(one), _value(other))


def _value(value: object) -> Value:
    return value if isinstance(value, int | float | str) or value is None else _listed(value)


def _listed(value: object) -> str:
    each = value if isinstance(value, tuple) else (value,)
    return ", ".join(type_name(one) if isinstance(one, DpEvent) else str(one) for one in each)
