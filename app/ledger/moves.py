"""The move of an organisation from one database to another: at each moment at most one of them decides."""

from dataclasses import dataclass
from enum import StrEnum

from app.ledger.errors import LedgerUnavailableError


class MoveState(StrEnum):
    """The part that a database has in a move.

    Nothing is charged or changed in any of these states. Who uses the organisation finds it where it is leaving, and
    nowhere else.
    """

    LEAVING = "leaving"
    """It is copied from here; the move can still be cancelled."""

    ARRIVING = "arriving"
    """It is copied to here, and not complete or not verified."""

    LEFT = "left"
    """The verified copy is the organisation; the rows that are still here will be deleted."""


@dataclass(frozen=True, slots=True)
class Move:
    """An organisation's move, as one of the two databases knows it.

    Args:
        state: of this database.
        placement: the other database.
        token: of the command that moves it: one that was started later takes the move over.
    """

    state: MoveState
    placement: str
    token: str


class OrganisationMovingError(LedgerUnavailableError):
    """The organisation is being moved; background tasks leave it alone until it goes on in its place."""


def moving_error() -> OrganisationMovingError:
    """Create the error of a request that would change an organisation while it is moved."""
    return OrganisationMovingError(
        "The organisation is being moved to another database. Nothing is charged or changed meanwhile; repeat the "
        "request."
    )
