"""One attempt to deliver an alert."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

import certifi
import httpcore

from app.persistence.repositories.deliveries import Due
from app.service.alerts.ssrf_guard import GuardedBackend, Resolver, resolve
from app.service.alerts.webhook_signatures import message, signed_headers
from app.version import VERSION

TIMEOUT_SECONDS: Final = 10.0
"""For a whole attempt: finding the host, connecting, sending, and the head of the answer."""

MOST_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Sent:
    """How an attempt went.

    Args:
        status: of the answer; None: none came.
        error: why the attempt failed; None: it was acknowledged.
    """

    status: int | None
    error: str | None

    @property
    def acknowledged(self) -> bool:
        """Whether the receiver has it."""
        return self.error is None

    @property
    def gone(self) -> bool:
        """Whether the receiver wants nothing any more."""
        return self.status == HTTPStatus.GONE


class Sender:
    """Sends alerts; neither proxies of the environment nor redirects are followed, and no connection is kept.

    Args:
        allow_private: whether addresses are connected to that are not public.
        resolver: finds a host's addresses.
    """

    def __init__(self, *, allow_private: bool, resolver: Resolver = resolve) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=_trusting(),
            max_connections=MOST_AT_ONCE,
            max_keepalive_connections=0,
            network_backend=GuardedBackend(allow_private=allow_private, resolver=resolver),
        )
        self._agent = f"epsilon-ledger/{VERSION}"

    async def send(self, due: Due, now: datetime) -> Sent:
        """Send an alert to a webhook, once.

        Args:
            due: what, and where to.
            now: in UTC; the receiver is told.

        Returns:
            How it went; only an answer of 2xx acknowledges. The answer's body is not read.
        """
        body = message(due.alert)
        headers = {
            "content-type": "application/json",
            "user-agent": self._agent,
            **signed_headers(due.webhook.secrets(now), due.alert.id, int(now.timestamp()), body),
        }
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self._posted(due.webhook.url, headers, body) as response:
                status = response.status
        except (TimeoutError, httpcore.TimeoutException):
            return Sent(None, f"There was no answer within {TIMEOUT_SECONDS:g} seconds.")
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            return Sent(None, (str(error) or type(error).__name__)[:200])
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return Sent(status, None)
        return Sent(status, f"The answer was {status}.")

    async def close(self) -> None:
        """Close what is open."""
        await self._pool.aclose()

    def _posted(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[httpcore.Response]:
        return self._pool.stream("POST", url, headers=list(headers.items()), content=body)


def _trusting() -> ssl.SSLContext:
    """What the machine trusts, or SSL_CERT_FILE names, and what browsers do."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
