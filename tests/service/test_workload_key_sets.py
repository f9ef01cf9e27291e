"""The key set of a cluster: behind its own authority, for whoever shows a token of the cluster."""

import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from app.ledger.errors import LedgerUnavailableError
from app.service.auth.oidc.http_json import FetchAccess
from app.service.auth.oidc.jwks import JwksCache
from app.service.auth.workload.config import WorkloadIssuer
from tests.identity_provider import key_of, public


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of an authority that nobody else trusts, for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    certificate, private = folder / "ca.crt", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def issuer(folder: Path) -> Iterator[str]:
    """The URL of an issuer with TLS, which answers those with the token "mine"."""
    certificate, private = _certificate(folder)

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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    yield url
    server.shutdown()
    server.server_close()


def _keys(issuer: str, access: FetchAccess) -> JwksCache:
    made = WorkloadIssuer("cluster", issuer, "ledger", (), timedelta(hours=1), access=access)
    return JwksCache(made.key_set, "issuer 'cluster'")


def test_a_cluster_gives_its_keys_to_its_own_pods(issuer: str, folder: Path) -> None:
    token = folder / "token"
    token.write_text("mine\n")
    keys = _keys(issuer, FetchAccess(str(folder / "ca.crt"), str(token)))
    assert len(keys.find("one")) == 1


@pytest.mark.parametrize("lacking", ["authority", "token", "right token", "token file"])
def test_without_authority_or_token_there_are_no_keys(
    issuer: str, folder: Path, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = folder / f"{lacking} lacks"
    if lacking != "token file":
        token.write_text("mine" if lacking != "right token" else "theirs")
    authority = None if lacking == "authority" else str(folder / "ca.crt")
    keys = _keys(issuer, FetchAccess(authority, None if lacking == "token" else str(token)))
    with pytest.raises(LedgerUnavailableError, match="issuer 'cluster'"):
        keys.find("one")
    assert "The keys of the issuer 'cluster' could not be fetched" in caplog.text
    assert "theirs" not in caplog.text
