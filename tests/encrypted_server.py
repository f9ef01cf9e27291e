"""A PostgreSQL of the tests' own with TLS, whose certificate a test renews."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.certificates import DAY, Authority, ServerCertificate
from tests.open_databases import migrate
from tests.postgres import Cluster, in_memory


@dataclass
class EncryptedServer:
    """A PostgreSQL with TLS, whose clients verify its certificate."""

    cluster: Cluster
    authority: Authority
    url: str

    def renew(self, lifetime: timedelta) -> ServerCertificate:
        """Give it another certificate, as an operator would."""
        found = self.authority.issue(self.cluster.data, lifetime)
        self.cluster.own(found.certificate, found.key)
        self.reload()
        return found

    def reload(self) -> None:
        """Let it read its files again."""
        self.cluster.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)  # it does so on a signal


@contextmanager
def encrypted_server(folder: Path) -> Iterator[EncryptedServer]:
    """A server with a migrated database `ledger`, and a certificate for 90 days; the folder has what clients trust."""
    cluster = Cluster.create("fsync = off", in_memory())
    try:
        authority = Authority.create(folder)
        migrate(cluster.create_database("ledger"))
        url = f"{cluster.url('ledger')}?sslmode=verify-full&sslrootcert={authority.root}"
        server = EncryptedServer(cluster, authority, url)
        server.renew(90 * DAY)
        cluster.execute("ALTER SYSTEM SET ssl = on")
        server.reload()
        yield server
    finally:
        cluster.remove()
