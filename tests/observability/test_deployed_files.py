"""The dashboard and the alert rules: what they ask for is there, and what they say is right."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.ledgers import signing_key
from tests.reliability.clients import open_budget
from tests.servers import LiveServer, command_line

FILES = Path(__file__).parents[2] / "deploy" / "observability"
DOCS = FILES.parents[1] / "docs"
ENCRYPTED = {"epsilon_ledger_certificate_expiry_timestamp_seconds"}
"""Told where the database is PostgreSQL with TLS: tests/reliability/test_database_certificates.py reads it."""

EXPORTERS = {
    "node_filesystem_avail_bytes": "node exporter",
    "node_filesystem_size_bytes": "node exporter",
    "probe_ssl_earliest_cert_expiry": "blackbox exporter",
}
"""Metrics of others, and who tells them; test_exporters.py reads both of them."""

RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())


PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES} | {
    f"{title} {place}": expression for place, (title, expression) in enumerate(PANELS)
}


@cache
def program(package: str, name: str) -> Path:
    """Where a program of a package is, unpacked without installing it; in CI a missing one fails the test."""
    kept, installed = Path(sys.prefix) / "tools" / name, shutil.which(name)
    if installed or kept.exists():
        return Path(installed or kept)
    with tempfile.TemporaryDirectory() as folder:
        script = ["sh", "-c", f"apt-get download {package} && dpkg -x {package}_*.deb ."]
        fetch = subprocess.run(script, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        if fetch.returncode == 0:
            kept.parent.mkdir(exist_ok=True)
            arrived = kept.with_name(f"{name}-{os.getpid()}")  # another test process may fetch it, too
            shutil.copy(Path(folder) / "usr" / "bin" / name, arrived)
            arrived.replace(kept)
            return kept
    reason = f"needs {name}, which is not on the PATH, and apt-get did not bring it: {fetch.stderr.strip()}"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def promtool(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own checker."""
    tool = program("prometheus", "promtool")
    return subprocess.run([tool, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False)


def _metrics(expression: str) -> set[str]:
    """The names of the metrics that an expression reads."""
    text = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(?:epsilon_ledger|process)_\w+", text))


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What a real server exports after some traffic, and what verifications of ledger and backup write."""
    folder = tmp_path_factory.mktemp("scraped")
    settings = {"METRICS_TOKEN": "only-for-prometheus", "SIGNING_KEY_FILE": str(signing_key()[0])}
    environment = {f"EPSILON_LEDGER_{name}": value for name, value in settings.items()}
    with LiveServer(folder, environment=environment) as server, server.client("admin") as http:
        budget = open_budget(http, "crowd", 5.0)
        register = {"name": "model", "budget": budget, "event": {"type": "gaussian", "noise_multiplier": 5.0}}
        run = http.post("/v1/runs", json=register).raise_for_status().json()["id"]
        statuses = [http.post(f"/v1/runs/{run}/steps", json={"count": n}).status_code for n in (1, 1, 10**6)]
        assert statuses == [200, 200, 403]
        http.post("/v1/checkpoints").raise_for_status()
        token = {"Authorization": f"Bearer {settings['METRICS_TOKEN']}"}
        exported = http.get("/metrics", headers=token).raise_for_status().text
    ledger, backup = folder / "ledger.db", folder / "backup.db"
    of_ledger, of_backup = folder / "ledger.prom", folder / "backup.prom"
    assert command_line("verify", "--metrics-file", str(of_ledger), database=ledger).returncode == 0
    shutil.copy(ledger, backup)
    verify_backup = ("backup", "verify", str(backup), "--metrics-file", str(of_backup))
    assert command_line(*verify_backup, database=ledger).returncode == 0
    return exported, of_ledger.read_text() + of_backup.read_text()


def test_every_expression_is_promql() -> None:
    for expression in EXPRESSIONS.values():
        # As Prometheus would read it, once Grafana has put its variable in.
        assert promql_parser.parse(expression.replace("$__rate_interval", "5m")) is not None, expression


def test_every_metric_of_the_files_is_exported_by_a_server_or_by_verify(scraped: tuple[str, str]) -> None:
    answer = set(re.findall(r"(?m)^(\w+)[ {]", "\n".join(scraped)))
    wanted = {metric for expression in EXPRESSIONS.values() for metric in _metrics(expression)}
    assert len(wanted) > 25
    assert sorted(wanted - answer) == sorted(ENCRYPTED)


def test_every_metric_of_others_is_of_an_exporter_on_the_page() -> None:
    text = re.sub(r'"[^"]*"', '""', "\n".join(EXPRESSIONS.values()))
    assert set(re.findall(r"\b(?:node|probe|pg|pgbouncer)_\w+", text)) == EXPORTERS.keys()
    page = (DOCS / "operations" / "observability.md").read_text()
    for exporter in EXPORTERS.values():
        assert exporter in page


def test_every_label_of_the_files_is_exported_by_a_server(scraped: tuple[str, str]) -> None:
    answer = set(re.findall(r'[{,](\w+)="', scraped[0])) | {"instance", "job"}  # these are Prometheus' own
    wanted = {
        label.strip()
        for expression in EXPRESSIONS.values()
        for labels in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in labels.split(",")
    } - {"pid", "certificate", "mountpoint"}  # of several workers, of PostgreSQL with TLS, of the node exporter
    assert wanted <= answer


def test_exported_metrics_pass_promtool(scraped: tuple[str, str]) -> None:
    for answer in scraped:
        checked = promtool("check", "metrics", given=answer)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_every_rule_fires_when_it_should_and_not_otherwise() -> None:
    for check in (("check", "rules", FILES / "alerts.yml"), ("test", "rules", FILES / "alerts_test.yml")):
        done = promtool(*check)
        assert done.returncode == 0, done.stdout + done.stderr
    scraping = promtool("check", "config", "--syntax-only", FILES / "prometheus.yml")
    assert scraping.returncode == 0, scraping.stdout + scraping.stderr
    for case in yaml.safe_load((FILES / "alerts_test.yml").read_text())["tests"]:
        assert {each["alertname"] for each in case["alert_rule_test"]} == {rule["alert"] for rule in RULES}
        assert len({bool(each["exp_alerts"]) for each in case["alert_rule_test"]}) == 1


def _sections(page: str) -> dict[str, str]:
    """The texts of a page's sections by their anchors."""
    parts = re.split(r"(?m)^#{1,3} (.+)$", (DOCS / f"{page}.md").read_text())
    return {title.lower().replace(" ", "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_every_alert_has_a_severity_a_sentence_and_a_section_that_names_it() -> None:
    project = tomllib.loads((FILES.parents[1] / "pyproject.toml").read_text())["project"]
    overview, sections = (DOCS / "operations" / "observability.md").read_text(), cache(_sections)
    for rule in RULES:
        url = rule["annotations"]["runbook_url"].removeprefix(f"{project['urls']['Documentation']}/")
        page, _, anchor = url.partition("/#")
        assert f"`{rule['alert']}`" in sections(page)[anchor]
        assert f"`{rule['alert']}`" in overview
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("case", ["clock", "disk", "connections", "certificate"])
def test_case_of_the_runbook_has_a_warning_and_an_alarm(case: str) -> None:
    theirs = [rule for rule in RULES if re.search(rf"#when-(\w+-)*{case}(-\w+)*$", rule["annotations"]["runbook_url"])]
    assert {rule["labels"]["severity"] for rule in theirs} == {"warning", "critical"}


def test_every_metric_is_on_the_page(scraped: tuple[str, str]) -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    answer = re.findall(r"^# TYPE (\S+)", "\n".join(scraped), re.MULTILINE)
    assert [name for name in answer if f"`{name}`" not in page] == []
