"""The settings and commands of a ledger on several databases, and a server one of whose databases is gone."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient

from app.cli import main
from app.ledger.permissions import Role
from app.main import create_app
from app.service.auth.authentication import create_organisation
from app.service.governance.api_keys import create_key
from app.service.placements import Placements
from app.settings import Settings
from tests import postgres
from tests.conftest import Ledger, LiveServer, command_line, need_postgresql
from tests.service.placed_service import NOW, PlacedService, take_a_step

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, and return what it said."""

    def command(*arguments: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["epsilon-ledger", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert int(left.value.code or 0) == status, said
        return said.err if status else said.out

    return command


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("nonsense", "no JSON"),
        ('["sqlite:///x.db"]', "no JSON object"),
        ('{"eu": "sqlite:///a.db", "eu": "sqlite:///b.db"}', "twice"),
        ('{"default": "sqlite:///a.db"}', "EPSILON_LEDGER_DATABASE_URL itself"),
        ('{"EU 2": "sqlite:///a.db"}', "pattern"),
        ('{"eu": 5}', "string"),
        ('{"eu": "mysql://secret@h/d"}', "The placement 'eu' of EPSILON_LEDGER_PLACEMENTS names mysql"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, given: str, answer: str
) -> None:
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("EPSILON_LEDGER_PLACEMENTS", given)
    said = run("migrate", status=2)
    assert said.count("\n") == 1
    assert answer in said
    assert "secret" not in said


@pytest.fixture
def configured(placed_urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The two databases, as the command line is told of them."""
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", placed_urls["default"])
    monkeypatch.setenv("EPSILON_LEDGER_PLACEMENTS", json.dumps({"eu-2": placed_urls["eu-2"]}))
    return placed_urls


def test_the_command_line_knows_every_placement(configured: dict[str, str], run: Run) -> None:
    assert list(configured) == ["default", "eu-2"]
    run("migrate")
    run("org", "create", "hospital")
    organisation = run("org", "create", "clinic", "--placement", "eu-2").strip()
    assert "already" in run("org", "create", "clinic", status=2)
    assert "no placement 'us'" in run("org", "create", "third", "--placement", "us", status=2)
    key = json.loads(run("keys", "create", "--org", "clinic", "--role", "admin"))["key"]
    app = create_app(Settings())
    home = app.state.placements.named("eu-2").database
    with TestClient(app) as http:
        take_a_step(Ledger(http, home, {("hospital", str(role)): key for role in Role}))
    assert json.loads(run("verify", "--json"))["charges"] == 1
    for choice in ((), ("--org", "clinic"), ("--org", organisation)):
        header = json.loads(run("export", "--population", "mimic", *choice).splitlines()[0])
        assert header["organisation"] == organisation
    assert "no population" in run("export", "--population", "mimic", "--org", "hospital", status=2)


@pytest.mark.usefixtures("configured")
def test_a_population_that_two_placements_have_is_exported_by_its_organisation(placed: PlacedService, run: Run) -> None:
    for ledger in (placed.hospital, placed.clinic):
        ledger.population()
    assert "Name one with --org" in run("export", "--population", "mimic", status=2)
    assert json.loads(run("export", "--population", "mimic", "--org", "clinic").splitlines()[0])["type"] == "header"


@pytest.mark.usefixtures("configured")
def test_a_command_names_the_placement_that_does_not_answer(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("migrate")
    monkeypatch.setenv("EPSILON_LEDGER_PLACEMENTS", json.dumps({"us": f"sqlite:///{tmp_path / 'no' / 'folder.db'}"}))
    for command in (("migrate",), ("org", "create", "hospital")):
        assert "placement 'us' does not answer" in run(*command, status=2)
    assert "folder.db, which the placement 'us' names." in run("verify", status=2)


def test_copies_of_one_ledger_are_not_served(configured: dict[str, str], run: Run) -> None:
    run("migrate")
    run("org", "create", "hospital")
    run("copy", "--from", configured["default"], "--to", configured["eu-2"])
    said = run("serve", "--port", "0", status=2)
    assert "'default' and 'eu-2'" in said
    assert "spent twice" in said


@pytest.mark.usefixtures("configured")
def test_a_service_none_of_whose_databases_answers_is_not_started(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "no"
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", f"sqlite:///{nowhere / 'first.db'}")
    monkeypatch.setenv("EPSILON_LEDGER_PLACEMENTS", json.dumps({"eu-2": f"sqlite:///{nowhere / 'second.db'}"}))
    said = run("serve", "--port", "0", status=2)
    assert "'default' does not answer" in said
    assert "'eu-2' does not answer" in said


@pytest.mark.postgresql
def test_a_server_goes_on_while_one_of_its_database_servers_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_postgresql()
    with postgres.database() as here:
        cluster = postgres.Cluster.create()
        try:
            there = cluster.create_database("ledger")
            monkeypatch.setenv("EPSILON_LEDGER_PLACEMENTS", json.dumps({"eu-2": there}))
            assert command_line("migrate", database=here).returncode == 0
            server = LiveServer(tmp_path, here)
            server.keys["clinic/admin"] = _issued(here, there)
            cluster.kill()
            server.start()  # its placement eu-2 is down from the beginning
            try:
                _serves_one_and_then_both(server, cluster)
            finally:
                server.stop()
            assert "'eu-2' does not answer" in server.log()
        finally:
            cluster.remove()


def _issued(here: str, there: str) -> str:
    placements = Placements({"default": here, "eu-2": there}, 5)
    home = placements.named("eu-2").database
    create_organisation(home, "clinic", NOW, placements.databases.values())
    issued = create_key(home, "clinic", Role.ADMIN, NOW, placements.databases.values())
    create_organisation(placements.named("default").database, "hospital", NOW, placements.databases.values())
    placements.dispose()
    return issued.key


def _serves_one_and_then_both(server: LiveServer, cluster: postgres.Cluster) -> None:
    known = httpx2.Client(base_url=server.url, timeout=60, trust_env=False)
    assert known.get("/readyz").json()["status"] == "degraded"
    with server.client("admin", "clinic") as clinic:
        assert clinic.get("/v1/runs").status_code == 503
        assert known.get("/v1/runs", headers={"Authorization": "Bearer key_x.y"}).status_code == 503
        cluster.start()
        assert clinic.get("/v1/runs").status_code == 200
    assert server.readiness().json() == {"status": "ok"}
    assert known.get("/v1/runs", headers={"Authorization": "Bearer key_x.y"}).status_code == 401
    known.close()
