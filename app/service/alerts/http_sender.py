"""HTTP requests of alerts, to checked addresses only."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import certifi

from app.service.alerts.ssrf_guard import Resolver, resolve
from app.version import VERSION

if TYPE_CHECKING:
    import httpcore2

TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a whole attempt, from the DNS lookup to the response headers."""

MOST_CONNECTIONS: Final = 64

GONE: Final = "The receiver answered 410 Gone."

MOST_ERROR_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Result of an attempt.

    Args:
        status: of the response by HTTP or SMTP, if any.
        error: why the alert was not acknowledged; None: it was.
        refusal: why the receiver takes no alert any more, if it said so.
        note: what an acknowledged alert has left out, such as a refused address.
    """

    status: int | None
    error: str | None
    refusal: str | None = None
    note: str | None = None

    @property
    def acknowledged(self) -> bool:
        """Whether the receiver acknowledged the alert."""
        return self.error is None

    @property
    def gone(self) -> str | None:
        """Why the receiver refuses all further alerts; None: it does not."""
        return GONE if self.status == HTTPStatus.GONE else self.refusal


class HttpSender:
    """HTTP client without redirects, proxies of the environment, and kept connections."""

    def __init__(self, *, allow_private: bool, resolver: Resolver = resolve) -> None:
        self._allow_private = allow_private
        self._resolver = resolver
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._opening = asyncio.Lock()
        self._agent = f"epsilon-ledger/{VERSION}"

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """Post JSON once; only a 2xx response, whose body is not read, acknowledges it."""
        import httpcore2  # noqa: PLC0415 - see `guarded_backend`

        sent = {"content-type": "application/json", "user-agent": self._agent, **headers}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), await self._posted(url, sent, body) as response:
                status = response.status
        except (TimeoutError, httpcore2.TimeoutException):
            return DeliveryResult(None, f"There was no answer within {TIMEOUT_SECONDS:g} seconds.")
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
            return DeliveryResult(None, (str(error) or type(error).__name__)[:MOST_ERROR_CHARACTERS])
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return DeliveryResult(status, None)
        return DeliveryResult(status, f"The answer was {status}.")

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.aclose()

    async def _posted(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> "AbstractAsyncContextManager[httpcore2.Response]":
        async with self._opening:
            if self._pool is None:
                # Only now: certificates take 0.04 s to read, and many services have no receiver.
                self._pool = await asyncio.to_thread(self._open_pool)
        return self._pool.stream("POST", url, headers=list(headers.items()), content=body)

    def _open_pool(self) -> "httpcore2.AsyncConnectionPool":
        import httpcore2  # noqa: PLC0415 - see `guarded_backend`

        from app.service.alerts.guarded_backend import GuardedBackend  # noqa: PLC0415 - imports httpcore2

        return httpcore2.AsyncConnectionPool(
            ssl_context=trusted_certificates(),
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=0,
            network_backend=GuardedBackend(allow_private=self._allow_private, resolver=self._resolver),
        )


def trusted_certificates() -> ssl.SSLContext:
    """Trust the system's or SSL_CERT_FILE's certificates and those of browsers."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
