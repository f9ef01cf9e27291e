"""Signatures of webhooks, as the Standard Webhooks specification has them."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from typing import Final

from app.persistence.repositories.alerts import Alert

PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


def new_secret() -> str:
    """A new secret of 256 random bits, as receivers' libraries take it."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def message(alert: Alert) -> bytes:
    """An alert as it is sent; the same bytes each time."""
    content = {"type": str(alert.type), "timestamp": alert.created_at.isoformat(), "data": alert.payload}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign a message with one secret.

    Args:
        secret: as `new_secret` made it.
        message_id: of what is sent.
        timestamp: of the attempt, seconds since 1970.
        body: as it is sent.

    Returns:
        "v1," and base64 of HMAC-SHA256 over id, timestamp and body, joined by dots.
    """
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def signed_headers(known: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows who sent a message, and that it is fresh.

    Args:
        known: every secret that a receiver may have, the newest first.
        message_id: as for `signature`.
        timestamp: as for `signature`.
        body: as for `signature`.

    Returns:
        Identifier, time and one signature a secret.
    """
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(secret, message_id, timestamp, body) for secret in known),
    }
