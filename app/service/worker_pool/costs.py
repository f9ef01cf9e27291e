"""Costs of events for worker processes, without any database import."""

from collections.abc import Sequence

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.rdp import event_curve


def price_events(events: Sequence[DpEvent], relation: NeighboringRelation, grid_version: int) -> list[RdpCurve]:
    """Compute the curve of each event.

    Raises:
        UnsupportedEventError: an event has no sound bound under the relation.
    """
    return [event_curve(event, relation, grid_version) for event in events]
