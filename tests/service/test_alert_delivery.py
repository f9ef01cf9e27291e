"""Deliveries: claimed by one replica, and sent until the endpoint acknowledges them, however it answers."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from app.persistence.database import Database
from app.service.alerts import delivery_worker as worker
from app.service.alerts import http_sender
from app.service.alerts.alert_sender import AlertSender
from app.service.alerts.delivery_worker import BACK_OFF_SECONDS, CLAIM_SECONDS, claim_due, deliver, record_attempt
from app.service.alerts.http_sender import DeliveryResult
from tests.api.trainer import Trainer
from tests.conftest import Ledger
from tests.service.endpoint import Endpoint, receiving, status, subscribed
from tests.service.step_commands import sound

DELIVERED = DeliveryResult(204, None)


def now(seconds: float = 0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def tried(ledger: Ledger, receiver: dict[str, str]) -> str:
    """A delivery of a test, due at once."""
    reply = ledger.post(f"/v1/receivers/{receiver['id']}/test", None)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def shown(ledger: Ledger, **filters: str) -> list[dict[str, Any]]:
    """Deliveries, the oldest first."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    items: list[dict[str, Any]] = ledger.get(f"/v1/deliveries?{query}", "admin").json()["items"]
    return items[::-1]


def sent_once(ledger: Ledger, *, allowed: bool = True, at: float = 0, **by: Any) -> list[DeliveryResult]:  # noqa: ANN401 - of a sender
    """Claim what is due and send it, once."""

    async def main() -> list[DeliveryResult]:
        sender, outcomes = AlertSender(allow_private=allowed, **by), []
        moment = max(now(), ledger.database.clock.now()) + timedelta(seconds=at)  # a server's clock may be ahead
        for due in claim_due(ledger.database, moment):
            sent = await sender.send(due, now())
            record_attempt(ledger.database, due, sent, moment)
            outcomes.append(sent)
        return outcomes

    return asyncio.run(main())


def delivering(done: Callable[[], object], *databases: Database) -> None:
    """Let deliverers work, that snapshot often and send to this machine, until something is so."""

    async def main() -> None:
        sender = AlertSender(allow_private=True)
        work = [asyncio.create_task(deliver(database, sender, look_seconds=0.05)) for database in databases]
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110 - another thread receives
                await asyncio.sleep(0.02)
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    asyncio.run(main())


def statuses(ledger: Ledger, **filters: str) -> list[str]:
    return [each["status"] for each in shown(ledger, **filters)]


def test_crossed_threshold_reaches_the_endpoint_signed(trainer: Trainer, endpoint: Endpoint) -> None:
    ledger = trainer.ledger
    hook = subscribed(ledger, endpoint.url, account="mimic/icu-team")
    assert trainer.steps(count=120).status_code == 200
    delivering(lambda: statuses(ledger) == ["delivered"], ledger.database)
    [message] = endpoint.messages
    facts = Verifier(hook["secret"]).verify(message.body, message.headers)
    assert (facts["type"], facts["data"]["threshold"]) == ("account.threshold_reached", 0.5)
    [alert] = ledger.get("/v1/alerts").json()["items"]
    assert (message.headers["webhook-id"], alert["data"]) == (alert["id"], facts["data"])
    assert (message.headers["content-type"], message.path) == ("application/json", "/alerts?from=ledger")
    [delivery] = shown(ledger, receiver=hook["id"], status="delivered")
    assert (delivery["attempts"], delivery["last_status"], delivery["next_attempt_at"]) == (1, 204, None)


def test_only_2xx_acknowledges_and_no_redirect_or_proxy_is_followed(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = subscribed(ledger, endpoint.url)
    with receiving() as elsewhere:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, elsewhere.url)
        for code in (200, 299, 301, 307, 400, 429, 500):
            tried(ledger, hook)
            endpoint.answer = status(code, Location=elsewhere.url)
            assert sent_once(ledger) == [DeliveryResult(code, None if code < 300 else f"The answer was {code}.")]
            assert statuses(ledger)[-1] == ("delivered" if code < 300 else "pending")
    assert (len(endpoint.messages), elsewhere.messages) == (7, [])


