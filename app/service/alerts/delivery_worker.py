"""Delivery of alerts from the outbox to receivers, at least once and in no particular order.

A claim expires, so that a crash loses nothing; receivers detect duplicates by the alert's id. Requests are signed by
the Standard Webhooks specification.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import certifi
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.ledger.alerts import Alert
from app.ledger.audit import SERVICE
from app.ledger.errors import LedgerError
from app.persistence.database import ALL_TENANTS, Database, error_summary
from app.persistence.repositories import alerts, organisations
from app.persistence.repositories.alerts import ClaimedDelivery
from app.service import metrics
from app.service.alerts.receivers import PREFIX, disable
from app.service.alerts.ssrf_guard import Resolver, resolve
from app.service.background import attempt
from app.version import VERSION

if TYPE_CHECKING:
    import httpcore

TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a whole attempt, from the DNS lookup to the response headers."""

MOST_AT_ONCE: Final = 64

LOOK_SECONDS = 1.0
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

GONE: Final = "The receiver answered 410 Gone."

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Result of an attempt: the response's status, and the error unless it is acknowledged."""

    status: int | None
    error: str | None

    @property
    def acknowledged(self) -> bool:
        """Whether the receiver acknowledged the alert."""
        return self.error is None

    @property
    def gone(self) -> bool:
        """Whether the receiver refuses all further alerts."""
        return self.status == HTTPStatus.GONE


