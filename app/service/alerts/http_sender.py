"""One attempt to deliver an alert over HTTP, signed by the Standard Webhooks specification."""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import certifi

from app.ledger.alerts import Alert
from app.persistence.repositories.alerts import ClaimedDelivery
from app.service.alerts.ssrf_guard import Resolver, resolve
from app.version import VERSION

if TYPE_CHECKING:
    import httpcore

TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a whole attempt, from the DNS lookup to the response headers."""

MOST_AT_ONCE: Final = 64

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


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


class WebhookSender:
    """HTTP client without redirects, proxies of the environment, and kept connections."""

    def __init__(self, *, allow_private: bool, resolver: Resolver = resolve) -> None:
        self._allow_private = allow_private
        self._resolver = resolver
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._opening = asyncio.Lock()
        self._agent = f"epsilon-ledger/{VERSION}"

    async def send(self, due: ClaimedDelivery, now: datetime) -> DeliveryResult:
        """Send an alert to a webhook once; only a 2xx response, whose body is not read, acknowledges it."""
        import httpcore  # noqa: PLC0415 - see `guarded_backend`

        body = message(due.alert)
        headers = {
            "content-type": "application/json",
            "user-agent": self._agent,
            **signed_headers(due.webhook.secrets(now), due.alert.id, int(now.timestamp()), body),
        }
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), await self._posted(due.webhook.url, headers, body) as response:
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
                # Only now: certificates take 0.04 s to read, and many services have no webhook.
                self._pool = await asyncio.to_thread(self._open_pool)
        return self._pool.stream("POST", url, headers=list(headers.items()), content=body)

    def _open_pool(self) -> "httpcore.AsyncConnectionPool":
        import httpcore  # noqa: PLC0415 - see `guarded_backend`

        from app.service.alerts.guarded_backend import GuardedBackend  # noqa: PLC0415 - as said there

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


def new_secret() -> str:
    """Generate a secret of 256 random bits in the specification's format."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


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
