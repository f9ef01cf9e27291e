"""The certificate of a server of the tests."""

import ssl
from pathlib import Path

from tests.certificates import DAY, Authority


def server_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate of 127.0.0.1; return the server's context and the file to trust."""
    authority = Authority.create(folder)
    made = authority.issue(folder, DAY)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    return context, authority.root
