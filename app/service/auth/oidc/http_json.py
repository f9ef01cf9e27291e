"""Fetch JSON from an identity provider with limits on time and size, without redirects."""

import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from threading import Lock, Thread
from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from app.service.json_values import read_object

FETCH_SECONDS: Final = 10.0
"""Time limit of a request, from name resolution to the last byte."""

MOST_BYTES: Final = 1 << 20
"""Size limit of a response."""

RETRIED_SECONDS: Final = 10.0
"""Retry interval of a provider whose keys are unknown."""

FAILURES: Final = (OSError, HTTPException, ValueError)
"""Exceptions of a provider that is down or answers with something else."""

_PIECE: Final = 65_536


class _NoRedirects(HTTPRedirectHandler):
    """Refuse redirects, because the address is configured."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect; the response stays an error."""


class _Fetch(HTTPSHandler):
    """One request in its own thread, because a socket's timeout restarts with each byte.

    It opens connections, with and without TLS, and shuts the last one down when the time is over.
    """

    handler_order = 400  # before the default handler of http

    def __init__(self, trust: ssl.SSLContext) -> None:
        super().__init__(context=trust)
        self._trust = trust
        self._content: Future[bytes] = Future()
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._given_up = False

    def content_of(self, request: Request) -> bytes:
        """Get the response body; raises as `fetch_json` does."""
        Thread(target=self._run, args=(request,), name="openid-fetch", daemon=True).start()
        try:
            return self._content.result(FETCH_SECONDS)
        except TimeoutError:
            with self._lock:
                self._given_up = True
                if self._socket is not None:
                    with suppress(OSError):  # already closed
                        self._socket.shutdown(socket.SHUT_RDWR)  # a blocked read returns
            raise TimeoutError(f"its answer took longer than {FETCH_SECONDS:g} seconds") from None

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, HTTPConnection), req)

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, partial(HTTPSConnection, context=self._trust)), req)

    def _run(self, request: Request) -> None:
        try:
            self._content.set_result(self._read(request))
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            self._content.set_exception(error)

    def _read(self, request: Request) -> bytes:
        content = bytearray()
        with build_opener(_NoRedirects, self).open(request, timeout=FETCH_SECONDS) as answer:
            while piece := answer.read1(_PIECE):
                content += piece
                if len(content) > MOST_BYTES:
                    raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
        return bytes(content)

    def _connection(self, kind: Callable[..., HTTPConnection], host: str, *, timeout: float) -> HTTPConnection:
        connection = kind(host, timeout=timeout)
        connect = connection.connect

        def connect_and_register() -> None:
            connect()
            with self._lock:
                if self._given_up:
                    raise TimeoutError
                self._socket = connection.sock

        connection.connect = connect_and_register  # type: ignore[method-assign]
        return connection


@cache
def _trusting() -> ssl.SSLContext:
    """Load the trusted certificates (the system's, or SSL_CERT_FILE) once; it is slow."""
    return ssl.create_default_context()


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


def fetch_json(request: Request, trust: ssl.SSLContext | None = None) -> dict[str, object]:
    """Fetch the JSON object that answers a request to a checked address.

    Raises:
        HTTPError: the status is not 2xx.
        OSError, HTTPException, ValueError: no valid response in time.
    """
    return read_object(_Fetch(trust or _trusting()).content_of(request))


def fetched_from(url: str, access: FetchAccess = SYSTEM_TRUST) -> dict[str, object]:
    """Fetch the JSON object at a checked address; raises as `fetch_json` does."""
    headers = {"Accept": "application/json"}
    if access.token_file is not None:  # read each time: it is replaced before it expires
        headers["Authorization"] = f"Bearer {Path(access.token_file).read_text(encoding='ascii').strip()}"
    trust = None if access.ca_file is None else ssl.create_default_context(cafile=access.ca_file)
    return fetch_json(Request(url, headers=headers), trust)  # noqa: S310 - it was checked


def configuration_of(issuer: str, access: FetchAccess = SYSTEM_TRUST) -> dict[str, object]:
    """Fetch an issuer's configuration (OpenID Connect Discovery, 4).

    Raises:
        HTTPError, OSError, HTTPException, ValueError: there is none, or it names another issuer.
    """
    configuration = fetched_from(f"{issuer.rstrip('/')}/.well-known/openid-configuration", access)
    if configuration.get("issuer") != issuer:
        raise ValueError(f"its configuration names another issuer than {issuer}")
    return configuration


def said(error: Exception) -> str:
    """Summarize an error for the log."""
    if isinstance(error, HTTPError):
        error.close()
        return f"HTTP status {error.code}"
    return f"{type(error).__name__}: {error}"[:300]
