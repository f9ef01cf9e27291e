"""Organisations and keys, the first start on an empty ledger, `init`, and links that sign in once."""

import hashlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import select, update

from app.ledger import errors
from app.ledger.errors import AuthenticationError, InvalidInputError, NotFoundError
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys as stored
from app.persistence.schema import upgrade
from app.persistence.tables import api_keys, organisations, sign_in_links
from app.service.auth import sessions
from app.service.auth.authentication import authenticate, create_organisation
from app.service.auth.request_context import RequestContext, cli_context
from app.service.auth.sign_in_links import LIFETIME, redeem
from app.service.keys.api_keys import bind_to_run, create_key, revoke_key
from app.service.keys.first_admin import RECENT, create_sign_in_link, initialise, set_up
from app.service.verification.verify import verify
from tests.api.trainer import Trainer
from tests.conftest import Ledger
from tests.persistence.dump import dump

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def test_secret_of_a_key_is_stored_nowhere(trainer: Trainer) -> None:
    assert trainer.steps("k-1").status_code == 200
    file = str(trainer.ledger.database.engine.url.database)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    stored, raw = repr(dump(trainer.ledger.database)), Path(file).read_bytes()
    for key in trainer.ledger.keys.values():
        key_id, _, secret = key.partition(".")
        assert key_id in stored
        assert key_id.encode() in raw
        for form in (secret, key, secret[:20], secret.encode().hex(), hashlib.sha256(key.encode()).hexdigest()):
            assert form not in stored
            assert form.encode() not in raw


def test_organisation_has_a_readable_unique_name_and_only_it_gets_keys(ledger: Ledger) -> None:
    organisation = create_organisation(ledger.database, "third", NOW)
    before = dump(ledger.database)
    for name in ("", " ", "x" * 101, "a\nb", "a\x00b", " hospital", "hospital ", "hospi\u200btal"):
        with pytest.raises(InvalidInputError):
            create_organisation(ledger.database, name, NOW)
    for name in ("third", organisation):
        with pytest.raises(errors.NameTakenError):
            create_organisation(ledger.database, name, NOW)
    for name in ("nobody", "", "Hospital", "hospital ", "%"):
        with pytest.raises(NotFoundError):
            create_key(ledger.database, name, Role.ADMIN, NOW)
    for header in (None, "", "Bearer", "Bearer .", "Bearer x", "Bearer x.", "Bearer .x", "Basic a.b", "Bearer a.b"):
        with pytest.raises(AuthenticationError):
            authenticate(ledger.database, header, NOW)
    assert dump(ledger.database) == before


def test_key_of_one_run_is_bound_once(trainer: Trainer, now: datetime) -> None:
    """Also where its caller is remembered as it was before."""
    ledger, ends = trainer.ledger, (now + timedelta(minutes=10)).isoformat()
    terms = {"role": "trainer", "scope": "mimic", "single_use": True, "expires_at": ends}
    key = ledger.post("/v1/api-keys", terms).json()["key"]
    call = RequestContext(ledger.database, authenticate(ledger.database, f"Bearer {key}", now), now)
    with ledger.database.write(call.organisation_id) as tx:
        bind_to_run(tx, call, trainer.run)
        with pytest.raises(errors.PermissionDeniedError, match="registers no other one"):
            bind_to_run(tx, call, trainer.run)


DAY = timedelta(days=1)


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    upgrade(database)
    yield database
    database.dispose()


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def _count(db: Database) -> dict[str, int]:
    with db.read(ALL_TENANTS) as tx:
        return {table.name: len(tx.execute(select(table)).all()) for table in (organisations, api_keys, sign_in_links)}


def _redeem(db: Database, token: str) -> str:
    return redeem(db, token, DAY, None).cookie


def _started(db: Database, now: datetime) -> Any:  # noqa: ANN401 - a start, which is one
    return set_up(db, now)


def _token(db: Database, now: datetime) -> str:
    return str(_started(db, now).link.token)


def test_empty_ledger_gets_an_organisation_and_a_link_for_its_admin(db: Database, now: datetime) -> None:
    started = _started(db, now)
    assert (started.organisation, started.created, started.link.expires_at) == ("default", True, now + LIFETIME)
    assert _count(db) == {"organisations": 1, "api_keys": 1, "sign_in_links": 1}
    opened = redeem(db, started.link.token, DAY, None)
    assert (opened.caller.role, opened.caller.scope) == (Role.ADMIN, None)
    seen = sessions.authenticate(db, opened.cookie, db.clock.now())
    assert seen.caller.actor == opened.caller.actor
    assert verify(db).sound


