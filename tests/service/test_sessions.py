"""People who are signed in with a browser: what a cookie opens, and when it opens nothing any more."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from app.ledger.errors import AuthenticationError
from app.ledger.permissions import Role
from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import audit_entries
from app.persistence.tables import sessions as table
from app.service.auth import sessions
from app.service.auth.authentication import Principal, authenticate
from app.service.auth.credential_cache import Authenticator
from app.service.auth.request_context import RequestContext
from app.service.verification import verify
from app.settings import Settings
from tests.conftest import Ledger
from tests.identity_provider import IdentityProvider, identity_provider, key_of
from tests.service.tampering import tampering

LASTING = timedelta(hours=12)


def _caller(ledger: Ledger, role: str = "planner", organisation: str = "hospital") -> Principal:
    header = f"Bearer {ledger.keys[organisation, role]}"
    return authenticate(ledger.database, header, datetime.now(UTC))


def _opened(
    ledger: Ledger, caller: Principal | None = None, *, now: datetime | None = None, thumbprint: str | None = None
) -> str:
    caller = caller or _caller(ledger)
    context = RequestContext(ledger.database, caller, now or datetime.now(UTC), "req-1")
    return sessions.open_session(context, LASTING, thumbprint)


def _seen(ledger: Ledger, cookie: str, now: datetime | None = None) -> Principal:
    return sessions.authenticate(ledger.database, cookie, now or datetime.now(UTC), "default").caller


def _rows(database: Database) -> list[Mapping[str, Any]]:
    with database.read(ALL_TENANTS) as tx:
        return [dict(row) for row in tx.execute(select(table)).mappings()]


def _revoke(ledger: Ledger, key_id: str) -> None:
    reply = ledger.post(f"/v1/api-keys/{key_id}/revoke", {"reason": "The laptop was lost."})
    assert reply.status_code == 200, reply.text


def _audit_events(ledger: Ledger, action: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ledger.get(f"/v1/audit-events?order=oldest&action={action}", "auditor").json()[
        "items"
    ]
    return found


@pytest.fixture
def ring(ledger: Ledger) -> Authenticator:
    """What another replica knows of who asks."""
    return Authenticator({"default": ledger.database})


def test_oldest_session_ends_when_a_key_has_too_many(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    other = _opened(ledger, _caller(ledger, "viewer"))
    began = datetime.now(UTC)
    cookies = [_opened(ledger, now=began + timedelta(seconds=number)) for number in range(5)]
    assert len(_rows(ledger.database)) == 4
    for cookie in (other, *cookies[2:]):
        _seen(ledger, cookie)
    for cookie in cookies[:2]:
        with pytest.raises(AuthenticationError):
            _seen(ledger, cookie)
    ended = [audit_event["subject"] for audit_event in _audit_events(ledger, "session.ended")]
    assert ended == [cookie.partition(".")[0] for cookie in cookies[:2]]


def test_secret_of_a_session_is_stored_as_a_hash_only(ledger: Ledger) -> None:
    cookie = _opened(ledger)
    session_id, _, secret = cookie.partition(".")
    (row,) = _rows(ledger.database)
    assert row["id"] == session_id
    assert len(row["secret_hash"]) == 32
    assert secret not in repr(row)
    with ledger.database.read(ALL_TENANTS) as tx:
        assert secret not in repr(tx.execute(select(audit_entries)).all())
    (audit_event,) = _audit_events(ledger, "session.created")
    assert (audit_event["subject"], audit_event["actor"]) == (session_id, _caller(ledger).actor)
    assert audit_event["request_id"] == "req-1"


@pytest.mark.parametrize("how", ["shortened", "another id", "another's secret", "no secret", "empty", "id alone"])
def test_forged_cookie_is_refused(ledger: Ledger, how: str) -> None:
    cookie, another = _opened(ledger), _opened(ledger, _caller(ledger, "admin", "clinic"))
    session_id, _, secret = cookie.partition(".")
    wrong = {
        "shortened": cookie[:-1],
        "another id": f"ses_nowhere.{secret}",
        "another's secret": f"{session_id}.{another.partition('.')[2]}",
        "no secret": f"{session_id}.",
        "empty": "",
        "id alone": session_id,
    }
    with pytest.raises(AuthenticationError, match="not signed in any more"):
        _seen(ledger, wrong[how])


@pytest.mark.parametrize("credential", ["Bearer key_\0.x", f"{sessions.SCHEME} ses_\0.x"])
def test_credential_with_a_nul_is_refused(ring: Authenticator, credential: str) -> None:
    with pytest.raises(AuthenticationError):
        ring.authenticate(credential)


def test_revoked_key_ends_its_sessions_and_no_others(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger)
    revoked = [f"{sessions.SCHEME} {_opened(ledger, caller)}" for _ in range(2)]
    other = f"{sessions.SCHEME} {_opened(ledger, _caller(ledger, 'viewer'))}"
    for credential in (*revoked, other):
        assert ring.authenticate(credential).organisation_id == caller.organisation_id
    _revoke(ledger, caller.actor)
    ring.refresh("default")
    assert [ring.find(credential) for credential in revoked] == [None, None]
    assert ring.find(other) is not None
    for credential in revoked:
        with pytest.raises(AuthenticationError, match="not signed in any more"):
            ring.authenticate(credential)


def test_sign_out_ends_one_session_on_every_replica(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger)
    ended, kept = _opened(ledger, caller), _opened(ledger, caller)
    for cookie in (ended, kept):
        ring.authenticate(f"{sessions.SCHEME} {cookie}")
    for _ in range(2):  # twice is as good as once, and noted once
        sessions.end_sessions(RequestContext(ledger.database, caller, datetime.now(UTC), "req-2"), ended)
    ring.refresh("default")
    assert ring.find(f"{sessions.SCHEME} {ended}") is None
    assert ring.find(f"{sessions.SCHEME} {kept}") is not None
    with pytest.raises(AuthenticationError):
        ring.authenticate(f"{sessions.SCHEME} {ended}")
    (audit_event,) = _audit_events(ledger, "session.ended")
    assert (audit_event["subject"], audit_event["request_id"]) == (ended.partition(".")[0], "req-2")


def test_session_with_the_key_of_another_organisation_is_refused(ledger: Ledger) -> None:
    cookie, stranger = _opened(ledger), _caller(ledger, "admin", "clinic")
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(table).values(actor=stranger.actor))
    with pytest.raises(AuthenticationError):
        _seen(ledger, cookie)


def test_ended_sessions_are_deleted_when_another_is_opened(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    for hours in (30, 20):
        _opened(ledger, now=now - timedelta(hours=hours))
    others = _opened(ledger, _caller(ledger, "viewer", "clinic"), now=now - timedelta(hours=30))
    kept = _opened(ledger, now=now)
    assert {row["id"] for row in _rows(ledger.database)} == {each.partition(".")[0] for each in (others, kept)}


def test_ended_session_is_not_cached_for_another_second(ledger: Ledger, ring: Authenticator) -> None:
    now = datetime.now(UTC)
    cookie = _opened(ledger, now=now - LASTING + timedelta(milliseconds=300))
    credential = f"{sessions.SCHEME} {cookie}"
    caller = ring.authenticate(credential)
    assert caller.expires_at is not None
    while datetime.now(UTC) < caller.expires_at:
        pass
    assert ring.find(credential) is None


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


def _person(ledger: Ledger, provider: IdentityProvider) -> tuple[Authenticator, str]:
    """Somebody who signed in at the provider, and what a replica knows."""
    ring = Authenticator({"default": ledger.database}, Settings(**provider.settings()).openid)
    marie = ring.authenticate(f"Bearer {provider.token()}")
    return ring, _opened(ledger, marie, thumbprint=key_of("RS256").thumbprint())


def test_person_keeps_role_and_scope_for_the_session(ledger: Ledger, provider: IdentityProvider) -> None:
    ring, cookie = _person(ledger, provider)
    found = ring.authenticate(f"{sessions.SCHEME} {cookie}")
    assert (found.actor, found.role, found.scope) == ("oidc:marie", Role.PRIVACY_OFFICER, None)
    ring.refresh("default")
    assert ring.find(f"{sessions.SCHEME} {cookie}") is not None


def test_key_revoked_by_the_provider_ends_its_sessions(ledger: Ledger, provider: IdentityProvider) -> None:
    ring, cookie = _person(ledger, provider)
    ring.authenticate(f"{sessions.SCHEME} {cookie}")
    provider.publish("ES256")
    assert ring.oidc is not None
    ring.oidc.jwks._fetch()
    ring.refresh("default")
    assert ring.find(f"{sessions.SCHEME} {cookie}") is None
    with pytest.raises(AuthenticationError, match="not signed in any more"):
        ring.authenticate(f"{sessions.SCHEME} {cookie}")


def test_person_is_signed_out_without_a_provider(
    ledger: Ledger, provider: IdentityProvider, ring: Authenticator
) -> None:
    _, cookie = _person(ledger, provider)
    with pytest.raises(AuthenticationError, match="not signed in any more"):
        ring.authenticate(f"{sessions.SCHEME} {cookie}")


@pytest.mark.parametrize("person", [False, True], ids=["key", "person"])
@pytest.mark.parametrize(
    "column", ["role", "actor", "scope_id", "oidc_key_thumbprint", "expires_at", "organisation_id"]
)
def test_changed_session_row_is_refused(ledger: Ledger, ring: Authenticator, column: str, *, person: bool) -> None:
    """A viewer's cookie was an admin's after one update."""
    viewer, admin = _caller(ledger, "viewer"), _caller(ledger, "admin")
    stranger = _caller(ledger, "admin", "clinic").organisation_id
    cookie = _opened(ledger, viewer, thumbprint="print" if person else None)
    credential = f"{sessions.SCHEME} {cookie}"
    if not person:
        assert ring.authenticate(credential).role is Role.VIEWER
        assert ring.find(credential) is not None
    _seen(ledger, cookie)
    values: dict[str, Any] = {
        "role": "admin",
        "actor": admin.actor,
        "scope_id": "bud_00000000000000f",
        "oidc_key_thumbprint": "other",
        "expires_at": datetime.now(UTC) + timedelta(days=900),
        "organisation_id": stranger,
    }
    with tampering(ledger.database) as tx:
        tx.execute(update(table).values({column: values[column]}))
    with pytest.raises(AuthenticationError):
        _seen(ledger, cookie)
    ring.refresh("default")
    assert ring.find(credential) is None
    with pytest.raises(AuthenticationError):
        ring.authenticate(credential)
    assert any("of sessions is" in problem for problem in verify(ledger.database).problems)


def test_session_ends_by_itself_or_with_its_key(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    caller = _caller(ledger)
    cookie = _opened(ledger, caller, now=now)
    found = _seen(ledger, cookie, now + LASTING - timedelta(seconds=1))
    assert replace(found, expires_at=None) == caller
    assert found.expires_at == now + LASTING
    assert ledger.post(f"/v1/api-keys/{caller.actor}/rotate", {"overlap_seconds": 60}).status_code == 201
    ends = _seen(ledger, cookie, now).expires_at
    assert ends is not None
    assert ends < now + timedelta(seconds=90)
    for at in (ends, now + LASTING):
        with pytest.raises(AuthenticationError):
            _seen(ledger, cookie, at)


def test_sign_out_everywhere_ends_the_sessions_of_a_key_and_no_others(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger)
    own = [f"{sessions.SCHEME} {_opened(ledger, caller)}" for _ in range(3)]
    elsewhere = (("viewer", "hospital"), ("planner", "clinic"))
    others = [f"{sessions.SCHEME} {_opened(ledger, _caller(ledger, *each))}" for each in elsewhere]
    for credential in (*own, *others):
        ring.authenticate(credential)
    ring.evict(own[0])
    assert (ring.find(own[0]), ring.was_known(own[0])) == (None, False)
    stranger = RequestContext(ledger.database, _caller(ledger, "admin", "clinic"), datetime.now(UTC), "req-2")
    sessions.end_sessions(stranger, own[0].partition(" ")[2])
    assert _audit_events(ledger, "session.ended") == []
    sessions.end_sessions(RequestContext(ledger.database, caller, datetime.now(UTC), "req-3"))
    ring.refresh("default")
    assert [ring.find(credential) for credential in own] == [None] * 3
    assert all(ring.find(credential) for credential in others)
    assert [each["request_id"] for each in _audit_events(ledger, "session.ended")] == ["req-3"] * 3
