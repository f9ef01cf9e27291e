"""CSV responses (RFC 4180), streamed by pages: a slow client holds neither memory nor a transaction."""

import csv
import io
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from app.api.problems import responses
from app.api.route import Endpoint, LedgerRouter, tags_of

T = TypeVar("T")

EXPORTERS: Final = CapacityLimiter(2)
"""Limits the pages that are read at once; a slow client waits without one."""

MEDIA_TYPE: Final = "text/csv"
ROWS_AT_ONCE: Final = 200
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a cell begins that a spreadsheet might run as a formula (OWASP, CSV Injection); also in their full width."""
_SPLIT: Final = re.compile(r"(?<=[;\t\r\n])(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Where a spreadsheet of a country that separates by semicolons might begin such a cell, within quotes too."""


def csv_route(
    routes: LedgerRouter, path: str, summary: str, *problems: str, tag: str | None
) -> Callable[[Endpoint], Endpoint]:
    """Add a route that answers with CSV; without a tag, the router has one."""
    described: dict[int | str, dict[str, Any]] = {
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}, "description": "OK"}
    }
    return routes.get(
        path,
        summary=summary,
        tags=tags_of(tag),
        response_class=StreamingResponse,
        responses=described | responses(*problems),
    )


def csv_response(name: str, columns: Sequence[str], pages: Iterable[Iterable[Sequence[object]]]) -> StreamingResponse:
    """Build a response of rows; the first page is read at once, so that its error has a status of its own.

    Args:
        name: of the file, without its extension.
        columns: the header.
        pages: rows, read while the client takes them.
    """
    rest = iter(pages)
    first = next(rest, ())
    lines = _in_threads(map(_text, chain([[columns], first], rest)))
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"', "Cache-Control": "private, no-store"}
    return StreamingResponse(lines, headers=headers, media_type=f"{MEDIA_TYPE}; charset=utf-8")


async def _in_threads(lines: Iterator[str]) -> AsyncIterator[str]:
    """Read and write few pages at once, so that many exports leave threads and processor time to other requests."""
    while (line := await to_thread.run_sync(next, lines, None, limiter=EXPORTERS)) is not None:
        yield line


def cell_of(value: object) -> str:
    """Write a value as a cell: numbers and times as in JSON, objects as JSON; no text becomes a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _SPLIT.sub("'", f"'{value}" if value.startswith(_FORMULA) else value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping | list | tuple):
        return _SPLIT.sub("'", json.dumps(value, ensure_ascii=False)) if value else ""
    return repr(value)


def _text(rows: Iterable[Sequence[object]]) -> str:
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\r\n").writerows([[cell_of(cell) for cell in row] for row in rows])
    return written.getvalue()


def cells_of(item: BaseModel) -> Sequence[object]:
    """Get the members of a response's schema as cells."""
    return list(item.model_dump(mode="json").values())
