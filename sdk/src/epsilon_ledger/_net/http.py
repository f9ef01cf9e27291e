"""HTTP requests and httpx2's transports.

A request goes to a transport directly: `httpx2.Client` would merge URLs and headers and look for cookies, redirects and
authentication in every step, none of which the ledger has.
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.request import getproxies

import httpx2

from epsilon_ledger._wire.requests import Request


class RequestBuilder:
    """Builder of a client's HTTP requests.

    Args:
        address: the ledger's, without a slash at its end.
        headers: of every request.
        timeout: seconds to connect, and to receive a response.
    """

    def __init__(self, address: httpx2.URL, headers: Mapping[str, str], timeout: float) -> None:
        self.address = address
        self._headers = httpx2.Headers(headers)
        self.timeout = httpx2.Timeout(timeout).as_dict()
        self._extensions = {"timeout": self.timeout}

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where to connect to."""
        port = self.address.port or (443 if self.address.scheme == "https" else 80)
        return self.address.raw_host.decode(), port

    def build(self, request: Request) -> httpx2.Request:
        """Build the HTTP request of a logical request, for all attempts."""
        url = _join(self.address, request.path)
        built = httpx2.Request(
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

    def build_head(self, path: str) -> tuple[bytes, str]:
        """Build the head of POST requests of JSON to a path, but for the headers that differ; return its URL, too.

        The headers are those of `build`, except that the response must not be compressed.
        """
        built = self.build(Request("POST", path, b""))
        built.headers["Accept-Encoding"] = "identity"
        del built.headers["Content-Length"]
        lines = (b"%b: %b\r\n" % header for header in built.headers.raw)
        return b"POST %b HTTP/1.1\r\n%b" % (built.url.raw_path, b"".join(lines)), str(built.url)


@lru_cache(maxsize=64)
def _join(address: httpx2.URL, path: str) -> httpx2.URL:
    """Join the ledger's address and a path; the steps of a run have the same one."""
    return httpx2.URL(f"{address}/{path}")


class _ProxyTransport(httpx2.BaseTransport):
    """Transport through the environment's proxies, which `httpx2.Client` chooses."""

    def __init__(self) -> None:
        self._client = httpx2.Client()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._client.send(request, stream=True)

    def close(self) -> None:
        self._client.close()


class _AsyncProxyTransport(httpx2.AsyncBaseTransport):
    """`_ProxyTransport` with awaitable methods."""

    def __init__(self) -> None:
        self._client = httpx2.AsyncClient()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        await self._client.aclose()


def open_transport() -> httpx2.BaseTransport:
    """Open a transport to the network, through the environment's proxies if it has any."""
    return _ProxyTransport() if _has_proxies() else httpx2.HTTPTransport()


def open_async_transport() -> httpx2.AsyncBaseTransport:
    """As `open_transport`, asynchronous."""
    return _AsyncProxyTransport() if _has_proxies() else httpx2.AsyncHTTPTransport()


def _has_proxies() -> bool:
    """Return whether the environment names a proxy that httpx2 heeds."""
    return not getproxies().keys().isdisjoint({"http", "https", "all"})
