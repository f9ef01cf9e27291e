"""Schemas of alerts, forecasts, receivers and deliveries."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import TypeAliasType

from app.api.schemas.accounts import AvailableEpsilon
from app.api.schemas.common import (
    EXAMPLE_BUDGET_ID,
    EXAMPLE_POPULATION_ID,
    Body,
    Output,
    Page,
    Reference,
    example,
)
from app.ledger.accounts.alerts import LARGEST_THRESHOLD, MOST_THRESHOLDS, AlertType, DeliveryStatus
from app.ledger.accounts.alerts import AlertSettings as DomainAlertSettings
from app.ledger.accounts.receivers import ReceiverKind
from app.ledger.names import EMAIL_PATTERN, MAX_EMAIL_LENGTH, MAX_URL_LENGTH
from app.service.alerts.forecasts import PathForecast
from app.service.alerts.receivers import Subscription

_RECEIVER_ID = "rcv_19aa5b3c4d9d2e1f0a314253647"
_ALERT_ID = "evt_19aa5b3c4dae3f201b425364758"
_DELIVERY_ID = "dlv_19aa5b3c4dbf40312c536475869"
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="  # noqa: S105 - an example of one

RECEIVER_EXAMPLE: dict[str, Any] = {
    "id": _RECEIVER_ID,
    "kind": "webhook",
    "addresses": [],
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
    "receiver": _RECEIVER_ID,
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


if TYPE_CHECKING:
    SubscribedAlertType: TypeAlias = str
else:
    SubscribedAlertType = TypeAliasType(
        "SubscribedAlertType", Literal[tuple(kind.value for kind in AlertType if kind is not AlertType.TEST)]
    )
"""Every type of alert except tests, which are always delivered."""


MOST_ADDRESSES: Final = 20

MailAddress = Annotated[str, Field(pattern=EMAIL_PATTERN, max_length=MAX_EMAIL_LENGTH)]


class CreateReceiver(Body):
    """A new receiver."""

    model_config = example(
        {"kind": "webhook", "url": "https://alerts.hospital.example/privacy", "account": "mimic/icu-team"},
        {
            "kind": "email",
            "addresses": ["privacy-office@hospital.example"],
            "types": ["proposal.opened", "run.pending"],
        },
    )

    kind: Annotated[ReceiverKind, Field(strict=False)] = Field(
        default=ReceiverKind.WEBHOOK,
        description=" ".join(f"`{kind}`: {kind.form.gets}." for kind in ReceiverKind),
    )
    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_URL_LENGTH,
        description="Where to, https only; of a chat, its incoming webhook or workflow. Required unless `email`.",
    )
    addresses: list[MailAddress] = Field(
        default=[], max_length=MOST_ADDRESSES, description="Mail addresses; required for `email`."
    )
    types: list[SubscribedAlertType] = Field(
        default=[], max_length=len(AlertType), description="Types of alerts; empty: all."
    )
    account: Reference | None = Field(
        default=None, description="Only alerts about this account (id or path) or accounts under it."
    )

    @model_validator(mode="after")
    def _has_one_destination(self) -> Self:
        by_mail = self.kind.form.by_mail
        if by_mail == (self.url is not None) or by_mail != bool(self.addresses):
            has = "`addresses` and no `url`" if by_mail else "a `url` and no `addresses`"
            raise ValueError(f"a receiver of the kind `{self.kind}` has {has}")
        return self

    def subscription(self) -> Subscription:
        """Convert to the domain."""
        addresses, types = dict.fromkeys(self.addresses), dict.fromkeys(self.types)
        return Subscription(self.kind, self.url, tuple(addresses), tuple(map(AlertType, types)), self.account)


class RotateReceiverSecret(Body):
    """A rotation of a receiver's secret."""

    model_config = example({"overlap_seconds": 86400})

    overlap_seconds: int = Field(
        default=86_400, ge=0, le=7 * 86_400, description="Seconds during which the previous secret signs too."
    )


class Receiver(Output):
    """A receiver, without its secret."""

    model_config = example(RECEIVER_EXAMPLE)

    id: str
    kind: ReceiverKind
    url: str | None = Field(validation_alias="shown_url", description="Masked unless `webhook`; null for `email`.")
    addresses: list[str] = Field(description="Mail addresses; empty unless `email`.")
    types: list[str] = Field(description="Types of alerts; empty: all.")
    account: str | None = Field(
        validation_alias="account_id", description="Only alerts about this account or accounts under it; null: all."
    )
    previous_secret_expires_at: datetime | None = Field(description="Expiry of the previous secret, or null.")
    created_at: datetime
    disabled_at: datetime | None = Field(description="Null: active.")
    disabled_reason: str | None


class CreatedReceiver(Receiver):
    """A receiver with its secret, which is shown once."""

    model_config = example(RECEIVER_EXAMPLE | {"secret": _SECRET})

    secret: str | None = Field(description="For a Standard Webhooks library at the receiver; null unless `webhook`.")


