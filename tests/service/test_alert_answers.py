"""Whatever a endpoint does, and however it answers: only 2xx acknowledges, and nobody waits for it."""

import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from app.service.alerts import http_sender
from app.service.alerts.delivery_worker import claim_due, record_attempt
from app.service.alerts.http_sender import DeliveryResult
from tests.conftest import Ledger
from tests.service.deliveries import delivering, now, sent_once, shown, tried
from tests.service.endpoint import Endpoint, receiving, status, subscribed
from tests.service.step_commands import sound


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
def test_answer_of_2xx_acknowledges(ledger: Ledger, endpoint: Endpoint, code: int) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = status(code)
    assert sent_once(ledger) == [DeliveryResult(code, None)]
    assert [each["status"] for each in shown(ledger)] == ["delivered"]


@pytest.mark.parametrize("code", [301, 302, 307, 308, 400, 401, 404, 429, 500, 503])
def test_answer_of_another_code_is_tried_again_and_no_redirect_followed(
    ledger: Ledger, endpoint: Endpoint, code: int
) -> None:
    with receiving() as elsewhere:
        tried(ledger, subscribed(ledger, endpoint.url))
        endpoint.answer = status(code, Location=elsewhere.url)
        assert sent_once(ledger) == [DeliveryResult(code, f"The answer was {code}.")]
    assert (len(endpoint.messages), elsewhere.messages) == (1, [])
    assert [each["status"] for each in shown(ledger)] == ["pending"]


def test_answer_of_410_disables_the_receiver(ledger: Ledger, endpoint: Endpoint) -> None:
    hook = subscribed(ledger, endpoint.url)
    tried(ledger, hook)
    tried(ledger, hook)
    endpoint.answer = status(410)
    [late] = claim_due(ledger.database, now())
    assert sent_once(ledger) == [DeliveryResult(410, "The answer was 410.")]
    assert [each["status"] for each in shown(ledger)] == ["given_up", "given_up"]
    read = ledger.get(f"/v1/receivers/{hook['id']}", "admin").json()
    assert (read["disabled_reason"], read["disabled_at"] is None) == ("The receiver answered 410 Gone.", False)
    assert sent_once(ledger, at=10**6) == []
    record_attempt(ledger.database, late, DeliveryResult(410, "late"), now())
    [audit_event] = [
        audit_event
        for audit_event in ledger.get("/v1/audit-events", "admin").json()["items"]
        if audit_event["action"] == "receiver.disabled"
    ]
    assert (audit_event["actor"], audit_event["subject"], audit_event["reason"]) == (
        "service",
        hook["id"],
        "The receiver answered 410 Gone.",
    )
    assert sound(ledger)
    reply = ledger.post(f"/v1/deliveries/{shown(ledger)[0]['id']}/retry", None)
    assert (reply.status_code, reply.json()["code"]) == (409, "receiver_state_conflict")


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
def test_slow_endpoint_is_left_after_the_timeout(
    ledger: Ledger,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,  # noqa: ANN401 - how it answers
) -> None:
    monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", 0.5)
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = answer
    begun = time.monotonic()
    [sent] = sent_once(ledger)
    assert time.monotonic() - begun < 2.5
    assert (sent.status, sent.error) == (None, "There was no answer within 0.5 seconds.")


@pytest.mark.parametrize("answer", [_slam, _babble], ids=["it hangs up", "it speaks no HTTP"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_endpoint_without_an_http_answer_is_tried_again(ledger: Ledger, endpoint: Endpoint, answer: Any) -> None:  # noqa: ANN401 - how it answers
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = answer
    [sent] = sent_once(ledger)
    assert sent.status is None
    assert sent.error
    [delivery] = shown(ledger)
    assert (delivery["status"], delivery["last_error"]) == ("pending", sent.error)


def test_answer_without_end_is_not_read(ledger: Ledger, endpoint: Endpoint) -> None:
    tried(ledger, subscribed(ledger, endpoint.url))
    endpoint.answer = _flood
    begun = time.monotonic()
    assert sent_once(ledger) == [DeliveryResult(200, None)]
    assert time.monotonic() - begun < 5


def test_proxy_of_the_environment_is_not_used(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        tried(ledger, subscribed(ledger, endpoint.url))
        assert sent_once(ledger) == [DeliveryResult(204, None)]
    assert proxy.messages == []


def test_hanging_endpoint_holds_up_no_other(
    ledger: Ledger, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sender, "TIMEOUT_SECONDS", 2.0)
    with receiving() as other:
        endpoint.answer = _hang
        hanging, quick = subscribed(ledger, endpoint.url), subscribed(ledger, other.url)
        for hook in (hanging, quick, hanging, quick, quick):
            tried(ledger, hook)
        begun = time.monotonic()
        delivering(ledger, lambda: len(other.messages) == 3)
        assert other.messages[-1].came_at - begun < 2.0
    assert len(endpoint.messages) == 1
