"""Expiry of the certificates that connections to PostgreSQL depend on."""

import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Final

from sqlalchemy import Engine

from app.ledger.errors import LedgerUnavailableError

SSL_REQUEST: Final = (8).to_bytes(4) + (80877103).to_bytes(4)
"""Message that asks a server for TLS; it answers S or N
(https://www.postgresql.org/docs/current/protocol-message-formats.html)."""

TIMEOUT_SECONDS: Final = 5.0

SERVER: Final = "server"
CLIENT: Final = "client"
ROOT: Final = "root"

_FOLDER: Final = Path("~/.postgresql")
"""Where libpq looks for files that are not named."""


def certificate_expiries(engine: Engine) -> dict[str, datetime]:
    """Read when the certificates of an engine's connections expire.

    Returns:
        By certificate: `server`, the earliest of all hosts that answer; `client`, this service's own; `root`, the last
        of those that are trusted. One that is not used is left out.

    Raises:
        LedgerUnavailableError: no host answers, or a file cannot be read.
    """
    options = _options(engine)
    if options.get("sslmode") == "disable":
        return {}
    found = {}
    servers = _server_expiries(options)
    if servers:
        found[SERVER] = min(servers)
    for certificate, option, default in ((CLIENT, "sslcert", "postgresql.crt"), (ROOT, "sslrootcert", "root.crt")):
        file = _file(options.get(option), default)
        if servers and file is not None:
            chain = _read_file(file)
            found[certificate] = chain[0] if certificate == CLIENT else max(chain)
    return found


def _options(engine: Engine) -> dict[str, str]:
    """Collect libpq's options: those of the URL, of the environment and of libpq itself."""
    from psycopg.pq import Conninfo  # noqa: PLC0415 - a service on SQLite does not need the driver

    defaults = {each.keyword.decode(): each.val.decode() for each in Conninfo.get_defaults() if each.val}
    _, given = engine.dialect.create_connect_args(engine.url)
    return defaults | {name: str(value) for name, value in given.items() if name != "context"}


def _server_expiries(options: Mapping[str, str]) -> list[datetime]:
    """Ask all hosts for their certificates; a host without TLS has none."""
    found, failure, answered = [], None, False
    for host, port in _addresses(options):
        try:
            certificate = _server_certificate(host, port)
        except (OSError, ValueError) as error:
            failure = f"{host}:{port} cannot be read: {error}"
            continue
        answered = True
        if certificate is not None:
            found.append(_x509().load_der_x509_certificate(certificate).not_valid_after_utc)
    if failure and not answered:
        raise LedgerUnavailableError(f"The certificate of {failure}.")
    return found


def _addresses(options: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the hosts of a URL with their ports, without those of sockets, which have no TLS."""
    hosts = options.get("host", "").split(",")
    ports = options.get("port", "").split(",")
    for number, host in enumerate(hosts):
        port = ports[number] if len(ports) == len(hosts) else ports[0]
        if host and not host.startswith(("/", "@")):
            yield host, int(port or 5432)


def _server_certificate(host: str, port: int) -> bytes | None:
    """Fetch a server's certificate; None: it has no TLS.

    It is not verified here: libpq does so for each connection, and an expired one is to be read, too.

    Raises:
        OSError: the server does not answer.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), timeout=TIMEOUT_SECONDS) as raw:
        raw.sendall(SSL_REQUEST)
        if raw.recv(1) != b"S":
            return None
        with context.wrap_socket(raw, server_hostname=host) as encrypted:
            return encrypted.getpeercert(binary_form=True)


def _file(named: str | None, default: str) -> Path | None:
    """Find the file of a certificate, as libpq does; None: there is none, or those of the system are used."""
    if named:
        return None if named == "system" else Path(named)
    try:
        file = (_FOLDER / default).expanduser()
        return file if file.exists() else None
    except (OSError, RuntimeError):  # this user has no folder of its own, or none that it may read
        return None


def _read_file(file: Path) -> list[datetime]:
    """Read the expiries of the certificates in a PEM file.

    Raises:
        LedgerUnavailableError: it has none, or cannot be read.
    """
    try:
        return [each.not_valid_after_utc for each in _x509().load_pem_x509_certificates(file.read_bytes())]
    except (OSError, ValueError) as error:
        raise LedgerUnavailableError(f"The certificates of {file} cannot be read: {error}") from error


def _x509() -> ModuleType:
    """Import the parser of certificates: it takes 0.1 s, and a service on SQLite does not need it."""
    from cryptography import x509  # noqa: PLC0415 - as said

    return x509
