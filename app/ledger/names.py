"""Names of objects."""

from app.ledger.errors import InvalidInputError

MAX_NAME_LENGTH = 100


def check_name(name: str) -> str:
    """Raise InvalidInputError unless a name is readable and fits into a path."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidInputError(f"A name has 1 to {MAX_NAME_LENGTH} characters.")
    if "/" in name or not name.isprintable() or name != name.strip():
        raise InvalidInputError("A name has no slash, no control characters, and no space at its ends.")
    return name
