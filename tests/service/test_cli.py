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


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path) -> Run:
    """Run a command in this process; whatever it raises but its exit fails the test."""
    monkeypatch.chdir(tmp_path)
    return commands(monkeypatch, capsys, url)


def _is_one_sentence(said: Said) -> None:
    assert (said.status, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert 10 < len(said.err) < 400


def test_an_organisation_and_keys_of_each_role_can_be_made(run: Run, url: str) -> None:
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
    database.dispose()


def test_an_organisation_is_printed_as_json_if_asked(run: Run) -> None:
    made = json.loads(run("org", "create", "Ärzte & Söhne", "--json").out)
    assert (set(made), made["name"]) == ({"id", "name"}, "Ärzte & Söhne")


def test_mistakes_are_one_sentence_and_change_nothing(run: Run, url: str) -> None:
    run("org", "create", "hospital")
    database = Database(url)
    before = dump(database)
    for arguments in (
        ("org", "create", "hospital"),
        ("org", "create", "hospital", "--json"),
        ("org", "create", ""),
        ("org", "create", "x" * 101),
        ("keys", "create", "--org", "nobody", "--role", "admin"),
        ("keys", "create", "--org", "", "--role", "admin"),
    ):
        _is_one_sentence(run(*arguments))
    assert dump(database) == before
    database.dispose()


@pytest.mark.parametrize(
    "arguments",
    [
        ("org", "create"),
        ("keys", "create", "--org", "hospital"),
        ("keys", "create", "--role", "admin"),
        ("keys", "create", "--org", "hospital", "--role", "owner"),
        ("serve", "--port", "65536"),
        ("serve", "--port", "x"),
        ("nonsense",),
        ("verify", "--nonsense"),
        ("export", "--nonsense"),
        ("export", "--json"),
        ("openapi", "--json"),
    ],
)
def test_a_command_that_is_not_understood_exits_2_without_a_traceback(run: Run, arguments: tuple[str, ...]) -> None:
    said = run(*arguments)
    assert (said.status, said.out) == (2, "")
    assert "Usage" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "arguments", [("--help",), ("org", "--help"), ("keys", "create", "--help"), ("serve", "--help")]
)
def test_help_is_help(run: Run, arguments: tuple[str, ...]) -> None:
    said = run(*arguments)
    assert (said.status, said.err) == (0, "")
    assert "Usage" in said.out


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ((), ["--version"]),
        (("verify",), ["--read-only", "--json"]),
        (("migrate",), ["--check"]),
        (("keys", "revoke"), ["--include-successors"]),
    ],
)
def test_the_help_of_a_flag_shows_no_value(run: Run, command: tuple[str, ...], flags: list[str]) -> None:
    lines = run(*command, "--help").out.splitlines()
    for flag in flags:
        assert not [line for line in lines if flag in line and "<bool>" in line]


@pytest.mark.parametrize("command", ["serve", "demo", "migrate", "openapi", "org", "keys", "verify", "export"])
def test_help_names_every_command(run: Run, command: str) -> None:
    assert command in run("--help").out


@pytest.mark.both_databases
@pytest.mark.parametrize("arguments", [("migrate",), ("verify",), ("org", "create", "x"), ("serve", "--port", "0")])
@pytest.mark.parametrize(
    "bad",
    [
        *("postgresql://u:secret@h/d", "postgresql://u:secret@h:port/d", "nonsense", "", "sqlite://", "bogus://x"),
        *("sqlite+aiosqlite:///x.db", "sqlite:////nowhere/at/all/ledger.db", "sqlite:///.", "sqlite:///broken.db"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database, but it is long enough to be read as one" * 100)
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_URL", bad)
    said = run(*arguments)
    _is_one_sentence(said)
    assert "secret" not in said.err


def test_openapi_prints_the_document(run: Run, url: str, tmp_path: Path) -> None:
    said = run("openapi")
    assert (said.status, said.err) == (0, "")
    assert said.out == openapi_text(create_app(Settings(database_url=url)))
    assert list(tmp_path.iterdir()) == []


def test_migrate_can_be_repeated(run: Run) -> None:
    assert [run("migrate").status, run("migrate").status] == [0, 0]
    assert json.loads(run("migrate", "--json").out) == {"migrated": True}


def test_migrate_only_looks_if_asked(run: Run, tmp_path: Path) -> None:
    before = run("migrate", "--check")
    assert (before.status, before.err) == (1, "")
    assert "`epsilon-ledger migrate`" in before.out
    assert json.loads(run("migrate", "--check", "--json").out) == {"migrated": False}
    assert list(tmp_path.iterdir()) == []
    run("migrate")
    after = run("migrate", "--check", "--json")
    assert (after.status, json.loads(after.out)) == (0, {"migrated": True})


def test_verify_does_not_call_a_ledger_sound_that_is_not_there(run: Run, tmp_path: Path) -> None:
    said = run("verify")
    _is_one_sentence(said)
    assert said.err == f"There is no ledger at {tmp_path / 'ledger.db'}, which EPSILON_LEDGER_DATABASE_URL names.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_ledger_is_told_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EPSILON_LEDGER_DATABASE_URL")
    said = run("verify")
    _is_one_sentence(said)
    path = tmp_path / "epsilon-ledger.db"
    assert said.err == f"There is no ledger at {path}; go to its folder or set EPSILON_LEDGER_DATABASE_URL.\n"


def test_the_source_of_a_copy_that_is_not_there_is_named(run: Run, url: str, tmp_path: Path) -> None:
    run("migrate")
    said = run("copy", "--from", "sqlite:///nofile.db", "--to", url)
    _is_one_sentence(said)
    assert said.err == f"There is no ledger at {tmp_path / 'nofile.db'}, which --from names.\n"


def test_an_empty_ledger_is_called_empty(run: Run) -> None:
    run("migrate")
    said = run("verify")
    assert (said.status, said.out) == (0, "The ledger is empty.\n")


def test_the_version_is_that_of_the_distribution(run: Run) -> None:
    said = run("--version")
    assert (said.status, said.out) == (0, f"epsilon-ledger {version('epsilon-ledger')}\n")


def test_a_command_that_makes_a_file_says_so_once(run: Run, tmp_path: Path) -> None:
    assert run("migrate").err == f"Created a new ledger at {tmp_path / 'ledger.db'}.\n"
    assert run("migrate").err == ""


def test_a_misspelt_variable_is_named_and_those_of_the_client_are_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("migrate")
    for name in ("EPSILON_LEDGER_URL", "EPSILON_LEDGER_API_KEY"):
        monkeypatch.setenv(name, "1")
    assert run("verify").err == ""
    monkeypatch.setenv("EPSILON_LEDGER_DATABASE_ULR", "sqlite:///secret.db")
    said = run("verify")
    assert said.status == 0
    assert said.err == (
        "EPSILON_LEDGER_DATABASE_ULR is no setting and has no effect; did you mean EPSILON_LEDGER_DATABASE_URL?\n"
    )


def test_the_command_is_installed_and_prints_no_traceback(tmp_path: Path) -> None:
    assert command_line("migrate", database=tmp_path / "ledger.db").returncode == 0
    refused = command_line("keys", "create", "--org", "nobody", "--role", "admin", database=tmp_path / "ledger.db")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert "nobody" in refused.stderr
