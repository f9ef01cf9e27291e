"""Where the ledger is and who asks, checked before anything is sent."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

import httpx

from epsilon_ledger._net.transport import RetryPolicy
from epsilon_ledger._wire.errors import ConfigurationError


def checked_url(url: str) -> str:
    """Let an address pass that requests can be sent to.

    Args:
        url: what the trainer gave, possibly nothing.

    Returns:
        The same.

    Raises:
        ConfigurationError: it is missing or malformed, or carries credentials.
    """
    if not url:
        raise ConfigurationError(
            "Where is the ledger? Give LedgerClient a url or set EPSILON_LEDGER_URL, "
            "to http://127.0.0.1:8000 for instance."
        )
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        raise ConfigurationError(f"The ledger's address {url!r} is not a URL.") from None
    if parts.userinfo:
        # Its secrets would be sent instead of the key and shown in messages.
        raise ConfigurationError("The ledger's address must not hold a user name or password.")
    if parts.scheme not in {"http", "https"} or not parts.host or parts.query or parts.fragment:
        raise ConfigurationError(f"The ledger's address {url!r} must look like https://ledger.example.org.")
    return url


def checked_key(key: str) -> str:
    """Let a key pass that a header can carry; it is never shown.

    Args:
        key: what the trainer gave, possibly nothing.

    Returns:
        The same.

    Raises:
        ConfigurationError: it is missing or malformed.
    """
    if not key:
        raise ConfigurationError("No API key: give LedgerClient an api_key or set EPSILON_LEDGER_API_KEY.")
    if not (key.isascii() and key.isprintable() and " " not in key):
        # Not shown, and caught here because the HTTP library would show it.
        raise ConfigurationError("The API key has characters that no key has: a line break or a space, perhaps.")
    return key


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the ledger is, who asks, and how patiently.

    Args:
        url: address without credentials.
        headers: of every request, the key among them.
        patience: how often and how long a request is tried.
    """

    url: str
    headers: Mapping[str, str]
    patience: RetryPolicy


def connection(url: str | None, api_key: str | None, max_attempts: int, give_up_after: float) -> Connection:
    """Find out what a client needs, from its arguments and the environment.

    Args:
        url: the ledger's address; by default EPSILON_LEDGER_URL.
        api_key: the organisation's key; by default EPSILON_LEDGER_API_KEY.
        max_attempts: tries of one request, at least 1.
        give_up_after: seconds after which no further try of a request is begun.

    Returns:
        The connection.

    Raises:
        ConfigurationError: the address or the key is missing or cannot be used.
        ValueError: there would be no try at all.
    """
    if max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, not {max_attempts}.")
    key = checked_key(api_key or os.environ.get("EPSILON_LEDGER_API_KEY", ""))
    return Connection(
        checked_url(url or os.environ.get("EPSILON_LEDGER_URL", "")),
        {
            "Authorization": f"Bearer {key}",
            "Accept": "application/json, application/problem+json",
            "User-Agent": f"epsilon-ledger-client/{version('epsilon-ledger-client')}",
        },
        RetryPolicy(max_attempts=max_attempts, give_up_after=give_up_after),
    )
