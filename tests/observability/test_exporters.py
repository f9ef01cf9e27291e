"""The exporters of others whose metrics the alerts read, run for real."""

import http.server
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.certificates import DAY, Authority
from tests.observability.test_deployed_files import EXPORTERS, FILES, program
from tests.polling import await_true, status_of
from tests.postgres import free_port
from tests.servers import background_thread


@contextmanager
def _running(package: str, *options: str) -> Iterator[str]:
    """The address of an exporter that runs meanwhile."""
    port = free_port()
    command = [str(program(package, package)), f"--web.listen-address=127.0.0.1:{port}", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_true(lambda: status_of(f"http://127.0.0.1:{port}"), lambda: f"{package} did not start", 0.05, seconds=30)
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
    with background_thread(server):
        yield f"https://127.0.0.1:{server.server_address[1]}/", certificate.expires_at.timestamp()


def _samples(url: str) -> list[Sample]:
    text = httpx2.get(url, trust_env=False, timeout=30).raise_for_status().text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_node_exporter_has_the_space_of_each_disk() -> None:
    wanted = {metric for metric, exporter in EXPORTERS.items() if exporter == "node exporter"}
    with _running("prometheus-node-exporter") as url:
        found = _samples(f"{url}/metrics")
    labels = {sample.name: sample.labels for sample in found if sample.name in wanted}
    assert labels.keys() == wanted
    assert all(of.keys() >= {"mountpoint", "fstype"} for of in labels.values())


@pytest.mark.parametrize("lifetime", [90 * DAY, -DAY], ids=["valid", "expired"])
def test_blackbox_exporter_has_the_expiry_of_a_certificate(tmp_path: Path, lifetime: timedelta) -> None:
    with (
        _running("prometheus-blackbox-exporter", f"--config.file={FILES / 'blackbox.yml'}") as url,
        _encrypted_server(tmp_path, lifetime) as (target, expires_at),
    ):
        found = _samples(f"{url}/probe?module=epsilon_ledger&target={target}")
    [metric] = [metric for metric, exporter in EXPORTERS.items() if exporter == "blackbox exporter"]
    assert [sample.value for sample in found if sample.name == metric] == [expires_at]
