"""Requests to a server's API, with retries where a repetition is safe."""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx2

from app.api.pagination import MAX_PAGE
from app.provisioning.errors import ProvisioningError
from app.version import VERSION

URL_VARIABLE: Final = "EPSILON_LEDGER_URL"
KEY_VARIABLE: Final = "EPSILON_LEDGER_API_KEY"

MAX_ATTEMPTS: Final = 5
MAX_WAIT: Final = 30.0
"""Seconds to wait at most before an attempt, whatever the server asks for."""

TIMEOUT: Final = 60.0

_BUSY: Final = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


class ServerError(ProvisioningError):
    """The server cannot be used: it does not answer, fails, or rejects the API key."""


class RefusalError(ProvisioningError):
    """The server refused one request."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{detail} ({code})")
        self.status = status


class HttpApi:
    """The API of a running server, as its client's environment variables name it.

    Args:
        url: address of the server.
        api_key: of the caller.
        transport: for tests.
    """

    def __init__(self, url: str, api_key: str, transport: httpx2.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self.caller = api_key.partition(".")[0]
        headers = {"Authorization": f"Bearer {api_key}", "User-Agent": f"epsilon-ledger/{VERSION}"}
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, transport=transport)

    @classmethod
    def from_environment(cls) -> "HttpApi":
        """Open the API that EPSILON_LEDGER_URL and EPSILON_LEDGER_API_KEY name.

        Raises:
            ProvisioningError: one is missing or malformed.
        """
        url, key = os.environ.get(URL_VARIABLE, ""), os.environ.get(KEY_VARIABLE, "")
        if not url:
            raise ProvisioningError(f"Set {URL_VARIABLE} to the server's address, such as http://127.0.0.1:8000.")
        if not key:
            raise ProvisioningError(f"Set {KEY_VARIABLE} to an API key of an admin or a privacy officer.")
        try:
            parts = httpx2.URL(url)
        except httpx2.InvalidURL:
            raise ProvisioningError(f"{URL_VARIABLE} is not a URL.") from None
        if parts.scheme not in {"http", "https"} or not parts.host or parts.userinfo or parts.query or parts.fragment:
            raise ProvisioningError(f"{URL_VARIABLE} must look like https://ledger.example.org, without credentials.")
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ProvisioningError(f"{KEY_VARIABLE} has characters that no key has: a line break or a space, perhaps.")
        return cls(url, key)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str) -> tuple[Any, str | None]:
        """Get a resource with its entity tag."""
        reply = self._request("GET", path)
        return self._json(reply), reply.headers.get("ETag")

    def items(self, path: str, **query: str) -> Iterator[Any]:
        """Iterate over a list, page by page."""
        following: dict[str, str] = {}
        while True:
            page = self._json(self._request("GET", path, params={"limit": str(MAX_PAGE)} | query | following))
            yield from page["items"]
            if page["next"] is None:
                return
            following = {"after": page["next"]}

    def post(self, path: str, body: object, *, etag: str | None = None) -> tuple[int, Any]:
        """Send a request with an idempotency key, so that it has one effect however often it is repeated."""
        headers = {"Idempotency-Key": str(uuid.uuid4())} | ({"If-Match": etag} if etag else {})
        reply = self._request("POST", path, json=body, headers=headers)
        return reply.status_code, self._json(reply)

    def post_for_secret(self, path: str, body: object) -> Any:  # noqa: ANN401 - JSON is anything
        """Send a request that takes no idempotency key, once: a repetition would create a second secret."""
        return self._json(self._request("POST", path, json=body, repeatable=False))

    def change(self, method: str, path: str, body: object, *, etag: str | None = None) -> tuple[int, Any]:
        """Send a request whose repetition has no further effect."""
        reply = self._request(method, path, json=body, headers={"If-Match": etag} if etag else {})
        return reply.status_code, self._json(reply)

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
    ) -> httpx2.Response:
        """Send a request until it is answered.

        Raises:
            RefusalError: the server refused it.
            ServerError: the server does not answer, fails or rejects the key.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            is_last = attempt == MAX_ATTEMPTS
            try:
                reply = self._http.request(method, f"/v1/{path}", params=params, json=json, headers=headers)
            except httpx2.TransportError as error:
                if is_last or not (repeatable or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)):
                    raise ServerError(f"{self.url} does not answer {method} /v1/{path}: {error}.") from None
                time.sleep(0.1 * 2**attempt)
                continue
            if reply.status_code not in _BUSY or is_last:
                break
            if not repeatable and reply.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
                break
            time.sleep(min(_retry_after(reply), MAX_WAIT))
        return self._require_success(reply)

    def _json(self, reply: httpx2.Response) -> Any:  # noqa: ANN401 - JSON is anything
        try:
            return reply.json()
        except ValueError:
            raise self._not_a_ledger(reply) from None

    def _not_a_ledger(self, reply: httpx2.Response) -> ServerError:
        return ServerError(f"{self.url} answered {reply.status_code}: is this the address of a ledger?")

    def _require_success(self, reply: httpx2.Response) -> httpx2.Response:
        if reply.is_success:
            return reply
        try:
            problem = reply.json()
            code, detail = str(problem["code"]), str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            raise self._not_a_ledger(reply) from None
        if reply.status_code == HTTPStatus.UNAUTHORIZED or reply.status_code in _BUSY or reply.is_server_error:
            raise ServerError(f"{self.url} answered {reply.status_code}: {detail} ({code})")
        raise RefusalError(reply.status_code, code, detail)


def _retry_after(reply: httpx2.Response) -> float:
    try:
        return max(0.1, float(reply.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0
