"""API keys, without their secrets."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key with the sha256 of its secret; the id is unique across organisations.

    It is limited to `scope` and its descendants, if set. `last_used_at` is exact to the minute.
    """

    id: str
    organisation_id: str
    name: str | None
    role: str
    scope: str | None
    secret_hash: bytes
    created_by: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def invalid_reason(self, now: datetime) -> str | None:
        """Get the reason why a key is invalid, "revoked" or "expired", if it is."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else None
