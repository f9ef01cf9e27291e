"""Signed documents, and the verification of their signatures."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from epsilon_ledger._wire.errors import InvalidSignatureError


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

    def verify(self, public_key: str | bytes) -> None:
        """Verify the signature; needs `pip install "epsilon-ledger-client[verify]"`.

        Args:
            public_key: PEM, best from the operator: one from `get_signing_key` lets the ledger vouch for itself.

        Raises:
            InvalidSignatureError: another key signed it, or it was changed.
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

        def double(integer: str) -> float:
            # RFC 8785 writes 1e16 as an integer; what no double is written as was not signed.
            if rfc8785.dumps(number := float(integer)).decode() != integer:
                raise ValueError(f"{integer} is no double.")
            return number

        try:
            text = rfc8785.dumps(json.loads(json.dumps(dict(self.payload)), parse_int=double))
            key.verify(base64.b64decode(self.signature.value, validate=True), text)
        except (InvalidSignature, ValueError):
            raise InvalidSignatureError(
                f"The document is not signed by this key: its signature names the key {self.signature.key_id}. "
                "Either another key signed it, or it was changed."
            ) from None


@dataclass(frozen=True, slots=True)
class Statement(SignedDocument):
    """A privacy statement of a run or a population."""


@dataclass(frozen=True, slots=True)
class Checkpoint(SignedDocument):
    """A signed head of the organisation's hash chain."""
