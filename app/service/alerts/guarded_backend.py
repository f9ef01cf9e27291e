"""Connections of receivers to public addresses only, unless others are allowed.

The address is checked when it is connected to, so that DNS rebinding does not help an attacker. Apart from `ssrf_guard`
because httpcore2 takes 0.04 s to import, and many services have no receiver.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import httpcore2

from app.service.alerts.ssrf_guard import Resolver, is_public, resolve


class ForbiddenAddressError(httpcore2.ConnectError):
    """A host has a forbidden address; the message does not disclose it."""


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Network backend that connects to public addresses only, unless private ones are allowed."""

    def __init__(self, *, allow_private: bool, resolver: Resolver = resolve) -> None:
        self._allow_private = allow_private
        self._resolve = resolver
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as in httpcore2
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a checked address.

        Raises:
            ForbiddenAddressError: the host has an address that is not public.
            ConnectError: the host has no address or does not answer.
        """
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"The host {host} has no address.") from error
        if not self._allow_private and not all(map(is_public, addresses)):
            raise ForbiddenAddressError(f"The host {host} is not at a public address; nothing was sent.")
        failure: Exception = httpcore2.ConnectError(f"The host {host} has no address.")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as in httpcore2
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Refuse: receivers have no Unix sockets."""
        del timeout, socket_options
        raise ForbiddenAddressError(f"{path} is no host.")

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)
