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
            self._file = os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8")
        except OSError as error:
            raise ProvisioningError(f"--keys-out {path} cannot be written: {error.strerror}.") from None
        found = os.fstat(self._file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            self.close()
            raise ProvisioningError(f"--keys-out {path} must be a file that only you can read: chmod 600 {path}.")

    def write(self, created: Mapping[str, object]) -> None:
        """Write a key of the API's answer, and wait until it is on the disk.

        Raises:
            ProvisioningError: the disk is full, for example; the key's secret is lost.
        """
        fields = {name: created[name] for name in ("name", "id", "key", "role", "scope", "expires_at")}
        try:
            self._file.write(f"{json.dumps(fields)}\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ProvisioningError(
                f"The API key {created['id']} was created, but its secret could not be written: {error.strerror}. "
                "Revoke it, and apply the file again."
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()
