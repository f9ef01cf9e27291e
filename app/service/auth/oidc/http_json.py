"""Fetch JSON from an identity provider with limits on time and size, without redirects."""

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from app.service.egress.connection import connect
from app.service.egress.http_client import HttpRequest, exchange
from app.service.egress.proxies import Proxy
from app.service.egress.thread import EGRESS
from app.service.json_values import read_object

FETCH_SECONDS: Final = 10.0
"""Time limit of a request, from name resolution to the last byte."""

MOST_BYTES: Final = 1 << 20
"""Size limit of a response."""

RETRIED_SECONDS: Final = 10.0
"""Retry interval of a provider whose keys are unknown."""

FAILURES: Final = (OSError, ValueError)
"""Exceptions of a provider that is down or answers with something else."""


class HttpStatusError(OSError):
    """An answer without success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status


_trusting: Final = cache(ssl.create_default_context)
"""Loads the trusted certificates (the system's, or SSL_CERT_FILE) once; it is slow."""


@dataclass(frozen=True, slots=True)
class FetchAccess:
    """How an address is fetched.

    Args:
        ca_file: PEM file of the only authorities to trust; None: the system's.
        token_file: file with a bearer token to send; None: none is sent.
    """

    ca_file: str | None = None
    token_file: str | None = None


SYSTEM_TRUST: Final = FetchAccess()
"""The system's authorities, and no token."""


def fetch_json(request: HttpRequest, trust: ssl.SSLContext | None = None) -> dict[str, object]:
    """Fetch the JSON object that answers a request to a checked address; this thread waits for it.

    Raises:
        HttpStatusError: the status is not 2xx; redirects are not followed, because the address is configured.
        OSError, ValueError: no valid response in time.
    """
    proxy, known = Proxy.of_environment(request.url), trust or _trusting()
    sent = exchange(request, connect, known, seconds=FETCH_SECONDS, most_body=MOST_BYTES, proxy=proxy)
    try:
        answer = EGRESS.submit(sent).result()
    except TimeoutError:
        raise TimeoutError(f"its answer took longer than {FETCH_SECONDS:g} seconds") from None
    if not answer.succeeded:
        raise HttpStatusError(answer.status)
    return read_object(answer.body)


def fetched_from(url: str, access: FetchAccess = SYSTEM_TRUST) -> dict[str, object]:
    """Fetch the JSON object at a checked address; raises as `fetch_json` does."""
    headers = {"Accept": "application/json"}
    if access.token_file is not None:  # read each time: it is replaced before it expires
        headers["Authorization"] = f"Bearer {Path(access.token_file).read_text(encoding='ascii').strip()}"
    trust = None if access.ca_file is None else ssl.create_default_context(cafile=access.ca_file)
    return fetch_json(HttpRequest("GET", url, headers), trust)


def configuration_of(issuer: str, access: FetchAccess = SYSTEM_TRUST) -> dict[str, object]:
    """Fetch an issuer's configuration (OpenID Connect Discovery, 4).

    Raises:
        OSError, ValueError: there is none, or it names another issuer.
    """
    configuration = fetched_from(f"{issuer.rstrip('/')}/.well-known/openid-configuration", access)
    if configuration.get("issuer") != issuer:
        raise ValueError(f"its configuration names another issuer than {issuer}")
    return configuration


def said(error: Exception) -> str:
    """Summarize an error for the log."""
    return str(error) if isinstance(error, HttpStatusError) else f"{type(error).__name__}: {error}"[:300]