def test_answer_410_disables_the_receiver(ledger: Ledger, endpoint: Endpoint) -> None:
    hook = subscribed(ledger, endpoint.url)
    for _ in range(2):
        tried(ledger, hook)
    endpoint.answer = status(410)
    [late] = claim_due(ledger.database, now())
    assert sent_once(ledger) == [DeliveryResult(410, "The answer was 410.")]
    assert statuses(ledger) == ["given_up", "given_up"]
    read = ledger.get(f"/v1/receivers/{hook['id']}", "admin").json()
    assert (read["disabled_reason"], read["disabled_at"] is None) == ("The receiver answered 410 Gone.", False)
    assert sent_once(ledger, at=10**6) == []
    record_attempt(ledger.database, late, DeliveryResult(410, "late"), now())
    [event] = ledger.get("/v1/audit-events?action=receiver.disabled", "admin").json()["items"]
    assert [event[name] for name in ("actor", "subject", "reason")] == ["service", hook["id"], read["disabled_reason"]]
    assert sound(ledger)
    reply = ledger.post(f"/v1/deliveries/{shown(ledger)[0]['id']}/retry", None)
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")


def hang(_: BaseHTTPRequestHandler) -> None:
    time.sleep(2)


def slam(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100_000):
        handler.wfile.write(b"x" * 10_000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_endpoint_with_a_bad_answer_is_left(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", 0.5)
    hook = subscribed(ledger, endpoint.url)
    for answer in (hang, slam, flood):
        tried(ledger, hook)
        endpoint.answer = answer
        [sent] = sent_once(ledger)
        delivery = shown(ledger)[-1]
        assert (sent.status, bool(sent.error)) == ((200, False) if answer is flood else (None, True))
        assert delivery["status"] == ("delivered" if answer is flood else "pending")
        assert delivery["last_error"] == sent.error
        if answer is hang:
            assert sent.error == "There was no answer within 0.5 seconds."


def test_failed_delivery_is_repeated_with_growing_waits_until_acknowledged(ledger: Ledger, endpoint: Endpoint) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = status(500)
    at, most = 0.0, len(BACK_OFF_SECONDS) + 1
    for attempt in range(1, most):
        assert sent_once(ledger, at=at) == [DeliveryResult(500, "The answer was 500.")]
        [delivery] = shown(ledger)
        assert (delivery["status"], delivery["attempts"]) == ("pending", attempt)
        wait = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]
        assert sent_once(ledger, at=at + wait * (1 - worker.JITTER) - 1) == []
        at += wait * (1 + worker.JITTER) + 1
    endpoint.answer = None
    assert sent_once(ledger, at=at) == [DELIVERED]
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["attempts"], delivery["last_error"]) == ("delivered", most, None)
    assert sent_once(ledger, at=at + 10**6) == []
    assert ledger.post(f"/v1/deliveries/{delivery['id']}/retry", None).json()["status"] == "pending"
    assert sent_once(ledger) == [DELIVERED]
    assert len(set(endpoint.ids)) == 1


def test_receiver_that_fails_for_long_gets_one_delivery_at_a_time(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "MANY_FAILURES", 4)
    hook, other = subscribed(ledger, endpoint.url), subscribed(ledger, endpoint.url)
    for receiver in (*[hook] * (worker.MANY_FAILURES + 1), other):
        tried(ledger, receiver)
    endpoint.answer = status(500)
    began = now(1)

    def since(seconds: float) -> float:
        """Seconds from now, however long the requests before have taken."""
        return (began - now()).total_seconds() + seconds

    for _ in range(worker.MANY_FAILURES):
        sent_once(ledger, at=since(0))
    later = worker.LONG_FAILING.total_seconds() - 60
    assert len(sent_once(ledger, at=since(later))) == 2, "one of each receiver"
    claimed = claim_due(ledger.database, now(since(later)))
    assert [each.receiver.id for each in claimed] == [hook["id"]], "often, but not long"
    later += 2 * CLAIM_SECONDS
    assert len(sent_once(ledger, at=since(later))) == 2
    assert claim_due(ledger.database, now(since(later + 1))) == [], "the others wait"
    tried(ledger, hook)
    assert len(sent_once(ledger, at=since(later + 1))) == 1, "what is new is tried at once"
    endpoint.answer = None
    later += BACK_OFF_SECONDS[-1]
    while sent_once(ledger, at=since(later)):
        later += 1
    assert set(statuses(ledger, receiver=hook["id"], limit="200")) == {"delivered"}


