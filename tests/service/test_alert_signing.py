"""Signatures, verified by the reference library of Standard Webhooks."""

import base64
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from app.ledger.alerts import Alert, AlertType, Receiver, ReceiverKind
from app.service.alerts.webhook_signatures import message, new_secret, signature, signed_headers


@pytest.fixture
def now() -> datetime:
    """The library believes messages of the last five minutes only: not of when the tests were collected."""
    return datetime.now(UTC)


def _alert(now: datetime) -> Alert:
    facts = {"threshold": 0.5, "account_path": "überall"}
    return Alert("evt_1", AlertType.THRESHOLD, "bud_1", "0.5", facts, now)


def _verified(secret: str, headers: dict[str, str], body: bytes) -> object:
    return Verifier(secret).verify(body, headers)


def test_the_reference_library_verifies_what_is_signed(now: datetime) -> None:
    secret, body = new_secret(), message(_alert(now))
    headers = signed_headers([secret], "evt_1", int(now.timestamp()), body)
    assert _verified(secret, headers, body) == {
        "type": "account.threshold_reached",
        "timestamp": now.isoformat(),
        "data": {"threshold": 0.5, "account_path": "überall"},
    }


def test_the_reference_library_signs_the_same(now: datetime) -> None:
    secret, body = new_secret(), message(_alert(now))
    stamp = int(now.timestamp())
    theirs = Verifier(secret).sign("evt_1", datetime.fromtimestamp(stamp, UTC), body.decode())
    assert signature(secret, "evt_1", stamp, body) == theirs


@pytest.mark.parametrize("what", ["body", "id", "time", "secret", "late"])
def test_the_reference_library_refuses_what_was_changed(now: datetime, what: str) -> None:
    secret, body = new_secret(), message(_alert(now))
    at = now - timedelta(minutes=10) if what == "late" else now
    headers = signed_headers([secret], "evt_1", int(at.timestamp()), body)
    if what == "id":
        headers["webhook-id"] = "evt_2"
    if what == "time":
        headers["webhook-timestamp"] = str(int(now.timestamp()) + 1)
    sent = body.replace(b"0.5", b"0.1") if what == "body" else body
    with pytest.raises(WebhookVerificationError):
        _verified(new_secret() if what == "secret" else secret, headers, sent)


def test_during_a_rotation_both_secrets_verify(now: datetime) -> None:
    old, new, body = new_secret(), new_secret(), message(_alert(now))
    until = now + timedelta(hours=1)
    receiver = Receiver(
        "rcv_1",
        ReceiverKind.WEBHOOK,
        "https://x.example",
        (),
        (),
        None,
        new,
        now,
        previous_secret=old,
        previous_secret_expires_at=until,
    )
    headers = signed_headers(receiver.secrets(now), "evt_1", int(now.timestamp()), body)
    assert headers["webhook-signature"].count("v1,") == 2
    assert _verified(old, headers, body) == _verified(new, headers, body)
    assert receiver.secrets(until) == (new,)


def test_a_secret_is_long_and_never_the_same() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert first.startswith("whsec_")
    assert len(base64.b64decode(first.removeprefix("whsec_"))) == 32


def test_a_message_is_the_same_bytes_each_time(now: datetime) -> None:
    assert message(_alert(now)) == message(_alert(now))
    assert message(_alert(now)).isascii()
