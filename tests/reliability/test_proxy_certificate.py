"""The certificate of HAProxy, with the file that is delivered: it expires, and is renewed while trainers go on."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from tests.certificates import DAY, Authority
from tests.packaging.dockerfile import ROOT
from tests.polling import await_true
from tests.postgres import free_port
from tests.reliability.clients import Trainer
from tests.reliability.conftest import Service

PROGRAM = shutil.which("haproxy")
FILE = ROOT / "deploy" / "high-availability" / "haproxy.cfg"
OPEN, CLOSED = "    bind :8000\n", "    # With a certificate: bind :8000 ssl crt /etc/haproxy/certificate.pem\n"

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="NOT TRIED: haproxy is not installed; apt-get install haproxy")


@dataclass
class EncryptingProxy:
    """HAProxy with a certificate, in front of a service."""

    folder: Path
    port: int
    authority: Authority
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def renew(self, lifetime: timedelta) -> None:
        """Replace the file and reload, as `systemctl reload haproxy` does."""
        found = _write_certificate(self.folder, self.authority, lifetime).strip()
        self.process.send_signal(signal.SIGUSR2)
        await_true(lambda: found == ssl.get_server_certificate(("127.0.0.1", self.port)).strip(), self.log)

    def log(self) -> str:
        return (self.folder / "haproxy.log").read_text()


def _write_certificate(folder: Path, authority: Authority, lifetime: timedelta) -> str:
    issued = authority.issue(folder, lifetime)
    text = issued.certificate.read_text()
    (folder / "certificate.pem").write_text(text + issued.key.read_text())
    return text


@contextmanager
def encrypting(folder: Path, upstream: int, lifetime: timedelta) -> Iterator[EncryptingProxy]:
    """HAProxy as its file describes it, with its comment on a certificate followed."""
    assert PROGRAM is not None
    authority = Authority.create(folder)
    _write_certificate(folder, authority, lifetime)
    port, text = free_port(), FILE.read_text()
    bind = CLOSED.partition("certificate: ")[2].replace(":8000", f"127.0.0.1:{port}")
    for old, new in {
        CLOSED: "",
        OPEN: "    " + bind.replace("/etc/haproxy", str(folder)),
        "bind 127.0.0.1:5000": f"bind 127.0.0.1:{free_port()}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    file = folder / "haproxy.cfg"
    file.write_text(text)
    nodes = {f"NODE{number}": "127.0.0.1" for number in (1, 2, 3)}
    replicas = {f"REPLICA{number}": f"127.0.0.1:{upstream}" for number in (1, 2)}
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "-W", "-f", str(file)], env=os.environ | nodes | replicas, stdout=log, stderr=log
        )
    proxy = EncryptingProxy(folder, port, authority, process)
    try:
        await_true(lambda: _listens(port), proxy.log)
        yield proxy
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _client(proxy: EncryptingProxy, service: Service) -> httpx2.Client:
    trusting = ssl.create_default_context(cafile=proxy.authority.root)
    headers = {"Authorization": f"Bearer {service.server.key('trainer')}"}
    return httpx2.Client(base_url=proxy.url, headers=headers, verify=trusting, timeout=60, trust_env=False)


def test_steps_count_once_and_an_expired_certificate_is_refused_while_it_is_renewed(
    service: Service, tmp_path: Path
) -> None:
    with encrypting(tmp_path, service.server.port, -DAY) as proxy:
        with _client(proxy, service) as http, pytest.raises(httpx2.ConnectError, match="certificate has expired"):
            http.get("/v1/runs")
        assert service.server.readiness().status_code == httpx2.codes.OK
        proxy.renew(2 * DAY)
        with _client(proxy, service) as http:
            trainer = Trainer(http, service.journal, 0).register(service.open_budget(epsilon=5.0))
            for lifetime in (30 * DAY, 60 * DAY):
                assert trainer.step()
                proxy.renew(lifetime)
                assert trainer.step()
    service.check()
