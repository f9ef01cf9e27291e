"""A browser without script, against an application in this process: it follows and reads."""

import re

import httpx2

from tests.conftest import Ledger

_INVISIBLE = re.compile(r'<wbr>|<span class="unbroken">([^<]*)</span>')
"""Marks of where a line may break, and where not."""

_LABELS = re.compile(r' role="(?:row|cell|rowheader|columnheader)"| data-label="[^"]*"')
"""What app/dashboard/tables.py adds to each cell."""


def visit(ledger: Ledger, path: str, cookie: dict[str, str], **headers: str) -> httpx2.Response:
    """A page as it is answered."""
    sent = cookie | {name.replace("_", "-"): value for name, value in headers.items()}
    reply: httpx2.Response = ledger.http.get(path, headers=sent, follow_redirects=False)
    return reply


def without_breaks(page: str) -> str:
    """A page without marks of where a line may break, and without the labels of cells."""
    return _LABELS.sub("", _INVISIBLE.sub(r"\1", page))


def words(reply: httpx2.Response) -> str:
    """What a page says, without its tags."""
    text = re.sub(r"<script.*?</script>|<[^>]+>", " ", without_breaks(reply.text), flags=re.DOTALL)
    return re.sub(r"\s+", " ", text)
