"""Names and ids that callers choose, and their greatest lengths in characters."""

from typing import Final

from app.ledger.errors import InvalidInputError

MAX_NAME_LENGTH: Final = 100
KEY_LENGTH: Final = 255
"""Of an idempotency key."""
ACTOR_LENGTH: Final = 300
"""Of the author of a request, as audit events name it."""
REQUEST_ID_LENGTH: Final = 64
MAX_URL_LENGTH: Final = 2000
"""Of a webhook's URL."""


def check_name(name: str) -> str:
    """Raise InvalidInputError unless a name is readable and fits into a path."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidInputError(f"A name has 1 to {MAX_NAME_LENGTH} characters.")
    if "/" in name or not name.isprintable() or name != name.strip():
        raise InvalidInputError("A name has no slash, no control characters, and no space at its ends.")
    return name
