"""Alerts, the settings and forecasts that cause them, and their deliveries to receivers (ADR 0018).

A forecast extrapolates the used share, which grows evenly with a steady workload, and not epsilon: the first step takes
a large part of that, the thousandth almost none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from app.ledger.errors import InvalidInputError
from app.ledger.query_parameters import parameter
from app.ledger.wording import WordedEnum

DEFAULT_THRESHOLDS: Final = (0.5, 0.8, 1.0)
"""Used shares of a limit's capacity."""

MOST_THRESHOLDS: Final = 10
LARGEST_THRESHOLD: Final = 10.0
"""An overdrawn account may be far past its limit."""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """An account's alert settings.

    Args:
        thresholds: increasing used shares of its limit's capacity.
        forecast_days: horizon of the forecast alert; 0 disables it.
    """

    thresholds: tuple[float, ...]
    forecast_days: int


DEFAULT_ALERT_SETTINGS: Final = AlertSettings(DEFAULT_THRESHOLDS, 30)


def check_thresholds(thresholds: Sequence[float]) -> None:
    """Raise InvalidInputError unless there are few increasing thresholds in (0, 10]."""
    if len(thresholds) > MOST_THRESHOLDS:
        raise InvalidInputError(f"An account has at most {MOST_THRESHOLDS} thresholds, not {len(thresholds)}.")
    if any(after <= before for before, after in pairwise(thresholds)):
        raise InvalidInputError("Thresholds are written in increasing order, each once.")
    if not all(0 < each <= LARGEST_THRESHOLD for each in thresholds):
        raise InvalidInputError(f"A threshold is a used share of the limit, in (0, {LARGEST_THRESHOLD:g}].")


class AlertType(WordedEnum):
    """The types of alerts, with their words on pages."""

    THRESHOLD = "account.threshold_reached", "threshold reached"
    EXHAUSTED = "account.exhausted", "budget exhausted"
    FORECAST = "account.exhaustion_forecast", "limit expected soon"
    OVERDRAWN = "run.overdrawn", "run over its limit"
    RESERVATION_EXPIRED = "reservation.expired", "reservation waited in vain"
    RESERVATION_GRANTED = "reservation.granted", "waiting reservation granted"
    RESERVATION_STALE = "reservation.stale", "trainer silent"
    RESERVATION_FORFEITED = "reservation.forfeited", "reservation forfeited"
    BLOCK_SCHEDULE_FAILED = "block_schedule.failed", "data block not opened"
    RUN_PENDING = "run.pending", "run waits for an approval"
    PROPOSAL_OPENED = "proposal.opened", "proposal opened"
    PROPOSAL_DECIDED = "proposal.decided", "proposal decided"
    TEST = "receiver.test", "test event"


@dataclass(frozen=True, slots=True)
class Alert:
    """A notification that is sent once.

    Args:
        id: lets receivers detect repetitions.
        account_id: the subject; None: the organisation itself, or a test.
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
    """A filter of alerts by type, and by an account and its descendants; None: any."""

    within: str | None = parameter(
        "Only alerts about this account (id or path) or accounts under it.", name="account", is_reference=True
    )
    kind: AlertType | None = parameter("Only alerts of this type.", name="type")


class DeliveryStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Delivery:
    """An alert's delivery to a receiver.

    Args:
        attempts: number of attempts, including one in progress.
        next_attempt_at: when it is due, if pending.
        last_status: HTTP status of the last response, if any.
        last_error: why the last attempt failed.
        delivered_at: when it was first acknowledged.
    """

    id: str
    receiver_id: str
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


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """A filter of deliveries; None: any."""

    receiver_id: str | None = parameter("Only deliveries to this receiver (id).", name="receiver", most=100)
    alert_id: str | None = parameter("Only deliveries of this alert (id).", name="alert", most=100)
    status: DeliveryStatus | None = parameter("Only items with this status.")


FARTHEST_DAYS: Final = 36_500.0
"""Longest forecast."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The used share of a limit, its growth, and the days until it is 1.

    None is unknown; for `days_left` also never or already.
    """

    share: float
    per_day: float | None
    days_left: float | None


def forecast(share: float, before: float, days: float) -> Forecast:
    """Extrapolate the growth of a share from `before`, `days` ago, to `share` linearly."""
    if days <= 0:
        return Forecast(share, None, None)
    per_day = max(0.0, share - before) / days
    left = (1.0 - share) / per_day if per_day > 0 and share < 1 else None
    return Forecast(share, per_day, left if left is not None and left <= FARTHEST_DAYS else None)
