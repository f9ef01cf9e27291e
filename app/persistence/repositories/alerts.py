"""Alerts, written in the transaction of their cause, their receivers, and deliveries (ADR 0018)."""

import json
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, Update, delete, func, insert, select, update

from app.ledger.accounts.account import AccountKind
from app.ledger.accounts.alerts import Alert, AlertFilter, AlertType, Delivery, DeliveryFilter, DeliveryStatus
from app.ledger.accounts.receivers import Receiver, ReceiverKind
from app.ledger.ids import TIME_DIGITS
from app.ledger.pages import Page, PageRequest
from app.persistence.repositories import account_metadata
from app.persistence.repositories.expressions import (
    PENDING,
    RecordTable,
    join_on,
    matches,
    owned_by,
    owned_by_any,
    upsert,
    values_of,
)
from app.persistence.repositories.keysets import read_page
from app.persistence.repositories.locks import ancestor_ids, within
from app.persistence.tables import alerts, deliveries, receivers


def _tuple(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


_ALERTS = RecordTable(alerts, Alert, type=AlertType, payload=json.loads)
_RECEIVERS = RecordTable(receivers, Receiver, kind=ReceiverKind, types=_tuple, addresses=_tuple)
_WITH_RECEIVER = join_on(receivers, deliveries, id="receiver_id")
_WITH_ALERT = join_on(alerts, deliveries, id="alert_id")
_DELIVERIES = select(
    *(
        alerts.c.type.label(name) if name == "alert_type" else deliveries.c[name]
        for name in Delivery.__dataclass_fields__
    )
).join_from(deliveries, alerts, _WITH_ALERT)

_BY_AGE = (deliveries.c.next_attempt_at, deliveries.c.id)

find_receiver = _RECEIVERS.find
newest_receiver_id = _RECEIVERS.newest_id
list_receivers = _RECEIVERS.page


def add(tx: Connection, organisation_id: str, new: Iterable[Alert]) -> None:
    """Add new alerts, and a delivery to each receiver that wants them, ignoring duplicates."""
    wanting = active_receivers(tx, organisation_id)
    for alert in _with_numbers(tx, organisation_id, list(new)):
        values = {"organisation_id": organisation_id, **values_of(alert)}
        added = upsert(tx, alerts).values(values).on_conflict_do_nothing()
        if tx.execute(added.returning(alerts.c.id)).scalar() is None:
            continue
        scoped = any(each.account_id is not None for each in wanting)
        above = ancestor_ids(tx, organisation_id, alert.account_id) if scoped and alert.account_id is not None else ()
        _address(tx, organisation_id, alert, [each.id for each in wanting if each.wants(alert.type, above)])


def _with_numbers(tx: Connection, organisation_id: str, new: Sequence[Alert]) -> list[Alert]:
    """Add to the payloads of new alerts the numbers that tell apart the runs at one path."""
    runs = {alert.id: _runs_in(alert) for alert in new}
    ids = {run for found in runs.values() for run in found.values()}
    known = account_metadata.numbers_of(tx, organisation_id, sorted(ids)) if ids else {}
    numbers = {alert_id: {name: known.get(run, 1) for name, run in found.items()} for alert_id, found in runs.items()}
    return [replace(alert, payload={**alert.payload, **numbers[alert.id]}) for alert in new]


def _runs_in(alert: Alert) -> dict[str, str]:
    """Get the ids of the runs that an alert names, by the field of their number."""
    found = {"run_number": alert.payload["run"]} if "run" in alert.payload else {}
    about_run = alert.payload.get("account_kind") == AccountKind.RUN
    return found | ({"account_number": alert.payload["account"]} if about_run else {})


def add_test(tx: Connection, organisation_id: str, alert: Alert, receiver_id: str) -> str:
    """Add a test alert for one receiver; return the delivery's id."""
    _ALERTS.add(tx, organisation_id, alert)
    [delivery_id] = _address(tx, organisation_id, alert, [receiver_id])
    return delivery_id


def _address(tx: Connection, organisation_id: str, alert: Alert, receiver_ids: Sequence[str]) -> list[str]:
    """Add an alert's deliveries, due now, to some receivers; return their ids."""
    # Like all ids, it sorts by the time of creation, which is the alert's.
    made = [f"dlv_{alert.id[4:][:TIME_DIGITS]}{secrets.token_hex(8)}" for _ in receiver_ids]
    if made:
        rows = [
            {
                "organisation_id": organisation_id,
                "id": delivery_id,
                "receiver_id": receiver_id,
                "alert_id": alert.id,
                "status": str(DeliveryStatus.PENDING),
                "attempts": 0,
                "next_attempt_at": alert.created_at,
                "created_at": alert.created_at,
            }
            for delivery_id, receiver_id in zip(made, receiver_ids, strict=True)
        ]
        tx.execute(insert(deliveries), rows)
    return made


def list_alerts(tx: Connection, organisation_id: str, wanted: AlertFilter, request: PageRequest) -> Page[Alert]:
    """List alerts, newest first."""
    about = within(alerts.c.account_id, organisation_id, wanted.within)
    return _ALERTS.page(tx, organisation_id, request, *matches(alerts, type=wanted.kind), about)


def add_receiver(tx: Connection, organisation_id: str, receiver: Receiver) -> None:
    """Add a receiver."""
    _RECEIVERS.add(tx, organisation_id, receiver, consecutive_failures=0)


def active_receivers(tx: Connection, organisation_id: str) -> list[Receiver]:
    """List the enabled receivers by id, locked against disabling until the transaction ends."""
    found = _RECEIVERS.select(organisation_id).where(receivers.c.disabled_at.is_(None)).order_by(receivers.c.id)
    return [_RECEIVERS.read(row) for row in tx.execute(found.with_for_update(read=True))]


def save_secrets(tx: Connection, organisation_id: str, receiver: Receiver) -> None:
    """Write a receiver's secrets."""
    names = ("secret", "previous_secret", "previous_secret_expires_at")
    tx.execute(_RECEIVERS.update(organisation_id, receiver.id).values(values_of(receiver, names)))


def disable_receiver(tx: Connection, organisation_id: str, receiver_id: str, why: str, now: datetime) -> None:
    """Disable a receiver; the first reason stays."""
    this = _RECEIVERS.update(organisation_id, receiver_id).where(receivers.c.disabled_at.is_(None))
    tx.execute(this.values(disabled_at=now, disabled_reason=why))


def enable_receiver(tx: Connection, organisation_id: str, receiver_id: str) -> None:
    """Enable a disabled receiver, without the failures that it had."""
    fresh = {"disabled_at": None, "disabled_reason": None, "consecutive_failures": 0, "failing_since": None}
    tx.execute(_RECEIVERS.update(organisation_id, receiver_id).values(fresh))


def delete_receiver(tx: Connection, organisation_id: str, receiver_id: str) -> None:
    """Delete a receiver and its deliveries; the alerts stay."""
    this = owned_by(receivers, organisation_id, id=receiver_id)
    # Who adds an alert holds the row until its deliveries are written: locked first, none is added behind this.
    tx.execute(select(receivers.c.id).where(this).with_for_update())
    tx.execute(delete(deliveries).where(owned_by(deliveries, organisation_id, receiver_id=receiver_id)))
    tx.execute(delete(receivers).where(this))


def note_success(tx: Connection, organisation_id: str, receiver_id: str) -> None:
    """Reset a receiver's failures after an acknowledged delivery."""
    failing = _RECEIVERS.update(organisation_id, receiver_id).where(receivers.c.consecutive_failures > 0)
    tx.execute(failing.values(consecutive_failures=0, failing_since=None))


def note_failure(tx: Connection, organisation_id: str, receiver_id: str, now: datetime) -> tuple[int, datetime]:
    """Count a failed attempt; return the consecutive failures and when they began; 0 and now if it was deleted."""
    failed = _RECEIVERS.update(organisation_id, receiver_id).values(
        consecutive_failures=receivers.c.consecutive_failures + 1,
        failing_since=func.coalesce(receivers.c.failing_since, now),
    )
    row = tx.execute(failed.returning(receivers.c.consecutive_failures, receivers.c.failing_since)).one_or_none()
    return (0, now) if row is None else (row.consecutive_failures, row.failing_since)


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery claimed by the caller.

    `attempts` includes this one; only the claimer of the last attempt may write its outcome.
    """

    organisation_id: str
    id: str
    attempts: int
    receiver: Receiver
    alert: Alert


def organisations_due(
    tx: Connection, now: datetime, busy: Collection[str], among: Collection[str] | None = None
) -> list[str]:
    """List the organisations with a delivery that is due for a receiver that is not busy, the longest due first.

    All due deliveries of some organisations, None: of all, are looked at: those of one must not hide another's.
    """
    due = _due(now, busy).where(owned_by_any(deliveries, among)).subquery()
    owner, since = due.c.organisation_id, func.min(due.c.next_attempt_at)
    return list(tx.execute(select(owner).group_by(owner).order_by(since, owner)).scalars())


def claim(
    tx: Connection, organisation_id: str, now: datetime, until: datetime, busy: Collection[str], most: int
) -> list[ClaimedDelivery]:
    """Claim an organisation's due deliveries until `until`, at most one per idle receiver.

    PostgreSQL skips rows locked by another claim. They become due again unless their outcome is written.
    """
    found = _due(now, busy).where(owned_by(deliveries, organisation_id)).order_by(*_BY_AGE).limit(most)
    taken: dict[str, str] = {}
    for row in tx.execute(found.with_for_update(of=deliveries, skip_locked=True)):
        taken.setdefault(row.receiver_id, row.id)
    due = []
    for delivery_id in taken.values():
        this = owned_by(deliveries, organisation_id, id=delivery_id)
        started = (
            update(deliveries)
            .where(this)
            .values(attempts=deliveries.c.attempts + 1, last_attempt_at=now, next_attempt_at=until)
        )
        attempts: int = tx.execute(started.returning(deliveries.c.attempts)).scalar_one()
        to = select(*_RECEIVERS.columns).join(deliveries, _WITH_RECEIVER).where(this)
        receiver = _RECEIVERS.read(tx.execute(to).one())
        of = select(*_ALERTS.columns).join(deliveries, _WITH_ALERT).where(this)
        due.append(
            ClaimedDelivery(organisation_id, delivery_id, attempts, receiver, _ALERTS.read(tx.execute(of).one()))
        )
    return due


def save_success(tx: Connection, sent: ClaimedDelivery, status: int, note: str | None, now: datetime) -> None:
    """Write that a delivery was acknowledged, and what it left out."""
    delivered = {"status": str(DeliveryStatus.DELIVERED), "delivered_at": now}
    tx.execute(_attempt(sent).values(**delivered, last_status=status, last_error=note))


def save_failure(tx: Connection, sent: ClaimedDelivery, status: int | None, why: str, again_at: datetime) -> None:
    """Write that an attempt failed, and when the next one is due."""
    tx.execute(_attempt(sent).values(last_status=status, last_error=why, next_attempt_at=again_at))


def postpone(tx: Connection, organisation_id: str, receiver_id: str, until: datetime) -> None:
    """Postpone a receiver's pending deliveries to a time."""
    early = _pending(organisation_id, receiver_id).where(deliveries.c.next_attempt_at < until)
    tx.execute(early.values(next_attempt_at=until))


def give_up(tx: Connection, organisation_id: str, receiver_id: str) -> None:
    """Give up a receiver's pending deliveries."""
    tx.execute(_pending(organisation_id, receiver_id).values(status=str(DeliveryStatus.GIVEN_UP)))


def send_again(tx: Connection, organisation_id: str, delivery_id: str, now: datetime) -> None:
    """Make a delivery due now, in any status."""
    due = {"status": str(DeliveryStatus.PENDING), "next_attempt_at": now}
    tx.execute(update(deliveries).where(owned_by(deliveries, organisation_id, id=delivery_id)).values(due))


def find_delivery(tx: Connection, organisation_id: str, delivery_id: str) -> Delivery | None:
    """Find a delivery by id."""
    row = tx.execute(_DELIVERIES.where(owned_by(deliveries, organisation_id, id=delivery_id))).one_or_none()
    return None if row is None else _delivery(row)


def count_pending(tx: Connection, organisation_id: str) -> dict[str, int]:
    """Count the pending deliveries by receiver."""
    mine = deliveries.c.organisation_id == organisation_id
    counted = select(deliveries.c.receiver_id, func.count()).where(mine, PENDING).group_by(deliveries.c.receiver_id)
    return {receiver_id: int(number) for receiver_id, number in tx.execute(counted)}


def list_deliveries(
    tx: Connection, organisation_id: str, wanted: DeliveryFilter, request: PageRequest
) -> Page[Delivery]:
    """List deliveries, newest first."""
    found = _DELIVERIES.where(deliveries.c.organisation_id == organisation_id, *matches(deliveries, **asdict(wanted)))
    return read_page(tx, found, deliveries.c.id, request, _delivery)


def _due(now: datetime, busy: Collection[str]) -> Select[Any]:
    return (
        select(*(deliveries.c.organisation_id, deliveries.c.id, deliveries.c.receiver_id, deliveries.c.next_attempt_at))
        .join(receivers, _WITH_RECEIVER)
        .where(
            PENDING,
            deliveries.c.next_attempt_at <= now,
            receivers.c.disabled_at.is_(None),
            deliveries.c.receiver_id.not_in(busy),
        )
    )


def _pending(organisation_id: str, receiver_id: str) -> Update:
    """Build an update of a receiver's pending deliveries."""
    return update(deliveries).where(owned_by(deliveries, organisation_id, receiver_id=receiver_id), PENDING)


def _attempt(sent: ClaimedDelivery) -> Update:
    """Build an update of the delivery, if this attempt is still the last one."""
    this = owned_by(deliveries, sent.organisation_id, id=sent.id)
    return update(deliveries).where(this, deliveries.c.attempts == sent.attempts, PENDING)


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(**row._asdict() | {"status": DeliveryStatus(row.status)})
