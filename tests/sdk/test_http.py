"""Requests on the wire: proxies of the environment, compressed responses, connections."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from epsilon_ledger import AsyncLedgerClient, LedgerClient
from tests.sdk.fake_ledger import KEY, RUN, RUN_ID


class Recorder(ThreadingHTTPServer):
    """Answers every request with the run, compressed, and records its target and connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, int]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Recorder)
        self.server.seen.append((self.path, self.client_address[1]))
        content = gzip.compress(json.dumps(RUN).encode())
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


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


def test_closed_client_sends_nothing(recorder: Recorder) -> None:
    client = LedgerClient(recorder.url, KEY)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.get_run(RUN_ID)
    assert not recorder.seen
