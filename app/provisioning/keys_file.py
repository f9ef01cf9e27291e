"""A file that gets the secrets of new API keys, one JSON object a line."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from app.provisioning.errors import ProvisioningError


class KeysFile:
    """An open file that only its owner can read; what it has stays.

    Raises:
        ProvisioningError: it cannot be written, is no regular file, or others can read it.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise ProvisioningError(f"--keys-out {path} cannot be written: {error.strerror}.") from None
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            self.close()
            raise ProvisioningError(f"--keys-out {path} must be a file that only you can read: chmod 600 {path}.")

    def write(self, created: Mapping[str, object]) -> None:
        """Write a key of the API's answer, and wait until it is on the disk."""
        fields = {name: created[name] for name in ("name", "id", "key", "role", "scope", "expires_at")}
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
