"""The command line: what it prints, and that its errors are one sentence and exit status 2."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from app.ledger.errors import AuthenticationError
from app.ledger.permissions import KeyRecord, Role
from app.persistence.database import Database
from app.service.auth import sessions
from app.service.auth.authentication import Principal, authenticate
from app.service.auth.request_context import RequestContext
from app.service.keys.api_keys import KeyTerms, issue_key, revoke_key
from app.version import VERSION
from tests.api.trainer import Trainer, audited
from tests.conftest import Ledger, command_line, need_postgresql, new_database, signing_key
from tests.persistence.dump import dump
from tests.service.cli_runner import Run, Said, commands

END = "2999-01-01T00:00:00Z"
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
    database = Database(url)
    for role in Role:
        said = run("keys", "create", "--org", organisation, "--role", role, "--json")
        issued = json.loads(said.out)
        assert (said.status, said.err, set(issued), issued["role"]) == (0, "", {"id", "key", "role"}, role)
        caller = authenticate(database, f"Bearer {issued['key']}", datetime.now(UTC))
        assert (caller.organisation_id, caller.role, caller.actor) == (organisation, role, issued["id"])
    before = dump(database)
    keys = "keys create --role admin --org"
    for mistaken in ("org create hospital", "org create hospital --json", f"org create {'x' * 101}", f"{keys} nobody"):
        assert is_one_sentence(run(*mistaken.split())), mistaken
    for mistaken in ("keys revoke key_nobody --reason x", "keys list --org nobody"):
        assert is_one_sentence(run(*mistaken.split())), mistaken
    assert dump(database) == before
    database.dispose()


def test_init_says_how_a_further_key_is_created_and_version_is_printed(run: Run) -> None:
    made = json.loads(run("init", "--org", "St. Mary", "--json").out)
    again = run("init", "--org", "St. Mary")
    assert (again.status, f"({made['id']}) exists already; nothing was changed." in again.out) == (0, True)
    assert again.out.endswith('Create a further admin key: epsilon-ledger init --new-key --org "St. Mary"\n')
    assert run("--version") == Said(0, f"epsilon-ledger {VERSION}\n", "")


def test_unknown_command_or_option_exits_2_without_a_traceback(run: Run) -> None:
    for arguments in ("org create", "keys create --role admin", "serve --port 65536", "nonsense", "export --json"):
        said = run(*arguments.split())
        assert (said.status, said.out, "Usage" in said.err, "Traceback" in said.err) == (2, "", True, False), arguments
    for flag in ("--version", "verify --read-only", "migrate --check", "keys revoke --include-successors"):
        *command, name = flag.split()  # help of a flag shows no value
        assert not [line for line in run(*command, "--help").out.splitlines() if name in line and "<bool>" in line]


@pytest.mark.parametrize(
    "bad",
    [
        *("postgresql://u:secret@h/d", "postgresql://u:secret@h:port/d", "nonsense", "", "sqlite://", "bogus://x"),
        *("sqlite+aiosqlite:///x.db", "sqlite:////nowhere/at/all/ledger.db", "sqlite:///.", "sqlite:///broken.db"),
    ],
)
def test_unusable_setting_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bad: str) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database, but it is long enough to be read as one" * 100)
    monkeypatch.setenv(URL, bad)
    for arguments in ("verify", "serve --port 0"):
        said = run(*arguments.split())
        assert is_one_sentence(said)
        assert "secret" not in said.err
    monkeypatch.setenv(POOL, "1001")
    said = run("migrate")
    assert is_one_sentence(said)
    assert said.err.startswith(f"{POOL} is invalid: ")


def test_missing_ledger_is_named_and_an_empty_one_called_empty(run: Run, url: str, tmp_path: Path) -> None:
    before = run("migrate", "--check")
    assert (before.status, before.err) == (1, "")
    assert "`epsilon-ledger migrate`" in before.out
    assert json.loads(run("migrate", "--check", "--json").out) == {"migrated": False}
    said = run("verify")
    assert is_one_sentence(said)
    assert said.err == f"There is no ledger at {tmp_path / 'ledger.db'}, which {URL} names.\n"
    assert list(tmp_path.iterdir()) == []
    run("migrate")
    after = run("migrate", "--check", "--json")
    assert (after.status, json.loads(after.out)) == (0, {"migrated": True})
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


def test_service_with_a_bad_file_names_it_before_it_creates_anything(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encrypted = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    contents = {"missing.pem": None, "text.pem": b"no key", "public.pem": signing_key()[1].read_bytes()}
    words = {"missing.pem": "No such file", "text.pem": "no private key", "public.pem": "no private key"}
    contents["locked.pem"], words["locked.pem"] = encrypted, "is encrypted"
    for name, content in contents.items():
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        monkeypatch.setenv("EPSILON_LEDGER_SIGNING_KEY_FILE", str(file))
        said = run("serve", "--port", "0")
        assert is_one_sentence(said)
        assert f"EPSILON_LEDGER_SIGNING_KEY_FILE names {file}, " in said.err
        assert words[name] in said.err
    assert not (tmp_path / "ledger.db").exists()


@pytest.fixture
def serving(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trainer: Trainer, database_url: str
) -> Run:
    """Run a command on the database of a service with keys."""
    assert trainer.ledger.keys
    return commands(monkeypatch, capsys, database_url)


def _created(run: Run, *options: str) -> dict[str, Any]:
    said = run("keys", "create", "--org", "hospital", "--role", "trainer", *options)
    assert (said.status, said.err) == (0, "")
    issued: dict[str, Any] = json.loads(said.out)
    return issued


def _listed(run: Run, organisation: str = "hospital") -> dict[str, dict[str, Any]]:
    said = run("keys", "list", "--org", organisation, "--json")
    assert (said.status, said.err) == (0, "")
    return {key["id"]: key for key in json.loads(said.out)["items"]}


def test_key_has_the_name_scope_and_end_asked_for_and_is_listed_as_by_the_api(
    serving: Run, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, budget = trainer.ledger, trainer.path()[1].id
    issued = _created(serving, "--name", "scans", "--scope", "mimic/icu-team", "--expires", "2999-01-01T01:00:00+01:00")
    asked = {"role": "trainer", "name": "scans", "scope": budget, "expires_at": END}
    assert issued == {"id": issued["id"], "key": issued["key"]} | asked
    read = ledger.get(f"/v1/api-keys/{issued['id']}", "admin").json()
    assert asked.items() <= read.items()
    [event] = audited(ledger, f"subject={issued['id']}")
    assert (event["action"], event["actor"], event["after"]["scope"]) == ("api_key.created", "cli", budget)
    listed = _listed(serving)
    monkeypatch.setattr("app.commands.organisations.PAGE", 2)
    assert _listed(serving) == listed
    by_api = ledger.get("/v1/api-keys?limit=200", "admin").json()["items"]
    unused = {"last_used_at": None}
    assert [each | unused for each in listed.values()] == [each | unused for each in by_api]
    assert listed.keys().isdisjoint(_listed(serving, "clinic"))
    said = serving("keys", "list", "--org", "hospital")
    [line] = [line for line in said.out.splitlines() if issued["id"] in line]
    assert sorted(line.split()) == sorted([issued["id"], "trainer", budget, "expires", END, "scans"])
    assert issued["key"].partition(".")[2] not in said.out + json.dumps(listed)


def test_revoked_key_is_refused_and_the_reason_audited(serving: Run, ledger: Ledger) -> None:
    issued = _created(serving)
    said = serving("keys", "revoke", issued["key"], "--reason", "x")  # a secret given by mistake is not repeated
    assert (said.status, issued["key"].partition(".")[2] in said.err) == (2, False)
    authenticate(ledger.database, f"Bearer {issued['key']}", datetime.now(UTC))
    said = serving("keys", "revoke", issued["id"], "--reason", "The laptop was lost.")
    assert (said.status, said.err, said.out.startswith(f"{issued['id']} was revoked 2")) == (0, "", True)
    with pytest.raises(AuthenticationError):
        authenticate(ledger.database, f"Bearer {issued['key']}", datetime.now(UTC))
    revoked = _listed(serving)[issued["id"]]["revoked_at"]
    again = json.loads(serving("keys", "revoke", issued["id"], "--reason", "Again.", "--json").out)
    assert (again["id"], again["revoked_at"]) == (issued["id"], revoked)
    events = audited(ledger, f"action=api_key.revoked&subject={issued['id']}")
    assert [(event["actor"], event["reason"]) for event in events] == [("cli", "The laptop was lost.")]
    assert serving("verify").status == 0


def _person(ledger: Ledger, actor: str) -> RequestContext:
    return RequestContext(ledger.database, Principal(_hospital(ledger), actor, Role.ADMIN), datetime.now(UTC))


def _issued(context: RequestContext, name: str, role: Role = Role.VIEWER, **terms: Any) -> KeyRecord:  # noqa: ANN401 - of a key
    return issue_key(context, KeyTerms(role, name, **terms)).record


def _hospital(ledger: Ledger) -> str:
    return authenticate(ledger.database, ledger.headers()["Authorization"], datetime.now(UTC)).organisation_id


def test_removed_person_has_no_session_and_the_keys_that_remain_are_named(serving: Run, ledger: Ledger) -> None:
    officer = _person(ledger, "oidc:9f3c")
    mine = _issued(officer, "mine", Role.ADMIN)
    child = _issued(_person(ledger, mine.id), "child", expires_at=mine.expires_at)
    heir = ledger.post(f"/v1/api-keys/{child.id}/rotate", {"overlap_seconds": 0}).json()["id"]
    revoke_key(officer, _issued(officer, "ended").id, None)
    _issued(_person(ledger, "oidc:other"), "another")
    sessions.open_session(officer, timedelta(hours=1), "print", "Marie")
    arguments = ("people", "remove", "oidc:9f3c", "--org", "hospital", "--reason", "She left.")
    said = json.loads(serving(*arguments, "--json").out)
    assert (said["sessions_ended"], {key["id"] for key in said["keys"]}) == (1, {mine.id, heir})
    assert f"{mine.id}  admin" in serving(*arguments).out
    [ended] = audited(ledger, "action=session.ended")
    assert (ended["actor"], ended["reason"]) == ("cli", "She left.")
    revoked = json.loads(serving(*arguments, "--revoke-keys", "--json").out)["keys"]
    assert all(key["revoked_at"] for key in revoked)
    assert {key["id"] for key in revoked} == {mine.id, heir}
    assert json.loads(serving(*arguments, "--json").out) == {"sessions_ended": 0, "keys": []}
    for wrong, words in (("oidc:nobody", "names no 'oidc:nobody'"), ("marie", "is no person")):
        refused = serving("people", "remove", wrong, "--org", "hospital", "--reason", "x")
        assert (refused.status, words in refused.err) == (2, True)
    assert serving("verify").status == 0


def test_mistake_is_named_and_no_key_created(serving: Run) -> None:
    before = _listed(serving)
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    for option, value, answer in (
        ("--scope", "mimic/nowhere", "no population or budget"),
        ("--expires", past, "is in the past"),
        ("--expires", "2999-01-01T00:00:00", "zone"),
        ("--expires", "29990101", "RFC 3339"),
        ("--name", "a/b", "A name has no slash"),
    ):
        said = serving("keys", "create", "--org", "hospital", "--role", "viewer", option, value)
        assert (said.status, said.out) == (2, "")
        assert answer in " ".join(said.err.replace("│", " ").split())
    assert serving("keys", "revoke", next(iter(before)), "--reason", " ").status == 2
    assert _listed(serving) == before


@pytest.mark.postgresql
def test_postgresql_without_tables_or_connection_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    """Serving never migrates it, but says what is needed."""
    need_postgresql()
    with new_database("postgresql", tmp_path, migrated=False) as url:
        for wrong in (
            url,
            f"{url.rpartition('/')[0]}/nowhere",
            f"postgresql://ledger:mistaken@{url.rpartition('@')[2]}",
            f"{url.rpartition(':')[0]}:1/ledger",
        ):
            refused = command_line("serve", "--port", "0", database=wrong)
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
            assert ("epsilon-ledger migrate" in refused.stderr) is (wrong == url)
            assert "mistaken" not in refused.stderr
            assert url.split(":")[2].split("@")[0] not in refused.stderr
        assert command_line("migrate", database=url).returncode == 0
        assert command_line("org", "create", "hospital", database=url).returncode == 0
