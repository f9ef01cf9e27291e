"""Items of a decision as rows: its first item is in its own row, the others in one row per event.

Such a row has the index of the event's first item, the sum of its counts, and its repeats: the indexes of its other
items as JSON, each with its count unless that is 1. The row (1, event, 8, "[3,[5,6]]") has the items 1, 3 and 5
with the counts 1, 1 and 6.
"""

import json
from collections.abc import Sequence
from math import inf
from typing import Any, Final

from sqlalchemy import ColumnElement, Row

from app.ledger.step_events import MAX_COUNT
from app.persistence.tables import decision_events
from app.persistence.tolerant_rows import DAMAGED, DamagedCell, Report, refuse

IndexedItem = tuple[int, str, int]
"""An item's index in its decision, event fingerprint and count."""

COLUMNS: Final[Sequence[ColumnElement[Any]]] = (
    decision_events.c.item,
    decision_events.c.event_fingerprint.label("further_event"),
    decision_events.c.count.label("further_count"),
    decision_events.c.repeats,
)
"""Columns that `read_items` needs."""


def group_items(items: Sequence[tuple[str, int]]) -> list[tuple[int, str, int, str]]:
    """Group the items after the first by event, in the order of `COLUMNS`."""
    rows: dict[str, list[Any]] = {}
    for index, (event, count) in enumerate(items[1:], 1):
        row = rows.get(event)
        if row is None:
            rows[event] = [index, event, count, []]
        else:
            row[2] += count
            row[3].append(index if count == 1 else [index, count])
    # A list of numbers reads as JSON; the encoder takes three times as long for a short one.
    return [(index, event, count, str(repeats).replace(" ", "")) for index, event, count, repeats in rows.values()]


def read_items(row: Row[Any], *, below: float = inf, report: Report = refuse) -> list[IndexedItem]:
    """List the items of a row whose index is below a number, or report the row's repeats as damaged."""
    try:
        return _items(row.item, row.further_event, row.further_count, json.loads(row.repeats), below)
    except DAMAGED as fault:
        cells = row._mapping  # noqa: SLF001 - public, despite its name
        key = {each.name: cells[each.name] for each in decision_events.primary_key if each.name in cells}
        report(DamagedCell(decision_events.name, "repeats", key, str(fault)))
        return []


def _items(first: int, event: str, total: int, repeats: Any, below: float) -> list[IndexedItem]:  # noqa: ANN401 - JSON
    if not isinstance(repeats, list):
        raise TypeError("it is not a list")
    items = [(first, event, total - sum([1 if type(each) is int else each[1] for each in repeats]))]
    for each in repeats:
        index, count = (each, 1) if type(each) is int else each
        if type(index) is not int or type(count) is not int or not 1 <= count <= MAX_COUNT:
            raise ValueError("it does not hold indexes and counts")
        if index >= below:
            break
        items.append((index, event, count))
    return items
