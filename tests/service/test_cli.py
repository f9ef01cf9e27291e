"""The command line: what it prints, and that its errors are one sentence and exit status 2."""

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from app.api.openapi import openapi_text
from app.ledger.permissions import Role
from app.main import create_app
from app.persistence.database import Database
from app.service.auth.authentication import authenticate
from app.settings import Settings
from tests.conftest import command_line
from tests.persistence.dump import dump
from tests.service.cli_runner import Run, Said, commands

URL, POOL = "EPSILON_LEDGER_DATABASE_URL", "EPSILON_LEDGER_DATABASE_POOL_SIZE"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path) -> Run:
    """Run a command in this process; whatever it raises but its exit fails the test."""
    monkeypatch.chdir(tmp_path)
    return commands(monkeypatch, capsys, url)


def is_one_sentence(said: Said) -> bool:
    assert (said.status, said.out, said.err.count("\n")) == (2, "", 1)
    assert "Traceback" not in said.err
    return 10 < len(said.err) < 400


def test_organisation_and_keys_of_each_role_are_created(run: Run, url: str) -> None:
    made = run("org", "create", "hospital")
    assert (made.status, made.err) == (0, f"Created a new ledger at {url.removeprefix('sqlite:///')}.\n")
    organisation = made.out.strip()
    assert organisation.startswith("org_")
    database = Database(url)
    for role in Role:
        for name in ("hospital", organisation):
            said = run("keys", "create", "--org", name, "--role", role, "--json")
            issued = json.loads(said.out)
            assert (said.status, said.err, set(issued), issued["role"]) == (0, "", {"id", "key", "role"}, role)
            caller = authenticate(database, f"Bearer {issued['key']}", datetime.now(UTC))
            assert (caller.organisation_id, caller.role, caller.actor) == (organisation, role, issued["id"])
    before = dump(database)
    for mistaken in (
        ("org", "create", "hospital"),
        ("org", "create", "hospital", "--json"),
        ("org", "create", ""),
        ("org", "create", "x" * 101),
        ("keys", "create", "--org", "nobody", "--role", "admin"),
        ("keys", "create", "--org", "", "--role", "admin"),
    ):
        assert is_one_sentence(run(*mistaken)), mistaken
    assert dump(database) == before
    database.dispose()


@pytest.mark.parametrize(
    "arguments",
    [
        *("org create", "keys create --org hospital", "keys create --role admin", "serve --port 65536"),
        *("keys create --org hospital --role owner", "serve --port x", "nonsense", "verify --nonsense"),
        *("export --nonsense", "export --json", "openapi --json"),
    ],
)
def test_unknown_command_or_option_exits_2_without_a_traceback(run: Run, arguments: str) -> None:
    said = run(*arguments.split())
    assert (said.status, said.out) == (2, "")
    assert "Usage" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "flag", ["--version", "verify --read-only", "migrate --check", "keys revoke --include-successors"]
)
def test_help_of_a_flag_shows_no_value(run: Run, flag: str) -> None:
    *command, name = flag.split()
    assert not [line for line in run(*command, "--help").out.splitlines() if name in line and "<bool>" in line]


@pytest.mark.parametrize("arguments", ["migrate", "verify", "org create x", "serve --port 0"])
@pytest.mark.parametrize(
    "bad",
    [
        *("postgresql://u:secret@h/d", "postgresql://u:secret@h:port/d", "nonsense", "", "sqlite://", "bogus://x"),
        *("sqlite+aiosqlite:///x.db", "sqlite:////nowhere/at/all/ledger.db", "sqlite:///.", "sqlite:///broken.db"),
    ],
)
def test_unusable_database_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str, arguments: str
) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database, but it is long enough to be read as one" * 100)
    monkeypatch.setenv(URL, bad)
    said = run(*arguments.split())
    assert is_one_sentence(said)
    assert "secret" not in said.err


@pytest.mark.parametrize("size", ["0", "many", "-1", "1001"])
def test_invalid_setting_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv(POOL, size)
    said = run("migrate")
    assert is_one_sentence(said)
    assert said.err.startswith(f"{POOL} is invalid: ")


def test_documents_are_printed_without_a_ledger(run: Run, url: str, tmp_path: Path) -> None:
    said = run("openapi")
    assert (said.status, said.err, said.out) == (0, "", openapi_text(create_app(Settings(database_url=url))))
    said = run("--version")
    assert (said.status, said.out) == (0, f"epsilon-ledger {version('epsilon-ledger')}\n")
    assert list(tmp_path.iterdir()) == []


def test_migrate_check_changes_nothing(run: Run, tmp_path: Path) -> None:
    before = run("migrate", "--check")
    assert (before.status, before.err) == (1, "")
    assert "`epsilon-ledger migrate`" in before.out
    assert json.loads(run("migrate", "--check", "--json").out) == {"migrated": False}
    assert list(tmp_path.iterdir()) == []
    run("migrate")
    after = run("migrate", "--check", "--json")
    assert (after.status, json.loads(after.out)) == (0, {"migrated": True})


def test_missing_ledger_is_named_and_an_empty_one_called_empty(run: Run, url: str, tmp_path: Path) -> None:
    said = run("verify")
    assert is_one_sentence(said)
    assert said.err == f"There is no ledger at {tmp_path / 'ledger.db'}, which {URL} names.\n"
    assert list(tmp_path.iterdir()) == []
    run("migrate")
    said = run("verify")
    assert (said.status, said.out) == (0, "The ledger is empty.\n")
    said = run("copy", "--from", "sqlite:///nofile.db", "--to", url)
    assert is_one_sentence(said)
    assert said.err == f"There is no ledger at {tmp_path / 'nofile.db'}, which --from names.\n"


def test_misspelt_variable_is_named_and_those_of_the_client_are_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("migrate")
    for name in ("EPSILON_LEDGER_URL", "EPSILON_LEDGER_API_KEY"):
        monkeypatch.setenv(name, "1")
    assert run("verify").err == ""
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_ULR", "sqlite:///secret.db")
    said = run("verify")
    assert said.status == 0
    assert said.err == f"EPSILON_LEDGER_DATABASE_ULR is no setting and has no effect; did you mean {URL}?\n"


def test_installed_command_prints_no_traceback(tmp_path: Path) -> None:
    assert command_line("migrate", database=tmp_path / "ledger.db").returncode == 0
    refused = command_line("keys", "create", "--org", "nobody", "--role", "admin", database=tmp_path / "ledger.db")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "nobody" in refused.stderr
