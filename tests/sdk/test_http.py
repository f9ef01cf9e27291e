"""Requests on the wire: proxies of the environment, compressed responses, connections, limits of the rate, TLS."""

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from httpx2._transports import default as transports

from epsilon_ledger import AsyncLedgerClient, LedgerClient, LedgerUnavailableError
from tests.certificates import server_context
from tests.conftest import open_ledger
from tests.sdk.fake_ledger import RUN, RUN_ID
from tests.sdk.simulation import BUDGET, LOUD, LedgerWire, icu_team
from tests.sdk.wire import KEY
from tests.servers import QuietHandler, background_thread

pytestmark = pytest.mark.usefixtures("no_proxies")

RANKS, STEPS = 3, 3


class Recorder(ThreadingHTTPServer):
    """Answers every request with the run, compressed, and records its target and connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, int]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Let a distrustful client leave in the middle."""


class _Handler(QuietHandler, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Recorder)
        self.server.seen.append((self.path, self.client_address[1]))
        content = gzip.compress(json.dumps(RUN).encode())
        self.answer(200, content, Content_Type="application/json", Content_Encoding="gzip")


@contextmanager
def recording(certificates: Path | None = None) -> Iterator[tuple[Recorder, Path | None]]:
    """A server, over TLS if there is a folder for its certificate, and the file of that."""
    server, file = Recorder(), None
    if certificates is not None:
        context, file = server_context(certificates)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with background_thread(server):
        yield server, file


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recording() as (server, _):
        yield server


async def _get_run(url: str) -> str:
    async with AsyncLedgerClient(url, KEY, max_attempts=1) as client:
        return (await client.get_run(RUN_ID)).id


def test_client_keeps_its_connection_and_path_of_its_address(recorder: Recorder) -> None:
    for address in ("", "/prefix", "/prefix/"):
        recorder.seen.clear()
        with LedgerClient(recorder.url + address, KEY) as client:
            assert [client.get_run(RUN_ID).id for _ in range(3)] == [RUN_ID] * 3
        assert [path for path, _ in recorder.seen] == [f"{address.rstrip('/')}/v1/runs/{RUN_ID}"] * 3
        assert len({port for _, port in recorder.seen}) == 1
    with pytest.raises(RuntimeError, match="closed"):
        client.get_run(RUN_ID)
    assert len(recorder.seen) == 3


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_requests_take_proxy_of_environment(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, recorder.url)
    with LedgerClient("http://ledger.test", KEY, max_attempts=1) as client:
        assert client.get_run(RUN_ID).id == RUN_ID
    assert asyncio.run(_get_run("http://ledger.test")) == RUN_ID
    assert [target for target, _ in recorder.seen] == [f"http://ledger.test/v1/runs/{RUN_ID}"] * 2
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert asyncio.run(_get_run(recorder.url)) == RUN_ID
    assert recorder.seen[-1][0] == f"/v1/runs/{RUN_ID}"


def test_both_clients_trust_certificates_of_ssl_cert_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "create_ssl_context", httpx2.create_ssl_context)  # tests/conftest.py keeps one
    with recording(tmp_path) as (server, file):
        url = server.url.replace("http:", "https:")
        with pytest.raises(LedgerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(_get_run(url))
        with LedgerClient(url, KEY, max_attempts=1) as ledger:
            with pytest.raises(LedgerUnavailableError, match="CERTIFICATE_VERIFY_FAILED") as failed:
                ledger.get_run(RUN_ID)
            assert not failed.value.in_doubt
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert asyncio.run(_get_run(url)) == RUN_ID
        with LedgerClient(url, KEY, max_attempts=1) as ledger:
            assert ledger.get_run(RUN_ID).id == RUN_ID


def test_ranks_that_share_key_are_slowed_down_by_rate_limit_and_none_fails(tmp_path: Path) -> None:
    """Far over the limit, each is held up many times in a row."""
    with open_ledger(tmp_path, rate_limit_per_second=20, rate_limit_burst=4) as ledger:
        icu_team(ledger)
        with LedgerWire(ledger=ledger).client(max_attempts=2, sleep=time.sleep) as client:
            runs = [client.create_run(f"rank-{rank}", budget=BUDGET, event=LOUD) for rank in range(RANKS)]
            began = time.monotonic()
            with ThreadPoolExecutor(RANKS) as ranks:
                ends = list(ranks.map(lambda run: [run.authorize().next_step for _ in range(STEPS)][-1], runs))
            assert ends == [STEPS] * RANKS
            assert time.monotonic() - began > (RANKS * STEPS - 4) / 20
            assert {client.get_run(run.id).state.next_step for run in runs} == {STEPS}
