"""Errors of files and servers, as the command line prints them."""

from collections.abc import Sequence


class ProvisioningError(Exception):
    """A file cannot be used, or a server refused a request; the message has one line for each error."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))

    @classmethod
    def of_file(cls, name: str, errors: Sequence[tuple[int | None, str]]) -> "ProvisioningError":
        """Build the error of a file from line numbers and messages."""
        return cls(*(f"{name}:{line}: {message}" if line else f"{name}: {message}" for line, message in errors))
