"""The proxy that the environment names for a URL: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""

import base64
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; `headers` has its password, if it needs one."""

    host: str
    port: int
    headers: dict[str, str]

    @classmethod
    def of_environment(cls, url: str) -> Self | None:
        """Find the proxy for a URL; None: the host is asked directly.

        Raises:
            ValueError: the proxy is not an HTTP one.
        """
        parts, named = urlsplit(url), getproxies()
        address = named.get(parts.scheme) or named.get("all")
        if not address or proxy_bypass(parts.hostname or ""):
            return None
        proxy = urlsplit(address if "://" in address else f"http://{address}")
        if proxy.scheme != "http" or not proxy.hostname:
            raise ValueError(f"the proxy for {parts.scheme} must be http://HOST:PORT")
        return cls(proxy.hostname, proxy.port or 80, _credentials(proxy))


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
