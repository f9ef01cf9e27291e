"""`epsilon-ledger serve`, `verify` and `export`: what they say."""

import json
import signal
import socket
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from sqlalchemy import update
from uvicorn.supervisors import Multiprocess

from app.commands import server, verification
from app.commands.console import display_url
from app.commands.first_admin import LINK_PATH
from app.http import server as http_server
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import runs
from tests.api.trainer import Trainer
from tests.conftest import Ledger
from tests.persistence.dump import changed, dump
from tests.service.cli_runner import Run, commands
from tests.service.tampering import MODEL, TEAM, account, lift, shift

Served = list[tuple[str, int, int]]
SERVE = ("serve", "--port", "0")
PREFIX = "EPSILON_LEDGER_"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """What would have been listened on."""
    seen: Served = []
    monkeypatch.setattr(server, "serve_http", lambda *taken: seen.append(taken))
    return seen


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return commands(monkeypatch, capsys, "sqlite:///ledger.db")


def test_serve_prints_where_it_listens_and_its_database(run: Run, served: Served, tmp_path: Path) -> None:
    said = run(*SERVE)
    ((host, port, workers),) = served
    assert (host, workers, bool(port)) == ("127.0.0.1", 1, True)
    line = f"Epsilon Ledger on http://127.0.0.1:{port}, on sqlite:///{tmp_path / 'ledger.db'}\n"
    assert said.out.startswith(f"{line}\nThe ledger was empty; the organisation default was created.")
    assert said.err == f"Created a new ledger at {tmp_path / 'ledger.db'}.\n"
    run("keys", "create", "--org", "default", "--role", "viewer")
    assert run(*SERVE, "--workers", "3").out.endswith("ledger.db, with 3 workers\n")
    facts = json.loads(run(*SERVE, "--json").out)
    assert (facts["host"], facts["port"], facts["workers"]) == served[-1]
    assert "sign_in_link" not in facts


def test_first_start_prints_a_link_and_the_next_none_for_a_while(run: Run, served: Served, tmp_path: Path) -> None:
    facts = json.loads(run(*SERVE, "--json").out)
    link = facts["sign_in_link"]
    assert facts["organisation"] == "default"
    assert link["url"].startswith(f"http://127.0.0.1:{served[-1][1]}/sign-in/link#lnk_")
    assert datetime.fromisoformat(link["expires_at"]) - datetime.now(UTC) <= timedelta(minutes=15)
    assert link["url"].rpartition(".")[2].encode() not in (tmp_path / "ledger.db").read_bytes()
    again = run(*SERVE)
    assert "epsilon-ledger sign-in-link --org default" in again.out
    assert LINK_PATH not in again.out
    other = run("sign-in-link", "--org", "default", "--url", "https://ledger.example/")
    assert other.out.startswith("https://ledger.example/sign-in/link#lnk_")


ANYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens


@pytest.mark.usefixtures("served")
def test_link_has_an_address_that_a_browser_reaches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    public = "https://ledger.example"
    for host, origin in ((ANYWHERE, "http://localhost:"), ("::1", "http://[::1]:"), ("127.0.0.1", f"{public}/")):
        monkeypatch.setenv(f"{PREFIX}DATABASE_URL", f"sqlite:///{len(origin)}.db")
        if origin.startswith(public):
            monkeypatch.setenv(f"{PREFIX}PUBLIC_URL", public)
        facts = json.loads(run(*SERVE, "--host", host, "--json").out)
        assert facts["sign_in_link"]["url"].startswith(origin)


PROVIDER = {"OIDC_ISSUER": "https://login.example", "OIDC_AUDIENCE": "ledger", "OIDC_ORGANISATION": "hospital"}
PROVIDER |= {"OIDC_ROLES": '{"admins": {"role": "admin"}}'}


