"""Alerts, forecasts, webhooks and deliveries on the wire."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field

from app.api.schemas.common import Body, Output, Page, Reference
from app.api.schemas.examples import EXAMPLE_BUDGET_ID
from app.ledger.alert_thresholds import LARGEST_THRESHOLD, MOST_THRESHOLDS
from app.persistence.repositories.alert_settings import AlertSettings as DomainAlertSettings
from app.persistence.repositories.alerts import Alert as DomainAlert
from app.persistence.repositories.alerts import AlertType, DeliveryStatus
from app.persistence.repositories.deliveries import Delivery as DomainDelivery
from app.persistence.repositories.webhooks import Webhook as DomainWebhook
from app.persistence.tables import MAX_URL_LENGTH
from app.service.alerts.forecasts import Outlook
from app.service.alerts.webhooks import Subscription

_WEBHOOK_ID = "whk_019aa5b3c4d9d2e1f0a314253647"
_ALERT_ID = "evt_019aa5b3c4dae3f201b425364758"
_DELIVERY_ID = "dlv_019aa5b3c4dbf40312c536475869"
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="  # noqa: S105 - an example of one

WEBHOOK_EXAMPLE: dict[str, Any] = {
    "id": _WEBHOOK_ID,
    "url": "https://alerts.hospital.example/privacy",
    "types": ["account.threshold_reached", "run.overdrawn"],
    "account": EXAMPLE_BUDGET_ID,
    "previous_secret_expires_at": "2026-11-22T09:00:00Z",
    "created_at": "2026-11-21T09:00:00Z",
    "disabled_at": "2026-11-23T17:45:10Z",
    "disabled_reason": "The receiver answered 410 Gone.",
}
ALERT_EXAMPLE: dict[str, Any] = {
    "id": _ALERT_ID,
    "type": "account.threshold_reached",
    "account": EXAMPLE_BUDGET_ID,
    "data": {
        "account": EXAMPLE_BUDGET_ID,
        "account_path": "mimic/icu-team",
        "account_kind": "budget",
        "epsilon": 2.4012,
        "epsilon_limit": 3.0,
        "delta": 1e-5,
        "threshold": 0.8,
    },
    "created_at": "2026-11-21T09:30:00Z",
}
DELIVERY_EXAMPLE: dict[str, Any] = {
    "id": _DELIVERY_ID,
    "webhook": _WEBHOOK_ID,
    "alert": _ALERT_ID,
    "alert_type": "account.threshold_reached",
    "status": "pending",
    "attempts": 2,
    "next_attempt_at": "2026-11-21T09:30:36Z",
    "last_attempt_at": "2026-11-21T09:30:06Z",
    "last_status": 500,
    "last_error": "The answer was 500.",
    "delivered_at": "2026-11-21T09:30:01Z",
    "created_at": "2026-11-21T09:30:00Z",
}

Subscribed = Literal[
    "account.threshold_reached",
    "account.exhausted",
    "account.exhaustion_forecast",
    "run.overdrawn",
    "reservation.stale",
    "reservation.forfeited",
]
"""Every type of alert but the test, which its webhook always gets."""


class CreateWebhook(Body):
    """A new webhook."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "https://alerts.hospital.example/privacy", "account": "mimic/icu-team"}]
        }
    )

    url: str = Field(min_length=1, max_length=MAX_URL_LENGTH, description="Where alerts are posted: https only.")
    types: list[Subscribed] = Field(
        default=[], max_length=len(AlertType), description="Which alerts; empty: every type."
    )
    account: Reference | None = Field(
        default=None, description="Only what is about this account or lies beneath it: an id, or a path of names."
    )

    def subscription(self) -> Subscription:
        """What the webhook is told."""
        return Subscription(self.url, tuple(map(AlertType, dict.fromkeys(self.types))), self.account)


