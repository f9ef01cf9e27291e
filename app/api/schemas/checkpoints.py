"""Response schemas of what is signed, checkpoints and statements, and of the signing key."""

from typing import Any, Literal, Self

from pydantic import Field

from app.api.schemas.common import Output
from app.ledger.audit import Checkpoint as DomainCheckpoint
from app.service.signing.signatures import Signer


class Signature(Output):
    """A signature over the payload's canonical JSON by RFC 8785."""

    algorithm: Literal["Ed25519"]
    key_id: str = Field(description="The first 16 hex digits of sha256 of the public key's 32 bytes.")
    value: str = Field(description="Base64 of 64 bytes.")


class CheckpointPayload(Output):
    """The heads of all chains in one hash."""

    type: Literal["checkpoint"]
    organisation: str
    audit_length: int = Field(description="Length of the organisation's chain.")
    audit_head: str = Field(description="Hash of its last entry.")
    created_at: str = Field(description="In UTC with microseconds; signed as this string.")


class Checkpoint(Output):
    """A signed checkpoint; keep copies outside of the ledger."""

    payload: CheckpointPayload
    signature: Signature

    @classmethod
    def of(cls, checkpoint: DomainCheckpoint) -> Self:
        """Convert from the domain."""
        return cls.model_validate_json(checkpoint.document)


class SigningKey(Output):
    """The public key of checkpoints and statements."""

    algorithm: Literal["Ed25519"]
    key_id: str
    public_key: str = Field(description="PEM.")

    @classmethod
    def of(cls, signer: Signer) -> Self:
        """Convert from the domain."""
        return cls(algorithm="Ed25519", key_id=signer.key_id, public_key=signer.public_key)


class Statement(Output):
    """The signed cost of a model, or of all models trained on a population."""

    payload: dict[str, Any] = Field(description="Described in docs/how-to/issue-statements.md.")
    signature: Signature
