"""Logging without secrets, with the request id on every line.

python-json-logger is not used: it formats exceptions again from the original, after redaction.
"""

import json
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""Id of the request being processed."""

REQUESTS: Final = "app.requests"
"""Logger of the optional line for each request."""

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


def redact_secrets(text: str) -> str:
    """Replace API keys, tokens and passwords in a text."""
    return _SECRETS.sub(HIDDEN, text)


def install_redaction() -> None:
    """Redact every log record of this process when it is created."""
    make = logging.getLogRecordFactory()
    if getattr(make, "keeps_secrets", False):
        return

    def make_without_secrets(*facts: Any, **more: Any) -> logging.LogRecord:  # noqa: ANN401 - as logging calls it
        record = make(*facts, **more)
        said = _message_of(record)
        if (cleaned := redact_secrets(said)) != said:
            _redact_record(record, cleaned)
        if record.exc_info and record.exc_info[0] is not None:
            # Formatters use `exc_text` unchanged.
            record.exc_text = redact_secrets(_FORMATTER.formatException(record.exc_info))
        return record

    make_without_secrets.keeps_secrets = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_without_secrets)


def _nowhere() -> str | None:
    """Return no trace id: the default without tracing."""
    return None


class TextFormatter(logging.Formatter):
    """Format a record as a line of text, with the request id."""

    trace_id: Callable[[], str | None] = staticmethod(_nowhere)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in logging
        """Format the line without its exception."""
        said, named = super().formatMessage(record), request_id.get()
        return said if named is None else f"{said} [{named}]"


class JsonFormatter(TextFormatter):
    """Format a record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, its exception included."""
        facts = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message_of(record).strip(),
            "request_id": request_id.get(),
            "trace_id": TextFormatter.trace_id(),
            "exception": record.exc_text,  # redacted when the record was created
            "process_id": record.process,
            **getattr(record, "facts", {}),
        }
        return json.dumps({name: fact for name, fact in facts.items() if fact is not None}, ensure_ascii=False)


def log_config(form: str, level: str, *, requests: bool) -> dict[str, Any]:
    """Build the `logging.config.dictConfig` settings for standard error; `form` is "text" or "json"."""
    lines = {"text": TextFormatter, "json": JsonFormatter}[form]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": f"{lines.__module__}.{lines.__qualname__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "root": {"handlers": ["stderr"], "level": level.upper()},
        "loggers": {REQUESTS: {"level": "INFO" if requests else "CRITICAL"}},
    }


_FORMATTER: Final = logging.Formatter()


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # a mistake of the caller, which logging reports
        return f"{record.msg} {record.args}"


def _redact_record(record: logging.LogRecord, cleaned: str) -> None:
    """Replace the message by its redacted text; keep the arguments if redacting them suffices."""
    if isinstance(record.args, tuple):
        record.args = tuple(redact_secrets(each) if isinstance(each, str) else each for each in record.args)
    try:
        enough = record.getMessage() == cleaned
    except (TypeError, ValueError, KeyError):
        enough = False
    if not enough:
        record.msg, record.args = cleaned, ()
