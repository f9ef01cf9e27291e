"""People who are signed in with a browser: what a cookie opens, and when it opens nothing any more."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.configuration.settings import Settings
from app.ledger.errors import AuthenticationError
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS
from app.persistence.tables import audit_entries
from app.persistence.tables import sessions as table
from app.service.auth import sessions
from app.service.auth.authentication import Principal, authenticate
from app.service.auth.credential_cache import Authenticator
from app.service.auth.request_context import RequestContext
from app.service.verification.verify import verify
from tests.api.trainer import audited
from tests.conftest import Ledger
from tests.identity_provider import identity_provider, key_of
from tests.service.tampering import tampering

LASTING = timedelta(hours=12)


def caller_of(ledger: Ledger, role: str = "planner", organisation: str = "hospital") -> Principal:
    header = f"Bearer {ledger.keys[organisation, role]}"
    return authenticate(ledger.database, header, datetime.now(UTC))


def opened(ledger: Ledger, caller: Principal, now: datetime | None = None, thumbprint: str | None = None) -> str:
    """The cookie of a new session."""
    context = RequestContext(ledger.database, caller, now or datetime.now(UTC), "req-1")
    return sessions.open_session(context, LASTING, thumbprint)


def credential(ledger: Ledger, *who: str) -> sessions.SessionCookie:
    """That of a new session of a role, maybe of another organisation."""
    return sessions.SessionCookie(opened(ledger, caller_of(ledger, *who)))


def seen(ledger: Ledger, cookie: str, now: datetime | None = None) -> Principal:
    return sessions.authenticate(ledger.database, cookie, now or datetime.now(UTC)).caller


def is_refused(ledger: Ledger, cookie: str, now: datetime | None = None) -> bool:
    with pytest.raises(AuthenticationError, match="not signed in any more"):
        seen(ledger, cookie, now)
    return True


def rows(ledger: Ledger) -> list[Mapping[str, Any]]:
    with ledger.database.read(ALL_TENANTS) as tx:
        return [dict(row) for row in tx.execute(select(table)).mappings()]


@pytest.fixture
def ring(ledger: Ledger) -> Authenticator:
    """What another replica knows of who asks."""
    return Authenticator(ledger.database)


def test_oldest_session_ends_when_a_key_has_too_many(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    other, caller, began = opened(ledger, caller_of(ledger, "viewer")), caller_of(ledger), datetime.now(UTC)
    cookies = [opened(ledger, caller, began + timedelta(seconds=number)) for number in range(5)]
    assert len(rows(ledger)) == 4
    assert all(seen(ledger, cookie) for cookie in (other, *cookies[2:]))
    assert all(is_refused(ledger, cookie) for cookie in cookies[:2])
    ended = [each["subject"] for each in audited(ledger, "action=session.ended")]
    assert ended == [cookie.partition(".")[0] for cookie in cookies[:2]]


def test_secret_of_a_session_is_stored_as_a_hash_and_a_forged_cookie_refused(ledger: Ledger) -> None:
    session_id, _, secret = opened(ledger, caller_of(ledger)).partition(".")
    (row,) = rows(ledger)
    assert (row["id"], len(row["secret_hash"])) == (session_id, 32)
    with ledger.database.read(ALL_TENANTS) as tx:
        assert secret not in repr((row, tx.execute(select(audit_entries)).all()))
    (event,) = audited(ledger, "action=session.created")
    assert (event["subject"], event["actor"], event["request_id"]) == (session_id, caller_of(ledger).actor, "req-1")
    cookie, another = f"{session_id}.{secret}", opened(ledger, caller_of(ledger, "admin", "clinic"))
    other = another.partition(".")[2]
    wrong = (cookie[:-1], f"ses_nowhere.{secret}", f"{session_id}.{other}", f"{session_id}.", "", session_id)
    assert all(is_refused(ledger, each) for each in wrong)


def test_session_ends_by_itself_or_with_its_key(ledger: Ledger) -> None:
    now, caller = datetime.now(UTC), caller_of(ledger)
    cookie = opened(ledger, caller, now)
    found = seen(ledger, cookie, now + LASTING - timedelta(seconds=1))
    assert (replace(found, expires_at=None), found.expires_at) == (caller, now + LASTING)
    assert is_refused(ledger, cookie, now + LASTING)
    assert ledger.post(f"/v1/api-keys/{caller.actor}/rotate", {"overlap_seconds": 60}).status_code == 201
    ends: Any = seen(ledger, cookie, now).expires_at
    assert ends < now + timedelta(seconds=90)
    assert is_refused(ledger, cookie, ends)
    soon = now + timedelta(minutes=5)
    key = ledger.post("/v1/api-keys", {"role": "viewer", "expires_at": soon.isoformat()}).json()["key"]
    short = opened(ledger, authenticate(ledger.database, f"Bearer {key}", now), now)
    assert seen(ledger, short, now).expires_at == soon
    assert is_refused(ledger, short, soon)


def test_sign_out_ends_one_session_or_all_of_a_key_on_every_replica(ledger: Ledger, ring: Authenticator) -> None:
    caller, own = caller_of(ledger), [credential(ledger) for _ in range(3)]
    others = [credential(ledger, "viewer"), credential(ledger, "planner", "clinic")]
    for each in (*own, *others):
        ring.authenticate(each)
    first = own[0].value
    stranger = RequestContext(ledger.database, caller_of(ledger, "admin", "clinic"), datetime.now(UTC), "req-1")
    sessions.end_sessions(stranger, first)
    assert audited(ledger, "action=session.ended") == []
    for _ in range(2):  # twice is as good as once, and noted once
        sessions.end_sessions(RequestContext(ledger.database, caller, datetime.now(UTC), "req-2"), first)
    ring.refresh()
    assert [ring.find(each) is None for each in own] == [True, False, False]
    ring.evict(own[1])  # at once, where somebody signs out
    assert (ring.find(own[1]), ring.was_known(own[1])) == (None, False)
    sessions.end_sessions(RequestContext(ledger.database, caller, datetime.now(UTC), "req-3"))
    ring.refresh()
    assert [ring.find(each) for each in own] == [None] * 3
    assert all(ring.find(each) for each in others)
    with pytest.raises(AuthenticationError):
        ring.authenticate(own[0])
    assert [each["request_id"] for each in audited(ledger, "action=session.ended")] == ["req-2", "req-3", "req-3"]


CHANGES: dict[str, Any] = {
    "role": "admin",
    "actor": None,
    "scope_id": "bud_00000000000000f",
    "oidc_key_thumbprint": "other",
    "expires_at": datetime.now(UTC) + timedelta(days=900),
    "organisation_id": None,
}


@pytest.mark.parametrize(("person", "column"), [*((False, column) for column in CHANGES), (True, "role")])
def test_changed_session_row_is_refused(ledger: Ledger, ring: Authenticator, column: str, *, person: bool) -> None:
    """A viewer's cookie was an admin's after one update."""
    stranger = caller_of(ledger, "admin", "clinic").organisation_id
    others = {"actor": caller_of(ledger, "admin").actor, "organisation_id": stranger}
    cookie = opened(ledger, caller_of(ledger, "viewer"), thumbprint="print" if person else None)
    known = sessions.SessionCookie(cookie)
    if not person:
        assert ring.authenticate(known).role is Role.VIEWER
    seen(ledger, cookie)
    with tampering(ledger.database) as tx:
        tx.execute(update(table).values({column: CHANGES[column] or others[column]}))
    with pytest.raises(AuthenticationError):
        seen(ledger, cookie)
    ring.refresh()
    assert ring.find(known) is None
    with pytest.raises(AuthenticationError):
        ring.authenticate(known)
    assert any("of sessions is" in problem for problem in verify(ledger.database).problems)


def test_person_is_signed_in_while_the_provider_publishes_the_key(ledger: Ledger, ring: Authenticator) -> None:
    with identity_provider() as provider:
        own: Any = Authenticator(ledger.database, Settings(**provider.settings()).openid)
        marie = own.authenticate(f"Bearer {provider.token()}")
        cookie = sessions.SessionCookie(opened(ledger, marie, thumbprint=key_of("RS256").thumbprint()))
        found = own.authenticate(cookie)
        assert (found.actor, found.role, found.scope) == ("oidc:marie", Role.PRIVACY_OFFICER, None)
        own.refresh()
        assert own.find(cookie) is not None
        with pytest.raises(AuthenticationError, match="not signed in any more"):
            ring.authenticate(cookie)  # which has no provider
        provider.publish("ES256")
        own.oidc.jwks._fetch()
        own.refresh()
        assert own.find(cookie) is None
        with pytest.raises(AuthenticationError, match="not signed in any more"):
            own.authenticate(cookie)
