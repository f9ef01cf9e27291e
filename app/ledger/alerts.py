"""Alerts, the settings that cause them, and their deliveries to webhooks (ADR 0018)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from app.ledger.alert_thresholds import DEFAULT_THRESHOLDS


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """An account's alert settings.

    Args:
        thresholds: increasing shares of its limit's epsilon.
        forecast_days: horizon of the forecast alert; 0 disables it.
    """

    thresholds: tuple[float, ...]
    forecast_days: int


DEFAULT_ALERT_SETTINGS: Final = AlertSettings(DEFAULT_THRESHOLDS, 30)


class AlertType(StrEnum):
    """The types of alerts."""

    THRESHOLD = "account.threshold_reached"
    EXHAUSTED = "account.exhausted"
    FORECAST = "account.exhaustion_forecast"
    OVERDRAWN = "run.overdrawn"
    RESERVATION_STALE = "reservation.stale"
    RESERVATION_FORFEITED = "reservation.forfeited"
    TEST = "webhook.test"


@dataclass(frozen=True, slots=True)
class Alert:
    """A notification that is sent once.

    Args:
        id: lets receivers detect repetitions.
        account_id: the subject; None for a test.
        dedup_key: equal for alerts of an account that are the same.
        payload: JSON members.
    """

    id: str
    type: AlertType
    account_id: str | None
    dedup_key: str
    payload: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AlertFilter:
    """A filter of alerts by type, and by an account and its descendants."""

    kind: AlertType | None
    within: str | None


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of alerts.

    Args:
        types: of alerts; empty: all.
        account_id: limits alerts to this account and its descendants, if set.
        secret: signs alerts; shown only at creation.
        previous_secret: signs, too, until `previous_secret_expires_at` after a rotation.
        disabled_reason: why nothing is sent, if disabled.
    """

    id: str
    url: str
    types: tuple[str, ...]
    account_id: str | None
    secret: str
    created_at: datetime
    previous_secret: str | None = None
    previous_secret_expires_at: datetime | None = None
    disabled_at: datetime | None = None
    disabled_reason: str | None = None

    def wants(self, kind: str, above: Collection[str]) -> bool:
        """Check whether it receives alerts of a kind about an account with these ancestors."""
        return (not self.types or kind in self.types) and (self.account_id is None or self.account_id in above)

    def secrets(self, now: datetime) -> tuple[str, ...]:
        """List the current signing secrets, newest first."""
        if (
            self.previous_secret is None
            or self.previous_secret_expires_at is None
            or now >= self.previous_secret_expires_at
        ):
            return (self.secret,)
        return (self.secret, self.previous_secret)


class DeliveryStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Delivery:
    """An alert's delivery to a webhook.

    Args:
        attempts: number of attempts, including one in progress.
        next_attempt_at: when it is due, if pending.
        last_status: HTTP status of the last response, if any.
        last_error: why the last attempt failed.
        delivered_at: when it was first acknowledged.
    """

    id: str
    webhook_id: str
    alert_id: str
    alert_type: str
    status: DeliveryStatus
    attempts: int
    next_attempt_at: datetime
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime

    @property
    def due_at(self) -> datetime | None:
        """When the next attempt is due; None unless it is pending."""
        return self.next_attempt_at if self.status is DeliveryStatus.PENDING else None
