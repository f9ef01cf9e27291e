"""Configuration of a client, checked before anything is sent."""

import os
import ssl
from dataclasses import dataclass, field
from importlib.metadata import version

import httpx2

from epsilon_ledger._net.async_step_connections import AsyncStepConnections
from epsilon_ledger._net.attempts import RetryPolicy
from epsilon_ledger._net.http import RequestBuilder
from epsilon_ledger._net.step_connections import StepConnections
from epsilon_ledger._net.workload import (
    AsyncWorkloadTransport,
    TokenProvider,
    WorkloadKeys,
    WorkloadTransport,
    token_file,
)
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
class Credentials:
    """What a client was given: a key, the file of a workload's token, or what provides one; the rest is None."""

    api_key: str | None = field(default=None, repr=False)
    token_file: str | os.PathLike[str] | None = None
    provider: TokenProvider | None = None

    def token_provider(self) -> TokenProvider | None:
        """Get what provides tokens; None: a key is used.

        Raises:
            ConfigurationError: several credentials were given.
        """
        if sum(each is not None for each in (self.api_key, self.token_file, self.provider)) > 1:
            raise ConfigurationError("Give LedgerClient one of api_key, token_file and token_provider.")
        if self.provider is not None:
            return self.provider
        file = self.token_file
        if file is None and self.api_key is None and not os.environ.get("EPSILON_LEDGER_API_KEY"):
            file = os.environ.get("EPSILON_LEDGER_TOKEN_FILE") or None
        return None if file is None else token_file(file)

    def key(self) -> str:
        """Get the key, from the environment if none was given."""
        return validate_key(self.api_key or os.environ.get("EPSILON_LEDGER_API_KEY", ""))


@dataclass(frozen=True, slots=True)
class Connection:
    """Address, headers and time-outs of requests, and the retry policy.

    `token_provider` gets the tokens of a workload, which are exchanged for keys; None: the headers have the key.
    """

    requests: RequestBuilder
    retry_policy: RetryPolicy
    token_provider: TokenProvider | None

    def transport(self, inner: httpx2.BaseTransport) -> httpx2.BaseTransport:
        """Add the keys of a workload to a transport, if there are any."""
        if self.token_provider is None:
            return inner
        return WorkloadTransport(inner, self._keys(), self.token_provider)

    def step_connections(self, http: httpx2.BaseTransport) -> StepConnections | None:
        """Open connections for steps beside a transport to the network.

        Returns:
            None: the transport sends the steps, too, through a proxy or with the keys of a workload.
        """
        if self.token_provider is not None or type(http) is not httpx2.HTTPTransport:
            return None
        return StepConnections(self.requests, self._context())

    def async_transport(self, inner: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
        """As `transport`, asynchronous."""
        if self.token_provider is None:
            return inner
        return AsyncWorkloadTransport(inner, self._keys(), self.token_provider)

    def async_step_connections(self, http: httpx2.AsyncBaseTransport) -> AsyncStepConnections | None:
        """As `step_connections`, asynchronous."""
        if self.token_provider is not None or type(http) is not httpx2.AsyncHTTPTransport:
            return None
        return AsyncStepConnections(self.requests, self._context())

    def _context(self) -> ssl.SSLContext | None:
        """Create the TLS context of connections for steps; None: the ledger's address is http."""
        if self.requests.address.scheme == "http":
            return None
        context = httpx2.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _keys(self) -> WorkloadKeys:
        return WorkloadKeys(self.requests.address, self.requests.timeout)


def connection(
    url: str | None,
    credentials: Credentials,
    timeout: float,
    max_attempts: int,
    give_up_after: float,
) -> Connection:
    """Build a client's configuration from arguments and environment, as `LedgerClient` documents.

    Raises:
        ConfigurationError: the address is missing or invalid, or the credentials are missing, invalid or several.
        ValueError: `max_attempts` is below 1.
    """
    if max_attempts < 1:
        raise ValueError(f"max_attempts must be at least 1, not {max_attempts}.")
    provider = credentials.token_provider()
    headers = {} if provider is not None else {"Authorization": f"Bearer {credentials.key()}"}
    address = httpx2.URL(validate_url(url or os.environ.get("EPSILON_LEDGER_URL", "")).rstrip("/"))
    headers |= {
        "Accept": "application/json, application/problem+json",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": f"epsilon-ledger-client/{version('epsilon-ledger-client')}",
    }
    policy = RetryPolicy(max_attempts=max_attempts, give_up_after=give_up_after)
    return Connection(RequestBuilder(address, headers, timeout), policy, provider)
