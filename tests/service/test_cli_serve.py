"""`epsilon-ledger serve`: what it says, and when."""

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.bootstrap import display_url
from app.commands import server
from app.commands.first_admin import LINK_PATH
from app.persistence.database import Database
from tests.service.cli_runner import Run, commands

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


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("host", "public", "origin"),
    [
        ("0.0.0.0", None, "http://localhost:"),  # noqa: S104 - nothing listens
        ("::1", None, "http://[::1]:"),
        ("127.0.0.1", "https://ledger.example", "https://ledger.example/"),
    ],
)
def test_link_has_an_address_that_a_browser_reaches(
    run: Run, monkeypatch: pytest.MonkeyPatch, host: str, public: str | None, origin: str
) -> None:
    if public:
        monkeypatch.setenv(f"{PREFIX}PUBLIC_URL", public)
    facts = json.loads(run(*SERVE, "--host", host, "--json").out)
    assert facts["sign_in_link"]["url"].startswith(origin)


PROVIDER = {"ISSUER": "https://login.example", "AUDIENCE": "ledger", "ORGANISATION": "hospital"}
PROVIDER |= {"ROLES": '{"admins": {"role": "admin"}}'}


@pytest.mark.parametrize(
    ("arguments", "settings", "named"),
    [
        (["--no-init"], {}, "NAME"),
        ([], {"INIT_WHEN_EMPTY": "false"}, "NAME"),
        ([], {f"OIDC_{name}": value for name, value in PROVIDER.items()}, "hospital"),
    ],
)
def test_serve_creates_nothing_where_it_is_told_not_to(
    run: Run,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    settings: dict[str, str],
    named: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    said = run(*SERVE, *arguments)
    assert served
    told = f"There is no organisation yet. Create one and its admin key: epsilon-ledger init --org {named}\n"
    assert said.out.endswith(f"\n{told}")
    assert json.loads(run("init", "--json").out)["created"]


def test_init_prints_what_it_did(run: Run) -> None:
    init = ("init", "--org", "St. Mary")
    made = run(*init)
    assert made.status == 0
    assert "The organisation St. Mary (org_" in made.out
    assert "which is shown only now:\n    key_" in made.out
    again = run(*init)
    assert (again.status, again.err) == (0, "")
    assert 'epsilon-ledger init --new-key --org "St. Mary"' in again.out
    facts = json.loads(run(*init, "--new-key", "--json").out)
    assert (facts["name"], facts["created"]) == ("St. Mary", False)
    assert facts["key"].startswith(f"{facts['key_id']}.")
    assert json.loads(run(*init, "--json").out)["key"] is None


def test_port_in_use_is_one_sentence_and_nothing_is_created(run: Run, served: Served, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for more in ((), ("--workers", "2")):
            said = run("serve", "--port", str(port), *more)
            assert (said.status, said.out) == (1, "")
            assert said.err == (
                f"127.0.0.1 port {port} is in use already; stop what listens there, or name another --port.\n"
            )
    assert (served, list(tmp_path.iterdir())) == ([], [])


def test_foreign_address_is_one_sentence(run: Run, served: Served) -> None:
    said = run(*SERVE, "--host", "192.0.2.1")
    assert (said.status, said.out, served) == (1, "", [])
    assert said.err.startswith("Cannot listen on 192.0.2.1 port 0: ")


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql://ledger{}@db1/ledger", ":hush"),
        ("postgresql://ledger@db1/ledger{}", "?sslpassword=hush"),
        ("postgresql://ledger@/ledger?host=db1:5432&host=db2:5432{}", "&password=hush"),
    ],
)
def test_database_url_is_shown_without_passwords(url: str, password: str) -> None:
    database = Database(url.format(password), 1)
    assert display_url(database) == url.format("")
    database.dispose()
