"""Deliveries: claimed by one, sent until they are acknowledged, whatever the receiver does."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from sqlalchemy import update
from standardwebhooks.webhooks import Webhook as Verifier

from app.persistence.engine import EVERYONE, Database
from app.persistence.tables import deliveries as kept
from app.service.alerts import deliverer, sending
from app.service.alerts.deliverer import (
    BACK_OFF_SECONDS,
    CLAIM_SECONDS,
    JITTER,
    LONG_FAILING,
    MANY_FAILURES,
    claim_due,
    deliver,
    settle,
    waits,
)
from app.service.alerts.sending import Sender, Sent
from tests.conftest import Ledger
from tests.service.commanding import opened, sound
from tests.service.receiver import Receiver, receiving, status, subscribed


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as opened:
        yield opened


def now(seconds: float = 0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def tried(ledger: Ledger, webhook: dict[str, str]) -> str:
    """A delivery of a test, due at once."""
    reply = ledger.post(f"/v1/webhooks/{webhook['id']}/test", None)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def shown(ledger: Ledger, **filters: str) -> list[dict[str, Any]]:
    """Deliveries, the oldest first."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    items: list[dict[str, Any]] = ledger.get(f"/v1/deliveries?{query}", "admin").json()["items"]
    return items[::-1]


def sent_once(ledger: Ledger, *, allowed: bool = True, at: float = 0) -> list[Sent]:
    """Claim what is due and send it, once."""

    async def main() -> list[Sent]:
        sender, outcomes = Sender(allow_private=allowed), []
        for due in claim_due(ledger.database, now(at)):
            sent = await sender.send(due, now())
            settle(ledger.database, due, sent, now(at))
            outcomes.append(sent)
        await sender.close()
        return outcomes

    return asyncio.run(main())


def delivering(ledger: Ledger, done: Callable[[], object], seconds: float = 30) -> None:
    """Let the deliverer work until something is so."""
    at_work([ledger.database], done, seconds)


def at_work(databases: list[Database], done: Callable[[], object], seconds: float) -> None:
    """Deliverers that look often, and send to this machine; that of the application, which does not, sleeps."""

    async def main() -> None:
        sender = Sender(allow_private=True)
        work = [asyncio.create_task(deliver(database, sender)) for database in databases]
        async with asyncio.timeout(seconds):
            while not done():  # noqa: ASYNC110 - another thread receives
                await asyncio.sleep(0.02)
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await sender.close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(deliverer, "LOOK_SECONDS", 0.05)
        asyncio.run(main())


def test_a_threshold_that_is_crossed_reaches_the_receiver_signed(ledger: Ledger, receiver: Receiver) -> None:
    hook = subscribed(ledger, receiver.url, account="mimic/icu-team") if opened(ledger) else {}
    run = ledger.get("/v1/runs").json()["items"][0]["id"]
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 100}, "trainer").status_code == 200
    delivering(ledger, lambda: [each["status"] for each in shown(ledger)] == ["delivered"])
    [message] = receiver.messages
    told = Verifier(hook["secret"]).verify(message.body, message.headers)
    assert (told["type"], told["data"]["threshold"]) == ("account.threshold_reached", 0.5)
    [alert] = ledger.get("/v1/alerts").json()["items"]
    assert (message.headers["webhook-id"], alert["data"]) == (alert["id"], told["data"])
    assert message.headers["content-type"] == "application/json"
    assert message.path == "/alerts?from=ledger"
    [delivery] = shown(ledger, webhook=hook["id"], status="delivered")
    assert (delivery["attempts"], delivery["last_status"], delivery["next_attempt_at"]) == (1, 204, None)


def test_what_fails_is_sent_again_with_growing_waits_until_it_is_acknowledged(
    ledger: Ledger, receiver: Receiver
) -> None:
    tried(ledger, subscribed(ledger, receiver.url))
    receiver.answer = status(500)
    at = 0.0
    for attempt in range(1, 12):
        assert sent_once(ledger, at=at) == [Sent(500, "The answer was 500.")]
        [delivery] = shown(ledger)
        assert (delivery["status"], delivery["attempts"]) == ("pending", attempt)
        wait = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]
        assert sent_once(ledger, at=at + wait * (1 - JITTER) - 1) == []
        at += wait * (1 + JITTER) + 1
    receiver.answer = None
    assert sent_once(ledger, at=at) == [Sent(204, None)]
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["attempts"], delivery["last_error"]) == ("delivered", 12, None)
    assert len(set(receiver.ids)) == 1
    assert sent_once(ledger, at=at + 10**6) == []


