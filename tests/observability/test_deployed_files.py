"""The dashboard and the alert rules: what they ask for is there, and what they say is right."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import promql_parser
import pytest
import yaml

from tests.ledgers import signing_key
from tests.observability.programs import promtool
from tests.reliability.clients import open_budget
from tests.servers import LiveServer, command_line

FILES = Path(__file__).parents[2] / "deploy" / "observability"
TOKEN = "only-for-prometheus"
ENCRYPTED = {"epsilon_ledger_certificate_expiry_timestamp_seconds"}
"""Told where the database is PostgreSQL with TLS: tests/reliability/test_database_certificates.py reads it."""

EXPORTERS = {
    "node_filesystem_avail_bytes": "node exporter",
    "node_filesystem_size_bytes": "node exporter",
    "probe_ssl_earliest_cert_expiry": "blackbox exporter",
}
"""Metrics of others, and who tells them; test_exporters.py reads both of them."""

GAUSSIAN = {"type": "gaussian", "noise_multiplier": 5.0}

RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())


def _panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES} | {
    f"{title} {place}": expression for place, (title, expression) in enumerate(_panels())
}


def _parsed(expression: str) -> Any:  # noqa: ANN401 - its type is a union without a name
    """As Prometheus would read it, once Grafana has put its variable in."""
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def _metrics(expression: str) -> set[str]:
    """The names of the metrics that an expression reads."""
    text = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(?:epsilon_ledger|process)_\w+", text))


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What verifications of a new ledger and of its backup write for Prometheus."""
    folder = tmp_path_factory.mktemp("verified")
    database, backup = folder / "ledger.db", folder / "backup.db"
    of_ledger, of_backup = folder / "ledger.prom", folder / "backup.prom"
    assert command_line("org", "create", "hospital", database=database).returncode == 0
    backup.write_bytes(database.read_bytes())
    assert command_line("verify", "--metrics-file", str(of_ledger), database=database).returncode == 0
    verify_backup = ("backup", "verify", str(backup), "--metrics-file", str(of_backup))
    assert command_line(*verify_backup, database=database).returncode == 0
    return of_ledger.read_text() + of_backup.read_text()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a real server tells after some traffic."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("EPSILON_LEDGER_METRICS_TOKEN", TOKEN)
        server = LiveServer(tmp_path_factory.mktemp("scraped"))
        environment.setenv("EPSILON_LEDGER_SIGNING_KEY_FILE", str(signing_key()[0]))
        server.start()
    try:
        with server.client("admin") as http:
            budget = open_budget(http, "crowd", 5.0)
            register = {"name": "model", "budget": budget, "event": GAUSSIAN}
            run = http.post("/v1/runs", json=register).raise_for_status().json()["id"]
            statuses = [http.post(f"/v1/runs/{run}/steps", json={"count": n}).status_code for n in (1, 1, 10**6)]
            assert statuses == [200, 200, 403]
            http.post("/v1/checkpoints").raise_for_status()
        reply = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)
        return reply.raise_for_status().text
    finally:
        server.stop()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_expression_is_promql(name: str) -> None:
    assert _parsed(EXPRESSIONS[name]) is not None


def test_every_metric_that_is_asked_for_is_told_by_a_server_or_by_verify(scraped: str, verified: str) -> None:
    lines = [*scraped.splitlines(), *verified.splitlines()]
    answer = {line.split("{")[0].split(" ")[0] for line in lines if line and not line.startswith("#")}
    wanted = {metric for expression in EXPRESSIONS.values() for metric in _metrics(expression)}
    assert len(wanted) > 25
    assert sorted(wanted - answer) == sorted(ENCRYPTED)


def test_every_metric_of_others_is_one_that_is_tried_and_stands_on_the_page() -> None:
    text = re.sub(r'"[^"]*"', '""', "\n".join(EXPRESSIONS.values()))
    assert set(re.findall(r"\b(?:node|probe|pg|pgbouncer)_\w+", text)) == EXPORTERS.keys()
    page = (FILES.parents[1] / "docs" / "operations" / "observability.md").read_text()
    for exporter in EXPORTERS.values():
        assert exporter in page


def test_every_label_that_is_asked_for_is_told_by_a_server(scraped: str) -> None:
    answer = set(re.findall(r'[{,](\w+)="', scraped)) | {"instance", "job"}  # these are Prometheus' own
    wanted = {
        label.strip()
        for expression in EXPRESSIONS.values()
        for labels in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in labels.split(",")
    } - {"pid", "certificate", "mountpoint"}  # of several workers, of PostgreSQL with TLS, of the node exporter
    assert wanted <= answer


def test_what_a_server_tells_is_as_promtool_wants_it(scraped: str, verified: str) -> None:
    for answer in (scraped, verified):
        checked = promtool("check", "metrics", given=answer)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_every_rule_fires_when_it_should_and_not_otherwise() -> None:
    checked = promtool("check", "rules", FILES / "alerts.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", FILES / "alerts_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    for case in yaml.safe_load((FILES / "alerts_test.yml").read_text())["tests"]:
        assert {each["alertname"] for each in case["alert_rule_test"]} == {rule["alert"] for rule in RULES}
        assert len({bool(each["exp_alerts"]) for each in case["alert_rule_test"]}) == 1


def test_the_example_of_a_scrape_is_a_configuration() -> None:
    checked = promtool("check", "config", "--syntax-only", FILES / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_severity_and_a_sentence_and_stands_on_the_page() -> None:
    page = (FILES.parents[1] / "docs" / "operations" / "observability.md").read_text()
    for rule in RULES:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in page


def _sections(page: str) -> dict[str, str]:
    """The texts of a page's sections by their anchors."""
    parts = re.split(r"(?m)^#{1,3} (.+)$", (FILES.parents[1] / "docs" / f"{page}.md").read_text())
    return {title.lower().replace(" ", "-"): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_leads_to_a_section_that_names_it(rule: dict[str, Any]) -> None:
    project = tomllib.loads((FILES.parents[1] / "pyproject.toml").read_text())["project"]
    url = rule["annotations"]["runbook_url"].removeprefix(f"{project['urls']['Documentation']}/")
    page, _, anchor = url.partition("/#")
    assert f"`{rule['alert']}`" in _sections(page)[anchor]


@pytest.mark.parametrize("case", ["clock", "disk", "connections", "certificate"])
def test_a_case_of_the_runbook_has_a_warning_before_and_an_alarm_when_it_is_there(case: str) -> None:
    theirs = [rule for rule in RULES if re.search(rf"#when-(\w+-)*{case}(-\w+)*$", rule["annotations"]["runbook_url"])]
    assert {rule["labels"]["severity"] for rule in theirs} == {"warning", "critical"}


def test_every_metric_stands_on_the_page(scraped: str, verified: str) -> None:
    page = (FILES.parents[1] / "docs" / "reference" / "metrics.md").read_text()
    answer = re.findall(r"^# TYPE (\S+)", f"{scraped}\n{verified}", re.MULTILINE)
    assert [name for name in answer if f"`{name}`" not in page] == []


def test_the_dashboard_draws_each_panel_in_a_place_of_its_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
