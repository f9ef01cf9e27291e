"""Signed documents that the public key alone verifies."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from app.ledger.audit import canonical
from app.ledger.errors import InvalidInputError, SigningNotConfiguredError

ALGORITHM: Final = "Ed25519"
SETTING: Final = "EPSILON_LEDGER_SIGNING_KEY_FILE"


class Signer:
    """Signer with an Ed25519 private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = public_pem(key.public_key())
        self.key_id = key_id(key.public_key())

    def signed(self, payload: Mapping[str, object]) -> dict[str, Any]:
        """Build a document of the payload and a signature of its canonical JSON."""
        value = self._key.sign(canonical(payload).encode())
        signature = {"algorithm": ALGORITHM, "key_id": self.key_id, "value": base64.b64encode(value).decode()}
        return {"payload": dict(payload), "signature": signature}


def signer_of(file: str) -> Signer | None:
    """Load the signer from a PEM file; None for an empty path.

    Raises:
        InvalidInputError: the file has no Ed25519 private key.
    """
    if not file:
        return None
    right = "make one by `openssl genpkey -algorithm ed25519 -out signing.pem`."
    try:
        key = load_pem_private_key(Path(file).read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInputError(f"{SETTING} names no private key that can be read; {right}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInputError(f"{SETTING} names a key that is not Ed25519; {right}")
    return Signer(key)


def require_signer(signer: Signer | None) -> Signer:
    """Return the signer.

    Raises:
        SigningNotConfiguredError: it is None.
    """
    if signer is None:
        raise SigningNotConfiguredError(f"This service has no key to sign with; its operator sets {SETTING}.")
    return signer


def is_signed_by(document: Mapping[str, Any], public_key: bytes) -> bool:
    """Return whether a document is signed by a PEM public key.

    Raises:
        InvalidInputError: the key or the document is malformed.
    """
    try:
        key = load_pem_public_key(public_key)
        value = base64.b64decode(document["signature"]["value"], validate=True)
        text = canonical(document["payload"]).encode()
    except (KeyError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError("This is no signed document, or no public key in PEM.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInputError("The public key is not Ed25519.")
    try:
        key.verify(value, text)
    except InvalidSignature:
        return False
    return True


def public_pem(key: Ed25519PublicKey) -> str:
    """Serialize a public key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def key_id(key: Ed25519PublicKey) -> str:
    """Compute a key's id: 16 hex digits of its sha256."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]
