"""Organisations and keys: what is stored, what is shown, and what a role covers."""

import hashlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.ledger.errors import (
    AuthenticationError,
    InsufficientScopeError,
    InvalidInputError,
    NameTakenError,
    NotFoundError,
)
from app.ledger.permissions import PERMISSIONS, Permission, Role
from app.persistence.database import Database
from app.service.auth.authentication import Principal, authenticate, create_organisation
from app.service.auth.request_context import RequestContext
from app.service.governance.api_keys import create_key
from tests import postgres
from tests.conftest import Ledger
from tests.persistence.dump import dump

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def test_secret_of_a_key_is_stored_nowhere(ledger: Ledger) -> None:
    ledger.population()
    ledger.budget()
    ledger.post(f"/v1/runs/{ledger.run()}/steps", {}, "trainer", Idempotency_Key="k-1")
    stored = repr(dump(ledger.database))
    raw = _on_disk(ledger.database)
    for key in ledger.keys.values():
        key_id, _, secret = key.partition(".")
        assert key_id in stored
        assert key_id.encode() in raw
        for form in (secret, key, secret[:20], secret.encode().hex(), hashlib.sha256(key.encode()).hexdigest()):
            assert form not in stored
            assert form.encode() not in raw


def _on_disk(database: Database) -> bytes:
    """Every byte that the database keeps in its files."""
    name = str(database.engine.url.database)
    if database.dialect == "sqlite":
        with sqlite3.connect(name) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return Path(name).read_bytes()
    cluster = postgres.shared()
    cluster.execute("CHECKPOINT")
    [(folder,)] = cluster.execute("SELECT oid FROM pg_database WHERE datname = current_database()", name)
    return b"".join(file.read_bytes() for file in (cluster.data / "base" / str(folder)).iterdir())


def test_key_of_an_unknown_organisation_is_not_issued(ledger: Ledger) -> None:
    before = dump(ledger.database)
    for nobody in ("nobody", "", "Hospital", "hospital ", "%"):
        with pytest.raises(NotFoundError):
            create_key(ledger.database, nobody, Role.ADMIN, NOW)
    assert dump(ledger.database) == before


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", "a\x00b", " hospital", "hospital ", "hospi\u200btal"])
def test_unreadable_name_of_an_organisation_is_refused(ledger: Ledger, name: str) -> None:
    before = dump(ledger.database)
    with pytest.raises(InvalidInputError):
        create_organisation(ledger.database, name, NOW)
    assert dump(ledger.database) == before


def test_name_of_an_organisation_is_unique_and_no_id(ledger: Ledger) -> None:
    organisation = create_organisation(ledger.database, "third", NOW)
    for name in ("third", organisation):
        with pytest.raises(NameTakenError):
            create_organisation(ledger.database, name, NOW)


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer .", "Bearer x", "Bearer x.", "Bearer .x", "Basic a.b", "Bearer a.b", "a.b"],
)
def test_header_without_a_key_is_not_authenticated(ledger: Ledger, authorization: str | None) -> None:
    with pytest.raises(AuthenticationError):
        authenticate(ledger.database, authorization, NOW)


@pytest.mark.parametrize("needed", Permission)
@pytest.mark.parametrize("role", Role)
def test_role_has_its_permissions_and_no_others(ledger: Ledger, role: Role, needed: Permission) -> None:
    call = RequestContext(ledger.database, Principal("org_1", "key_1", role), NOW)
    if needed in PERMISSIONS[role]:
        call.require_permission(needed)
        return
    with pytest.raises(InsufficientScopeError) as refused:
        call.require_permission(needed)
    roles = [str(each) for each in Role if needed in PERMISSIONS[each]]
    assert refused.value.members == {"required_permission": str(needed), "required_roles": roles}