def test_waits_are_spread_so_that_what_failed_together_does_not_come_back_together() -> None:
    drawn = [waits(4).total_seconds() for _ in range(200)]
    assert 600 * (1 - JITTER) <= min(drawn) < 540
    assert 660 < max(drawn) <= 600 * (1 + JITTER)


def test_a_webhook_that_fails_for_long_is_tried_with_one_delivery_at_a_time(ledger: Ledger, receiver: Receiver) -> None:
    hook, other = subscribed(ledger, receiver.url), subscribed(ledger, receiver.url)
    for _ in range(MANY_FAILURES + 1):
        tried(ledger, hook)
    tried(ledger, other)
    receiver.answer = status(500)
    for _ in range(MANY_FAILURES):
        sent_once(ledger)
    later = LONG_FAILING.total_seconds() - 60
    assert len(sent_once(ledger, at=later)) == 2, "one of each webhook"
    assert [each.webhook.id for each in claim_due(ledger.database, now(later))] == [hook["id"]], "often, but not long"
    later += 2 * CLAIM_SECONDS
    assert len(sent_once(ledger, at=later)) == 2
    assert claim_due(ledger.database, now(later + 1)) == [], "the others wait, and the other webhook has nothing else"
    tried(ledger, hook)
    assert sent_once(ledger, at=later + 1) == [Sent(500, "The answer was 500.")], "what is new is tried at once"
    receiver.answer = None
    later += BACK_OFF_SECONDS[-1]
    while sent_once(ledger, at=later):
        later += 1
    assert {each["status"] for each in shown(ledger, webhook=hook["id"], limit="200")} == {"delivered"}


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_every_answer_of_2xx_acknowledges(ledger: Ledger, receiver: Receiver, code: int) -> None:
    tried(ledger, subscribed(ledger, receiver.url))
    receiver.answer = status(code)
    assert sent_once(ledger) == [Sent(code, None)]
    assert [each["status"] for each in shown(ledger)] == ["delivered"]


@pytest.mark.parametrize("code", [301, 302, 307, 308, 400, 401, 404, 429, 500, 503])
def test_no_other_answer_does_and_redirects_are_not_followed(ledger: Ledger, receiver: Receiver, code: int) -> None:
    with receiving() as elsewhere:
        tried(ledger, subscribed(ledger, receiver.url))
        receiver.answer = status(code, Location=elsewhere.url)
        assert sent_once(ledger) == [Sent(code, f"The answer was {code}.")]
    assert (len(receiver.messages), elsewhere.messages) == (1, [])
    assert [each["status"] for each in shown(ledger)] == ["pending"]


def test_410_disables_the_webhook(ledger: Ledger, receiver: Receiver) -> None:
    hook = subscribed(ledger, receiver.url)
    tried(ledger, hook)
    tried(ledger, hook)
    receiver.answer = status(410)
    [late] = claim_due(ledger.database, now())
    assert sent_once(ledger) == [Sent(410, "The answer was 410.")]
    assert [each["status"] for each in shown(ledger)] == ["given_up", "given_up"]
    read = ledger.get(f"/v1/webhooks/{hook['id']}", "admin").json()
    assert (read["disabled_because"], read["disabled_at"] is None) == ("The receiver answered 410 Gone.", False)
    assert sent_once(ledger, at=10**6) == []
    settle(ledger.database, late, Sent(410, "late"), now())
    [act] = [act for act in ledger.get("/v1/audit", "admin").json()["items"] if act["action"] == "webhook.disabled"]
    assert (act["actor"], act["subject"], act["reason"]) == ("service", hook["id"], "The receiver answered 410 Gone.")
    assert sound(ledger)
    reply = ledger.post(f"/v1/deliveries/{shown(ledger)[0]['id']}/redeliver", None)
    assert (reply.status_code, reply.json()["code"]) == (409, "webhook_conflict")


def _hang(_: BaseHTTPRequestHandler) -> None:
    time.sleep(3)


def _drip(handler: BaseHTTPRequestHandler) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: 1\r\n":
        handler.wfile.write(bytes([byte]))
        time.sleep(0.1)


def _slam(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


def _babble(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"what?\r\n\r\n")


def _flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100_000):
        handler.wfile.write(b"x" * 10_000)


