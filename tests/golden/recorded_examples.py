"""The examples of the API's schemas: of the story's requests with their answers, those with the most members."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from tests.api.operations import OPERATIONS, resolved

FLEETING: Final = re.compile(
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
"""What differs from one recording to the next."""

_INSTANT: Final = "19b76da8c00"
"""In ids, the time of their creation."""
_SAME: Final = {
    "tag": "3f1c2d3e4f506172",
    "hash": hashlib.sha256(b"hash").hexdigest(),
    # the first one of RFC 8032, section 7.1
    "pem": "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
    "-----END PUBLIC KEY-----\n",
    "signature": (hashlib.sha256(b"signature").hexdigest() * 2)[:86] + "==",
}
_JSON: Final = "application/json"
_DIGITS: Final = 6
"""Significant digits of numbers: the last ones are the processor's."""
_ITEMS: Final = 2
"""Of each list."""


class Exchange(NamedTuple):
    """A request of the story, and its answer."""

    method: str
    path: str
    body: Any
    status: int
    answer: Any


def examples_of(exchanges: Iterable[Exchange]) -> dict[str, Any]:
    """Collect an example for each schema of a request body, of a successful answer, and of a page's items."""
    found: dict[str, Any] = {}
    for each in sorted(exchanges, key=lambda each: -len(each.body or ()) - len(each.answer or ())):
        if each.status >= 300:
            continue
        [operation] = [one for one in OPERATIONS if one.takes(each.method, each.path.partition("?")[0])]
        described = operation.described
        if each.body:
            body = described["requestBody"]["content"][_JSON]["schema"]
            _keep(found, body.get("anyOf", [body])[0], each.body)
        _keep(found, described["responses"][str(each.status)]["content"][_JSON]["schema"], each.answer)
    return dict(sorted(found.items()))


def _keep(found: dict[str, Any], schema: dict[str, Any], value: Any) -> None:  # noqa: ANN401 - JSON
    properties = resolved(schema).get("properties", {})
    if set(properties) == {"items", "next"}:
        for item in value["items"][:1]:
            _keep(found, properties["items"]["items"], item)
        return
    found.setdefault(schema["$ref"].rpartition("/")[2], _readable(value))


def _readable(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace what no two runs of the story have in common, and cut lists."""
    if isinstance(value, dict):
        return {name: _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value[:_ITEMS]]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return FLEETING.sub(_same, value) if isinstance(value, str) else value


def _same(match: re.Match[str]) -> str:
    kind, text = str(match.lastgroup), match[0]
    if kind == "secret":
        return FLEETING.sub(_same, text.partition(".")[0]) + ".…" if text.startswith("key_") else "whsec_…"
    if kind == "id":
        return f"{text[:4]}{_INSTANT}{text[4 + len(_INSTANT) :]}"
    return _SAME.get(kind, text)
