"""Where the ledger is and who asks, checked before anything is sent."""

import httpx

from epsilon_ledger._errors import ConfigurationError


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
