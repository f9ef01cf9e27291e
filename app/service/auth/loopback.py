"""Addresses that are reached from this machine only."""

from ipaddress import IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Check whether an address or `localhost` is reached from this machine only."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    # A socket for both protocols shows peers of the older one as ::ffff:127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
