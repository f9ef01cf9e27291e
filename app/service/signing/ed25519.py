"""Keys and signatures of Ed25519. To import `cryptography` takes 25 ms, so this is imported where it is needed."""

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from app.ledger.audit import SIGNATURE_ALGORITHM, canonical
from app.ledger.errors import InvalidInputError


def load_private_key(file: Path, called: str) -> Ed25519PrivateKey:
    """Load a private key in PEM.

    Raises:
        InvalidInputError: the file, which the setting `called` names, has no Ed25519 private key.
    """
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:  # a path with NUL is no value
        raise InvalidInputError(f"{called} names {file}, which cannot be read: {_cause(error)}.") from error
    right = "make one by `openssl genpkey -algorithm ed25519 -out signing.pem`"
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:
        raise InvalidInputError(
            f"{called} names {file}, whose key is encrypted; the service has no password for it: {right}."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError(f"{called} names {file}, which holds no private key in PEM; {right}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInputError(f"{called} names {file}, whose key is not Ed25519; {right}.")
    return key


def _cause(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def public_pem(key: Ed25519PublicKey) -> str:
    """Serialize a public key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def key_id_of(key: Ed25519PublicKey) -> str:
    """Get the id of a public key: 16 hex digits of its sha256."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def load_public_key(pem: bytes) -> Ed25519PublicKey:
    """Load a public key in PEM.

    Raises:
        InvalidInputError: it is no Ed25519 public key.
    """
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError("This is no public key in PEM.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInputError("The public key is not Ed25519.")
    return key


def is_signed_by(document: Mapping[str, Any], public_key: bytes) -> bool:
    """Return whether a document is signed by a PEM public key, and says nothing that is not signed.

    Only the payload is signed. So the algorithm and the key's id must be those of the key, and further members make
    another document.

    Raises:
        InvalidInputError: the key or the document is malformed.
    """
    key = load_public_key(public_key)
    try:
        signature = document["signature"]
        value = base64.b64decode(signature["value"], validate=True)
        text = canonical(document["payload"]).encode()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError("This is no signed document.") from error
    unsigned = {"algorithm": SIGNATURE_ALGORITHM, "key_id": key_id_of(key), "value": base64.b64encode(value).decode()}
    if document != {"payload": document["payload"], "signature": unsigned}:
        return False
    try:
        key.verify(value, text)
    except InvalidSignature:
        return False
    return True
