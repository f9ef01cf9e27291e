"""What tests of deliveries share: making them, sending them, reading how they went."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from app.persistence.database import Database
from app.service.alerts.alert_sender import AlertSender
from app.service.alerts.delivery_worker import claim_due, deliver, record_attempt
from app.service.alerts.http_sender import DeliveryResult
from app.service.alerts.mail_sender import SmtpServer
from tests.conftest import Ledger


def now(seconds: float = 0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def tried(ledger: Ledger, receiver: dict[str, str]) -> str:
    """A delivery of a test, due at once."""
    reply = ledger.post(f"/v1/receivers/{receiver['id']}/test", None)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def shown(ledger: Ledger, **filters: str) -> list[dict[str, Any]]:
    """Deliveries, the oldest first."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    items: list[dict[str, Any]] = ledger.get(f"/v1/deliveries?{query}", "admin").json()["items"]
    return items[::-1]


def sent_once(
    ledger: Ledger,
    *,
    allowed: bool = True,
    at: float = 0,
    smtp: SmtpServer | None = None,
    public_url: str | None = None,
) -> list[DeliveryResult]:
    """Claim what is due and send it, once."""

    async def main() -> list[DeliveryResult]:
        sender, outcomes = AlertSender(allow_private=allowed, smtp=smtp, public_url=public_url), []
        moment = max(now(), ledger.database.clock.now()) + timedelta(seconds=at)  # a server's clock may be ahead
        for due in claim_due(ledger.database, moment):
            sent = await sender.send(due, now())
            record_attempt(ledger.database, due, sent, moment)
            outcomes.append(sent)
        await sender.close()
        return outcomes

    return asyncio.run(main())


def delivering(ledger: Ledger, done: Callable[[], object], seconds: float = 30) -> None:
    """Let the deliverer work until something is so."""
    at_work([ledger.database], done, seconds)


def at_work(databases: list[Database], done: Callable[[], object], seconds: float) -> None:
    """Deliverers that look often, and send to this machine."""

    async def main() -> None:
        sender = AlertSender(allow_private=True)
        work = [asyncio.create_task(deliver(database, sender, look_seconds=0.05)) for database in databases]
        async with asyncio.timeout(seconds):
            while not done():  # noqa: ASYNC110 - another thread receives
                await asyncio.sleep(0.02)
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await sender.close()

    asyncio.run(main())
