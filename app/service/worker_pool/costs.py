"""What events cost, for the process that calculates: it loads nothing that talks to a database."""

from collections.abc import Sequence

from app.accounting.curves import RdpCurve
from app.accounting.events import DpEvent, NeighboringRelation
from app.accounting.rdp import event_curve


def price_events(events: Sequence[DpEvent], relation: NeighboringRelation, grid_version: int) -> list[RdpCurve]:
    """Compute what events cost.

    Args:
        events: any.
        relation: which data sets are neighbours.
        grid_version: of the account.

    Returns:
        A curve of one repetition of each.

    Raises:
        UnsupportedEventError: an event has no sound bound under the relation.
    """
    return [event_curve(event, relation, grid_version) for event in events]
