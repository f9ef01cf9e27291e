"""Alerts leave the outbox: claimed in a transaction, sent outside of any, and sent again until acknowledged.

What is claimed is due again after a while: whoever dies while sending loses nothing, and a receiver may get an alert
twice, which it knows by the alert's id. No order is promised.
"""

import asyncio
import logging
import secrets
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.errors import LedgerError
from app.ledger.hash_chain import SERVICE
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.repositories import deliveries, organisations, webhooks
from app.persistence.repositories.deliveries import Due
from app.service.alerts.disabling import disable
from app.service.alerts.http_sender import MOST_AT_ONCE, Sender, Sent
from app.service.metrics import counters

LOOK_SECONDS = 1.0
"""How often due deliveries are looked for."""

CLAIM_SECONDS: Final = 60.0
"""For how long a claim holds: several times what an attempt may take."""

BACK_OFF_SECONDS: Final = (5, 30, 120, 600, 3_600, 10_800, 43_200, 86_400)
"""How long to wait after the first failed attempt, the second, and so on; the last one counts for all that follow."""

JITTER: Final = 0.2
"""The share by which a wait is longer or shorter: what failed together does not come back together."""

MANY_FAILURES: Final = 20
LONG_FAILING: Final = timedelta(hours=24)
"""A webhook that failed so often, for so long, and never succeeded meanwhile is tried with one delivery at a time."""

GRACE_SECONDS: Final = 2.0
"""How long a service that stops waits for what it is sending: what is not settled then is sent twice."""

GONE: Final = "The receiver answered 410 Gone."

_logger = logging.getLogger(__name__)


async def deliver(db: Database, sender: Sender) -> None:
    """Send what is due, until cancelled; at most one alert at a time to one webhook.

    Args:
        db: a ledger's database; a failure is logged, and the next look comes.
        sender: sends one alert.
    """
    at_work: dict[asyncio.Task[None], str] = {}
    try:
        while True:
            for due in await _claimed(db, frozenset(at_work.values()), MOST_AT_ONCE - len(at_work)):
                at_work[asyncio.create_task(_deliver_one(db, sender, due))] = due.webhook.id
            if at_work:
                done, _ = await asyncio.wait(at_work, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del at_work[task]
            else:
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        if at_work:
            await asyncio.wait(at_work, timeout=GRACE_SECONDS)
        for task in at_work:
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)


async def _claimed(db: Database, busy: frozenset[str], most: int) -> list[Due]:
    if most <= 0:
        return []
    try:
        claimed = await asyncio.to_thread(lambda: claim_due(db, db.clock.now(), busy, most))
    except (LedgerError, SQLAlchemyError) as error:  # a database that is down, every second: one line
        _logger.warning("Deliveries cannot be looked for, and are looked for again: %s", error_summary(error))
    except Exception:
        _logger.exception("Deliveries cannot be looked for, and are looked for again")
    else:
        counters.background_done("deliveries")
        return claimed
    return []


async def _deliver_one(db: Database, sender: Sender, due: Due) -> None:
    try:
        sent = await sender.send(due, db.clock.now())
        counters.delivered(acknowledged=sent.acknowledged)
        await asyncio.to_thread(record_attempt, db, due, sent, db.clock.now())
    except (LedgerError, SQLAlchemyError) as error:
        _logger.warning(
            "What became of delivery %s is not written, so it is sent again: %s", due.id, error_summary(error)
        )
    except Exception:
        _logger.exception("Delivery %s failed, and is tried again", due.id)


def claim_due(db: Database, now: datetime, busy: frozenset[str] = frozenset(), most: int = MOST_AT_ONCE) -> list[Due]:
    """Claim deliveries that are due.

    Args:
        db: a ledger's database.
        now: in UTC.
        busy: ids of webhooks to which something is being sent.
        most: how many at the most.

    Returns:
        At most one of a webhook; they are due again after CLAIM_SECONDS.
    """
    with db.read(ALL_TENANTS) as tx:
        if not deliveries.any_due(tx, now, busy):
            return []

    def claim() -> list[Due]:
        with db.write(ALL_TENANTS) as tx:
            return deliveries.claim(tx, now, now + timedelta(seconds=CLAIM_SECONDS), busy, most)

    return db.retried(claim)


def retry_delay(attempts: int) -> timedelta:
    """How long it is until a delivery is sent again, after so many attempts at it."""
    spread = 1 + JITTER * (secrets.randbelow(2_001) / 1_000 - 1)
    return timedelta(seconds=BACK_OFF_SECONDS[min(attempts, len(BACK_OFF_SECONDS)) - 1] * spread)


def record_attempt(db: Database, due: Due, sent: Sent, now: datetime) -> None:
    """Write how an attempt went; an answer of 410 disables the webhook, which is an act of the service.

    Where a webhook has failed for long, what else is pending for it waits as long as this delivery: the first success
    lets all of it go. An alert that is new is tried at once.

    Args:
        db: a ledger's database.
        due: what was sent.
        sent: how it went.
        now: in UTC.
    """

    def write() -> None:
        with db.write(due.organisation_id) as tx:
            if sent.acknowledged:
                webhooks.note_success(tx, due.organisation_id, due.webhook.id)
                deliveries.succeeded(tx, due, sent.status or 0, now)
            else:
                _failed(tx, due, sent, now)

    db.retried(write)


def _failed(tx: Connection, due: Due, sent: Sent, now: datetime) -> None:
    organisation_id, webhook_id = due.organisation_id, due.webhook.id
    if sent.gone:  # an act: the organisation is locked before anything else
        organisations.lock(tx, organisation_id)
    failures, since = webhooks.note_failure(tx, organisation_id, webhook_id, now)
    again_at = now + retry_delay(due.attempts)
    deliveries.failed(tx, due, sent.status, sent.error or "", again_at)
    if sent.gone:
        webhook = webhooks.find(tx, organisation_id, webhook_id)
        if webhook is not None and webhook.disabled_at is None:
            disable(tx, organisation_id, webhook, SERVICE, GONE, now)
    elif failures >= MANY_FAILURES and now - since >= LONG_FAILING:
        deliveries.postpone(tx, organisation_id, webhook_id, again_at)
