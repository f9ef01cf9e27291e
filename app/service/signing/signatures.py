"""Signed documents that the public key alone verifies."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.ledger.audit import SIGNATURE_ALGORITHM, canonical
from app.ledger.errors import SigningNotConfiguredError

SETTING: Final = "EPSILON_LEDGER_SIGNING_KEY_FILE"


@dataclass(frozen=True)
class Signer:
    """Signer with a private key.

    Args:
        key_id: 16 hex digits of the public key's sha256.
        public_key: as PEM.
        sign: computes the signature of bytes.
    """

    key_id: str
    public_key: str
    sign: Callable[[bytes], bytes]

    def signed(self, payload: Mapping[str, object]) -> dict[str, Any]:
        """Build a document of the payload and a signature of its canonical JSON."""
        value = self.sign(canonical(payload).encode())
        signature = {"algorithm": SIGNATURE_ALGORITHM, "key_id": self.key_id, "value": base64.b64encode(value).decode()}
        return {"payload": dict(payload), "signature": signature}


def signer_of(file: str) -> Signer | None:
    """Load the signer from a PEM file; None for an empty path.

    Raises:
        InvalidInputError: the file has no Ed25519 private key.
    """
    if not file:
        return None
    from app.service.signing import ed25519  # noqa: PLC0415 - as its docstring says

    key = ed25519.load_private_key(Path(file), SETTING)
    public = key.public_key()
    return Signer(ed25519.key_id_of(public), ed25519.public_pem(public), key.sign)


def require_signer(signer: Signer | None) -> Signer:
    """Return the signer.

    Raises:
        SigningNotConfiguredError: it is None.
    """
    if signer is None:
        raise SigningNotConfiguredError(f"This service has no key to sign with; its operator sets {SETTING}.")
    return signer
