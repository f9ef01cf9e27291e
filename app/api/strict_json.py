"""Strict JSON parsing of requests, before any schema."""

import json
import math
import re
from codecs import BOM_UTF8
from typing import Any, Final, NoReturn

from fastapi import Request

from app.ledger.errors import InvalidInputError, RequestTooLargeError
from app.service.json_values import require_characters

MAX_BODY_BYTES = 1 << 20
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def strict_loads(body: bytes) -> Any:  # noqa: ANN401 - JSON is anything
    """Parse UTF-8 JSON without duplicate keys, NaN, infinities, lone surrogates, NUL or deep nesting.

    Raises:
        InvalidInputError: the text is not strict JSON.
    """
    if body.startswith(BOM_UTF8):
        raise InvalidInputError("The body is not JSON: it begins with a byte order mark.")
    try:
        text = body.decode()
        value = _DECODER.decode(text)
        if "\\u" in text:
            require_characters(value)
            if _NUL.search(text):
                raise InvalidInputError("The body escapes the character NUL, which no text of a ledger holds.")
    except _NumberError as error:
        member = re.search(rf'"([^"\\]{{1,100}})"\s*:\s*{re.escape(error.text)}', text)
        raise InvalidInputError(f"{member[1]!a}: {error.detail}" if member else error.detail) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"The body is not UTF-8: byte {error.start} is wrong.") from error
    except UnicodeEncodeError as error:
        raise InvalidInputError("The body escapes half of a surrogate pair, which is no character.") from error
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise InvalidInputError("The body is nested too deeply.") from error
    return value


class _NumberError(InvalidInputError):
    """A number that is none, with its text."""

    def __init__(self, text: str, detail: str) -> None:
        super().__init__(detail)
        self.text = text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        known: set[str] = set()
        for key, _ in pairs:
            if key in known:
                raise InvalidInputError(f"The key {key[:100]!a} is given twice in one object.")
            known.add(key)
    return value


def _constant(name: str) -> NoReturn:
    raise _NumberError(name, f"{name} is not a JSON number; send a finite one.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NumberError(text, f"The number {text[:40]} is too large; send a finite one.")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:  # noqa: PLR2004 - no field takes an integer beyond 64 bits
        raise InvalidInputError(f"The number {text[:40]} is too large.")
    return int(text)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite, parse_int=_integer
)
"""Shared: creating one takes longer than parsing a small body."""


class StrictJsonRequest(Request):
    """Request with a size limit of its body and strict JSON."""

    async def body(self) -> bytes:
        """Read the body.

        Raises:
            RequestTooLargeError: it is over 1 MiB; the rest is not read.
        """
        if not hasattr(self, "_content"):
            content = bytearray()
            async for chunk in self.stream():
                content += chunk
                if len(content) > MAX_BODY_BYTES:
                    raise RequestTooLargeError(f"A request's body holds at most {MAX_BODY_BYTES} bytes.")
            self._content = bytes(content)
        return self._content

    async def json(self) -> Any:  # noqa: ANN401 - JSON is anything
        """Parse the body strictly.

        Raises:
            InvalidInputError: the body is not strict JSON.
        """
        if not hasattr(self, "_strict"):
            self._strict = strict_loads(await self.body())
        return self._strict
