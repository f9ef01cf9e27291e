"""Signed documents, and the verification of their signatures."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from epsilon_ledger._wire.decoding import MalformedError, decode, parse_json
from epsilon_ledger._wire.errors import InvalidSignatureError

ALGORITHM: Final = "Ed25519"


@dataclass(frozen=True, slots=True)
class Signature:
    """An Ed25519 signature; `value` is base64, `key_id` begins the sha256 of the public key."""

    algorithm: str
    key_id: str
    value: str


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The ledger's public signing key, as PEM."""

    algorithm: str
    key_id: str
    public_key: str


@dataclass(frozen=True, slots=True)
class SignedDocument:
    """A payload as JSON, and the ledger's signature of it."""

    payload: Mapping[str, object]
    signature: Signature

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a document that was kept as JSON; `verify` then verifies it.

        Raises:
            InvalidSignatureError: it has a member that is not signed.
            ValueError: it is no signed document, or a name is given twice in one object.
        """
        document = parse_json(text)
        try:
            read = decode(cls, document)
        except MalformedError as error:
            raise ValueError(f"This is no signed document: {error}.") from None
        if document != asdict(read):
            raise InvalidSignatureError(
                "The document has members beside its payload and signature: they are not signed."
            )
        return read

    def verify(self, public_key: str | bytes) -> str:
        """Verify the signature; needs `pip install "epsilon-ledger-client[verify]"`.

        Args:
            public_key: PEM, best from the operator: one from `get_signing_key` lets the ledger vouch for itself.

        Returns:
            What was signed: kind, organisation, subject, epsilon and date.

        Raises:
            InvalidSignatureError: another key or algorithm signed it, or it was changed.
            ImportError: cryptography or rfc8785 is not installed.
            ValueError: `public_key` is not an Ed25519 public key.
        """
        try:
            import rfc8785  # noqa: PLC0415 - optional
            from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - optional
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
            from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415
        except ImportError:
            raise ImportError(
                'A signature needs cryptography and rfc8785: pip install "epsilon-ledger-client[verify]".'
            ) from None
        key = load_pem_public_key(public_key.encode() if isinstance(public_key, str) else public_key)
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("public_key must be an Ed25519 public key, as PEM.")  # noqa: TRY004 - a wrong value

        key_id = hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]
        self._require_signed_by(key_id)

        def double(integer: str) -> float:
            # RFC 8785 writes 1e16 as an integer; what no double is written as was not signed.
            if rfc8785.dumps(number := float(integer)).decode() != integer:
                raise ValueError(f"{integer} is no double.")
            return number

        try:
            text = rfc8785.dumps(json.loads(json.dumps(dict(self.payload)), parse_int=double))
            key.verify(_base64_bytes(self.signature.value), text)
        except (InvalidSignature, ValueError):
            raise InvalidSignatureError(
                f"The document is not signed by this key, {key_id}. Either another key signed it, or it was changed."
            ) from None
        return self._summary(key_id)

    def _require_signed_by(self, key_id: str) -> None:
        """Refuse another algorithm, or the id of another key: neither is signed."""
        if self.signature.algorithm != ALGORITHM:
            raise InvalidSignatureError(
                f"The document's signature has the algorithm {self.signature.algorithm!a}; the ledger signs with "
                f"{ALGORITHM} only."
            )
        if self.signature.key_id != key_id:
            raise InvalidSignatureError(
                f"The document is not signed by this key, {key_id}: its signature names the key "
                f"{self.signature.key_id!a}. Give the public key of that one, from your operator."
            )

    def _summary(self, key_id: str) -> str:
        """Describe the payload in a sentence, by what is signed only."""
        payload: Any = self.payload
        subject, loss = payload.get("run") or payload.get("population"), payload.get("loss")
        about = f"{payload.get('audit_length')} audit events, head {payload.get('audit_head')}"
        if subject is not None:
            about = f"{subject.get('path', subject.get('name'))!a}, {subject.get('id')}"
        epsilon = ""
        if loss is not None:
            limit = loss["limit"]["epsilon"]
            epsilon = f", epsilon {loss['epsilon']} of {limit} at delta {loss['delta']}"
        at = payload.get("issued_at", payload.get("created_at"))
        kind = f"{payload.get('type')} of {payload.get('organisation')}"
        return f"Signed by the key {key_id}: {kind} about {about}{epsilon}, on {at}."


def _base64_bytes(text: str) -> bytes:
    """Decode base64 as it is encoded: spare bits of its last character would be a second text of the same bytes."""
    value = base64.b64decode(text, validate=True)
    if base64.b64encode(value).decode() != text:
        raise ValueError(f"{text[:100]!a} is not base64.")
    return value


@dataclass(frozen=True, slots=True)
class Statement(SignedDocument):
    """A privacy statement of a run or a population."""


@dataclass(frozen=True, slots=True)
class Checkpoint(SignedDocument):
    """A signed head of the organisation's hash chain."""
