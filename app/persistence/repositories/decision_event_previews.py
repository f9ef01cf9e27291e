"""Read the first events of decisions within a size limit."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, func, select

from app.ledger.accounts import StepEvent
from app.persistence.repositories.dp_events import read_event
from app.persistence.tables import decision_events, dp_events

ROW_ROOM: Final = 400
"""Bytes counted per event besides its description: 4 MiB then hold at most ten thousand events, which take a tenth of
a second to read and write."""


def first_events(
    tx: Connection, organisation_id: str, run_id: str, positions: Sequence[int], room: int
) -> dict[int, tuple[StepEvent, ...]]:
    """Read the first events of some of a run's decisions, in order.

    The decisions share `room` bytes equally; each gets all of its events or the first that fit, possibly none.
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
