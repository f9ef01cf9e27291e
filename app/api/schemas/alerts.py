"""Schemas of alerts, forecasts, receivers and deliveries."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import Field, model_validator
from typing_extensions import TypeAliasType

from app.api.schemas.accounts import AvailableShare
from app.api.schemas.common import (
    Body,
    Output,
    Reference,
)
from app.ledger.accounts.alerts import LARGEST_THRESHOLD, MOST_THRESHOLDS, AlertType, DeliveryStatus
from app.ledger.accounts.alerts import AlertSettings as DomainAlertSettings
from app.ledger.accounts.receivers import ReceiverKind
from app.ledger.names import EMAIL_PATTERN, MAX_EMAIL_LENGTH, MAX_URL_LENGTH
from app.service.alerts.forecasts import PathForecast
from app.service.alerts.receivers import Subscription

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

    overlap_seconds: int = Field(
        default=86_400, ge=0, le=7 * 86_400, description="Seconds during which the previous secret signs too."
    )


class Receiver(Output):
    """A receiver, without its secret."""

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

    secret: str | None = Field(description="For a Standard Webhooks library at the receiver; null unless `webhook`.")


class Alert(Output):
    """An alert."""

    id: str = Field(description="Also the webhook-id header of its deliveries.")
    type: AlertType
    account: str | None = Field(
        validation_alias="account_id", description="The account of the alert; null: the organisation itself, or a test."
    )
    data: dict[str, Any] = Field(validation_alias="payload")
    created_at: datetime


class Delivery(Output):
    """A delivery of an alert to a receiver."""

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


class ReplaceAlertSettings(Body):
    """New alert settings of an account."""

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

    thresholds: list[float]
    forecast_days: int


class LimitReached(Output):
    """The first limit along an account's path that is reached at the present pace."""

    account: str
    account_path: str
    exhaustion_at: datetime


class Forecast(Output):
    """Forecast of when an account's limit is exhausted."""

    account: str
    used: float = Field(
        description="Share of the account's capacity that is spent. Unlike epsilon it grows evenly with a steady "
        "workload."
    )
    used_per_day: float | None = Field(description="Pace of the last seven days; null with too little data.")
    exhaustion_at: datetime | None = Field(description="Null: never at this pace, already exhausted, or unknown.")
    observed_since: datetime | None = Field(description="Start of the observed period.")
    available: AvailableShare = Field(
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
            used=seen.forecast.share,
            used_per_day=seen.forecast.per_day,
            exhaustion_at=seen.exhaustion_at,
            observed_since=seen.since,
            available=AvailableShare.of(found.available),
            first_limit_reached=first,
        )
