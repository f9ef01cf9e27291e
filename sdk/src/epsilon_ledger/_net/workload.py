"""Keys of a workload, which exchanges the token of its cluster or CI for them and renews them (RFC 8693)."""

import json
import os
import re
from asyncio import to_thread
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final, TypeAlias, TypeVar

import httpx2

from epsilon_ledger._wire.errors import ConfigurationError

TokenProvider: TypeAlias = Callable[[], str]
"""Gets a current token; it is called before each exchange, maybe from another thread."""

_T = TypeVar("_T")

_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_JWT: Final = "urn:ietf:params:oauth:token-type:jwt"

_RUN: Final = re.compile(r"/v1/runs/(run_[0-9a-f]+)(?:/|$)")
_RESERVATION: Final = re.compile(r"\bres_[0-9a-f]+")

_MARGIN: Final = 0.1
"""Part of a key's lifetime that is left when it is renewed."""

_MOST_NAMES: Final = 10_000
"""Remembered keys and reservations; beyond it, all are forgotten, and keys are exchanged anew."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A key, and until when it is used, by the monotonic clock."""

    key: str = field(repr=False)
    until: float


class _TokenWanted:
    """What a flow yields for a token."""


_Flow: TypeAlias = Generator[httpx2.Request | _TokenWanted, "httpx2.Response | str", httpx2.Response]


class WorkloadKeys:
    """The keys of a client, by what they are for: a run, the registration of one, or everything else.

    A workload's key is usually for the run that it registers. So each registration gets a key of its own, and a renewed
    key names the run. Where the ledger's rule gives keys for all of a scope, one is enough.
    """

    def __init__(self, address: httpx2.URL, timeout: Mapping[str, object]) -> None:
        self._url = httpx2.URL(f"{address}/v1/token")
        self._path_length = len(address.path.rstrip("/"))
        self._extensions = {"timeout": dict(timeout)}
        self._keys: dict[str, _Key] = {}
        self._runs: dict[str, str] = {}
        self._single_use = True
        self._lock = Lock()

    def flow(self, request: httpx2.Request) -> _Flow:
        """Send a request with a key: yield requests and get their responses, which were read, or wanted tokens.

        A key that is refused is exchanged anew, once. Returns the response, or that of a failed exchange.
        """
        slot, run = self._slot(request)
        known = self._current(slot)
        key = known or (yield from self._exchange(slot, run))
        if isinstance(key, httpx2.Response):
            return key
        response = yield _with_key(request, key)
        assert isinstance(response, httpx2.Response)
        if response.status_code == HTTPStatus.UNAUTHORIZED and known is not None:
            key = yield from self._exchange(slot, run)
            if isinstance(key, httpx2.Response):
                return key
            response = yield _with_key(request, key)
            assert isinstance(response, httpx2.Response)
        self._learn(slot, run, key, response)
        return response

    def _slot(self, request: httpx2.Request) -> tuple[str, str | None]:
        """Choose the key of a request: its name, and the id of the run that it is for."""
        path = request.url.path[self._path_length :]
        found = _RUN.match(path)
        run = found[1] if found else None
        if run is None and path.startswith("/v1/reservations/"):
            run = self._runs.get(path.split("/")[3])
        if not self._single_use:
            return "", None
        if run is not None:
            return run, run
        registers = request.method == "POST" and path == "/v1/runs"
        return f"registration {request.headers.get('Idempotency-Key', '')}" if registers else "", None

    def _current(self, slot: str) -> _Key | None:
        key = self._keys.get(slot)
        return key if key is not None and monotonic() < key.until else None

    def _exchange(
        self, slot: str, run: str | None
    ) -> Generator[httpx2.Request | _TokenWanted, "httpx2.Response | str", _Key | httpx2.Response]:
        """Exchange a token for a key; return the response if it was refused."""
        asked = monotonic()
        token = yield _TokenWanted()
        assert isinstance(token, str)
        body: dict[str, object] = {"grant_type": _GRANT, "subject_token": token, "subject_token_type": _JWT}
        body |= {"run_id": run} if run is not None else {}
        headers = {"Content-Type": "application/json", "Accept": "application/json, application/problem+json"}
        response = yield httpx2.Request(
            "POST", self._url, headers=headers, content=json.dumps(body), extensions=self._extensions
        )
        assert isinstance(response, httpx2.Response)
        if response.status_code != HTTPStatus.OK:
            return response
        try:
            answer = response.json()
            lasting = float(answer["expires_in"])
            key = _Key(str(answer["access_token"]), asked + lasting * (1 - _MARGIN))
            self._single_use = bool(answer["key"]["single_use"])
        except (ValueError, KeyError, TypeError):
            return httpx2.Response(HTTPStatus.BAD_GATEWAY, request=response.request)
        self._keep(self._keys, slot if self._single_use else "", key)
        return key

    def _learn(self, slot: str, run: str | None, key: _Key, response: httpx2.Response) -> None:
        """Remember which run a key was bound to, and to which run a new reservation belongs."""
        if response.status_code != HTTPStatus.CREATED or not self._single_use:
            return
        if slot.startswith("registration "):
            try:
                run = str(response.json()["id"])
            except (ValueError, KeyError, TypeError):
                return
            self._keep(self._keys, run, key)
            self._keys.pop(slot, None)
        if run is not None:
            for reservation in set(_RESERVATION.findall(response.text)):
                self._keep(self._runs, reservation, run)

    def _keep(self, names: dict[str, _T], name: str, value: _T) -> None:
        with self._lock:
            if len(names) >= _MOST_NAMES:
                names.clear()
            names[name] = value


