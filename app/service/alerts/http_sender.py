"""HTTP requests of alerts, to checked addresses only."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import certifi

from app.service.alerts.ssrf_guard import is_public
from app.service.egress.connection import Resolver, connect, resolve
from app.service.egress.http_client import HttpRequest, exchange
from app.version import VERSION

TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a whole attempt, from the DNS lookup to the response headers."""

GONE_STATUS: Final = 410
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
        return GONE if self.status == GONE_STATUS else self.refusal


class HttpSender:
    """HTTP client of receivers, without redirects and proxies of the environment; it runs in the egress thread."""

    def __init__(self, *, allow_private: bool, resolver: Resolver = resolve) -> None:
        self._connect = partial(connect, permitted=None if allow_private else is_public, resolver=resolver)
        self._agent = f"epsilon-ledger/{VERSION}"

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        """Only when it is needed: many services have no receiver."""
        return trusted_certificates()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """Post JSON once; only a 2xx response, whose body is not read, acknowledges it."""
        sent = {"content-type": "application/json", "user-agent": self._agent, **headers}
        try:
            answer = await exchange(
                HttpRequest("POST", url, sent, body), self._connect, self._trust, seconds=TIMEOUT_SECONDS
            )
        except TimeoutError:
            return DeliveryResult(None, f"There was no answer within {TIMEOUT_SECONDS:g} seconds.")
        except OSError as error:
            return DeliveryResult(None, (str(error) or type(error).__name__)[:MOST_ERROR_CHARACTERS])
        if answer.succeeded:
            return DeliveryResult(answer.status, None)
        return DeliveryResult(answer.status, f"The answer was {answer.status}.")


def trusted_certificates() -> ssl.SSLContext:
    """Load the system's or SSL_CERT_FILE's certificates and those of browsers; it takes 0.04 s."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
