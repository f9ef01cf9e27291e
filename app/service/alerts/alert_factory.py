"""Construction of alerts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from app.ledger.accounts.account import Account
from app.ledger.accounts.alerts import Alert, AlertType, Forecast
from app.ledger.audit import canonical
from app.ledger.runs.reservations import Reservation
from app.service.ids import new_id


def threshold_alerts(account: Account, thresholds: Sequence[float], now: datetime) -> list[Alert]:
    """Build an alert for each reached threshold, deduplicated under the same limit."""
    return [
        _alert(AlertType.THRESHOLD, account, f"{threshold!r} of {_limit(account)}", {"threshold": threshold}, now)
        for threshold in thresholds
    ]


def exhausted_alert(account: Account, run: Account, now: datetime) -> Alert:
    """Build the alert that a run's last charge left no room for another one like it."""
    return _alert(AlertType.EXHAUSTED, account, _limit(account), {"run": run.id, "run_path": run.path}, now)


def forecast_alert(account: Account, days: int, found: Forecast, at: datetime, now: datetime) -> Alert:
    """Build the alert that an account will reach its limit within `days`."""
    facts = {
        "used": found.share,
        "used_per_day": found.per_day,
        "exhaustion_at": at.isoformat(),
        "within_days": days,
    }
    return _alert(AlertType.FORECAST, account, f"{days} days to {_limit(account)}", facts, now)


def make_test_alert(receiver_id: str, now: datetime) -> Alert:
    """Build the alert of a test event."""
    alert_id = new_id("evt", now)
    return Alert(alert_id, AlertType.TEST, None, alert_id, {"receiver": receiver_id}, now)


def schedule_failed_alert(account: Account, block: str, reason: str, now: datetime) -> Alert:
    """Build the alert that the block of an account's schedule with the name `block` was not opened."""
    return _alert(AlertType.BLOCK_SCHEDULE_FAILED, account, block, {"block": block, "detail": reason}, now)


def overdrawn_alert(run: Account, binding: Account, now: datetime) -> Alert:
    """Build the alert that a run reported more than the account `binding` allows."""
    return _alert(AlertType.OVERDRAWN, run, "overdrawn", {"over_limit": _account_payload(binding)}, now)


def stale_reservation_alert(run: Account, reservation: Reservation, silent_since: datetime, now: datetime) -> Alert:
    """Build the alert that a reservation's trainer was silent for half its lease."""
    facts = _of_plan(reservation) | {
        "silent_since": silent_since.isoformat(),
        "expires_at": reservation.expires_at.isoformat(),
    }
    return _alert(AlertType.RESERVATION_STALE, run, reservation.id, facts, now)


def forfeited_alert(run: Account, reservation: Reservation, steps: int, now: datetime, *, lapsed: bool) -> Alert:
    """Build the alert that a reservation ended without its trainer, and its remaining steps were charged.

    The reservation is as it was while active; `lapsed`: whether the lease had expired.
    """
    facts = _of_plan(reservation) | {"steps_forfeited": steps, "lapsed": lapsed}
    return _alert(AlertType.RESERVATION_FORFEITED, run, reservation.id, facts, now)


def granted_alert(run: Account, reservation: Reservation, now: datetime) -> Alert:
    """Build the alert that a reservation that has waited is set aside."""
    assert reservation.created_at is not None, "it was read"
    facts = _of_plan(reservation) | {
        "waited_seconds": round((now - reservation.created_at).total_seconds()),
        "expires_at": reservation.expires_at.isoformat(),
    }
    return _alert(AlertType.RESERVATION_GRANTED, run, reservation.id, facts, now)


def expired_alert(run: Account, reservation: Reservation, now: datetime) -> Alert:
    """Build the alert that a reservation has waited in vain."""
    facts = _of_plan(reservation) | {"wait_until": reservation.expires_at.isoformat()}
    return _alert(AlertType.RESERVATION_EXPIRED, run, reservation.id, facts, now)


def _alert(kind: AlertType, account: Account, occasion: str, facts: dict[str, Any], now: datetime) -> Alert:
    return Alert(new_id("evt", now), kind, account.id, occasion, _account_payload(account) | facts, now)


def _account_payload(account: Account) -> dict[str, Any]:
    payload: dict[str, Any] = {"account": account.id, "account_path": account.path, "account_kind": str(account.kind)}
    if account.limit is not None:
        payload |= {"used": account.used(), "limit": account.limit.facts()}
    return payload


def _of_plan(reservation: Reservation) -> dict[str, Any]:
    return {
        "reservation": reservation.id,
        "lease_seconds": reservation.lease_seconds,
        "steps_reserved": reservation.steps_reserved,
        "steps_used": reservation.steps_used,
    }


def _limit(account: Account) -> str:
    assert account.limit is not None, "only an account with a limit reaches it"
    return canonical(account.limit.facts())
