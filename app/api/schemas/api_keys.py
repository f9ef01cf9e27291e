"""Schemas of API keys."""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field

from app.api.schemas.common import (
    EXAMPLE_BUDGET_ID,
    EXAMPLE_KEY_ID,
    Body,
    Name,
    Output,
    Reason,
    Reference,
    Timestamp,
)
from app.ledger.permissions import Role
from app.service.keys.api_keys import MOST_OVERLAP_SECONDS, IssuedKey, KeyTerms

KEY_EXAMPLE: dict[str, Any] = {
    "id": EXAMPLE_KEY_ID,
    "name": "icu-team trainer",
    "role": "trainer",
    "scope": EXAMPLE_BUDGET_ID,
    "created_by": EXAMPLE_KEY_ID,
    "created_at": "2026-11-21T09:00:00Z",
    "expires_at": "2027-11-21T09:00:00Z",
    "revoked_at": "2026-12-01T08:00:00Z",
    "last_used_at": "2026-11-21T09:30:00Z",
    "single_use": False,
}


class CreateApiKey(Body):
    """A new key."""

    name: Name | None = None
    role: Annotated[Role, Field(strict=False, description="Permissions of the role.")]
    scope: Reference | None = Field(
        default=None,
        description="Scope of the key: a population or budget (id or path) or a run (id), and accounts under it. "
        "Null: the whole organisation.",
    )
    expires_at: Timestamp | None = Field(
        default=None, description="Null: it never expires; if a person issues it, it expires after 90 days."
    )

    single_use: bool = Field(
        default=False,
        description="For one run of a trainer: the run that is the scope, or the first that the key registers under "
        "it. When the run has ended, the key is no longer valid. Needs `scope` and `expires_at`.",
    )

    def terms(self) -> KeyTerms:
        """Convert to the domain."""
        return KeyTerms(self.role, self.name, self.scope, self.expires_at, self.single_use)


class RotateApiKey(Body):
    """A rotation of a key."""

    overlap_seconds: int = Field(
        default=86_400, ge=0, le=MOST_OVERLAP_SECONDS, description="Seconds during which the old key remains valid."
    )


class RevokeApiKey(Body):
    """A revocation of a key."""

    reason: Reason | None = None
    include_successors: bool = Field(
        default=False, description="Also revoke the keys that it was rotated to: a thief may have rotated it."
    )


class ApiKey(Output):
    """A key, without its secret, which is not stored."""

    id: str = Field(description="The part of the key before the dot, which is not secret.")
    name: str | None
    role: Role
    scope: str | None = Field(description="Account to which the key is limited; null: the whole organisation.")
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Accurate to about a minute.")
    single_use: bool = Field(description="Whether the key is for one run; its scope, when it is registered.")


class CreatedApiKey(ApiKey):
    """A new key with its secret, which is shown once."""

    key: str = Field(description="The key for the header `Authorization: Bearer ...`.")

    @classmethod
    def of(cls, issued: IssuedKey) -> Self:
        """Convert from the domain."""
        return cls(**dict(ApiKey.of(issued.record)), key=issued.key)