class RotateWebhookSecret(Body):
    """A new secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_seconds": 86400}]})

    overlap_seconds: int = Field(
        default=86_400,
        ge=0,
        le=7 * 86_400,
        description="For how long everything is signed with the secret before as well.",
    )


class Webhook(Output):
    """A webhook; its secret was shown once."""

    model_config = ConfigDict(json_schema_extra={"examples": [WEBHOOK_EXAMPLE]})

    id: str
    url: str
    types: list[str] = Field(description="Which alerts are sent; empty: every type.")
    account: str | None = Field(description="Only what is about this account or lies beneath it; null: all.")
    previous_secret_expires_at: datetime | None = Field(
        description="Until when the secret before is used as well; null: there is none."
    )
    created_at: datetime
    disabled_at: datetime | None = Field(description="Since when nothing is sent; null: alerts are.")
    disabled_reason: str | None

    @classmethod
    def of(cls, webhook: DomainWebhook) -> Self:
        """From the domain."""
        return cls(**_shown(webhook))


class CreatedWebhook(Webhook):
    """A webhook with its secret, which is shown this once."""

    model_config = ConfigDict(json_schema_extra={"examples": [WEBHOOK_EXAMPLE | {"secret": _SECRET}]})

    secret: str = Field(description="For a Standard Webhooks library at the receiver.")

    @classmethod
    def of(cls, webhook: DomainWebhook) -> Self:
        """From the domain."""
        return cls(**_shown(webhook), secret=webhook.secret)


class WebhookPage(Page[Webhook]):
    """Webhooks in the order of their making."""


class Alert(Output):
    """Something that was told."""

    model_config = ConfigDict(json_schema_extra={"examples": [ALERT_EXAMPLE]})

    id: str = Field(description="The header webhook-id of every delivery of it.")
    type: AlertType
    account: str | None = Field(description="What it is about; null: a test.")
    data: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, alert: DomainAlert) -> Self:
        """From the domain."""
        return cls(
            id=alert.id,
            type=alert.type,
            account=alert.account_id,
            data=dict(alert.payload),
            created_at=alert.created_at,
        )


class AlertPage(Page[Alert]):
    """Alerts, the newest first."""


class Delivery(Output):
    """An alert on its way to a webhook."""

    model_config = ConfigDict(json_schema_extra={"examples": [DELIVERY_EXAMPLE]})

    id: str
    webhook: str
    alert: str
    alert_type: AlertType
    status: DeliveryStatus = Field(description="`given_up` where the webhook was disabled before it was acknowledged.")
    attempts: int
    next_attempt_at: datetime | None = Field(description="Null: it is not pending.")
    last_attempt_at: datetime | None
    last_status: int | None = Field(description="The HTTP status of the last answer; null: none came.")
    last_error: str | None
    delivered_at: datetime | None = Field(description="When it was acknowledged last; it may be pending again.")
    created_at: datetime

    @classmethod
    def of(cls, delivery: DomainDelivery) -> Self:
        """From the domain."""
        pending = delivery.status is DeliveryStatus.PENDING
        return cls(
            id=delivery.id,
            webhook=delivery.webhook_id,
            alert=delivery.alert_id,
            alert_type=AlertType(delivery.alert_type),
            status=delivery.status,
            attempts=delivery.attempts,
            next_attempt_at=delivery.next_attempt_at if pending else None,
            last_attempt_at=delivery.last_attempt_at,
            last_status=delivery.last_status,
            last_error=delivery.last_error,
            delivered_at=delivery.delivered_at,
            created_at=delivery.created_at,
        )


class DeliveryPage(Page[Delivery]):
    """Deliveries, the newest first."""


class ReplaceAlertSettings(Body):
    """Of what an account tells."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"thresholds": [0.5, 0.9], "forecast_days": 14}]})

    thresholds: list[Annotated[float, Field(gt=0, le=LARGEST_THRESHOLD)]] = Field(
        max_length=MOST_THRESHOLDS, description="Shares of the limit's epsilon, increasing; empty: none is told."
    )
    forecast_days: int = Field(
        default=30, ge=0, le=3650, description="Tell when the limit is expected within so many days; 0: never."
    )

    def tells(self) -> DomainAlertSettings:
        """As the ledger knows it."""
        return DomainAlertSettings(tuple(self.thresholds), self.forecast_days)


class AlertSettings(Output):
    """Of what an account tells."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"thresholds": [0.5, 0.8, 1.0], "forecast_days": 30}]})

    thresholds: list[float]
    forecast_days: int

    @classmethod
    def of(cls, tells: DomainAlertSettings) -> Self:
        """From the domain."""
        return cls(thresholds=list(tells.thresholds), forecast_days=tells.forecast_days)


class Forecast(Output):
    """When an account will reach its limit if it goes on as it has."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "account": EXAMPLE_BUDGET_ID,
                    "utilisation": 0.61,
                    "utilisation_per_day": 0.0125,
                    "exhaustion_at": "2026-12-22T14:24:00Z",
                    "observed_since": "2026-11-14T09:00:00Z",
                }
            ]
        }
    )

    account: str
    utilisation: float = Field(
        description="As the filter counts: spent of the threshold at the order that admits longest. Unlike epsilon it "
        "grows evenly with a steady workload; nothing is admitted from 1 on."
    )
    utilisation_per_day: float | None = Field(description="The pace of the last seven days; null: too little is known.")
    exhaustion_at: datetime | None = Field(description="Null: never at this pace, or it has, or nobody knows.")
    observed_since: datetime | None = Field(description="From when on the pace was taken.")

    @classmethod
    def of(cls, account_id: str, seen: Outlook) -> Self:
        """From the domain."""
        return cls(
            account=account_id,
            utilisation=seen.forecast.share,
            utilisation_per_day=seen.forecast.per_day,
            exhaustion_at=seen.exhaustion_at,
            observed_since=seen.since,
        )


def _shown(webhook: DomainWebhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "url": webhook.url,
        "types": list(webhook.types),
        "account": webhook.account_id,
        "previous_secret_expires_at": webhook.previous_secret_expires_at,
        "created_at": webhook.created_at,
        "disabled_at": webhook.disabled_at,
        "disabled_reason": webhook.disabled_reason,
    }
