"""An authority of the tests' own, and certificates of servers at 127.0.0.1 that it signs."""

import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class ServerCertificate:
    """Files with a certificate and its key, in PEM, and when it expires."""

    certificate: Path
    key: Path
    expires_at: datetime


@dataclass(frozen=True)
class Authority:
    """Signs certificates; `root` is the file that clients trust."""

    root: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path) -> Self:
        """An authority whose own certificate is valid for ten years."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named(f"tests {secrets.token_hex(4)}")  # two of one name could not be told apart
        basic = x509.BasicConstraints(ca=True, path_length=0)
        certificate = _certificate(name, name, key, key, datetime.now(UTC) + 3650 * DAY, basic)
        (folder / "root.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder / "root.pem", certificate, key)

    def issue(self, folder: Path, lifetime: timedelta) -> ServerCertificate:
        """Write a certificate that expires after a time, which may be over; it replaces the one in the folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = (datetime.now(UTC) + lifetime).replace(microsecond=0)
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = _certificate(self.certificate.subject, _named("127.0.0.1"), self.key, key, end, address)
        found = ServerCertificate(folder / "server.crt", folder / "server.key", end)
        found.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        found.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        found.key.chmod(0o600)
        return found


def server_context(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate of 127.0.0.1; return the server's context and the file to trust."""
    authority = Authority.create(folder)
    made = authority.issue(folder, DAY)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    return context, authority.root


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    issuer: x509.Name,
    subject: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    end: datetime,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime.now(UTC) - 30 * DAY).not_valid_after(end)
    critical = isinstance(extension, x509.BasicConstraints)
    return builder.add_extension(extension, critical=critical).sign(signer, hashes.SHA256())
