"""The key set of a cluster: behind its own authority, for whoever shows a token of the cluster."""

import json
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from app.ledger.errors import LedgerUnavailableError
from app.service.auth.oidc.http_json import FetchAccess
from app.service.auth.oidc.jwks import JwksCache
from app.service.auth.workload.config import WorkloadIssuer
from tests.identity_provider import key_of, public
from tests.service.certificates import server_certificate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def issuer(folder: Path) -> Iterator[str]:
    """The URL of an issuer with TLS, which answers those with the token "mine"."""
    context, _ = server_certificate(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer mine"
            keys = {"keys": [public(key_of("RS256"), kid="one", use="sig")]}
            found = keys if self.path == "/keys" else {"issuer": url, "jwks_uri": f"{url}/keys"}
            content = json.dumps(found).encode()
            self.send_response(200 if allowed else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    yield url
    server.shutdown()
    server.server_close()


def _keys(issuer: str, access: FetchAccess) -> JwksCache:
    made = WorkloadIssuer("cluster", issuer, "ledger", (), timedelta(hours=1), access=access)
    return JwksCache(made.key_set, "issuer 'cluster'")


def test_cluster_gives_its_keys_to_its_own_pods(issuer: str, folder: Path) -> None:
    token = folder / "token"
    token.write_text("mine\n")
    keys = _keys(issuer, FetchAccess(str(folder / "certificate.pem"), str(token)))
    assert len(keys.find("one")) == 1


@pytest.mark.parametrize("lacking", ["authority", "token", "right token", "token file"])
def test_keys_are_refused_without_authority_or_token(
    issuer: str, folder: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = folder / f"{lacking} lacks"
    if lacking != "token file":
        token.write_text("mine" if lacking != "right token" else "theirs")
    authority = None if lacking == "authority" else str(folder / "certificate.pem")
    keys = _keys(issuer, FetchAccess(authority, None if lacking == "token" else str(token)))
    with pytest.raises(LedgerUnavailableError, match="issuer 'cluster'"):
        keys.find("one")
    assert "The keys of the issuer 'cluster' could not be fetched" in caplog.text
    assert "theirs" not in caplog.text