def _with_key(request: httpx2.Request, key: _Key) -> httpx2.Request:
    request.headers["Authorization"] = f"Bearer {key.key}"
    return request


class WorkloadTransport(httpx2.BaseTransport):
    """Transport that sends each request with a key of a workload."""

    def __init__(self, inner: httpx2.BaseTransport, keys: WorkloadKeys, provider: TokenProvider) -> None:
        self._inner, self._keys, self._provider = inner, keys, provider

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, after an exchange if a key is needed."""
        flow = self._keys.flow(request)
        wanted = next(flow)
        try:
            while True:
                wanted = flow.send(self._provider() if isinstance(wanted, _TokenWanted) else self._send(wanted))
        except StopIteration as end:
            response: httpx2.Response = end.value
            return response

    def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        response.request = request
        response.read()
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class AsyncWorkloadTransport(httpx2.AsyncBaseTransport):
    """`WorkloadTransport` with awaitable methods."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, keys: WorkloadKeys, provider: TokenProvider) -> None:
        self._inner, self._keys, self._provider = inner, keys, provider

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As `WorkloadTransport.handle_request`."""
        flow = self._keys.flow(request)
        wanted = next(flow)
        try:
            while True:
                if isinstance(wanted, _TokenWanted):
                    wanted = flow.send(await to_thread(self._provider))
                else:
                    wanted = flow.send(await self._send(wanted))
        except StopIteration as end:
            response: httpx2.Response = end.value
            return response

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        response.request = request
        await response.aread()
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def token_file(path: str | os.PathLike[str]) -> TokenProvider:
    """Provide the token in a file, which a cluster replaces before it expires."""

    def read() -> str:
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"The token file {os.fspath(path)!r} cannot be read: {error}") from None
        if not token:
            raise ConfigurationError(f"The token file {os.fspath(path)!r} is empty.")
        return token

    return read


def github_actions_token(audience: str) -> TokenProvider:
    """Provide tokens of GitHub Actions; the job needs the permission `id-token: write`.

    Args:
        audience: of this service, as its operator has configured it.
    """

    def fetch() -> str:
        url, secret = (os.environ.get(f"ACTIONS_ID_TOKEN_REQUEST_{name}", "") for name in ("URL", "TOKEN"))
        if not url or not secret:
            raise ConfigurationError("GitHub gives this job no tokens: give it the permission `id-token: write`.")
        headers = {"Authorization": f"Bearer {secret}"}
        try:
            address = httpx2.URL(url).copy_merge_params({"audience": audience})
            response = httpx2.get(address, headers=headers, timeout=10.0)
            return str(response.raise_for_status().json()["value"])
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"GitHub gave no token: {type(error).__name__}.") from None

    return fetch