class ReceiverPage(Page[Receiver]):
    """Receivers, newest first."""


class Alert(Output):
    """An alert."""

    model_config = example(ALERT_EXAMPLE)

    id: str = Field(description="Also the webhook-id header of its deliveries.")
    type: AlertType
    account: str | None = Field(
        validation_alias="account_id", description="The account of the alert; null: the organisation itself, or a test."
    )
    data: dict[str, Any] = Field(validation_alias="payload")
    created_at: datetime


class AlertPage(Page[Alert]):
    """Alerts, newest first."""


class Delivery(Output):
    """A delivery of an alert to a receiver."""

    model_config = example(DELIVERY_EXAMPLE)

    id: str
    receiver: str = Field(validation_alias="receiver_id")
    alert: str = Field(validation_alias="alert_id")
    alert_type: AlertType
    status: DeliveryStatus = Field(description="`given_up`: the receiver was disabled before acknowledgement.")
    attempts: int
    next_attempt_at: datetime | None = Field(validation_alias="due_at", description="Null unless pending.")
    last_attempt_at: datetime | None
    last_status: int | None = Field(description="Status of the last response, by HTTP or SMTP, or null.")
    last_error: str | None = Field(description="Why the last attempt failed, or which mail addresses it left out.")
    delivered_at: datetime | None = Field(description="Last acknowledgement; it may be pending again.")
    created_at: datetime


class DeliveryPage(Page[Delivery]):
    """Deliveries, newest first."""


class ReplaceAlertSettings(Body):
    """New alert settings of an account."""

    model_config = example({"thresholds": [0.5, 0.9], "forecast_days": 14})

    thresholds: list[Annotated[float, Field(gt=0, le=LARGEST_THRESHOLD)]] = Field(
        max_length=MOST_THRESHOLDS,
        description="Increasing shares of the limit's epsilon that create alerts; empty: none.",
    )
    forecast_days: int = Field(
        default=30,
        ge=0,
        le=3650,
        description="Alert if the limit is forecast to be exhausted within so many days; 0: never.",
    )

    def domain(self) -> DomainAlertSettings:
        """Convert to the domain."""
        return DomainAlertSettings(tuple(self.thresholds), self.forecast_days)


class AlertSettings(Output):
    """Alert settings of an account."""

    model_config = example({"thresholds": [0.5, 0.8, 1.0], "forecast_days": 30})

    thresholds: list[float]
    forecast_days: int


class LimitReached(Output):
    """The first limit along an account's path that is reached at the present pace."""

    account: str
    account_path: str
    exhaustion_at: datetime


class Forecast(Output):
    """Forecast of when an account's limit is exhausted."""

    model_config = example(
        {
            "account": EXAMPLE_BUDGET_ID,
            "utilisation": 0.61,
            "utilisation_per_day": 0.0125,
            "exhaustion_at": "2026-12-22T14:24:00Z",
            "observed_since": "2026-11-14T09:00:00Z",
            "available": {"epsilon": 0.6812, "account": EXAMPLE_BUDGET_ID, "account_path": "mimic/icu-team"},
            "first_limit_reached": {
                "account": EXAMPLE_POPULATION_ID,
                "account_path": "mimic",
                "exhaustion_at": "2026-12-09T10:00:00Z",
            },
        }
    )

    account: str
    utilisation: float = Field(
        description="Used share of the planned steps, or of the threshold at the order that is exhausted last: the "
        "smaller of the two. Unlike epsilon it grows linearly with a steady workload; from 1 on nothing is admitted."
    )
    utilisation_per_day: float | None = Field(description="Pace of the last seven days; null with too little data.")
    exhaustion_at: datetime | None = Field(description="Null: never at this pace, already exhausted, or unknown.")
    observed_since: datetime | None = Field(description="Start of the observed period.")
    available: AvailableEpsilon = Field(
        description="What can still be taken now. It is 0 if a limit above is used up, whatever this account's own "
        "forecast is."
    )
    first_limit_reached: LimitReached | None = Field(
        description="The first limit to be reached along the path, of this account or one above it; null: none at this "
        "pace. Parallel accounts and those above them are left out, because their pace is that of their fullest part."
    )

    @classmethod
    def of(cls, found: PathForecast) -> Self:
        """Convert from the domain."""
        seen, first = found.own, None
        if found.first is not None:
            account, at = found.first
            first = LimitReached(account=account.id, account_path=account.path, exhaustion_at=at)
        return cls(
            account=found.account_id,
            utilisation=seen.forecast.share,
            utilisation_per_day=seen.forecast.per_day,
            exhaustion_at=seen.exhaustion_at,
            observed_since=seen.since,
            available=AvailableEpsilon.of(found.available),
            first_limit_reached=first,
        )
