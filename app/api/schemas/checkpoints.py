"""Signed documents on the wire."""

import json
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field

from app.api.schemas.common import Output, Page
from app.api.schemas.examples import EXAMPLE_ORGANISATION_ID
from app.persistence.repositories.checkpoints import Checkpoint as DomainCheckpoint
from app.service.signatures import Signer

SIGNATURE_EXAMPLE: dict[str, Any] = {
    "algorithm": "Ed25519",
    "key_id": "6e1a0b2c3d4e5f60",
    "value": "oYf0…",
}
CHECKPOINT_EXAMPLE: dict[str, Any] = {
    "payload": {
        "type": "checkpoint",
        "organisation": EXAMPLE_ORGANISATION_ID,
        "audit_length": 42,
        "audit_head": "5f0c1d2e" * 8,
        "created_at": "2026-11-21T09:00:00.000000+00:00",
    },
    "signature": SIGNATURE_EXAMPLE,
}


class Signature(Output):
    """A signature over the canonical JSON of the payload: sorted keys, no spaces, ASCII."""

    algorithm: Literal["Ed25519"]
    key_id: str = Field(description="The first 16 hex digits of sha256 of the public key's 32 bytes.")
    value: str = Field(description="Base64 of 64 bytes.")


class CheckpointPayload(Output):
    """What was done and decided so far, in one hash."""

    type: Literal["checkpoint"]
    organisation: str
    audit_length: int = Field(description="How many entries the organisation's chain has.")
    audit_head: str = Field(description="The hash of the last of them.")
    created_at: str = Field(description="In UTC, with microseconds; a text, since it is signed as it is.")


class Checkpoint(Output):
    """A signed checkpoint: keep it where nobody can rewrite it."""

    model_config = ConfigDict(json_schema_extra={"examples": [CHECKPOINT_EXAMPLE]})

    payload: CheckpointPayload
    signature: Signature


class CheckpointPage(Page[Checkpoint]):
    """Checkpoints in the order of their making."""

    @classmethod
    def of(cls, shown: list[DomainCheckpoint], following: str | None) -> Self:
        """A page as it is read."""
        return cls(items=[Checkpoint.model_validate(json.loads(each.document)) for each in shown], next=following)


class SigningKey(Output):
    """The public key that checkpoints and statements are verified with."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "algorithm": "Ed25519",
                    "key_id": "6e1a0b2c3d4e5f60",
                    "public_key": "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA…\n-----END PUBLIC KEY-----\n",
                }
            ]
        }
    )

    algorithm: Literal["Ed25519"]
    key_id: str
    public_key: str = Field(description="PEM.")

    @classmethod
    def of(cls, signer: Signer) -> Self:
        """A signer's public part."""
        return cls(algorithm="Ed25519", key_id=signer.key_id, public_key=signer.public_key)
