"""Reservations, those that wait included."""

from epsilon_ledger._wire.requests import Call, get, path, post
from epsilon_ledger._wire.reservation_models import Reservation


def get_reservation(reservation_id: str) -> Call[Reservation]:
    """Get a reservation.

    Args:
        reservation_id: its id.

    Returns:
        The reservation; `waiting` is what a waiting reservation waits for.

    Raises:
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(get(path("reservations", reservation_id)), Reservation)


def cancel_reservation(reservation_id: str, *, reason: str) -> Call[Reservation]:
    """Cancel a reservation that waits; a run that has waited for it since its registration is aborted.

    Args:
        reservation_id: its id.
        reason: for the audit log.

    Returns:
        The cancelled reservation.

    Raises:
        ReservationStateConflictError: it does not wait.
        LedgerError: it does not exist, or no response arrived.
    """
    return Call(post(f"{path('reservations', reservation_id)}/cancel", {"reason": reason}), Reservation)


def prioritize_reservation(reservation_id: str, priority: int, *, reason: str) -> Call[Reservation]:
    """Let a reservation that waits be served before all with a lower priority, and after all with a higher one.

    Args:
        reservation_id: its id.
        priority: in -100 ... 100; reservations begin with 0.
        reason: for the audit log.

    Returns:
        The reservation.

    Raises:
        ReservationStateConflictError: it does not wait.
        LedgerError: it does not exist, or no response arrived.
    """
    body = {"priority": priority, "reason": reason}
    return Call(post(f"{path('reservations', reservation_id)}/prioritize", body), Reservation)
