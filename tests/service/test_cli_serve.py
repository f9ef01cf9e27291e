"""`epsilon-ledger serve`: what it says, and when."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.bootstrap import display_urls
from app.commands import server
from app.service.placements import Placements
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
    assert said.out.startswith(f"{line}There is no organisation yet: epsilon-ledger org create NAME, then ")
    assert said.err == f"Created a new ledger at {tmp_path / 'ledger.db'}.\n"
    run("org", "create", "hospital")
    assert run("serve", "--port", "0", "--workers", "3").out.endswith("ledger.db, with 3 workers\n")
    facts = json.loads(run("serve", "--port", "0", "--json").out)
    assert (facts["host"], facts["port"], facts["workers"]) == served[-1]


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


def test_no_password_is_shown() -> None:
    urls = {
        "default": "postgresql://ledger:hush@db1/ledger?sslpassword=hush",
        "eu-2": "postgresql://ledger@/ledger?host=db1:5432&host=db2:5432&password=hush",
    }
    placements = Placements(urls, 1)
    assert display_urls(placements) == (
        "postgresql://ledger@db1/ledger, eu-2 on postgresql://ledger@/ledger?host=db1:5432&host=db2:5432"
    )
    placements.dispose()