@pytest.mark.parametrize("answer", [_hang, _drip], ids=["it hangs", "it drips"])
def test_a_receiver_that_is_too_slow_is_left(
    ledger: Ledger,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,  # noqa: ANN401 - how it answers
) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 0.5)
    tried(ledger, subscribed(ledger, receiver.url))
    receiver.answer = answer
    begun = time.monotonic()
    [sent] = sent_once(ledger)
    assert time.monotonic() - begun < 2.5
    assert (sent.status, sent.error) == (None, "There was no answer within 0.5 seconds.")


@pytest.mark.parametrize("answer", [_slam, _babble], ids=["it hangs up", "it speaks no HTTP"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_receiver_that_speaks_nonsense_is_tried_again(ledger: Ledger, receiver: Receiver, answer: Any) -> None:  # noqa: ANN401 - how it answers
    tried(ledger, subscribed(ledger, receiver.url))
    receiver.answer = answer
    [sent] = sent_once(ledger)
    assert sent.status is None
    assert sent.error
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["last_error"]) == ("pending", sent.error)


def test_an_answer_without_end_is_not_read(ledger: Ledger, receiver: Receiver) -> None:
    tried(ledger, subscribed(ledger, receiver.url))
    receiver.answer = _flood
    begun = time.monotonic()
    assert sent_once(ledger) == [Sent(200, None)]
    assert time.monotonic() - begun < 5


def test_a_receiver_that_is_not_there_is_tried_again(ledger: Ledger) -> None:
    with receiving() as gone:
        url = gone.url
    tried(ledger, subscribed(ledger, url))
    [sent] = sent_once(ledger)
    assert sent.status is None


def test_nothing_is_sent_to_an_address_that_is_not_public(ledger: Ledger, receiver: Receiver) -> None:
    tried(ledger, subscribed(ledger, receiver.url.replace("127.0.0.1", "localhost")))
    [sent] = sent_once(ledger, allowed=False)
    assert (sent.status, sent.error) == (None, "The host localhost is not at a public address; nothing was sent.")
    assert receiver.messages == []


def test_a_proxy_of_the_environment_is_not_asked(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        tried(ledger, subscribed(ledger, receiver.url))
        assert sent_once(ledger) == [Sent(204, None)]
    assert proxy.messages == []


def test_a_claim_is_held_by_one_and_comes_back_if_nobody_says_how_it_went(ledger: Ledger, receiver: Receiver) -> None:
    tried(ledger, subscribed(ledger, receiver.url))
    [first] = claim_due(ledger.database, now())
    assert claim_due(ledger.database, now()) == []
    assert claim_due(ledger.database, now(CLAIM_SECONDS - 5)) == []
    [second] = claim_due(ledger.database, now(CLAIM_SECONDS + 1))
    assert (second.id, second.attempts) == (first.id, 2)
    settle(ledger.database, first, Sent(500, "late"), now())  # whoever was given up says nothing any more
    assert [each["last_error"] for each in shown(ledger)] == [None]
    settle(ledger.database, second, Sent(204, None), now())
    assert [each["status"] for each in shown(ledger)] == ["delivered"]


def test_one_webhook_gets_one_alert_at_a_time(ledger: Ledger, receiver: Receiver) -> None:
    slow, quick = subscribed(ledger, receiver.url), subscribed(ledger, receiver.url)
    for hook in (slow, slow, quick, quick):
        tried(ledger, hook)
    taken = claim_due(ledger.database, now())
    assert [due.webhook.id for due in taken] == [slow["id"], quick["id"]]
    assert claim_due(ledger.database, now(), frozenset({slow["id"], quick["id"]})) == []
    assert [due.webhook.id for due in claim_due(ledger.database, now(), frozenset({slow["id"]}))] == [quick["id"]]


def test_a_receiver_that_hangs_holds_up_no_other(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_SECONDS", 2.0)
    with receiving() as other:
        receiver.answer = _hang
        hanging, quick = subscribed(ledger, receiver.url), subscribed(ledger, other.url)
        for hook in (hanging, quick, hanging, quick, quick):
            tried(ledger, hook)
        begun = time.monotonic()
        delivering(ledger, lambda: len(other.messages) == 3)
        assert other.messages[-1].came_at - begun < 2.0
    assert len(receiver.messages) == 1


def test_two_replicas_deliver_each_alert_once(ledger: Ledger, receiver: Receiver) -> None:
    hooks = [subscribed(ledger, receiver.url) for _ in range(5)]
    for hook in hooks * 6:
        tried(ledger, hook)
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    replicas = [Database(url) for _ in range(2)]

    at_work(replicas, lambda: {each["status"] for each in shown(ledger, limit="200")} == {"delivered"}, 60)
    for replica in replicas:
        replica.dispose()
    assert len(receiver.ids) == len(set(receiver.ids)) == 30


def test_claims_at_the_same_moment_share_nothing(ledger: Ledger, receiver: Receiver) -> None:
    for _ in range(8):
        tried(ledger, subscribed(ledger, receiver.url))
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: claim_due(ledger.database, now()), range(4)))
    ids = [due.id for each in taken for due in each]
    assert len(ids) == len(set(ids)) == 8


def test_the_service_itself_delivers(ledger: Ledger, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """A database that fails for a while delays what is to be delivered, and loses none of it."""
    tried(ledger, subscribed(ledger, receiver.url))
    real, failures = deliverer.claim_due, iter([LookupError("a bug")])

    def failing(*asked: Any) -> Any:  # noqa: ANN401 - passed through
        for failure in failures:
            raise failure
        return real(*asked)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(deliverer, "claim_due", failing)
        delivering(ledger, lambda: receiver.messages)
    assert [record.message for record in caplog.records if record.name == deliverer.__name__] == [
        "Deliveries cannot be looked for, and are looked for again"
    ]


def test_what_was_delivered_can_be_sent_again(ledger: Ledger, receiver: Receiver) -> None:
    delivery = tried(ledger, subscribed(ledger, receiver.url))
    sent_once(ledger)
    reply = ledger.post(f"/v1/deliveries/{delivery}/redeliver", None)
    assert (reply.status_code, reply.json()["status"]) == (200, "pending")
    assert sent_once(ledger) == [Sent(204, None)]
    assert receiver.ids[0] == receiver.ids[1]


def test_a_rotated_secret_is_used_with_the_one_before_for_a_while(ledger: Ledger, receiver: Receiver) -> None:
    hook = subscribed(ledger, receiver.url)
    rotated = ledger.post(f"/v1/webhooks/{hook['id']}/rotate", {"overlap_seconds": 3600}).json()
    tried(ledger, hook)
    sent_once(ledger)
    at_once = ledger.post(f"/v1/webhooks/{hook['id']}/rotate", {"overlap_seconds": 0}).json()
    tried(ledger, hook)
    sent_once(ledger)
    both, one = receiver.messages
    for secret in (hook["secret"], rotated["secret"]):
        Verifier(secret).verify(both.body, both.headers)
    assert one.headers["webhook-signature"].count("v1,") == 1
    Verifier(at_once["secret"]).verify(one.body, one.headers)
    assert len({hook["secret"], rotated["secret"], at_once["secret"]}) == 3


def test_a_delivery_to_a_webhook_that_was_disabled_meanwhile_is_not_sent(ledger: Ledger, receiver: Receiver) -> None:
    hook = subscribed(ledger, receiver.url)
    tried(ledger, hook)
    assert ledger.post(f"/v1/webhooks/{hook['id']}/disable", None).status_code == 200
    with ledger.database.write(EVERYONE) as tx:
        tx.execute(update(kept).values(status="pending"))
    assert sent_once(ledger) == []


def test_no_secret_is_shown_again_or_logged(
    ledger: Ledger, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hook = subscribed(ledger, receiver.url)
    tried(ledger, hook)
    receiver.answer = status(500)
    sent_once(ledger)
    read = [
        ledger.get(path, "admin").text
        for path in ("/v1/webhooks", f"/v1/webhooks/{hook['id']}", "/v1/deliveries", "/v1/alerts")
    ]
    read.append(ledger.post(f"/v1/webhooks/{hook['id']}/disable", None).text)
    bare = hook["secret"].removeprefix("whsec_")
    assert not [
        text for text in (*read, caplog.text, json.dumps([m.headers for m in receiver.messages])) if bare in text
    ]


def test_a_service_that_stops_settles_what_it_is_sending(ledger: Ledger, receiver: Receiver) -> None:
    def slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.5)
        status(204)(handler)

    receiver.answer = slow
    tried(ledger, subscribed(ledger, receiver.url))
    delivering(ledger, lambda: receiver.messages)
    assert [each["status"] for each in shown(ledger)] == ["delivered"]
