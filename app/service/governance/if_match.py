"""Whoever changes something says which state of it they have seen."""

from app.ledger.errors import PreconditionFailedError, PreconditionRequiredError


def require_if_match(what: str, now: str, sent: str | None, **members: object) -> None:
    """Let a change pass whose asker has seen what is there now.

    Args:
        what: is changed, as "limit".
        now: its entity tag.
        sent: the header If-Match; None: there was none.
        **members: facts of a conflict.

    Raises:
        PreconditionRequiredError: the asker has not said what it has seen.
        PreconditionFailedError: it was changed since.
    """
    if sent is None:
        raise PreconditionRequiredError(
            f"Send the ETag of the {what} that you have seen as If-Match, so that nobody's change is undone unawares."
        )
    tags = {each.strip().removeprefix("W/") for each in sent.split(",")}
    if now not in tags and "*" not in tags:
        raise PreconditionFailedError(
            f"The {what} was changed since you have seen it; read it again, and look whether your change is still "
            "right.",
            **members,
        )
