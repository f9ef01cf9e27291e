"""Configuration of a client, checked before anything is sent."""

import os
from dataclasses import dataclass
from importlib.metadata import version

import httpx2

from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._net.transport import RetryPolicy
from epsilon_ledger._wire.errors import ConfigurationError


def validate_url(url: str) -> str:
    """Check and return the ledger's address.

    Raises:
        ConfigurationError: it is missing or malformed, or has credentials.
    """
    if not url:
        raise ConfigurationError(
            "Where is the ledger? Give LedgerClient a url or set EPSILON_LEDGER_URL, "
            "to http://127.0.0.1:8000 for instance."
        )
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ConfigurationError(f"The ledger's address {url!r} is not a URL.") from None
    if parts.userinfo:
        # Credentials in the URL would replace the key and appear in messages.
        raise ConfigurationError("The ledger's address must not hold a user name or password.")
    if parts.scheme not in {"http", "https"} or not parts.host or parts.query or parts.fragment:
        raise ConfigurationError(f"The ledger's address {url!r} must look like https://ledger.example.org.")
    return url


def validate_key(key: str) -> str:
    """Check and return an API key, which no message shows.

    Raises:
        ConfigurationError: it is missing or malformed.
    """
    if not key:
        raise ConfigurationError("No API key: give LedgerClient an api_key or set EPSILON_LEDGER_API_KEY.")
    if not (key.isascii() and key.isprintable() and " " not in key):
        # Checked here because the HTTP library's error would show the key.
        raise ConfigurationError("The API key has characters that no key has: a line break or a space, perhaps.")
    return key


@dataclass(frozen=True, slots=True)
class Connection:
    """Address, headers with the key and time-outs of requests, and the retry policy."""

    requests: RequestBuilder
    retry_policy: RetryPolicy


def connection(
    url: str | None, api_key: str | None, timeout: float, max_attempts: int, give_up_after: float
) -> Connection:
    """Build a client's configuration from arguments and environment, as `LedgerClient` documents.

    Raises:
        ConfigurationError: the address or the key is missing or invalid.
        ValueError: `max_attempts` is below 1.
    """
    if max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, not {max_attempts}.")
    key = validate_key(api_key or os.environ.get("EPSILON_LEDGER_API_KEY", ""))
    address = httpx2.URL(validate_url(url or os.environ.get("EPSILON_LEDGER_URL", "")).rstrip("/"))
    headers = {
        "Authorization": f"Bearer {key}",
        "Accept": "application/json, application/problem+json",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": f"epsilon-ledger-client/{version('epsilon-ledger-client')}",
    }
    return Connection(
        RequestBuilder(address, headers, timeout), RetryPolicy(max_attempts=max_attempts, give_up_after=give_up_after)
    )
