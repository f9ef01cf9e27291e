"""Messages to webhooks, signed by the Standard Webhooks specification."""

import base64
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from standardwebhooks.webhooks import Webhook

from app.ledger.accounts.alerts import Alert

PREFIX: Final = "whsec_"
"""Begins every secret, by the Standard Webhooks specification."""

SECRET_BYTES: Final = 32


def new_secret() -> str:
    """Generate a secret of 256 random bits in the format of the Standard Webhooks specification."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def message(alert: Alert) -> bytes:
    """Serialize an alert deterministically."""
    content = {"type": str(alert.type), "timestamp": alert.created_at.isoformat(), "data": alert.payload}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a message with one secret, at a time in seconds since 1970.

    Returns:
        "v1," and base64 of HMAC-SHA256 over the alert's id, timestamp and body, joined by dots.
    """
    return Webhook(secret).sign(message_id, datetime.fromtimestamp(timestamp, UTC), body.decode())


def signed_headers(known: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Build the headers with id, timestamp and a signature for each valid secret."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(secret, message_id, timestamp, body) for secret in known),
    }
