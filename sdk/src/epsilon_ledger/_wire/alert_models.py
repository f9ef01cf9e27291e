"""Alerts, forecasts, receivers and deliveries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from epsilon_ledger._wire.models import AvailableShare

ReceiverKind: TypeAlias = Literal["webhook", "slack", "teams", "email"]
DeliveryStatus: TypeAlias = Literal["pending", "delivered", "given_up"]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert; `id` is also the webhook-id header of its deliveries, `account` None: a test."""

    id: str
    type: str
    account: str | None
    data: Mapping[str, object]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Shares of an account's limit that create alerts, and the days of its forecast (0: none)."""

    thresholds: tuple[float, ...]
    forecast_days: int


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The first limit along an account's path that is reached at the present pace."""

    account: str
    account_path: str
    exhaustion_at: datetime


@dataclass(frozen=True, slots=True)
class Forecast:
    """The used share, its pace in the last seven days, and when the limit is exhausted at this pace.

    `exhaustion_at` None: never at this pace, already exhausted, or unknown. `first_limit_reached` is of this account or
    one above it; None: of neither at this pace.
    """

    account: str
    used: float
    used_per_day: float | None
    exhaustion_at: datetime | None
    observed_since: datetime | None
    available: AvailableShare
    first_limit_reached: LimitReached | None


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver of alerts; `types` empty and `account` None: of all, `disabled_at` None: active.

    `url` is masked unless it is a `webhook`, and None for `email`.
    """

    id: str
    kind: str
    url: str | None
    addresses: tuple[str, ...]
    types: tuple[str, ...]
    account: str | None
    previous_secret_expires_at: datetime | None
    created_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None


@dataclass(frozen=True, slots=True)
class CreatedReceiver(Receiver):
    """A receiver with the secret of a webhook, which is returned once and not shown by `repr`."""

    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of an alert to a receiver; `given_up`: the receiver was disabled before it acknowledged."""

    id: str
    receiver: str
    alert: str
    alert_type: str
    status: str
    attempts: int
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None
    created_at: datetime
