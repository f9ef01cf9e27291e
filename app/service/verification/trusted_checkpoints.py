"""Compare audit logs with the checkpoints that signed them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.ledger.audit import Checkpoint
from app.ledger.errors import InvalidInputError
from app.service.verification.audit_replay import AuditState


@dataclass(frozen=True, slots=True)
class TrustedCheckpoint:
    """Contents of a checkpoint: length and head (hex) of the audit log."""

    organisation_id: str
    audit_length: int
    head: str
    name: str


def trusted_checkpoint_of(document: Mapping[str, Any], public_key: bytes, name: str) -> TrustedCheckpoint:
    """Verify a signed checkpoint, with the public key as PEM.

    Raises:
        InvalidInputError: it is no checkpoint, or the signature is wrong.
    """
    from app.service.ed25519 import is_signed_by  # noqa: PLC0415 - as its docstring says

    if not is_signed_by(document, public_key):
        raise InvalidInputError(f"{name} was not signed with this key, or was changed since.")
    payload = document["payload"]
    if payload.get("type") != "checkpoint":
        raise InvalidInputError(f"{name} is a signed {payload.get('type')}, and no checkpoint.")
    return TrustedCheckpoint(payload["organisation"], payload["audit_length"], payload["audit_head"], name)


def last_trusted_checkpoint(checkpoint: Checkpoint) -> TrustedCheckpoint:
    """Convert a stored checkpoint by its row, without checking its signature."""
    return TrustedCheckpoint(
        checkpoint.organisation_id, checkpoint.audit_length, checkpoint.audit_head.hex(), _name(checkpoint)
    )


def contradictions(states: Mapping[str, AuditState], trusted: Iterable[TrustedCheckpoint]) -> Iterator[tuple[str, str]]:
    """Compare audit logs with checkpoints; yield organisation ids and discrepancies."""
    for each in trusted:
        state = states.get(each.organisation_id, AuditState())
        signed = f"{each.name} signed"
        if state.length < each.audit_length:
            detail = f"{signed} {each.audit_length} audit events, but the chain has {state.length}: it was cut."
            yield each.organisation_id, detail
        elif state.heads.get(each.audit_length, b"").hex() != each.head:
            detail = f"{signed} another history of the first {each.audit_length} audit events: it was rewritten."
            yield each.organisation_id, detail


def document_discrepancy(checkpoint: Checkpoint) -> str | None:
    """Compare a checkpoint's row with its document, without the signature; None: equal."""
    name = _name(checkpoint)
    try:
        payload = json.loads(checkpoint.document)["payload"]
        documented = (payload["organisation"], payload["audit_length"], payload["audit_head"])
        if documented != (checkpoint.organisation_id, checkpoint.audit_length, checkpoint.audit_head.hex()):
            return f"{name} is not the one that its document says."
        if payload["created_at"] != checkpoint.created_at.isoformat(timespec="microseconds"):
            return f"{name} was not made when its document says."
    except (KeyError, TypeError, ValueError) as error:
        return f"{name} cannot be read: {error}"
    return None


def _name(checkpoint: Checkpoint) -> str:
    return f"the checkpoint after {checkpoint.audit_length} audit events"
