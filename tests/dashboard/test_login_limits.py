"""Every sign-in stays in the organisation's chain for ever: so they are limited, by key, by person and by address."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from app.service.auth import authentication
from app.service.auth.authentication import GATHERED_SECONDS, MOST_GATHERED_SECONDS
from app.service.auth.rate_limit import ADDRESS_FACTOR
from tests.asgi import AppClient
from tests.conftest import Ledger, open_ledger
from tests.dashboard.oidc_flow import OidcFlow, open_flow
from tests.identity_provider import IdentityProvider

HARDLY = 0.2
"""Sign-ins a minute: two at once, and none more while a test runs."""
AT_ONCE = 2


def _sign_in(client: AppClient, key: str) -> httpx2.Response:
    reply: httpx2.Response = client.post("/sign-in", data={"key": key})
    return reply


def _entries(ledger: Ledger) -> Counter[str]:
    audit_events = Counter[str]()
    after: str | None = ""
    while after is not None:
        page = ledger.get(f"/v1/audit-events?order=oldest&limit=200&after={after}", "auditor").json()
        audit_events.update(each["action"] for each in page["items"])
        after = page["next"]
    return audit_events


def test_sign_ins_of_a_key_are_limited_and_add_nothing_to_the_chain(tmp_path: Path) -> None:
    with open_ledger(tmp_path, rate_limit_sign_ins_per_minute=HARDLY) as ledger:
        before = _entries(ledger)
        key = ledger.keys["hospital", "viewer"]
        replies = [
            _sign_in(ledger.http.browser(address=f"192.0.2.{number}"), key) for number in range(5)
        ]  # an address each
        assert Counter(reply.status_code for reply in replies) == {303: AT_ONCE, 429: 5 - AT_ONCE}
        assert 1 <= int(replies[-1].headers["retry-after"]) <= 60 / HARDLY
        assert "signed in too often" in replies[-1].text
        assert "set-cookie" not in replies[-1].headers
        assert _entries(ledger) - before == {"session.created": AT_ONCE}
        before, client = _entries(ledger), ledger.http.browser()
        for _ in range(4):
            _sign_in(client, ledger.keys["hospital", "admin"])
            csrf = client.get("/").text.partition('name="csrf" value="')[2].partition('"')[0]
            for fields in ({"csrf": csrf, "everywhere": "yes"}, {"csrf": csrf}):
                client.post("/sign-out", data=fields)
        assert _entries(ledger) - before == {"session.created": AT_ONCE, "session.ended": AT_ONCE}
        assert ledger.get("/v1/runs", "viewer").status_code == 200  # the key itself is as good as before


@pytest.mark.parametrize("key", ["key_unknown.x", "eyJ.eyJ.x"])
def test_failed_sign_ins_are_limited_by_address(tmp_path: Path, key: str) -> None:
    with open_ledger(tmp_path, rate_limit_sign_ins_per_minute=HARDLY) as ledger:
        statuses = Counter(
            _sign_in(ledger.http.browser(), key).status_code for _ in range(AT_ONCE * ADDRESS_FACTOR + 5)
        )
        assert statuses == {401: AT_ONCE * ADDRESS_FACTOR, 429: 5}
        right = ledger.keys["hospital", "viewer"]
        assert _sign_in(ledger.http.browser(), right).status_code == 429
        assert _sign_in(ledger.http.browser(address="192.0.2.2"), right).status_code == 303


def test_sign_ins_of_a_provider_s_person_are_limited(tmp_path: Path, provider: IdentityProvider) -> None:
    with open_flow(tmp_path, provider, rate_limit_sign_ins_per_minute=HARDLY) as flow:
        ledger = flow.ledger
        before = _entries(ledger)
        replies = [OidcFlow(ledger, provider).come_back() for _ in range(4)]
        assert [reply.status_code for reply in replies] == [303, 303, 429, 429]
        assert int(replies[-1].headers["retry-after"]) >= 1
        provider.said = {"sub": "pierre"}
        assert OidcFlow(ledger, provider).come_back().status_code == 303
        assert _entries(ledger) - before == {"session.created": AT_ONCE + 1}


def test_key_that_fails_for_hours_is_recorded_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = [1e6]
    monkeypatch.setattr(authentication, "monotonic", lambda: passed[0])
    with open_ledger(tmp_path) as ledger:
        key_id = ledger.keys["hospital", "viewer"].partition(".")[0]
        flush: Callable[..., None] = ledger.http.app.state.keys._failures.flush

        def fail() -> None:
            assert ledger.http.get("/v1/runs", headers={"Authorization": f"Bearer {key_id}.x"}).status_code == 401

        def refused() -> list[int]:
            answer = ledger.get(
                "/v1/audit-events?order=oldest&action=api_key.authentication_failed&limit=200", "auditor"
            ).json()["items"]
            return [each["after"]["times"]["wrong_secret"] for each in answer]

        minutes = 2 * 60
        for _ in range(minutes):
            fail()
            passed[0] += GATHERED_SECONDS
            flush()
        assert 2 < len(refused()) <= 2 + 7  # 1 at once, then after 1, 2, 4, 8, 16 and 32 minutes, then one an hour
        passed[0] += MOST_GATHERED_SECONDS
        flush()
        assert sum(refused()) == minutes  # none is forgotten
        passed[0] += MOST_GATHERED_SECONDS
        flush()
        before = len(refused())
        fail()  # after an hour without any, the next one is noted at once
        assert len(refused()) == before + 1
