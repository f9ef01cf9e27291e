"""Record answers so that two runs of one story read the same: ids and secrets by order of appearance, no moments."""

import json
import re
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import httpx2

from tests.conftest import Ledger

_FLEETING: Final = re.compile(
    r"""
      (?P<secret>\b(?:key_[0-9a-f]{27}\.|whsec_)[-_+/=0-9A-Za-z]+)
    | (?P<id>\b(?P<kind>[a-z]{3})_(?:[0-9a-f]{15}|[0-9a-f]{27})\b)
    | (?P<moment>\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)?)
    | (?P<hash>\b[0-9a-f]{64}\b)
    | (?P<tag>"[0-9a-f]{32}"|\b[0-9a-f]{16}\b)
    | (?P<request>\breq_[0-9a-f]{16}\b)
    | (?P<pem>-----BEGIN[^-]+-----[^-]+-----END[^-]+-----\n?)
    | (?P<signature>(?<![-_+/0-9A-Za-z])[-_+/0-9A-Za-z]{86}(?:==|(?![-_+/0-9A-Za-z])))
    """,
    re.VERBOSE,
)
_HASH_BYTES: Final = 32
_HEADERS: Final = ("cache-control", "content-type", "etag", "idempotent-replayed", "location", "retry-after", "allow")


class Recorder:
    """Send the requests of a story to a ledger, and keep the answers that have a name."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, str] = {}
        self.answers: dict[str, Any] = {}

    def ask(
        self,
        name: str | None,
        role: str,
        request: str,
        body: object = None,
        **headers: str,
    ) -> Any:  # noqa: ANN401 - JSON
        """Send a request.

        Args:
            name: of the snapshot; None: none is kept.
            role: whose key is sent.
            request: method and path.
            body: JSON, or None.
            headers: further ones, with underscores.

        Returns:
            The answer's JSON.
        """
        method, _, path = request.partition(" ")
        sent = self._ledger.headers(role) | {name.replace("_", "-"): value for name, value in headers.items()}
        reply: httpx2.Response = self._ledger.http.request(method, path, json=body, headers=sent)
        answer = reply.json()
        if name is not None:
            shown = {name: reply.headers[name] for name in _HEADERS if name in reply.headers}
            kept = {"request": request, "status": reply.status_code, "headers": shown, "answer": answer}
            self.answers[name] = self.steadied(kept)
        else:
            assert reply.is_success, reply.text
        return answer

    def make(self, name: str | None, role: str, request: str, body: object = None, **headers: str) -> str:
        """Send a request that creates something, and return its id."""
        return str(self.ask(name, role, request, body, **headers)["id"])

    def steadied(self, found: Any) -> Any:  # noqa: ANN401 - JSON
        """Replace all that differs from run to run."""
        if isinstance(found, dict):
            return {
                self.steadied(key): "CURSOR" if key == "next" and value is not None else self.steadied(value)
                for key, value in found.items()
            }
        if isinstance(found, list | tuple):
            return [self.steadied(value) for value in found]
        if isinstance(found, str) and found[:1] in ("{", "["):
            with suppress(ValueError):
                return self.steadied(json.loads(found))
        return self._scalar(found)

    def _scalar(self, found: object) -> object:
        if isinstance(found, datetime):
            return "MOMENT"
        if isinstance(found, bytes):
            return self._scalar(found.hex()) if len(found) == _HASH_BYTES else f"{len(found)} bytes"
        if isinstance(found, float):
            return float(f"{found:.9g}")  # the last digits are the processor's
        return _FLEETING.sub(self._steady, found) if isinstance(found, str) else found

    def _steady(self, match: re.Match[str]) -> str:
        kind = match["kind"] or match.lastgroup or ""
        numbered = match["id"] or match["hash"] or match["secret"] or match["tag"]
        if not numbered:
            return str(next(name for name, text in match.groupdict().items() if text)).upper()
        if numbered not in self._known:
            self._known[numbered] = f"{kind}#{sum(each.startswith(kind + '#') for each in self._known.values()) + 1}"
        return self._known[numbered]
