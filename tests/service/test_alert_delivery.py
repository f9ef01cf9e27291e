"""Deliveries: claimed by one, and sent until they are acknowledged."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from sqlalchemy import update
from standardwebhooks.webhooks import Webhook as Verifier

from app.persistence.database import ALL_TENANTS, Database
from app.persistence.tables import deliveries as kept
from app.service import background
from app.service.alerts import delivery_worker
from app.service.alerts.delivery_worker import (
    BACK_OFF_SECONDS,
    CLAIM_SECONDS,
    JITTER,
    LONG_FAILING,
    MANY_FAILURES,
    claim_due,
    record_attempt,
    retry_delay,
)
from app.service.alerts.http_sender import DeliveryResult
from app.service.verification import verify
from tests.conftest import Ledger
from tests.service.deliveries import at_work, delivering, now, sent_once, shown, tried
from tests.service.endpoint import Endpoint, status, subscribed
from tests.service.step_commands import opened


def test_a_threshold_that_is_crossed_reaches_the_endpoint_signed(ledger: Ledger, endpoint: Endpoint) -> None:
    hook = subscribed(ledger, endpoint.url, account="mimic/icu-team") if opened(ledger) else {}
    run = ledger.get("/v1/runs").json()["items"][0]["id"]
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 100}, "trainer").status_code == 200
    delivering(ledger, lambda: [each["status"] for each in shown(ledger)] == ["delivered"])
    [message] = endpoint.messages
    response = Verifier(hook["secret"]).verify(message.body, message.headers)
    assert (response["type"], response["data"]["threshold"]) == ("account.threshold_reached", 0.5)
    [alert] = ledger.get("/v1/alerts").json()["items"]
    assert (message.headers["webhook-id"], alert["data"]) == (alert["id"], response["data"])
    assert message.headers["content-type"] == "application/json"
    assert message.path == "/alerts?from=ledger"
    [delivery] = shown(ledger, receiver=hook["id"], status="delivered")
    assert (delivery["attempts"], delivery["last_status"], delivery["next_attempt_at"]) == (1, 204, None)


def test_what_fails_is_sent_again_with_growing_waits_until_it_is_acknowledged(
    ledger: Ledger, endpoint: Endpoint
) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = status(500)
    at = 0.0
    for attempt in range(1, 12):
        assert sent_once(ledger, at=at) == [DeliveryResult(500, "The answer was 500.")]
        [delivery] = shown(ledger)
        assert (delivery["status"], delivery["attempts"]) == ("pending", attempt)
        wait = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]
        assert sent_once(ledger, at=at + wait * (1 - JITTER) - 1) == []
        at += wait * (1 + JITTER) + 1
    endpoint.answer = None
    assert sent_once(ledger, at=at) == [DeliveryResult(204, None)]
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["attempts"], delivery["last_error"]) == ("delivered", 12, None)
    assert len(set(endpoint.ids)) == 1
    assert sent_once(ledger, at=at + 10**6) == []


def test_waits_are_spread_so_that_what_failed_together_does_not_come_back_together() -> None:
    drawn = [retry_delay(4).total_seconds() for _ in range(200)]
    assert 600 * (1 - JITTER) <= min(drawn) < 540
    assert 660 < max(drawn) <= 600 * (1 + JITTER)


def test_a_receiver_that_fails_for_long_gets_one_delivery_at_a_time(ledger: Ledger, endpoint: Endpoint) -> None:
    hook, other = subscribed(ledger, endpoint.url), subscribed(ledger, endpoint.url)
    for _ in range(MANY_FAILURES + 1):
        tried(ledger, hook)
    tried(ledger, other)
    endpoint.answer = status(500)
    began = now(1)

    def since(seconds: float) -> float:
        """Seconds from now, however long the requests before have taken."""
        return (began - now()).total_seconds() + seconds

    for _ in range(MANY_FAILURES):
        sent_once(ledger, at=since(0))
    later = LONG_FAILING.total_seconds() - 60
    assert len(sent_once(ledger, at=since(later))) == 2, "one of each receiver"
    claimed = claim_due(ledger.database, now(since(later)))
    assert [each.receiver.id for each in claimed] == [hook["id"]], "often, but not long"
    later += 2 * CLAIM_SECONDS
    assert len(sent_once(ledger, at=since(later))) == 2
    others = claim_due(ledger.database, now(since(later + 1)))
    assert others == [], "the others wait, and the other receiver has nothing else"
    tried(ledger, hook)
    assert sent_once(ledger, at=since(later + 1)) == [DeliveryResult(500, "The answer was 500.")], (
        "what is new is tried at once"
    )
    endpoint.answer = None
    later += BACK_OFF_SECONDS[-1]
    while sent_once(ledger, at=since(later)):
        later += 1
    assert {each["status"] for each in shown(ledger, receiver=hook["id"], limit="200")} == {"delivered"}


def test_a_claim_is_held_by_one_and_comes_back_if_nobody_says_how_it_went(ledger: Ledger, endpoint: Endpoint) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    [first] = claim_due(ledger.database, now())
    assert claim_due(ledger.database, now()) == []
    assert claim_due(ledger.database, now(CLAIM_SECONDS - 5)) == []
    [second] = claim_due(ledger.database, now(CLAIM_SECONDS + 1))
    assert (second.id, second.attempts) == (first.id, 2)
    record_attempt(
        ledger.database, first, DeliveryResult(500, "late"), now()
    )  # whoever was given up says nothing any more
    assert [each["last_error"] for each in shown(ledger)] == [None]
    record_attempt(ledger.database, second, DeliveryResult(204, None), now())
    assert [each["status"] for each in shown(ledger)] == ["delivered"]


def test_one_receiver_gets_one_alert_at_a_time(ledger: Ledger, endpoint: Endpoint) -> None:
    slow, quick = subscribed(ledger, endpoint.url), subscribed(ledger, endpoint.url)
    for hook in (slow, slow, quick, quick):
        tried(ledger, hook)
    taken = claim_due(ledger.database, now())
    assert [due.receiver.id for due in taken] == [slow["id"], quick["id"]]
    assert claim_due(ledger.database, now(), frozenset({slow["id"], quick["id"]})) == []
    assert [due.receiver.id for due in claim_due(ledger.database, now(), frozenset({slow["id"]}))] == [quick["id"]]


def test_two_replicas_deliver_each_alert_once(ledger: Ledger, endpoint: Endpoint) -> None:
    hooks = [subscribed(ledger, endpoint.url) for _ in range(5)]
    for hook in hooks * 6:
        tried(ledger, hook)
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    replicas = [Database(url) for _ in range(2)]

    at_work(replicas, lambda: {each["status"] for each in shown(ledger, limit="200")} == {"delivered"}, 60)
    for replica in replicas:
        replica.dispose()
    assert len(endpoint.ids) == len(set(endpoint.ids)) == 30


def test_claims_at_the_same_moment_share_nothing(ledger: Ledger, endpoint: Endpoint) -> None:
    for _ in range(8):
        tried(ledger, subscribed(ledger, endpoint.url))
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: claim_due(ledger.database, now()), range(4)))
    ids = [due.id for each in taken for due in each]
    assert len(ids) == len(set(ids)) == 8


def test_the_service_itself_delivers(ledger: Ledger, endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """A database that fails for a while delays what is to be delivered, and loses none of it."""
    tried(ledger, subscribed(ledger, endpoint.url))
    real, failures = delivery_worker.claim_due, iter([LookupError("a bug")])

    def failing(*asked: Any) -> Any:  # noqa: ANN401 - passed through
        for failure in failures:
            raise failure
        return real(*asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delivery_worker, "claim_due", failing)
        delivering(ledger, lambda: endpoint.messages)
    assert [record.message for record in caplog.records if record.name == background.__name__] == [
        "Deliveries cannot be looked for, and are looked for again"
    ]


def test_what_was_delivered_can_be_sent_again(ledger: Ledger, endpoint: Endpoint) -> None:
    delivery = tried(ledger, subscribed(ledger, endpoint.url))
    sent_once(ledger)
    reply = ledger.post(f"/v1/deliveries/{delivery}/retry", None)
    assert (reply.status_code, reply.json()["status"]) == (200, "pending")
    assert sent_once(ledger) == [DeliveryResult(204, None)]
    assert endpoint.ids[0] == endpoint.ids[1]


def test_a_rotated_secret_is_used_with_the_one_before_for_a_while(ledger: Ledger, endpoint: Endpoint) -> None:
    hook = subscribed(ledger, endpoint.url)
    rotated = ledger.post(f"/v1/receivers/{hook['id']}/rotate", {"overlap_seconds": 3600}).json()
    tried(ledger, hook)
    sent_once(ledger)
    at_once = ledger.post(f"/v1/receivers/{hook['id']}/rotate", {"overlap_seconds": 0}).json()
    tried(ledger, hook)
    sent_once(ledger)
    both, one = endpoint.messages
    for secret in (hook["secret"], rotated["secret"]):
        Verifier(secret).verify(both.body, both.headers)
    assert one.headers["webhook-signature"].count("v1,") == 1
    Verifier(at_once["secret"]).verify(one.body, one.headers)
    assert len({hook["secret"], rotated["secret"], at_once["secret"]}) == 3


def test_a_delivery_to_a_receiver_that_was_disabled_meanwhile_is_not_sent(ledger: Ledger, endpoint: Endpoint) -> None:
    hook = subscribed(ledger, endpoint.url)
    tried(ledger, hook)
    assert ledger.post(f"/v1/receivers/{hook['id']}/disable", None).status_code == 200
    with ledger.database.write(ALL_TENANTS) as tx:
        tx.execute(update(kept).values(status="pending"))
    assert sent_once(ledger) == []


@pytest.mark.parametrize("code", [204, 410, 500])
def test_an_answer_for_a_receiver_that_was_deleted_meanwhile_is_dropped(
    ledger: Ledger, endpoint: Endpoint, code: int
) -> None:
    hook = subscribed(ledger, endpoint.url)
    tried(ledger, hook)
    [due] = claim_due(ledger.database, now())
    assert ledger.http.delete(f"/v1/receivers/{hook['id']}", headers=ledger.headers()).status_code == 204
    record_attempt(ledger.database, due, DeliveryResult(code, None if code == 204 else "late"), now())
    assert shown(ledger) == []
    assert sent_once(ledger) == []
    assert verify(ledger.database).problems == ()


def test_no_secret_is_shown_again_or_logged(
    ledger: Ledger, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hook = subscribed(ledger, endpoint.url)
    tried(ledger, hook)
    endpoint.answer = status(500)
    sent_once(ledger)
    read = [
        ledger.get(path, "admin").text
        for path in ("/v1/receivers", f"/v1/receivers/{hook['id']}", "/v1/deliveries", "/v1/alerts")
    ]
    read.append(ledger.post(f"/v1/receivers/{hook['id']}/disable", None).text)
    bare = hook["secret"].removeprefix("whsec_")
    assert not [
        text for text in (*read, caplog.text, json.dumps([m.headers for m in endpoint.messages])) if bare in text
    ]


def test_a_service_that_stops_settles_what_it_is_sending(ledger: Ledger, endpoint: Endpoint) -> None:
    def slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.5)
        status(204)(handler)

    endpoint.answer = slow
    tried(ledger, subscribed(ledger, endpoint.url))
    delivering(ledger, lambda: endpoint.messages)
    assert [each["status"] for each in shown(ledger)] == ["delivered"]