@pytest.mark.both_databases
def test_replicas_deliver_each_alert_once(ledger: Ledger, endpoint: Endpoint) -> None:
    hooks = [subscribed(ledger, endpoint.url) for _ in range(3)]
    for hook in hooks * 3:
        tried(ledger, hook)
    with ThreadPoolExecutor(4) as pool:
        claims = pool.map(lambda _: claim_due(ledger.database, now(), most=2), range(4))
        claimed = [due for each in claims for due in each]
    taken = [due.id for due in claimed]
    assert len(taken) == len(set(taken)) >= 2, "claims at the same moment share nothing"
    busy = [replace(claimed[0], receiver=replace(claimed[0].receiver, id=hook["id"])) for hook in hooks]
    assert claim_due(ledger.database, now(), busy) == []
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    replicas, left = [Database(url) for _ in range(2)], 9 - len(taken)
    delivering(lambda: statuses(ledger, limit="200").count("delivered") == left, *replicas)
    for replica in replicas:
        replica.dispose()
    assert len(endpoint.ids) == len(set(endpoint.ids)) == left


@pytest.mark.both_databases
def test_slow_receivers_of_one_organisation_leave_deliveries_free_for_others(ledger: Ledger) -> None:
    for organisation, count in (("hospital", 8), ("clinic", 1)):
        headers = ledger.headers("admin", organisation)
        for number in range(count):
            target = {"url": f"https://silent{number}.example/"}
            made = ledger.http.post("/v1/receivers", json=target, headers=headers).json()["id"]
            assert ledger.http.post(f"/v1/receivers/{made}/test", headers=headers).status_code == 201
    [ours, theirs] = claim_due(ledger.database, now(), most=9)
    assert ours.organisation_id != theirs.organisation_id, "one of nine each, though the first has eight receivers"
    assert claim_due(ledger.database, now(), [ours, theirs], most=9) == [], "each has its share"
    assert len(claim_due(ledger.database, now(), [ours, theirs], most=26)) == 2, "an eighth of 24 is three"
    assert len(claim_due(ledger.database, now(2 * CLAIM_SECONDS))) == 9, "enough for one with all its receivers"


@pytest.mark.parametrize(("grace", "status"), [(60, "delivered"), (0, "pending")])
def test_delivery_at_work_at_a_stop_ends_within_its_grace(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, grace: float, status: str
) -> None:
    monkeypatch.setattr(worker, "GRACE_SECONDS", grace)
    tried(ledger, subscribed(ledger, "https://alerts.example/"))
    begun, stopped = asyncio.Event(), asyncio.Event()

    class Slow(AlertSender):
        async def send(self, *_: object) -> DeliveryResult:
            begun.set()
            await stopped.wait()
            return DELIVERED

    async def main() -> None:
        work = asyncio.create_task(deliver(ledger.database, Slow(allow_private=True)))
        await begun.wait()
        work.cancel()
        if grace:
            stopped.set()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(main())
    assert statuses(ledger) == [status]


def test_rotated_secret_is_used_beside_the_one_before_for_a_while(
    ledger: Ledger, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hook = subscribed(ledger, endpoint.url)
    rotated = []
    for seconds in (3600, 0):
        rotated.append(ledger.post(f"/v1/receivers/{hook['id']}/rotate", {"overlap_seconds": seconds}).json()["secret"])
        tried(ledger, hook)
        sent_once(ledger)
    both, one = endpoint.messages
    for secret in (hook["secret"], rotated[0]):
        Verifier(secret).verify(both.body, both.headers)
    assert one.headers["webhook-signature"].count("v1,") == 1
    Verifier(rotated[1]).verify(one.body, one.headers)
    assert len({hook["secret"], *rotated}) == 3
    assert not [secret for secret in (hook["secret"], *rotated) if secret.removeprefix("whsec_") in caplog.text]
