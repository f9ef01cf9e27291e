"""Write answers down so that two runs of one story read the same: ids, moments and secrets by order of appearance."""

import json
import re
from contextlib import suppress
from datetime import datetime
from html import unescape
from typing import Any, Final

import httpx2

from tests.conftest import Ledger
from tests.dashboard.html_reader import without_breaks
from tests.login_helpers import signed_in

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
DIGEST: Final = 32
"""Bytes of a hash."""

_HEADERS: Final = ("cache-control", "content-type", "etag", "idempotent-replayed", "location", "retry-after", "allow")


class Recorder:
    """Tells a story to a ledger and keeps the answers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, str] = {}
        self.answers: list[dict[str, Any]] = []

    def ask(self, role: str, method: str, path: str, body: object = None, **headers: str) -> Any:  # noqa: ANN401 - JSON
        """Send a request.

        Args:
            role: whose key is sent.
            method: of HTTP.
            path: with its query.
            body: JSON, or None.
            headers: further ones, with underscores.

        Returns:
            The answer's JSON; None if it has none.
        """
        further = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = self._ledger.headers(role) | further
        reply: httpx2.Response = self._ledger.http.request(method, path, json=body, headers=sent)
        answer = reply.json() if "json" in reply.headers.get("content-type", "") else None
        asked: dict[str, Any] = {"who": role, "asked": f"{method} {path}"}
        if further:
            asked["headers"] = further
        if body is not None:
            asked["body"] = body
        self._keep(asked, reply, answer if answer is not None else _texts(reply.text))
        return answer

    def make(self, role: str, path: str, body: object, **headers: str) -> str:
        """Send a request that makes something, and say which id it has."""
        answer = self.ask(role, "POST", path, body, **headers)
        assert "id" in answer, answer
        return str(answer["id"])

    def look(self, role: str, path: str) -> None:
        """Open a page, and keep its words."""
        reply = self._ledger.http.get(path, headers=signed_in(self._ledger, role), follow_redirects=False)
        self._keep({"who": role, "page": path}, reply, _texts(reply.text))

    def _keep(self, asked: dict[str, Any], reply: httpx2.Response, answer: object) -> None:
        headers = {name: reply.headers[name] for name in _HEADERS if name in reply.headers}
        kept = asked | {"status": reply.status_code, "answered_with": headers, "answer": answer}
        self.answers.append(self.steadied(kept))

    def steadied(self, found: Any) -> Any:  # noqa: ANN401 - JSON
        """Replace what is another one in each run."""
        if isinstance(found, dict):
            return {self.steadied(key): self._cursor(key, self.steadied(value)) for key, value in found.items()}
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
            return self._scalar(found.hex()) if len(found) == DIGEST else f"{len(found)} bytes"
        if isinstance(found, float):
            return float(f"{found:.9g}")  # the last digits are the processor's
        return _FLEETING.sub(self._steady, found) if isinstance(found, str) else found

    @staticmethod
    def _cursor(key: object, value: object) -> object:
        """A place in a list is written with the id and the moment that stand there."""
        return "CURSOR" if key == "next" and value is not None else value

    def _steady(self, match: re.Match[str]) -> str:
        kind = match["kind"] or match.lastgroup or ""
        numbered = match["id"] or match["hash"] or match["secret"] or match["tag"]
        if not numbered:
            return str(next(name for name, text in match.groupdict().items() if text)).upper()
        if numbered not in self._known:
            self._known[numbered] = f"{kind}#{sum(each.startswith(kind + '#') for each in self._known.values()) + 1}"
        return self._known[numbered]


def _texts(page: str) -> list[str]:
    """What a page says, element by element."""
    pieces = re.split(r"<(?:script|style).*?</(?:script|style)>|<[^>]+>", without_breaks(page), flags=re.DOTALL)
    return [text for piece in pieces if (text := " ".join(unescape(piece).split()))]


def written(found: object) -> str:
    """JSON with a line for each value, in the order in which it was answered."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"
