"""Optimistic concurrency with If-Match."""

from app.ledger.errors import PreconditionFailedError, PreconditionRequiredError


def require_if_match(what: str, now: str, sent: str | None, **members: object) -> None:
    """Require that If-Match names the current entity tag.

    Raises:
        PreconditionRequiredError: If-Match is missing.
        PreconditionFailedError: the resource has changed; the problem has the `members`.
    """
    if sent is None:
        raise PreconditionRequiredError(
            f"Send the ETag of the {what} that you have read as If-Match, so that no other change is overwritten."
        )
    tags = {each.strip().removeprefix("W/") for each in sent.split(",")}
    if now not in tags and "*" not in tags:
        raise PreconditionFailedError(
            f"The {what} was changed since you have seen it; read it again, and look whether your change is still "
            "right.",
            **members,
        )
