"""Deliveries: claimed by one replica, and sent until the endpoint acknowledges them, however it answers."""

import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from app.persistence.database import Database
from app.service import background
from app.service.alerts import delivery_worker, http_sender
from app.service.alerts.delivery_worker import (
    BACK_OFF_SECONDS,
    CLAIM_SECONDS,
    JITTER,
    LONG_FAILING,
    MANY_FAILURES,
    claim_due,
    record_attempt,
)
from app.service.alerts.http_sender import DeliveryResult
from tests.conftest import Ledger
from tests.service.deliveries import at_work, delivering, now, sent_once, shown, tried
from tests.service.endpoint import Endpoint, receiving, status, subscribed
from tests.service.step_commands import opened, sound

DELIVERED = DeliveryResult(204, None)


def statuses(ledger: Ledger, **filters: str) -> list[str]:
    return [each["status"] for each in shown(ledger, **filters)]


def test_crossed_threshold_reaches_the_endpoint_signed(ledger: Ledger, endpoint: Endpoint) -> None:
    run = opened(ledger)
    hook = subscribed(ledger, endpoint.url, account="mimic/icu-team")
    assert ledger.post(f"/v1/runs/{run}/steps", {"count": 100}, "trainer").status_code == 200
    delivering(ledger, lambda: statuses(ledger) == ["delivered"])
    [message] = endpoint.messages
    facts = Verifier(hook["secret"]).verify(message.body, message.headers)
    assert (facts["type"], facts["data"]["threshold"]) == ("account.threshold_reached", 0.5)
    [alert] = ledger.get("/v1/alerts").json()["items"]
    assert (message.headers["webhook-id"], alert["data"]) == (alert["id"], facts["data"])
    assert (message.headers["content-type"], message.path) == ("application/json", "/alerts?from=ledger")
    [delivery] = shown(ledger, receiver=hook["id"], status="delivered")
    assert (delivery["attempts"], delivery["last_status"], delivery["next_attempt_at"]) == (1, 204, None)


@pytest.mark.parametrize("code", [200, 202, 299, 301, 307, 400, 404, 429, 500, 503])
def test_only_2xx_acknowledges_and_no_redirect_is_followed(ledger: Ledger, endpoint: Endpoint, code: int) -> None:
    with receiving() as elsewhere:
        tried(ledger, subscribed(ledger, endpoint.url))
        endpoint.answer = status(code, Location=elsewhere.url)
        assert sent_once(ledger) == [DeliveryResult(code, None if code < 300 else f"The answer was {code}.")]
    assert (len(endpoint.messages), elsewhere.messages) == (1, [])
    assert statuses(ledger) == ["delivered" if code < 300 else "pending"]


def test_answer_410_disables_the_receiver(ledger: Ledger, endpoint: Endpoint) -> None:
    hook = subscribed(ledger, endpoint.url)
    tried(ledger, hook)
    tried(ledger, hook)
    endpoint.answer = status(410)
    [late] = claim_due(ledger.database, now())
    assert sent_once(ledger) == [DeliveryResult(410, "The answer was 410.")]
    assert statuses(ledger) == ["given_up", "given_up"]
    read = ledger.get(f"/v1/receivers/{hook['id']}", "admin").json()
    assert (read["disabled_reason"], read["disabled_at"] is None) == ("The receiver answered 410 Gone.", False)
    assert sent_once(ledger, at=10**6) == []
    record_attempt(ledger.database, late, DeliveryResult(410, "late"), now())
    events = ledger.get("/v1/audit-events?action=receiver.disabled", "admin").json()["items"]
    assert [(each["actor"], each["subject"], each["reason"]) for each in events] == [
        ("service", hook["id"], "The receiver answered 410 Gone.")
    ]
    assert sound(ledger)
    reply = ledger.post(f"/v1/deliveries/{shown(ledger)[0]['id']}/retry", None)
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")


def hang(_: BaseHTTPRequestHandler) -> None:
    time.sleep(2)


def drip(handler: BaseHTTPRequestHandler) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: 1\r\n":
        handler.wfile.write(bytes([byte]))
        time.sleep(0.1)


def slam(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


def babble(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"what?\r\n\r\n")


def flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100_000):
        handler.wfile.write(b"x" * 10_000)


