"""Protection against SSRF: which addresses and URLs receivers may have."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from app.ledger.errors import InvalidInputError
from app.ledger.names import MAX_URL_LENGTH

_MORE_THAN_PRIVATE: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",
            "169.254.0.0/16",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
"""Networks without public hosts, whichever `is_global` of this Python version includes."""

_UNICAST: Final = IPv6Network("2000::/3")
_NO_HOSTS: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""Global unicast; its parts for protocols and documentation; NAT64, which embeds IPv4."""


def is_public(address: str) -> bool:
    """Return whether an address belongs to a public host of the internet.

    False for private, loopback, link-local, shared, multicast, reserved and documentation addresses, also embedded in
    IPv6.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        inner = _embedded(found)
        if inner is not None:
            return is_public(str(inner))
        return found in _UNICAST and found.is_global and not any(found in network for network in _NO_HOSTS)
    return found.is_global and not any(found in network for network in _MORE_THAN_PRIVATE)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address in a mapped, NAT64 or 6to4 address, or None."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def check_url(url: str, *, allow_private: bool) -> None:
    """Validate the URL of a receiver; host names are checked on connection.

    Raises:
        InvalidInputError: it is not an https URL with a host, contains credentials, or its host is a forbidden address.
    """
    parts = _split(url)
    if parts.scheme != "https" and not (allow_private and parts.scheme == "http"):
        raise InvalidInputError("A receiver's `url` begins with https://.")
    if not parts.hostname:
        raise InvalidInputError("A receiver's `url` names a host.")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidInputError("A receiver's `url` holds no name, no password and no fragment.")
    if not allow_private and _is_address(parts.hostname) and not is_public(parts.hostname):
        raise InvalidInputError(f"Alerts are not sent to {parts.hostname}: it is no public address.")


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInputError(
            f"A receiver's `url` has at most {MAX_URL_LENGTH} characters, all of them ASCII and none of them a space."
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInputError("A receiver's `url` cannot be read.") from None
    if port == 0:
        raise InvalidInputError("A receiver's `url` names a port that can be connected to.")
    return parts


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
