"""`epsilon-ledger keys`: created, listed and revoked, as the API does it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.api.schemas.api_keys import ApiKey
from app.ledger.errors import AuthenticationError
from app.persistence.database import Database
from app.service.auth.authentication import authenticate
from tests.ledgers import Ledger
from tests.service.cli_runner import Run, commands

END = "2999-01-01T00:00:00Z"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str, ledger: Ledger) -> Run:
    """Run a command in this process, on the database of a service with two organisations and their keys."""
    del ledger
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


def _is_accepted(database: Database, key: str) -> bool:
    try:
        authenticate(database, f"Bearer {key}", datetime.now(UTC))
    except AuthenticationError:
        return False
    return True


def test_key_has_the_name_scope_and_end_that_were_asked_for(run: Run, ledger: Ledger) -> None:
    ledger.population()
    budget = ledger.budget()["id"]
    issued = _created(run, "--name", "scans", "--scope", "mimic/icu-team", "--expires", "2999-01-01T01:00:00+01:00")
    assert issued == {
        "id": issued["id"],
        "key": issued["key"],
        "role": "trainer",
        "name": "scans",
        "scope": budget,
        "expires_at": END,
    }
    read = ledger.get(f"/v1/api-keys/{issued['id']}", "admin").json()
    assert (read["name"], read["scope"], read["expires_at"], read["created_by"]) == ("scans", budget, END, "cli")
    [audit_event] = ledger.get(f"/v1/audit-events?order=oldest&subject={issued['id']}", "admin").json()["items"]
    assert (audit_event["action"], audit_event["actor"]) == ("api_key.created", "cli")
    assert audit_event["after"]["scope"] == budget


def test_keys_are_listed_as_by_the_api_and_without_secrets(run: Run, ledger: Ledger) -> None:
    issued = _created(run, "--name", "scans", "--expires", END)
    listed = _listed(run)
    by_api = ledger.get("/v1/api-keys?limit=200", "admin").json()["items"]
    assert list(listed) == [key["id"] for key in by_api]
    assert listed.keys().isdisjoint(_listed(run, "clinic"))
    assert listed[issued["id"]].keys() == ApiKey.model_fields.keys()
    for key in by_api:
        assert listed[key["id"]] | {"last_used_at": None} == key | {"last_used_at": None}
    said = run("keys", "list", "--org", "hospital")
    assert said.status == 0
    [line] = [line for line in said.out.splitlines() if issued["id"] in line]
    assert line.split() == [issued["id"], "trainer", "expires", END, "scans"]
    assert issued["key"].partition(".")[2] not in said.out + json.dumps(listed)


def test_revoked_key_is_refused_and_the_reason_audited(run: Run, ledger: Ledger) -> None:
    issued = _created(run)
    assert _is_accepted(ledger.database, issued["key"])
    said = run("keys", "revoke", issued["id"], "--reason", "The laptop was lost.")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(f"{issued['id']} was revoked 2")
    assert not _is_accepted(ledger.database, issued["key"])
    revoked = _listed(run)[issued["id"]]["revoked_at"]
    again = json.loads(run("keys", "revoke", issued["id"], "--reason", "Again.", "--json").out)
    assert (again["id"], again["revoked_at"]) == (issued["id"], revoked)
    audit_events = ledger.get(
        f"/v1/audit-events?order=oldest&action=api_key.revoked&subject={issued['id']}", "admin"
    ).json()["items"]
    assert [(audit_event["actor"], audit_event["reason"]) for audit_event in audit_events] == [
        ("cli", "The laptop was lost.")
    ]
    assert run("verify").status == 0


def test_mistake_is_named_and_no_key_created(run: Run) -> None:
    before = _listed(run)
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    for options, answer in (
        (("--scope", "mimic/nowhere"), "no population or budget"),
        (("--expires", past), "is in the past"),
        (("--expires", "2999-01-01T00:00:00"), "zone"),
        (("--expires", "tomorrow"), "zone"),
        (("--name", "a/b"), "A name has no slash"),
    ):
        said = run("keys", "create", "--org", "hospital", "--role", "viewer", *options)
        assert (said.status, said.out) == (2, "")
        assert answer in " ".join(said.err.replace("│", " ").split())
    for arguments in (
        ("keys", "revoke", "key_nobody", "--reason", "x"),
        ("keys", "revoke", next(iter(before)), "--reason", " "),
        ("keys", "list", "--org", "nobody"),
    ):
        said = run(*arguments)
        assert (said.status, said.out) == (2, "")
    assert _listed(run) == before


def test_secret_given_by_mistake_is_not_repeated(run: Run) -> None:
    issued = _created(run)
    said = run("keys", "revoke", issued["key"], "--reason", "x")
    assert said.status == 2
    assert issued["key"].partition(".")[2] not in said.err
