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
    """Read a short body of a run, with its idempotency key; None: it does not fit the schema."""
    digits = _FIRST_STEP.search(content)
    text = (content, b"") if digits is None else (content[: digits.start(1)], content[digits.end(1) :])
    body = _kept.get(text)
    if body is not None:
        asked = body.request
        first_step = asked.first_step if digits is None else int(digits[1])
        rest = (asked.attempt, asked.mode, asked.on_exceed, asked.expected_steps)
        return StepBody(StepRequest(run_id, asked.items, first_step, key, *rest), body.names_attempt)
    body = parse_body(content, run_id, key)
    if body is not None and (digits is None or _is_first_step(digits, body.request.first_step)):
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[text] = body
    return body


def parse_body(content: bytes, run_id: str = "", key: str | None = None) -> StepBody | None:
    """Parse a body strictly; None: it does not fit the schema."""
    try:
        body = AuthorizeSteps.model_validate(strict_loads(content))
        return StepBody(body.request(run_id, key), "attempt" in body.model_fields_set)
    except (LedgerError, AccountingError, ValidationError):
        return None


def _is_first_step(digits: re.Match[bytes], first_step: int | None) -> bool:
    """Return whether digits of a body are the value of its first step, and not of an event's member of this name."""
    if first_step != int(digits[1]):
        return False
    other = first_step ^ 1
    content = digits.string
    body = parse_body(b"%b%d%b" % (content[: digits.start(1)], other, content[digits.end(1) :]))
    return body is not None and body.request.first_step == other
