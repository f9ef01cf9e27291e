"""Bodies of requests for steps, parsed once for each text: a trainer repeats its own but for `first_step`.

A text is kept without the digits of `first_step`, if they are a canonical integer of at most 15 digits. Strict parsing
of the text with different digits has shown that they are all of that member's value. So other such digits there are
another value, and the rest of the text means the same.
"""

import re
from typing import Final, NamedTuple

from pydantic import ValidationError

from app.accounting.errors import AccountingError
from app.api.schemas.steps import AuthorizeSteps
from app.api.strict_json import strict_loads
from app.ledger.errors import LedgerError
from app.service.charging.requests import StepRequest

MOST_KEPT: Final = 1024
MOST_KEPT_BYTES: Final = 2048
"""Number and length of the texts that are kept."""

_FIRST_STEP: Final = re.compile(rb'"first_step": ?(0|[1-9][0-9]{0,14})(?=[,}])')


class StepBody(NamedTuple):
    """A body that fits the schema: its request, and whether it has an attempt."""

    request: StepRequest
    names_attempt: bool


_kept: Final[dict[tuple[bytes, bytes], StepBody]] = {}
"""By the text before and after the digits; without them, by the whole text and nothing."""


def read_body(content: bytes, run_id: str, key: str | None) -> StepBody | None:
    """Parse a body of a run, with its idempotency key; None: it does not fit the schema."""
    digits = _FIRST_STEP.search(content) if len(content) <= MOST_KEPT_BYTES else None
    text = (content, b"") if digits is None else (content[: digits.start(1)], content[digits.end(1) :])
    body = _kept.get(text)
    if body is not None:
        first_step = body.request.first_step if digits is None else int(digits[1])
    else:
        body = _parsed(content)
        if body is None:
            return None
        first_step = body.request.first_step
        if len(content) <= MOST_KEPT_BYTES and (digits is None or _is_first_step(digits, first_step)):
            if len(_kept) >= MOST_KEPT:
                _kept.clear()
            _kept[text] = body
    asked = body.request
    request = StepRequest(
        *(run_id, asked.items, first_step, key, asked.attempt, asked.mode, asked.on_exceed, asked.expected_steps)
    )
    return StepBody(request, body.names_attempt)


def _parsed(content: bytes) -> StepBody | None:
    try:
        body = AuthorizeSteps.model_validate(strict_loads(content))
        return StepBody(body.request("", None), "attempt" in body.model_fields_set)
    except (LedgerError, AccountingError, ValidationError):
        return None


def _is_first_step(digits: re.Match[bytes], first_step: int | None) -> bool:
    """Return whether digits of a body are the value of its first step, and not of an event's member of this name."""
    if first_step != int(digits[1]):
        return False
    other = first_step ^ 1
    content = digits.string
    body = _parsed(b"%b%d%b" % (content[: digits.start(1)], other, content[digits.end(1) :]))
    return body is not None and body.request.first_step == other
