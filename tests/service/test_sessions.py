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
from app.persistence.repositories import api_keys as stored_keys
from app.persistence.tables import api_keys, audit_entries
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
    return sessions.authenticate(ledger.database, cookie, now or datetime.now(UTC)).caller


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
    return Authenticator(ledger.database)


def test_a_cookie_opens_what_its_key_opens(ledger: Ledger) -> None:
    caller = _caller(ledger)
    found = _seen(ledger, _opened(ledger, caller))
    assert replace(found, expires_at=None) == caller
    assert found.expires_at is not None


def test_a_key_has_so_many_sessions_and_the_first_of_them_ends(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_of_its_secret_a_hash_is_stored_and_nothing_stands_in_the_chain(ledger: Ledger) -> None:
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
def test_what_is_no_cookie_of_ours_opens_nothing(ledger: Ledger, how: str) -> None:
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
def test_a_nul_is_what_nobody_knows_and_no_trouble_of_the_database(ring: Authenticator, credential: str) -> None:
    with pytest.raises(AuthenticationError):
        ring.authenticate(credential)


def test_it_ends_by_itself_and_with_its_key(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    found = _seen(ledger, _opened(ledger, now=now), now + LASTING - timedelta(seconds=1))
    assert found.expires_at == now + LASTING
    with pytest.raises(AuthenticationError):
        _seen(ledger, _opened(ledger, now=now), now + LASTING)
    ends = now + timedelta(minutes=5)
    body = {"role": "viewer", "expires_at": ends.isoformat()}
    made = ledger.post("/v1/api-keys", body).json()
    short = authenticate(ledger.database, f"Bearer {made['key']}", now)
    cookie = _opened(ledger, short, now=now)
    assert _seen(ledger, cookie, now).expires_at == ends
    with pytest.raises(AuthenticationError):
        _seen(ledger, cookie, ends)


def test_a_key_that_ends_earlier_than_it_was_to_ends_its_sessions_then(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    caller = _caller(ledger)
    cookie = _opened(ledger, caller, now=now)
    reply = ledger.post(f"/v1/api-keys/{caller.actor}/rotate", {"overlap_seconds": 60})
    assert reply.status_code == 201
    found = _seen(ledger, cookie, now)
    assert found.expires_at is not None
    assert found.expires_at < now + timedelta(seconds=90)
    with pytest.raises(AuthenticationError):
        _seen(ledger, cookie, now + timedelta(seconds=90))


def test_a_revoked_key_ends_its_sessions_and_no_others(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger)
    revoked = [f"{sessions.SCHEME} {_opened(ledger, caller)}" for _ in range(2)]
    other = f"{sessions.SCHEME} {_opened(ledger, _caller(ledger, 'viewer'))}"
    for credential in (*revoked, other):
        assert ring.authenticate(credential).organisation_id == caller.organisation_id
    _revoke(ledger, caller.actor)
    ring.refresh()
    assert [ring.find(credential) for credential in revoked] == [None, None]
    assert ring.find(other) is not None
    for credential in revoked:
        with pytest.raises(AuthenticationError, match="not signed in any more"):
            ring.authenticate(credential)


def test_signing_out_ends_one_session_on_another_replica_too(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger)
    ended, kept = _opened(ledger, caller), _opened(ledger, caller)
    for cookie in (ended, kept):
        ring.authenticate(f"{sessions.SCHEME} {cookie}")
    for _ in range(2):  # twice is as good as once, and noted once
        sessions.end_sessions(RequestContext(ledger.database, caller, datetime.now(UTC), "req-2"), ended)
    ring.refresh()
    assert ring.find(f"{sessions.SCHEME} {ended}") is None
    assert ring.find(f"{sessions.SCHEME} {kept}") is not None
    with pytest.raises(AuthenticationError):
        ring.authenticate(f"{sessions.SCHEME} {ended}")
    (audit_event,) = _audit_events(ledger, "session.ended")
    assert (audit_event["subject"], audit_event["request_id"]) == (ended.partition(".")[0], "req-2")


def test_signing_out_everywhere_ends_all_sessions_of_a_key_and_no_others(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger)
    own = [f"{sessions.SCHEME} {_opened(ledger, caller)}" for _ in range(3)]
    others = [
        f"{sessions.SCHEME} {_opened(ledger, _caller(ledger, role, organisation))}"
        for role, organisation in (("viewer", "hospital"), ("planner", "clinic"))
    ]
    for credential in (*own, *others):
        ring.authenticate(credential)
    sessions.end_sessions(RequestContext(ledger.database, caller, datetime.now(UTC), "req-3"))
    ring.refresh()
    assert [ring.find(credential) for credential in own] == [None] * 3
    assert all(ring.find(credential) for credential in others)
    assert {audit_event["request_id"] for audit_event in _audit_events(ledger, "session.ended")} == {"req-3"}
    assert len(_audit_events(ledger, "session.ended")) == 3


def test_nobody_ends_the_session_of_another_organisation(ledger: Ledger) -> None:
    cookie = _opened(ledger)
    stranger = _caller(ledger, "admin", "clinic")
    sessions.end_sessions(RequestContext(ledger.database, stranger, datetime.now(UTC)), cookie)
    assert _seen(ledger, cookie).organisation_id == _caller(ledger).organisation_id


def test_a_session_never_opens_another_organisation_whatever_key_its_row_names(ledger: Ledger) -> None:
    cookie, stranger = _opened(ledger), _caller(ledger, "admin", "clinic")
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(table).values(actor=stranger.actor))
    with pytest.raises(AuthenticationError):
        _seen(ledger, cookie)


def test_a_session_of_a_key_has_the_role_that_the_key_has_now(ledger: Ledger) -> None:
    caller = _caller(ledger, "admin")
    cookie = _opened(ledger, caller)
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(api_keys).where(api_keys.c.id == caller.actor).values(role="viewer"))
    assert _seen(ledger, cookie).role is Role.VIEWER


def test_sessions_that_have_ended_are_forgotten_when_another_is_opened(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    for hours in (30, 20):
        _opened(ledger, now=now - timedelta(hours=hours))
    others = _opened(ledger, _caller(ledger, "viewer", "clinic"), now=now - timedelta(hours=30))
    kept = _opened(ledger, now=now)
    assert {row["id"] for row in _rows(ledger.database)} == {each.partition(".")[0] for each in (others, kept)}


def test_what_somebody_does_in_a_browser_counts_as_use_of_their_key(ledger: Ledger, ring: Authenticator) -> None:
    caller = _caller(ledger, "auditor")
    ring.authenticate(f"{sessions.SCHEME} {_opened(ledger, caller)}")
    ring.refresh()
    with ledger.database.read(ALL_TENANTS) as tx:
        record = stored_keys.find(tx, caller.actor)
    assert record is not None
    assert record.last_used_at is not None


def test_a_session_that_has_ended_is_not_believed_for_another_second(ledger: Ledger, ring: Authenticator) -> None:
    now = datetime.now(UTC)
    cookie = _opened(ledger, now=now - LASTING + timedelta(milliseconds=300))
    credential = f"{sessions.SCHEME} {cookie}"
    caller = ring.authenticate(credential)
    assert caller.expires_at is not None
    while datetime.now(UTC) < caller.expires_at:
        pass
    assert ring.find(credential) is None


def test_forgetting_holds_at_once_where_somebody_signs_out(ledger: Ledger, ring: Authenticator) -> None:
    credential = f"{sessions.SCHEME} {_opened(ledger)}"
    ring.authenticate(credential)
    ring.evict(credential)
    assert ring.find(credential) is None
    assert not ring.was_known(credential)


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


def _person(ledger: Ledger, provider: IdentityProvider) -> tuple[Authenticator, str]:
    """Somebody who signed in at the provider, and what a replica knows."""
    ring = Authenticator(ledger.database, Settings(**provider.settings()).openid)
    marie = ring.authenticate(f"Bearer {provider.token()}")
    return ring, _opened(ledger, marie, thumbprint=key_of("RS256").thumbprint())


def test_a_person_keeps_role_and_scope_for_as_long_as_the_session(ledger: Ledger, provider: IdentityProvider) -> None:
    ring, cookie = _person(ledger, provider)
    found = ring.authenticate(f"{sessions.SCHEME} {cookie}")
    assert (found.actor, found.role, found.scope) == ("oidc:marie", Role.PRIVACY_OFFICER, None)
    ring.refresh()
    assert ring.find(f"{sessions.SCHEME} {cookie}") is not None


def test_a_key_that_the_provider_revokes_ends_the_sessions_that_it_vouched_for(
    ledger: Ledger, provider: IdentityProvider
) -> None:
    ring, cookie = _person(ledger, provider)
    ring.authenticate(f"{sessions.SCHEME} {cookie}")
    provider.publish("ES256")
    assert ring.oidc is not None
    ring.oidc.jwks._fetch()
    ring.refresh()
    assert ring.find(f"{sessions.SCHEME} {cookie}") is None
    with pytest.raises(AuthenticationError, match="not signed in any more"):
        ring.authenticate(f"{sessions.SCHEME} {cookie}")


def test_without_a_provider_no_person_is_signed_in_any_more(
    ledger: Ledger, provider: IdentityProvider, ring: Authenticator
) -> None:
    _, cookie = _person(ledger, provider)
    with pytest.raises(AuthenticationError, match="not signed in any more"):
        ring.authenticate(f"{sessions.SCHEME} {cookie}")


@pytest.mark.parametrize("person", [False, True], ids=["key", "person"])
@pytest.mark.parametrize(
    "column", ["role", "actor", "scope_id", "oidc_key_thumbprint", "expires_at", "organisation_id"]
)
def test_a_row_that_was_changed_opens_nothing(
    ledger: Ledger, ring: Authenticator, column: str, *, person: bool
) -> None:
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
    ring.refresh()
    assert ring.find(credential) is None
    with pytest.raises(AuthenticationError):
        ring.authenticate(credential)
    assert any("of sessions is" in problem for problem in verify(ledger.database).problems)
