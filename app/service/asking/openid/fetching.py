"""What is asked of an identity provider: bounded in time and length, without redirects, and answered with JSON."""

import json
from http.client import HTTPException
from time import monotonic
from typing import Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

FETCH_SECONDS: Final = 10.0
"""How long a provider may take for an answer."""

MOST_BYTES: Final = 1 << 20
"""How long its answer may be."""

FAILURES: Final = (OSError, HTTPException, ValueError, RecursionError)
"""What a provider that is down, or answers something else, leads to."""

_PIECE: Final = 65_536


class _NoRedirects(HTTPRedirectHandler):
    """The address is configured: whoever sends us elsewhere is not asked further."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing; the answer stays an error."""


_OPENER: Final = build_opener(_NoRedirects)


def fetched(request: Request) -> dict[str, object]:
    """The JSON object that a request is answered with.

    Args:
        request: to an address that was checked: https, or http on this machine.

    Raises:
        HTTPError: the status is none of success.
        OSError, HTTPException, ValueError, RecursionError: there is no such answer in time.
    """
    until = monotonic() + FETCH_SECONDS
    content = bytearray()
    with _OPENER.open(request, timeout=FETCH_SECONDS) as answer:
        while piece := answer.read1(_PIECE):
            content += piece
            if len(content) > MOST_BYTES:
                raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
            if monotonic() > until:
                raise ValueError(f"its answer took longer than {FETCH_SECONDS:.0f} seconds")
    told = json.loads(bytes(content))
    if not isinstance(told, dict):
        raise ValueError("its answer is no JSON object")  # noqa: TRY004 - of what was sent, not of this program
    return told


def fetched_from(url: str) -> dict[str, object]:
    """The JSON object at an address that was checked.

    Raises:
        HTTPError, OSError, HTTPException, ValueError, RecursionError: as of `fetched`.
    """
    return fetched(Request(url, headers={"Accept": "application/json"}))  # noqa: S310 - it was checked


def said(error: Exception) -> str:
    """What went wrong, in short, for the log."""
    if isinstance(error, HTTPError):
        error.close()
        return f"HTTP status {error.code}"
    return f"{type(error).__name__}: {error}"[:300]
