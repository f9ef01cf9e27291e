"""The first events of decisions, as many as there is room for: a chart's points may hold a thousand each."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, func, select

from app.ledger.accounts import StepEvent
from app.persistence.repositories.dp_events import read_event
from app.persistence.tables import decision_events, dp_events

ROW_ROOM: Final = 400
"""Bytes for which an event is counted besides its description: room for four mebibytes is room for ten thousand events
at the most, which take a tenth of a second to read and write."""


def first_events(
    tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int], room: int
) -> dict[int, tuple[StepEvent, ...]]:
    """What was asked in some of a run's decisions, from the first event on.

    Args:
        tx: reads.
        organisation_id: whose.
        run_id: whose.
        positions: of the decisions.
        room: bytes for all of them together; each decision gets the same.

    Returns:
        For each position its events in order: all of them, or the first ones if there is no room for more; perhaps
        none.
    """
    share = room // max(1, len(positions))
    rows = tx.execute(
        select(decision_events.c.position, decision_events.c.event_fingerprint, decision_events.c.count.label("times"))
        .where(
            decision_events.c.organisation_id == organisation_id,
            decision_events.c.run_id == run_id,
            decision_events.c.position.in_(positions),
            decision_events.c.item < share // ROW_ROOM,
        )
        .order_by(decision_events.c.position, decision_events.c.item)
    ).all()
    known = dp_events.c.organisation_id == organisation_id
    asked = {row.event_fingerprint for row in rows}
    lengths = select(dp_events.c.fingerprint, func.length(dp_events.c.canonical_json).label("size"))
    lengths = lengths.where(known, dp_events.c.fingerprint.in_(asked))
    sizes = {row.fingerprint: row.size for row in tx.execute(lengths)}
    left = dict.fromkeys(positions, share)
    fitting = []
    for row in rows:
        left[row.position] -= ROW_ROOM + sizes[row.event_fingerprint]
        if left[row.position] >= 0:
            fitting.append(row)
    shown = {row.event_fingerprint for row in fitting}
    texts = select(dp_events.c.fingerprint, dp_events.c.canonical_json).where(known, dp_events.c.fingerprint.in_(shown))
    events = {row.fingerprint: read_event(row.canonical_json, row.fingerprint) for row in tx.execute(texts)}
    steps: dict[int, list[StepEvent]] = {position: [] for position in positions}
    for row in fitting:
        steps[row.position].append(StepEvent(events[row.event_fingerprint], row.times))
    return {position: tuple(first) for position, first in steps.items()}
