"""What is logged names no secret, whoever logs it and at whatever level."""

import logging
import re
from typing import Any, Final

HIDDEN: Final = "[hidden]"

_SECRETS: Final = re.compile(
    r"""
      \bkey_\w+ (?: \. | %2e ) [\w-]+                 # an API key, also a mistyped one
    | (?: (?<![\w-]) | (?<=%2e) ) [\w-]{43} (?![\w-])  # its secret alone: 32 random bytes in base64
    | \beyJ[\w-]{10,} (?: (?: \. | %2e ) [\w-]+ ){0,2}   # a JSON web token, or a part of it
    | \be[wy][\w-]{10,} (?: \. | %2e ) [\w-]{10,} (?: \. | %2e ) [\w-]*  # one whose JSON is written with spaces
    | \b(?: bearer | basic | digest ) (?: \s+ | %20 | \+ ) [^\s'",;&]{8,}
    | (?<=://) [^\s/@'"]* : [^\s/'"]* (?=@)           # user and password in a URL
    | (?<=password=) [^\s&'"]+
    | (?<=password%3d) [^\s&'"]+
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


def without_secrets(text: str) -> str:
    """A text with every API key, token and password in it hidden.

    Args:
        text: of any length.
    """
    return _SECRETS.sub(HIDDEN, text)


def keep_secrets() -> None:
    """Let no record of this process carry a secret: where it is made, before any handler or formatter sees it."""
    make = logging.getLogRecordFactory()
    if getattr(make, "keeps_secrets", False):
        return

    def make_without_secrets(*facts: Any, **more: Any) -> logging.LogRecord:  # noqa: ANN401 - as logging calls it
        record = make(*facts, **more)
        said = _said(record)
        if (cleaned := without_secrets(said)) != said:
            _clean(record, cleaned)
        if record.exc_info and record.exc_info[0] is not None:
            # Formatters take it as it is.
            record.exc_text = without_secrets(_FORMATTER.formatException(record.exc_info))
        return record

    make_without_secrets.keeps_secrets = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_without_secrets)


_FORMATTER: Final = logging.Formatter()


def _said(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # its caller's mistake, which logging will show with all that was given
        return f"{record.msg} {record.args}"


def _clean(record: logging.LogRecord, cleaned: str) -> None:
    """Hide what a record says; its arguments stay apart if that is enough, since some formatters look at them."""
    if isinstance(record.args, tuple):
        record.args = tuple(without_secrets(each) if isinstance(each, str) else each for each in record.args)
    try:
        enough = record.getMessage() == cleaned
    except (TypeError, ValueError, KeyError):
        enough = False
    if not enough:
        record.msg, record.args = cleaned, ()
