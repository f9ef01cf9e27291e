"""The client over TLS: it trusts what the machine trusts, or what SSL_CERT_FILE names, and nobody else."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from httpx2._transports import default as transports

from epsilon_ledger import AsyncLedgerClient, LedgerClient, LedgerUnavailableError
from tests.service.certificates import server_certificate


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"items": [], "next": null}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the tests' output short."""


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The address of a server over TLS, and the file with its certificate."""
    monkeypatch.setattr(transports, "create_ssl_context", httpx2.create_ssl_context)  # tests/conftest.py keeps one
    context, file = server_certificate(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # a distrustful client leaves in the middle
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", file
    server.shutdown()
    thread.join()
    server.server_close()


async def _runs(url: str) -> list[object]:
    async with AsyncLedgerClient(url, "key", max_attempts=1) as ledger:
        return [run async for run in ledger.list_runs()]


def test_both_clients_trust_certificates_of_ssl_cert_file_only(
    certificate: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, file = certificate
    with pytest.raises(LedgerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(_runs(url))
    with LedgerClient(url, "key", max_attempts=1) as ledger:
        with pytest.raises(LedgerUnavailableError, match="CERTIFICATE_VERIFY_FAILED") as failed:
            list(ledger.list_runs())
        assert not failed.value.in_doubt
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert asyncio.run(_runs(url)) == []
    with LedgerClient(url, "key", max_attempts=1) as ledger:
        assert list(ledger.list_runs()) == []
