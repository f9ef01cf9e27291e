"""Signatures, verified by the reference library of Standard Webhooks."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from app.ledger.alerts import Alert, AlertType
from app.service.alerts.webhook_signatures import message, new_secret, signed_headers


@pytest.fixture
def now() -> datetime:
    """The library believes messages of the last five minutes only: not of when the tests were collected."""
    return datetime.now(UTC)


def _alert(now: datetime) -> Alert:
    facts = {"threshold": 0.5, "account_path": "überall"}
    return Alert("evt_1", AlertType.THRESHOLD, "bud_1", "0.5", facts, now)


def _verified(secret: str, headers: dict[str, str], body: bytes) -> object:
    return Verifier(secret).verify(body, headers)


def test_reference_library_verifies_a_signed_message(now: datetime) -> None:
    secret, body = new_secret(), message(_alert(now))
    headers = signed_headers([secret], "evt_1", int(now.timestamp()), body)
    assert _verified(secret, headers, body) == {
        "type": "account.threshold_reached",
        "timestamp": now.isoformat(),
        "data": {"threshold": 0.5, "account_path": "überall"},
    }


@pytest.mark.parametrize("what", ["body", "id", "time", "secret", "late"])
def test_reference_library_refuses_a_changed_message(now: datetime, what: str) -> None:
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