@pytest.mark.parametrize("settings", [{}, {"INIT_WHEN_EMPTY": "false"}, PROVIDER])
def test_serve_creates_nothing_where_it_is_told_not_to(
    run: Run, served: Served, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    said, named = run(*SERVE, *[] if settings else ["--no-init"]), "hospital" if settings is PROVIDER else "NAME"
    assert served
    told = f"There is no organisation yet. Create one and its admin key: epsilon-ledger init --org {named}\n"
    assert said.out.endswith(f"\n{told}")
    assert json.loads(run("init", "--json").out)["created"]


def test_port_in_use_or_foreign_address_is_one_sentence_and_no_file(run: Run, served: Served, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        words = f"127.0.0.1 port {port} is in use already; stop what listens there, or name another --port.\n"
        for more in ((), ("--workers", "2")):
            said = run("serve", "--port", str(port), *more)
            assert (said.status, said.out, said.err) == (1, "", words)
    said = run(*SERVE, "--host", "192.0.2.1")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("Cannot listen on 192.0.2.1 port 0: ")
    assert (served, list(tmp_path.iterdir())) == ([], [])


def test_database_url_is_shown_without_passwords() -> None:
    for url, password in (
        ("postgresql://ledger{}@db1/ledger", ":hush"),
        ("postgresql://ledger@db1/ledger{}", "?sslpassword=hush"),
        ("postgresql://ledger@/ledger?host=db1:5432&host=db2:5432{}", "&password=hush"),
    ):
        database = Database(url.format(password), 1)
        assert display_url(database) == url.format("")
        database.dispose()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str) -> Run:
    return commands(monkeypatch, capsys, database_url)


@pytest.fixture
def spent(trainer: Trainer) -> Ledger:
    """A ledger with three steps."""
    assert trainer.steps(count=3).status_code == 200
    return trainer.ledger


def test_verify_exits_0_for_a_sound_ledger_and_counts_what_it_checked(command: Run, spent: Ledger) -> None:
    before = dump(spent.database)
    said = command("verify", "--json")
    facts = json.loads(said.out)
    counted = {"accounts": 3, "runs": 1, "decisions": 1, "reservations": 0, "charges": 1, "steps": 3}
    sound = {"discrepancies": [], "unproven": [], "sound": True, "quarantined": {}, "audit_events": 19}
    assert facts == sound | counted
    answer = command("verify")
    assert (said.status, answer.status, answer.err) == (0, 0, "")
    assert all(str(number) in answer.out for number in counted.values())
    assert dump(spent.database) == before


def test_verify_exits_1_and_names_discrepancies(command: Run, spent: Ledger) -> None:
    with spent.database.write(ALL_TENANTS) as tx:
        tx.execute(update(runs).values(next_step=2))
        model = account(tx, MODEL).id
    before = dump(spent.database)
    said = command("verify", "--read-only")
    assert (said.status, "stopped" in said.out) == (1, False)
    assert dump(spent.database) == before
    said = command("verify", "--json")
    facts = json.loads(said.out)
    assert (said.status, facts["sound"], facts["unproven"]) == (1, False, [model])
    assert MODEL in facts["discrepancies"][0]
    assert changed(before, dump(spent.database)) == {"accounts", "audit_entries"}
    answer = command("verify")
    assert (answer.status, facts["discrepancies"][0] in answer.out, answer.err) == (1, True, "")
    assert "Writes to 1 accounts are stopped." in answer.out


def test_verify_shows_how_a_quarantine_is_lifted_and_does_not_lift_it(
    command: Run, spent: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift(spent, 1)
    stopping = json.loads(command("verify", "--json").out)
    assert stopping["quarantined"] == {stopping["unproven"][0]: stopping["discrepancies"][0]}
    assert "quarantine lift" not in command("verify").out
    shift(spent, -1)
    with spent.database.read(ALL_TENANTS) as tx:
        team = account(tx, TEAM)
    line = f"epsilon-ledger quarantine lift {team.id} --org {team.organisation_id} --reason"
    for snapshot in (("verify",), ("verify", "--read-only")):
        before = dump(spent.database)
        answer = command(*snapshot)
        assert (answer.status, answer.err) == (0, "")
        for words in ("Writes to 1 accounts are stopped.", "until two persons lift its quarantine", line):
            assert words in answer.out
        assert dump(spent.database) == before
    with monkeypatch.context() as bounded:
        bounded.setattr(verification, "MAX_LIFT_COMMANDS", 0)
        assert "and 1 more" in command("verify").out
    facts = json.loads(command("verify", "--json").out)
    assert (facts["sound"], facts["unproven"], list(facts["quarantined"])) == (True, [], [team.id])
    lift(spent, TEAM)
    answer = command("verify")
    assert (answer.status, "stopped" in answer.out) == (0, False)


def test_export_prints_lines_of_json_and_names_an_unknown_scope(command: Run, trainer: Trainer, spent: Ledger) -> None:
    population = ("--population", "mimic")
    for scope in (population, ("--run", trainer.run), (*population, "--org", "hospital")):
        said = command("export", *scope)
        lines = [json.loads(line) for line in said.out.splitlines()]
        assert (said.status, said.err, lines[0]["type"]) == (0, "", "header")
        assert lines[-1] == {"type": "end", "lines": len(lines)}
        assert [line["entry"]["step_count"] for line in lines if line["type"] == "decision"] == [3]
    unknown: list[tuple[str, ...]] = [(), ("--run", "x", *population), ("--run", "x"), (*population, "--org", "nobody")]
    for of_none in unknown:
        said = command("export", *of_none)
        assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert spent.get("/healthz").status_code == 200


def test_stop_signal_during_loading_leaves_the_port_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda *given: served.append(given))
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        for stop in before:
            config: Any = SimpleNamespace(load=partial(signal.raise_signal, stop))
            http_server._Server(config).run()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert served == []


def test_gauges_of_a_worker_that_died_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor: Any = http_server._WorkerSupervisor.__new__(http_server._WorkerSupervisor)
    supervisor.processes = [SimpleNamespace(pid=1), SimpleNamespace(pid=2)]
    dropped: list[int] = []

    def restart(self: Any) -> None:  # noqa: ANN401 - uvicorn's
        self.processes[1] = SimpleNamespace(pid=3)

    monkeypatch.setattr(Multiprocess, "keep_subprocess_alive", restart)
    monkeypatch.setattr(http_server, "mark_process_dead", dropped.append)
    supervisor.keep_subprocess_alive()
    assert dropped == [2]