@pytest.mark.parametrize("answer", [hang, drip, slam, babble, flood], ids=lambda answer: answer.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_endpoint_without_a_good_answer_is_left(
    ledger: Ledger,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,  # noqa: ANN401 - how it answers
) -> None:
    if answer in {hang, drip}:
        monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", 0.5)
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = answer
    [sent] = sent_once(ledger)
    [delivery] = shown(ledger)
    assert (sent.status, bool(sent.error)) == ((200, False) if answer is flood else (None, True))
    assert delivery["status"] == ("delivered" if answer is flood else "pending")
    assert delivery["last_error"] == sent.error
    if answer in {hang, drip}:
        assert sent.error == "There was no answer within 0.5 seconds."


def test_proxy_of_the_environment_is_not_used(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        tried(ledger, subscribed(ledger, endpoint.url))
        assert sent_once(ledger) == [DELIVERED]
    assert proxy.messages == []


def test_hanging_endpoint_holds_up_no_other(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", 2.0)
    with receiving() as other:
        endpoint.answer = hang
        hanging, quick = subscribed(ledger, endpoint.url), subscribed(ledger, other.url)
        for hook in (hanging, quick, hanging, quick, quick):
            tried(ledger, hook)
        begun = time.monotonic()
        delivering(ledger, lambda: len(other.messages) == 3)
        assert other.messages[-1].came_at - begun < 2.0
    assert len(endpoint.messages) == 1


def test_failed_delivery_is_repeated_with_growing_waits_until_acknowledged(ledger: Ledger, endpoint: Endpoint) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = status(500)
    at, most = 0.0, len(BACK_OFF_SECONDS) + 1
    for attempt in range(1, most):
        assert sent_once(ledger, at=at) == [DeliveryResult(500, "The answer was 500.")]
        [delivery] = shown(ledger)
        assert (delivery["status"], delivery["attempts"]) == ("pending", attempt)
        wait = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS)) - 1]
        assert sent_once(ledger, at=at + wait * (1 - JITTER) - 1) == []
        at += wait * (1 + JITTER) + 1
    endpoint.answer = None
    assert sent_once(ledger, at=at) == [DELIVERED]
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["attempts"], delivery["last_error"]) == ("delivered", most, None)
    assert sent_once(ledger, at=at + 10**6) == []
    assert ledger.post(f"/v1/deliveries/{delivery['id']}/retry", None).json()["status"] == "pending"
    assert sent_once(ledger) == [DELIVERED]
    assert len(set(endpoint.ids)) == 1


def test_receiver_that_fails_for_long_gets_one_delivery_at_a_time(ledger: Ledger, endpoint: Endpoint) -> None:
    hook, other = subscribed(ledger, endpoint.url), subscribed(ledger, endpoint.url)
    for receiver in (*[hook] * (MANY_FAILURES + 1), other):
        tried(ledger, receiver)
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
    assert len(sent_once(ledger, at=since(later + 1))) == 1, "what is new is tried at once"
    endpoint.answer = None
    later += BACK_OFF_SECONDS[-1]
    while sent_once(ledger, at=since(later)):
        later += 1
    assert set(statuses(ledger, receiver=hook["id"], limit="200")) == {"delivered"}


def test_claim_is_held_by_one_and_comes_back_without_a_result(ledger: Ledger, endpoint: Endpoint) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    [first] = claim_due(ledger.database, now())
    assert claim_due(ledger.database, now(CLAIM_SECONDS - 5)) == []
    [second] = claim_due(ledger.database, now(CLAIM_SECONDS + 1))
    assert (second.id, second.attempts) == (first.id, 2)
    record_attempt(ledger.database, first, DeliveryResult(500, "late"), now())  # its claim is over
    assert [each["last_error"] for each in shown(ledger)] == [None]
    record_attempt(ledger.database, second, DELIVERED, now())
    assert statuses(ledger) == ["delivered"]


@pytest.mark.both_databases
def test_replicas_deliver_each_alert_once(ledger: Ledger, endpoint: Endpoint) -> None:
    hooks = [subscribed(ledger, endpoint.url) for _ in range(5)]
    for hook in hooks * 3:
        tried(ledger, hook)
    with ThreadPoolExecutor(4) as pool:
        taken = [
            due.id for each in pool.map(lambda _: claim_due(ledger.database, now(), most=3), range(4)) for due in each
        ]
    assert len(taken) == len(set(taken)) >= 3, "claims at the same moment share nothing"
    assert claim_due(ledger.database, now(), frozenset(hook["id"] for hook in hooks)) == []
    url = ledger.database.engine.url.render_as_string(hide_password=False)
    replicas, left = [Database(url) for _ in range(2)], 15 - len(taken)
    at_work(replicas, lambda: statuses(ledger, limit="200").count("delivered") == left, 60)
    for replica in replicas:
        replica.dispose()
    assert len(endpoint.ids) == len(set(endpoint.ids)) == left


def test_service_delivers_after_a_database_error(
    ledger: Ledger, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
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


@pytest.mark.parametrize("code", [204, 410, 500])
def test_answer_for_a_deleted_receiver_is_dropped(ledger: Ledger, endpoint: Endpoint, code: int) -> None:
    hook = subscribed(ledger, endpoint.url)
    tried(ledger, hook)
    [due] = claim_due(ledger.database, now())
    assert ledger.http.delete(f"/v1/receivers/{hook['id']}", headers=ledger.headers()).status_code == 204
    record_attempt(ledger.database, due, DeliveryResult(code, None if code == 204 else "late"), now())
    assert (shown(ledger), sent_once(ledger)) == ([], [])
    assert sound(ledger)
