"""The exporters of others whose metrics the alerts read, run for real."""

import http.server
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from tests.api.test_metrics import Samples, samples_of
from tests.certificates import DAY, Authority
from tests.observability.programs import program
from tests.observability.test_deployed_files import EXPORTERS, FILES


@contextmanager
def _running(package: str, *options: str) -> Iterator[str]:
    """The address of an exporter that runs meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(program(package, package)), f"--web.listen-address=127.0.0.1:{port}", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, f"{package} did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def _encrypted_server(folder: Path, lifetime: timedelta) -> Iterator[tuple[str, float]]:
    """The URL of a server whose certificate expires after a time, and when that is."""
    certificate = Authority.create(folder).issue(folder, lifetime)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/", certificate.expires_at.timestamp()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _samples(url: str, **parameters: str) -> Samples:
    return samples_of(httpx2.get(url, params=parameters, trust_env=False).raise_for_status().text)


def _told_by(exporter: str) -> set[str]:
    return {metric for metric, who in EXPORTERS.items() if who == exporter}


def test_the_node_exporter_tells_the_space_of_each_disk() -> None:
    with _running("prometheus-node-exporter") as url:
        found = _samples(f"{url}/metrics")
    labels = {name: dict(of) for name, of in found if name in _told_by("node exporter")}
    assert labels.keys() == _told_by("node exporter")
    assert all(of.keys() >= {"mountpoint", "fstype"} for of in labels.values())


@pytest.mark.parametrize("lifetime", [90 * DAY, -DAY], ids=["valid", "expired"])
def test_the_blackbox_exporter_tells_when_a_certificate_expires(tmp_path: Path, lifetime: timedelta) -> None:
    with (
        _running("prometheus-blackbox-exporter", f"--config.file={FILES / 'blackbox.yml'}") as url,
        _encrypted_server(tmp_path, lifetime) as (target, expires_at),
    ):
        found = _samples(f"{url}/probe", module="epsilon_ledger", target=target)
    [metric] = _told_by("blackbox exporter")
    assert found[metric, frozenset()] == expires_at
