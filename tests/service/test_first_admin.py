"""The first start on an empty ledger, `init`, and links that sign in once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import select, update

from app.ledger.errors import AuthenticationError, InvalidInputError, NotFoundError
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.repositories import api_keys as stored
from app.persistence.schema import upgrade
from app.persistence.tables import api_keys, organisations, sign_in_links
from app.service.auth import sessions
from app.service.auth.authentication import authenticate, create_organisation
from app.service.auth.request_context import cli_context
from app.service.auth.sign_in_links import LIFETIME, redeem
from app.service.governance.api_keys import create_key, revoke_key
from app.service.governance.first_admin import RECENT, create_sign_in_link, initialise, set_up
from app.service.verification import verify

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


def _token(db: Database, now: datetime) -> str:
    started = set_up(db, now)
    assert started is not None
    assert started.link is not None
    return started.link.token


def test_an_empty_ledger_gets_an_organisation_and_a_link_to_its_admin(db: Database, now: datetime) -> None:
    started = set_up(db, now)
    assert started is not None
    assert started.link is not None
    assert (started.organisation, started.created, started.link.expires_at) == ("default", True, now + LIFETIME)
    assert _count(db) == {"organisations": 1, "api_keys": 1, "sign_in_links": 1}
    opened = redeem(db, started.link.token, DAY, None)
    assert (opened.caller.role, opened.caller.scope) == (Role.ADMIN, None)
    seen = sessions.authenticate(db, opened.cookie, db.clock.now())
    assert seen.caller.actor == opened.caller.actor
    assert verify(db).sound


def test_a_link_signs_in_once(db: Database, now: datetime) -> None:
    token = _token(db, now)
    _redeem(db, token)
    with pytest.raises(AuthenticationError, match="sign-in-link"):
        _redeem(db, token)
    assert _count(db)["sign_in_links"] == 0


def test_of_browsers_that_open_a_link_at_once_one_is_signed_in(db: Database, now: datetime) -> None:
    token, together = _token(db, now), Barrier(4)

    def open_it(_: int) -> str | None:
        together.wait()
        try:
            return _redeem(db, token)
        except AuthenticationError:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert sum(cookie is not None for cookie in pool.map(open_it, range(4))) == 1


def test_starts_at_once_make_one_organisation_and_one_link(db: Database, database_url: str, now: datetime) -> None:
    together = Barrier(4)

    def start(_: int) -> str | None:
        own = Database(database_url)
        try:
            together.wait()
            started = set_up(own, now)
            assert started is not None
            return None if started.link is None else started.link.token
        finally:
            own.dispose()

    with ThreadPoolExecutor(4) as pool:
        [token] = [token for token in pool.map(start, range(4)) if token]
    assert _count(db) == {"organisations": 1, "api_keys": 1, "sign_in_links": 1}
    _redeem(db, token)


def test_a_restart_makes_a_new_link_until_somebody_has_signed_in(db: Database, now: datetime) -> None:
    first = _token(db, now - DAY)
    with pytest.raises(AuthenticationError):  # it has expired
        _redeem(db, first)
    again = set_up(db, now - RECENT)
    assert again is not None
    assert not again.created
    assert _count(db) == {"organisations": 1, "api_keys": 1, "sign_in_links": 1}
    second = _token(db, now)
    assert again.link is not None
    for void in (first, again.link.token):
        with pytest.raises(AuthenticationError):
            _redeem(db, void)
    _redeem(db, second)
    assert set_up(db, now + DAY) is None


def test_a_start_within_seconds_leaves_the_link_that_another_has_printed(db: Database, now: datetime) -> None:
    token = _token(db, now)
    again = set_up(db, now + RECENT / 2)
    assert again is not None
    assert again.link is None
    _redeem(db, token)


def test_with_another_key_no_start_makes_a_link(db: Database, now: datetime) -> None:
    _token(db, now - DAY)
    create_key(db, "default", Role.VIEWER, now)
    assert set_up(db, now) is None


def test_an_unused_link_beside_a_key_that_programs_use_is_not_renewed_by_a_start(db: Database, now: datetime) -> None:
    key = initialise(db, "default", now).key
    assert key is not None
    create_sign_in_link(db, "default", now - DAY)
    assert _count(db)["api_keys"] == 1, "the link signs in as the key that `init` printed"
    with db.read(ALL_TENANTS) as tx:
        record = stored.find(tx, key.id)
    assert record is not None
    db.transact(record.organisation_id, lambda tx: stored.save_last_used(tx, {(record.organisation_id, key.id): now}))
    assert set_up(db, now) is None


def test_a_ledger_in_use_gets_nothing(db: Database, now: datetime) -> None:
    create_organisation(db, "hospital", now)
    assert set_up(db, now) is None
    assert _count(db) == {"organisations": 1, "api_keys": 0, "sign_in_links": 0}


def test_an_unused_link_of_a_ledger_in_use_is_not_renewed_by_a_start(db: Database, now: datetime) -> None:
    _redeem(db, _token(db, now))
    create_sign_in_link(db, "default", now)
    assert set_up(db, now + DAY) is None


@pytest.mark.parametrize("wrong", ["", ".", "x", "{id}", "{id}.", "{id}.x", "lnk_0.{secret}", "{id}.{secret}x", "ä.\0"])
def test_what_is_no_token_opens_nothing_and_uses_nothing_up(db: Database, now: datetime, wrong: str) -> None:
    token = _token(db, now)
    link_id, _, secret = token.partition(".")
    with pytest.raises(AuthenticationError):
        _redeem(db, wrong.format(id=link_id, secret=secret))
    _redeem(db, token)


@pytest.mark.parametrize("column", ["key_id", "expires_at"])
def test_a_row_that_was_changed_opens_nothing(db: Database, now: datetime, column: str) -> None:
    token = _token(db, now)
    other = create_key(db, "default", Role.ADMIN, now).id
    changed = {"key_id": other, "expires_at": now + DAY}[column]
    with db.write(ALL_TENANTS) as tx:
        tx.execute(update(sign_in_links).values({column: changed}))
    with pytest.raises(AuthenticationError):
        _redeem(db, token)
    assert any("sign_in_links" in problem for problem in verify(db).problems)


def test_a_link_ends_with_its_key_and_the_next_has_another(db: Database, now: datetime) -> None:
    token = _token(db, now)
    with db.read(ALL_TENANTS) as tx:
        [key] = tx.execute(select(api_keys.c.id, api_keys.c.organisation_id)).all()
    revoke_key(cli_context(db, key.organisation_id, now), key.id, "A test.")
    with pytest.raises(AuthenticationError):
        _redeem(db, token)
    assert _redeem(db, create_sign_in_link(db, "default", now).token)
    assert _count(db)["api_keys"] == 2


def test_secrets_are_stored_as_hashes_only(db: Database, now: datetime) -> None:
    token = _token(db, now)
    link_id, _, secret = token.partition(".")
    with db.read(ALL_TENANTS) as tx:
        link = stored.find_sign_in_link(tx, link_id)
    assert link is not None
    assert len(link.secret_hash) == 32
    assert secret not in repr(link)
    with pytest.raises(AuthenticationError):  # nor is a token a key or a cookie
        authenticate(db, f"Bearer {token}", now)
    with pytest.raises(AuthenticationError):
        sessions.authenticate(db, token, now)


def test_links_of_one_operator_are_one_person(db: Database, now: datetime) -> None:
    first = redeem(db, _token(db, now), DAY, None)
    second = redeem(db, create_sign_in_link(db, "default", now).token, DAY, None)
    assert first.caller.actor == second.caller.actor
    with pytest.raises(NotFoundError, match="init"):
        create_sign_in_link(db, "nowhere", now)


def test_init_is_repeatable(db: Database, now: datetime) -> None:
    made = initialise(db, "hospital", now)
    assert made.created
    assert made.key is not None
    caller = authenticate(db, f"Bearer {made.key.key}", now)
    assert (caller.organisation_id, caller.role) == (made.organisation_id, Role.ADMIN)
    again = initialise(db, "hospital", now)
    assert (again.organisation_id, again.created, again.key) == (made.organisation_id, False, None)
    further = initialise(db, "hospital", now, new_key=True)
    assert not further.created
    assert further.key is not None
    assert further.key.id != made.key.id
    assert _count(db) == {"organisations": 1, "api_keys": 2, "sign_in_links": 0}
    assert verify(db).sound
    with pytest.raises(InvalidInputError):
        initialise(db, "a/b", now)
