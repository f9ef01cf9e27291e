"""Serialization of request members, with checks of their types."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from math import inf
from typing import cast

from epsilon_ledger._wire.coercion import items, whole
from epsilon_ledger._wire.events import Event, EventCount, PlannedEvents
from epsilon_ledger._wire.models import DataBlock, Limit, ParallelComposition


def wire_limit(limit: Limit | None) -> dict[str, float] | None:
    """Serialize a limit, or None.

    Raises:
        TypeError: it has another type.
    """
    if limit is None:
        return None
    _require("limit", limit, Limit, "Limit(epsilon=3.0, delta=1e-5), Limit(rho=0.5) or Limit(mu=1.0)")
    units = {"epsilon": limit.epsilon, "rho": limit.rho, "mu": limit.mu}
    members = {name: value for name, value in units.items() if value != inf}
    return members | ({"delta": limit.delta} if limit.delta or "epsilon" in members else {})


def wire_planned(planned: PlannedEvents | None) -> list[dict[str, object]] | None:
    """Serialize a plan, or None.

    Raises:
        TypeError: it is not a sequence of events, with or without counts.
    """
    if planned is None:
        return None
    return [_planned_event(item) for item in items("planned", planned, "[(gaussian(1.1), 1000)]")]


def wire_budgets(budgets: Sequence[str] | None) -> list[str] | None:
    """Serialize references to budgets, or None.

    Raises:
        TypeError: it is not a list of them; a single one is the argument `budget`.
    """
    return None if budgets is None else items("budgets", budgets, '["mimic/icu-team"]')


def wire_events(events: Sequence[EventCount], name: str = "events") -> list[EventCount]:
    """Serialize events with their counts.

    Raises:
        TypeError: it is not a list of them.
    """
    example = '[{"event": gaussian(1.1), "count": 1000}]'
    return [_event_count(name, item, example) for item in items(name, events, example)]


def _event_count(name: str, item: object, example: str) -> EventCount:
    match item:
        case {"event": event, "count": count}:
            return EventCount(event=cast("Event", event), count=whole("count", cast("int", count)))
    raise TypeError(f"{name} must be a list of events with counts, such as {example}, not of {item!r}.")


def _planned_event(item: object) -> dict[str, object]:
    match item:
        case {"type": _}:
            return {"event": item}
        case (Mapping() as event, count) | {"event": Mapping() as event, "count": count} if count is not None:
            return {"event": event, "count": whole("count", cast("int", count))}
        case {"event": Mapping() as event}:
            return {"event": event}
    raise TypeError(f"planned holds events, or events with counts, such as (gaussian(1.1), 1000), not {item!r}.")


def wire_composition(composition: ParallelComposition | None) -> dict[str, object]:
    """Serialize the declaration of disjoint budgets; None gives no members.

    Raises:
        TypeError: it has another type.
    """
    if composition is None:
        return {}
    _require(
        "composition", composition, ParallelComposition, 'ParallelComposition("each patient is treated at one site")'
    )
    return {
        "composition": "parallel",
        "attestation": composition.attestation,
        "max_partitions_per_unit": composition.max_partitions_per_unit,
        "replacement_assumption": composition.replacement_assumption,
    }


def wire_data_block(block: DataBlock | None) -> dict[str, object] | None:
    """Serialize the data of a budget, or None.

    Raises:
        TypeError: it or a timestamp of it has another type.
    """
    if block is None:
        return None
    _require("block", block, DataBlock, "DataBlock(data_from, data_to)")
    members: dict[str, object] = {
        "data_from": wire_timestamp("data_from", block.data_from),
        "data_to": wire_timestamp("data_to", block.data_to),
    }
    return members if block.label is None else members | {"label": block.label}


def wire_timestamp(name: str, moment: datetime | None) -> str | None:
    """Serialize a timestamp, or None.

    Raises:
        TypeError: it is not a datetime.
    """
    if moment is None:
        return None
    _require(name, moment, datetime, "datetime(2027, 1, 1, tzinfo=UTC)")
    return moment.isoformat()


def wire_date(name: str, day: date) -> str:
    """Serialize a day.

    Raises:
        TypeError: it is not a date, or has a time.
    """
    if isinstance(day, datetime):
        raise TypeError(f"{name} must be a date without a time, such as date(2027, 1, 1), not {day!r}.")
    _require(name, day, date, "date(2027, 1, 1)")
    return day.isoformat()


def _require(name: str, value: object, kind: type, example: str) -> None:
    """Require the type of an argument; `example` shows a valid value.

    Raises:
        TypeError: it has another type.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, such as {example}, not {value!r}.")
