"""Delivery of alerts from the outbox to receivers, at least once and in no particular order.

A claim expires, so that a crash loses nothing; receivers detect duplicates by the alert's id.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.persistence.database import Database, error_summary
from app.persistence.repositories import alerts, organisations
from app.persistence.repositories.alerts import ClaimedDelivery
from app.service import metrics
from app.service.alerts.alert_sender import AlertSender
from app.service.alerts.http_sender import DeliveryResult
from app.service.alerts.receivers import disable
from app.service.auth.request_context import RequestContext, service_context
from app.service.auth.use_cases import use_case
from app.service.background import attempt
from app.service.periodic_work import find_due, isolated

MOST_AT_ONCE: Final = 256

SHARE: Final = 8
"""An organisation has at most one eighth as many deliveries at work as are free, and at least one.

So one with its 20 receivers is not limited while it is alone, and however many have receivers that never answer, some
deliveries stay free for the others.
"""

LOOK_SECONDS: Final = 1.0
"""Interval between checks for due deliveries."""

CLAIM_SECONDS: Final = 60.0
"""Lifetime of a claim: several times the timeout of an attempt."""

BACK_OFF_SECONDS: Final = (5, 30, 120, 600, 3_600, 10_800, 43_200, 86_400)
"""Delay after each failed attempt; the last one repeats."""

JITTER: Final = 0.2
"""Relative jitter of a delay, which spreads simultaneous failures."""

MANY_FAILURES: Final = 20
LONG_FAILING: Final = timedelta(hours=24)
"""Failures and duration without success after which a receiver gets one delivery at a time."""

GRACE_SECONDS: Final = 2.0
"""Time for deliveries in progress at shutdown; the rest are sent again."""

_logger = logging.getLogger(__name__)


async def deliver(db: Database, sender: AlertSender, look_seconds: float = LOOK_SECONDS) -> None:
    """Send due alerts until cancelled, one at a time to each receiver; failures are logged and retried."""
    at_work: dict[asyncio.Task[None], ClaimedDelivery] = {}
    try:
        while True:
            for due in await _claimed(db, list(at_work.values())):
                at_work[asyncio.create_task(_deliver_one(db, sender, due))] = due
            if at_work:
                done, _ = await asyncio.wait(at_work, timeout=look_seconds, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del at_work[task]
            else:
                await asyncio.sleep(look_seconds)
    finally:
        if at_work:
            await asyncio.wait(at_work, timeout=GRACE_SECONDS)
        for task in at_work:
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)


async def _claimed(db: Database, at_work: Sequence[ClaimedDelivery]) -> list[ClaimedDelivery]:
    if len(at_work) >= MOST_AT_ONCE:
        return []
    failure = "Deliveries cannot be looked for, and are looked for again"
    return await attempt("deliveries", failure, lambda: claim_due(db, db.clock.now(), at_work)) or []


async def _deliver_one(db: Database, sender: AlertSender, due: ClaimedDelivery) -> None:
    sent = await _attempted(sender, due, db.clock.now())
    try:
        metrics.count_delivery(acknowledged=sent.acknowledged)
        await asyncio.to_thread(record_attempt, db, due, sent, db.clock.now())
    except (LedgerError, SQLAlchemyError) as error:
        _logger.warning(
            "The outcome of delivery %s could not be saved, so it is sent again: %s", due.id, error_summary(error)
        )
    except Exception:
        _logger.exception("The outcome of delivery %s could not be saved, so it is sent again", due.id)


async def _attempted(sender: AlertSender, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
    """Send an alert once; an error of the service itself is a failure, which is seen and has its waits."""
    try:
        return await sender.send(due, now)
    except Exception as error:
        _logger.exception("Delivery %s failed, and is tried again", due.id)
        return DeliveryResult(None, f"The service failed: {type(error).__name__}. Its log says where.")


def claim_due(
    db: Database, now: datetime, at_work: Sequence[ClaimedDelivery] = (), most: int = MOST_AT_ONCE
) -> list[ClaimedDelivery]:
    """Claim due deliveries for `CLAIM_SECONDS`: at most `most` with those `at_work`.

    Each organisation has at most its share (`SHARE`), and each receiver one.
    """
    busy = frozenset(each.receiver.id for each in at_work)
    working = Counter(each.organisation_id for each in at_work)
    owners = find_due(db, lambda tx, among: alerts.organisations_due(tx, now, busy, among))
    until = now + timedelta(seconds=CLAIM_SECONDS)
    claimed: list[ClaimedDelivery] = []
    for owner in owners:
        free = most - len(at_work) - len(claimed)
        room = min(free, max(1, free // SHARE) - working[owner])
        if room > 0:
            with isolated("The deliveries of %s cannot be claimed, and are claimed later", owner):
                claimed += _claim(service_context(db, owner, now), until, busy, room)
    return claimed


@use_case(locks_organisation=False)
def _claim(
    tx: Connection, context: RequestContext, until: datetime, busy: frozenset[str], most: int
) -> list[ClaimedDelivery]:
    return alerts.claim(tx, context.organisation_id, context.now, until, busy, most)


def retry_delay(attempts: int) -> timedelta:
    """Compute the delay until the next attempt, with jitter."""
    spread = 1 + JITTER * (secrets.randbelow(2_001) / 1_000 - 1)
    return timedelta(seconds=BACK_OFF_SECONDS[min(attempts, len(BACK_OFF_SECONDS)) - 1] * spread)


def record_attempt(db: Database, due: ClaimedDelivery, sent: DeliveryResult, now: datetime) -> None:
    """Record the result of an attempt; a receiver that refuses all further alerts is disabled.

    After long failure all pending deliveries of the receiver wait for this one; the first success releases them. New
    alerts are tried at once.
    """
    _record(service_context(db, due.organisation_id, now), due, sent)


@use_case(locks_organisation=False)
def _record(tx: Connection, context: RequestContext, due: ClaimedDelivery, sent: DeliveryResult) -> None:
    organisation_id, receiver_id, now = due.organisation_id, due.receiver.id, context.now
    if sent.acknowledged:
        alerts.note_success(tx, organisation_id, receiver_id)
        alerts.save_success(tx, due, sent.status or 0, sent.note, now)
        return
    if sent.gone is not None:  # the audit event requires the organisation's lock first
        organisations.lock(tx, organisation_id)
    failures, since = alerts.note_failure(tx, organisation_id, receiver_id, now)
    again_at = now + retry_delay(due.attempts)
    alerts.save_failure(tx, due, sent.status, sent.error or "", again_at)
    if sent.gone is not None:
        receiver = alerts.find_receiver(tx, organisation_id, receiver_id)
        if receiver is not None and receiver.disabled_at is None:
            disable(tx, context, receiver, sent.gone)
    elif failures >= MANY_FAILURES and now - since >= LONG_FAILING:
        alerts.postpone(tx, organisation_id, receiver_id, again_at)
