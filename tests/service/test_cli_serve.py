"""`epsilon-ledger serve`: what it says, and when."""

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.bootstrap import display_url
from app.commands import server
from app.commands.first_admin import LINK_PATH
from app.persistence.database import Database
from tests.service.cli_runner import Run, commands


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What would have been listened on."""
    seen: list[tuple[str, int, int]] = []
    monkeypatch.setattr(server, "serve_http", lambda *taken: seen.append(taken))
    return seen


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return commands(monkeypatch, capsys, "sqlite:///ledger.db")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another process listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port: int = other.getsockname()[1]
        yield port


def test_it_says_where_it_listens_and_on_which_database(
    run: Run, served: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    said = run("serve", "--port", "0")
    ((host, port, workers),) = served
    assert (host, workers) == ("127.0.0.1", 1)
    assert port
    line = f"Epsilon Ledger on http://127.0.0.1:{port}, on sqlite:///{tmp_path / 'ledger.db'}\n"
    assert said.out.startswith(f"{line}\nThe ledger was empty; the organisation default was created.")
    assert said.err == f"Created a new ledger at {tmp_path / 'ledger.db'}.\n"
    run("keys", "create", "--org", "default", "--role", "viewer")
    assert run("serve", "--port", "0", "--workers", "3").out.endswith("ledger.db, with 3 workers\n")
    facts = json.loads(run("serve", "--port", "0", "--json").out)
    assert (facts["host"], facts["port"], facts["workers"]) == served[-1]
    assert "sign_in_link" not in facts


def test_the_first_start_prints_a_link_and_the_next_ones_no_other_for_a_while(
    run: Run, served: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    first = run("serve", "--port", "0", "--json")
    facts = json.loads(first.out)
    link = facts["sign_in_link"]
    port = served[-1][1]
    assert facts["organisation"] == "default"
    assert link["url"].startswith(f"http://127.0.0.1:{port}/sign-in/link#lnk_")
    assert datetime.fromisoformat(link["expires_at"]) - datetime.now(UTC) <= timedelta(minutes=15)
    assert link["url"].rpartition(".")[2].encode() not in (tmp_path / "ledger.db").read_bytes()
    again = run("serve", "--port", "0")
    assert "epsilon-ledger sign-in-link --org default" in again.out
    assert LINK_PATH not in again.out
    other = run("sign-in-link", "--org", "default", "--url", "https://ledger.example/")
    assert other.out.startswith("https://ledger.example/sign-in/link#lnk_")


@pytest.mark.parametrize(
    ("arguments", "settings", "origin"),
    [
        (("--host", "0.0.0.0"), {}, "http://localhost:"),  # noqa: S104 - nothing listens
        (("--host", "::1"), {}, "http://[::1]:"),
        ((), {"EPSILON_LEDGER_PUBLIC_URL": "https://ledger.example"}, "https://ledger.example/"),
    ],
)
def test_the_link_has_an_address_that_a_browser_reaches(
    run: Run,
    served: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    settings: dict[str, str],
    origin: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    facts = json.loads(run("serve", "--port", "0", *arguments, "--json").out)
    assert served
    assert facts["sign_in_link"]["url"].startswith(origin)


PROVIDER = {
    "EPSILON_LEDGER_OIDC_ISSUER": "https://login.example",
    "EPSILON_LEDGER_OIDC_AUDIENCE": "ledger",
    "EPSILON_LEDGER_OIDC_ORGANISATION": "hospital",
    "EPSILON_LEDGER_OIDC_ROLES": '{"admins": {"role": "admin"}}',
}


@pytest.mark.parametrize(
    ("arguments", "settings", "named"),
    [
        (("--no-init",), {}, "NAME"),
        ((), {"EPSILON_LEDGER_INIT_WHEN_EMPTY": "false"}, "NAME"),
        ((), PROVIDER, "hospital"),
    ],
)
def test_where_it_is_not_wanted_nothing_is_created(
    run: Run,
    served: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    settings: dict[str, str],
    named: str,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    said = run("serve", "--port", "0", *arguments)
    assert served
    assert said.out.endswith(
        f"\nThere is no organisation yet. Create one and its admin key: epsilon-ledger init --org {named}\n"
    )
    assert json.loads(run("init", "--json").out)["created"]


def test_init_says_what_it_did(run: Run) -> None:
    made = run("init", "--org", "St. Mary")
    assert made.status == 0
    assert "The organisation St. Mary (org_" in made.out
    assert "which is shown only now:\n    key_" in made.out
    again = run("init", "--org", "St. Mary")
    assert (again.status, again.err) == (0, "")
    assert 'epsilon-ledger init --new-key --org "St. Mary"' in again.out
    facts = json.loads(run("init", "--org", "St. Mary", "--new-key", "--json").out)
    assert (facts["name"], facts["created"]) == ("St. Mary", False)
    assert facts["key"].startswith(f"{facts['key_id']}.")
    assert json.loads(run("init", "--org", "St. Mary", "--json").out)["key"] is None


def test_a_port_in_use_is_one_sentence_and_nothing_is_made(
    run: Run, served: list[tuple[str, int, int]], taken: int, tmp_path: Path
) -> None:
    for more in ((), ("--workers", "2")):
        said = run("serve", "--port", str(taken), *more)
        assert (said.status, said.out) == (1, "")
        assert said.err == (
            f"127.0.0.1 port {taken} is in use already; stop what listens there, or name another --port.\n"
        )
    assert served == []
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_not_ours_is_one_sentence(run: Run, served: list[tuple[str, int, int]]) -> None:
    said = run("serve", "--port", "0", "--host", "192.0.2.1")
    assert (said.status, said.out, served) == (1, "", [])
    assert said.err.startswith("Cannot listen on 192.0.2.1 port 0: ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ledger:hush@db1/ledger?sslpassword=hush", "postgresql://ledger@db1/ledger"),
        (
            "postgresql://ledger@/ledger?host=db1:5432&host=db2:5432&password=hush",
            "postgresql://ledger@/ledger?host=db1:5432&host=db2:5432",
        ),
    ],
)
def test_database_url_is_shown_without_passwords(url: str, shown: str) -> None:
    database = Database(url, 1)
    assert display_url(database) == shown
    database.dispose()
