"""HTTP requests and httpx's transports.

A request goes to a transport directly: `httpx.Client` would merge URLs and headers and look for cookies, redirects and
authentication in every step, none of which the ledger has.
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.request import getproxies

import httpx

from epsilon_ledger._wire.requests import Request


class RequestBuilder:
    """Builder of a client's HTTP requests.

    Args:
        address: the ledger's, without a slash at its end.
        headers: of every request.
        timeout: seconds to connect, and to receive a response.
    """

    def __init__(self, address: httpx.URL, headers: Mapping[str, str], timeout: float) -> None:
        self.address = address
        self._headers = httpx.Headers(headers)
        self.timeout = httpx.Timeout(timeout).as_dict()
        self._extensions = {"timeout": self.timeout}

    def build(self, request: Request) -> httpx.Request:
        """Build the HTTP request of a logical request, for all attempts."""
        url = _join(self.address, request.path)
        built = httpx.Request(
            request.method, url, headers=self._headers, content=request.body, extensions=self._extensions
        )
        if request.body is not None:
            built.headers["Content-Type"] = "application/json"
        if request.key is not None:
            built.headers["Idempotency-Key"] = request.key
        if request.if_match is not None:
            built.headers["If-Match"] = request.if_match
        if not request.is_json:
            built.headers["Accept"] = "*/*"
        return built


@lru_cache(maxsize=64)
def _join(address: httpx.URL, path: str) -> httpx.URL:
    """Join the ledger's address and a path; the steps of a run have the same one."""
    return httpx.URL(f"{address}/{path}")


class _ProxyTransport(httpx.BaseTransport):
    """Transport through the environment's proxies, which `httpx.Client` chooses."""

    def __init__(self) -> None:
        self._client = httpx.Client()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._client.send(request, stream=True)

    def close(self) -> None:
        self._client.close()


class _AsyncProxyTransport(httpx.AsyncBaseTransport):
    """`_ProxyTransport` with awaitable methods."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        await self._client.aclose()


def open_transport() -> httpx.BaseTransport:
    """Open a transport to the network, through the environment's proxies if it has any."""
    return _ProxyTransport() if getproxies() else httpx.HTTPTransport()


def open_async_transport() -> httpx.AsyncBaseTransport:
    """As `open_transport`, asynchronous."""
    return _AsyncProxyTransport() if getproxies() else httpx.AsyncHTTPTransport()