class HttpSender:
    """HTTP client without redirects, proxies of the environment, and kept connections."""

    def __init__(self, *, allow_private: bool, resolver: Resolver = resolve) -> None:
        self._allow_private = allow_private
        self._resolver = resolver
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._opening = asyncio.Lock()
        self._agent = f"epsilon-ledger/{VERSION}"

    async def send(self, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
        """Send an alert to a receiver once; only a 2xx response, whose body is not read, acknowledges it."""
        import httpcore  # noqa: PLC0415 - see `guarded_backend`

        body = message(due.alert)
        headers = {
            "content-type": "application/json",
            "user-agent": self._agent,
            **signed_headers(due.receiver.secrets(now), due.alert.id, int(now.timestamp()), body),
        }
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                await self._posted(due.receiver.url, headers, body) as response,
            ):
                status = response.status
        except (TimeoutError, httpcore.TimeoutException):
            return DeliveryResult(None, f"There was no answer within {TIMEOUT_SECONDS:g} seconds.")
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            return DeliveryResult(None, (str(error) or type(error).__name__)[:200])
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return DeliveryResult(status, None)
        return DeliveryResult(status, f"The answer was {status}.")

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.aclose()

    async def _posted(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> "AbstractAsyncContextManager[httpcore.Response]":
        async with self._opening:
            if self._pool is None:
                # Only now: certificates take 0.04 s to read, and many services have no receiver.
                self._pool = await asyncio.to_thread(self._open_pool)
        return self._pool.stream("POST", url, headers=list(headers.items()), content=body)

    def _open_pool(self) -> "httpcore.AsyncConnectionPool":
        import httpcore  # noqa: PLC0415 - see `guarded_backend`

        from app.service.alerts.guarded_backend import GuardedBackend  # noqa: PLC0415 - imports httpcore

        return httpcore.AsyncConnectionPool(
            ssl_context=_ssl_context(),
            max_connections=MOST_AT_ONCE,
            max_keepalive_connections=0,
            network_backend=GuardedBackend(allow_private=self._allow_private, resolver=self._resolver),
        )


def _ssl_context() -> ssl.SSLContext:
    """Trust the system's or SSL_CERT_FILE's certificates and those of browsers."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def message(alert: Alert) -> bytes:
    """Serialize an alert deterministically."""
    content = {"type": str(alert.type), "timestamp": alert.created_at.isoformat(), "data": alert.payload}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a message with one secret, at a time in seconds since 1970.

    Returns:
        "v1," and base64 of HMAC-SHA256 over the alert's id, timestamp and body, joined by dots.
    """
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def signed_headers(known: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Build the headers with id, timestamp and a signature for each valid secret."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(secret, message_id, timestamp, body) for secret in known),
    }


async def deliver(db: Database, sender: HttpSender) -> None:
    """Send due alerts until cancelled, one at a time to each receiver; failures are logged and retried."""
    at_work: dict[asyncio.Task[None], str] = {}
    try:
        while True:
            for due in await _claimed(db, frozenset(at_work.values()), MOST_AT_ONCE - len(at_work)):
                at_work[asyncio.create_task(_deliver_one(db, sender, due))] = due.receiver.id
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


async def _claimed(db: Database, busy: frozenset[str], most: int) -> list[ClaimedDelivery]:
    if most <= 0:
        return []
    failure = "Deliveries cannot be looked for, and are looked for again"
    return await attempt("deliveries", failure, lambda: claim_due(db, db.clock.now(), busy, most)) or []


async def _deliver_one(db: Database, sender: HttpSender, due: ClaimedDelivery) -> None:
    try:
        sent = await sender.send(due, db.clock.now())
        metrics.count_delivery(acknowledged=sent.acknowledged)
        await asyncio.to_thread(record_attempt, db, due, sent, db.clock.now())
    except (LedgerError, SQLAlchemyError) as error:
        _logger.warning(
            "The outcome of delivery %s could not be saved, so it is sent again: %s", due.id, error_summary(error)
        )
    except Exception:
        _logger.exception("Delivery %s failed, and is tried again", due.id)


def claim_due(
    db: Database, now: datetime, busy: frozenset[str] = frozenset(), most: int = MOST_AT_ONCE
) -> list[ClaimedDelivery]:
    """Claim at most `most` due deliveries for `CLAIM_SECONDS`, one for each receiver that is not `busy`."""
    with db.read(ALL_TENANTS) as tx:
        if not alerts.has_due(tx, now, busy):
            return []
    until = now + timedelta(seconds=CLAIM_SECONDS)
    return db.transact(ALL_TENANTS, lambda tx: alerts.claim(tx, now, until, busy, most))


def retry_delay(attempts: int) -> timedelta:
    """Compute the delay until the next attempt, with jitter."""
    spread = 1 + JITTER * (secrets.randbelow(2_001) / 1_000 - 1)
    return timedelta(seconds=BACK_OFF_SECONDS[min(attempts, len(BACK_OFF_SECONDS)) - 1] * spread)


def record_attempt(db: Database, due: ClaimedDelivery, sent: DeliveryResult, now: datetime) -> None:
    """Record the result of an attempt; a 410 response disables the receiver.

    After long failure all pending deliveries of the receiver wait for this one; the first success releases them. New
    alerts are tried at once.
    """

    def record(tx: Connection) -> None:
        if sent.acknowledged:
            alerts.note_success(tx, due.organisation_id, due.receiver.id)
            alerts.save_success(tx, due, sent.status or 0, now)
        else:
            _failed(tx, due, sent, now)

    db.transact(due.organisation_id, record)


def _failed(tx: Connection, due: ClaimedDelivery, sent: DeliveryResult, now: datetime) -> None:
    organisation_id, receiver_id = due.organisation_id, due.receiver.id
    if sent.gone:  # the audit event requires the organisation's lock first
        organisations.lock(tx, organisation_id)
    failures, since = alerts.note_failure(tx, organisation_id, receiver_id, now)
    again_at = now + retry_delay(due.attempts)
    alerts.save_failure(tx, due, sent.status, sent.error or "", again_at)
    if sent.gone:
        receiver = alerts.find_receiver(tx, organisation_id, receiver_id)
        if receiver is not None and receiver.disabled_at is None:
            disable(tx, organisation_id, receiver, SERVICE, GONE, now)
    elif failures >= MANY_FAILURES and now - since >= LONG_FAILING:
        alerts.postpone(tx, organisation_id, receiver_id, again_at)
