"""The certificate of a PostgreSQL server expires, and is renewed: the service goes on without a restart."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from app.ledger.errors import LedgerUnavailableError
from app.persistence.database import Database
from tests.certificates import DAY, Authority, ServerCertificate
from tests.open_databases import is_sound
from tests.postgres import Cluster
from tests.reliability.clients import Trainer, patiently
from tests.reliability.conftest import Service, own_cluster, started
from tests.servers import LiveServer

pytestmark = pytest.mark.postgresql


@dataclass
class EncryptedServer:
    """A PostgreSQL with TLS, whose clients verify its certificate."""

    cluster: Cluster
    authority: Authority

    @property
    def url(self) -> str:
        return f"{self.cluster.url('ledger')}?sslmode=verify-full&sslrootcert={self.authority.root}"

    def renew(self, lifetime: timedelta) -> ServerCertificate:
        """Give it another certificate, as an operator would."""
        found = self.authority.issue(self.cluster.data, lifetime)
        self.cluster.own(found.certificate, found.key)
        self.set_tls("on")
        return found

    def set_tls(self, value: str) -> None:
        """Let it read its files again."""
        self.cluster.execute(f"ALTER SYSTEM SET ssl = {value}")
        self.cluster.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)  # it does so on a signal


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncryptedServer]:
    """One server for all tests, with a folder of what clients trust."""
    with own_cluster() as cluster:
        server = EncryptedServer(cluster, Authority.create(tmp_path_factory.mktemp("encrypted")))
        server.renew(90 * DAY)
        yield server


@pytest.fixture
def encrypted(one: EncryptedServer) -> Iterator[EncryptedServer]:
    """The server, whose certificate is valid again afterwards."""
    yield one
    one.renew(90 * DAY)


def test_expired_certificate_ends_no_session_and_stops_the_next_ones(
    tmp_path: Path, encrypted: EncryptedServer
) -> None:
    expires_at = encrypted.renew(3 * DAY).expires_at.timestamp()
    server = LiveServer(tmp_path, encrypted.url)
    with started(server), server.client("trainer") as http:
        service = Service(server, tmp_path / "death")
        trainer = Trainer(http, service.journal, 0).register(service.open_budget(epsilon=5.0))
        assert trainer.step()
        server.await_metric("certificate_expiry_timestamp_seconds", expires_at, certificate="server")
        root = encrypted.authority.certificate.not_valid_after_utc.timestamp()
        assert server.metric("certificate_expiry_timestamp_seconds", certificate="root") == root
        encrypted.renew(-DAY)
        assert trainer.step(), "by the sessions that there are"
        encrypted.cluster.terminate_backends("ledger")
        refused = trainer.once({}, "expired")
        assert (refused.status_code, refused.json()["code"]) == (503, "ledger_unavailable")
        assert server.readiness().json()["detail"] == "The database does not answer."
        assert "SSL error: certificate verify failed" in server.log()
        encrypted.renew(90 * DAY)
        again = patiently(lambda: trainer.once({}, "expired"))
        assert again.status_code == httpx2.codes.OK
        assert server.readiness().json() == {"status": "ok"}
    is_sound(server.database_url)


def test_expiry_is_the_first_of_several_hosts_and_is_read_from_an_expired_certificate(
    encrypted: EncryptedServer,
) -> None:
    renewed, here = encrypted.renew(-DAY), f"127.0.0.1:{encrypted.cluster.port}"
    assert Database(encrypted.url).certificate_expiries()["server"] == renewed.expires_at
    several = encrypted.url.replace(f"@{here}/", "@/") + "&host=127.0.0.1:1&host=" + here
    assert Database(several).certificate_expiries()["server"] == renewed.expires_at
    silent = Database(encrypted.url.replace(here, "127.0.0.1:1"))
    with pytest.raises(LedgerUnavailableError, match=r"certificate of 127\.0\.0\.1:1 cannot be read: .*refused"):
        silent.certificate_expiries()


def test_expiry_of_the_own_certificate_is_read(tmp_path: Path, encrypted: EncryptedServer) -> None:
    own = encrypted.authority.issue(tmp_path, 9 * DAY)
    database = Database(f"{encrypted.url}&sslcert={own.certificate}&sslkey={own.key}")
    assert database.certificate_expiries()["client"] == own.expires_at
    own.certificate.write_text("nonsense")
    with pytest.raises(LedgerUnavailableError, match=r"server\.crt cannot be read"):
        database.certificate_expiries()


def test_server_without_tls_has_no_expiry(encrypted: EncryptedServer) -> None:
    assert Database(encrypted.url.replace("verify-full", "disable")).certificate_expiries() == {}
    encrypted.set_tls("off")
    assert Database(encrypted.cluster.url("ledger")).certificate_expiries() == {}