def test_link_signs_in_once(db: Database, now: datetime) -> None:
    token = _token(db, now)
    assert _started(db, now + RECENT / 2).link is None  # which leaves the link that another start has printed
    _redeem(db, token)
    with pytest.raises(AuthenticationError, match="sign-in-link"):
        _redeem(db, token)
    assert _count(db)["sign_in_links"] == 0
    create_sign_in_link(db, "default", now)
    assert set_up(db, now + DAY) is None  # the ledger is in use
    with pytest.raises(NotFoundError, match="init"):
        create_sign_in_link(db, "nowhere", now)


@pytest.mark.both_databases
def test_one_of_simultaneous_browsers_is_signed_in(db: Database, now: datetime) -> None:
    token, together = _token(db, now), Barrier(4)

    def open_it(_: int) -> str | None:
        together.wait()
        try:
            return _redeem(db, token)
        except AuthenticationError:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert sum(cookie is not None for cookie in pool.map(open_it, range(4))) == 1


@pytest.mark.both_databases
def test_simultaneous_starts_make_one_organisation_and_one_link(db: Database, database_url: str, now: datetime) -> None:
    together = Barrier(4)

    def start(_: int) -> str | None:
        own = Database(database_url)
        try:
            together.wait()
            link = _started(own, now).link
            return link and str(link.token)
        finally:
            own.dispose()

    with ThreadPoolExecutor(4) as pool:
        [token] = [token for token in pool.map(start, range(4)) if token]
    assert _count(db) == {"organisations": 1, "api_keys": 1, "sign_in_links": 1}
    _redeem(db, token)


def test_restart_makes_a_new_link_until_the_first_sign_in(db: Database, now: datetime) -> None:
    first = _token(db, now - DAY)
    with pytest.raises(AuthenticationError):  # it has expired
        _redeem(db, first)
    again = _started(db, now - RECENT)
    assert not again.created
    assert _count(db) == {"organisations": 1, "api_keys": 1, "sign_in_links": 1}
    second = _token(db, now)
    for void in (first, again.link.token):
        with pytest.raises(AuthenticationError):
            _redeem(db, void)
    create_key(db, "default", Role.VIEWER, now)  # nor does a start make one beside another key or organisation
    assert set_up(db, now + DAY) is None
    create_organisation(db, "hospital", now)
    assert set_up(db, now + DAY) is None
    _redeem(db, second)


def test_invalid_token_is_refused_and_uses_nothing_up(db: Database, now: datetime) -> None:
    token = _token(db, now)
    link_id, _, secret = token.partition(".")
    with db.read(ALL_TENANTS) as tx:
        link = stored.find_sign_in_link(tx, link_id)
    assert link is not None
    assert (len(link.secret_hash), secret in repr(link)) == (32, False)
    for wrong in ("", ".", "x", link_id, f"{link_id}.", f"{link_id}.x", f"lnk_0.{secret}", f"{token}x", "ä.\0"):
        with pytest.raises(AuthenticationError):
            _redeem(db, wrong)
    with pytest.raises(AuthenticationError):
        authenticate(db, f"Bearer {token}", now)  # it is no key
    with pytest.raises(AuthenticationError):
        sessions.authenticate(db, token, now)
    _redeem(db, token)


@pytest.mark.parametrize("column", ["key_id", "expires_at"])
def test_changed_link_row_is_refused(db: Database, now: datetime, column: str) -> None:
    token = _token(db, now)
    other = create_key(db, "default", Role.ADMIN, now).id
    changed = {"key_id": other, "expires_at": now + DAY}[column]
    with db.write(ALL_TENANTS) as tx:
        tx.execute(update(sign_in_links).values({column: changed}))
    with pytest.raises(AuthenticationError):
        _redeem(db, token)
    assert any("sign_in_links" in problem for problem in verify(db).problems)


def test_link_of_a_revoked_key_is_refused(db: Database, now: datetime) -> None:
    token = _token(db, now)
    with db.read(ALL_TENANTS) as tx:
        key = tx.execute(select(api_keys)).one()
    revoke_key(cli_context(db, key.organisation_id, now), key.id, "A test.")
    with pytest.raises(AuthenticationError, match="sign-in-link"):
        _redeem(db, token)


def test_init_is_repeatable(db: Database, now: datetime) -> None:
    found: list[Any] = [initialise(db, "hospital", now, new_key=new) for new in (False, False, True)]
    made, again, further = found
    caller = authenticate(db, f"Bearer {made.key.key}", now)
    assert (caller.organisation_id, caller.role) == (made.organisation_id, Role.ADMIN)
    assert [each.created for each in (made, again, further)] == [True, False, False]
    assert (again.organisation_id, again.key) == (made.organisation_id, None)
    assert further.key.id != made.key.id
    assert _count(db) == {"organisations": 1, "api_keys": 2, "sign_in_links": 0}
    assert verify(db).sound
    with pytest.raises(InvalidInputError):
        initialise(db, "a/b", now)
