"""Compare audit logs with the checkpoints that signed them."""

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.ledger.audit import SIGNATURE_ALGORITHM, Checkpoint, canonical, utc_text
from app.ledger.errors import InvalidInputError
from app.service.verification.audit_replay import AuditState


@dataclass(frozen=True, slots=True)
class TrustedCheckpoint:
    """Contents of a checkpoint: length and head (hex) of the audit log, and when it was made, as text."""

    organisation_id: str
    audit_length: int
    head: str
    name: str
    created_at: str

    @property
    def signed(self) -> str:
        """Describe what was signed."""
        what = f"{self.audit_length} audit events, head {self.head}"
        return f"checkpoint of {self.organisation_id} about {what}, on {self.created_at}"


def trusted_checkpoint_of(document: Mapping[str, Any], public_key: bytes, name: str) -> TrustedCheckpoint:
    """Verify a signed checkpoint, with the public key as PEM.

    Raises:
        InvalidInputError: it is no checkpoint, or the signature is wrong.
    """
    from app.service.signing.ed25519 import is_signed_by  # noqa: PLC0415 - as its docstring says

    if not is_signed_by(document, public_key):
        raise InvalidInputError(f"{name} was not signed with this key, or was changed since.")
    payload = document["payload"]
    if payload.get("type") != "checkpoint":
        raise InvalidInputError(f"{name} is a signed {payload.get('type')}, and no checkpoint.")
    facts = (payload["organisation"], payload["audit_length"], payload["audit_head"], name, payload["created_at"])
    return TrustedCheckpoint(*facts)


def last_trusted_checkpoint(checkpoint: Checkpoint) -> TrustedCheckpoint:
    """Convert a stored checkpoint by its row, without checking its signature."""
    return TrustedCheckpoint(
        checkpoint.organisation_id,
        checkpoint.audit_length,
        checkpoint.audit_head.hex(),
        _name(checkpoint),
        utc_text(checkpoint.created_at),
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from outside of the ledger.

    Args:
        checkpoints: that were kept elsewhere.
        public_keys: PEM by the key's id; a document of a checkpoint is to be signed by one of them. Empty: the
            signatures are not checked.
    """

    checkpoints: Sequence[TrustedCheckpoint] = ()
    public_keys: Mapping[str, bytes] = field(default_factory=dict)


NO_EVIDENCE: Final = Evidence()
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
_SIGNATURE_BYTES: Final = 64


def document_discrepancy(checkpoint: Checkpoint, evidence: Evidence = NO_EVIDENCE) -> str | None:
    """Compare a checkpoint's document with its row and with the public keys; None: no discrepancy."""
    name = _name(checkpoint)
    payload = {
        "type": "checkpoint",
        "organisation": checkpoint.organisation_id,
        "audit_length": checkpoint.audit_length,
        "audit_head": checkpoint.audit_head.hex(),
        "created_at": utc_text(checkpoint.created_at),
    }
    try:
        document = json.loads(checkpoint.document)
        signature = document["signature"]
        key_id = signature["key_id"]
        form = {"algorithm": SIGNATURE_ALGORITHM, "key_id": key_id, "value": signature["value"]}
        if checkpoint.document != canonical({"payload": payload, "signature": form}):
            return f"{name} is not the one that its document says, or the document was changed."
        if not _KEY_ID.fullmatch(key_id) or len(b64decode(form["value"], validate=True)) != _SIGNATURE_BYTES:
            return f"{name} has a document whose signature was changed."
        if not evidence.public_keys:
            return None
        from app.service.signing.ed25519 import is_signed_by  # noqa: PLC0415 - as its docstring says

        key = evidence.public_keys.get(key_id)
        if key is None:
            return f"{name} was signed by the key {key_id}, which is none of those that were named (--public-key)."
        return None if is_signed_by(document, key) else f"{name} was not signed with the key {key_id}, or was changed."
    except (KeyError, TypeError, ValueError) as error:
        return f"{name} cannot be read: {error}"


def _name(checkpoint: Checkpoint) -> str:
    return f"the checkpoint after {checkpoint.audit_length} audit events"
