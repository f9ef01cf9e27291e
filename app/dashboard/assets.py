"""Styles, scripts and the chart library: served by this service, each under a name that changes with its content."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from fastapi import APIRouter, Request, Response

from app.ledger.errors import NotFoundError

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OWN: Final = files("app.dashboard") / "static"
_LIBRARIES: Final[dict[str, tuple[str, str]]] = {
    "chart.js": ("chartkick", "django/static/chartkick/Chart.bundle.js"),
    "swagger-ui.css": ("fastapi_swagger", "resources/swagger-ui.css"),
    "swagger-ui.js": ("fastapi_swagger", "resources/swagger-ui-bundle.js"),
}
"""Of installed packages: where the file lies in them."""

routes = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is served.

    Args:
        content: the bytes.
        compressed: the same by gzip.
        kind: the media type.
        digest: of the content, in the file's address.
    """

    content: bytes
    compressed: bytes
    kind: str
    digest: str


def asset_url(name: str) -> str:
    """The address of a file: it never names other content.

    Args:
        name: such as "live_update.js".

    Raises:
        NotFoundError: there is none of this name.
    """
    return f"/assets/{asset(name).digest}/{name}"


@cache
def asset(name: str) -> Asset:
    """A file, read once.

    Raises:
        NotFoundError: there is none of this name.
    """
    found = _found(name)
    content = found.read_bytes()
    kind = _TYPES[f".{name.rpartition('.')[2]}"]
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Asset(content, gzip.compress(content, mtime=0), f"{kind}; charset=utf-8", digest)


@routes.get("/assets/{digest}/{name}")
async def get_asset(digest: str, name: str, request: Request) -> Response:
    """A file, for ever; an older address is answered with the newer content, which no cache may keep."""
    wanted = asset(name)
    headers = {"Vary": "Accept-Encoding"}
    if digest == wanted.digest:
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(wanted.compressed, 200, headers | {"Content-Encoding": "gzip"}, wanted.kind)
    return Response(wanted.content, 200, headers, wanted.kind)


def _found(name: str) -> Traversable:
    if name in _LIBRARIES:
        package, place = _LIBRARIES[name]
        return files(package).joinpath(place)
    for own in _OWN.iterdir():
        if own.name == name:
            return own
    raise NotFoundError(f"There is no file {name!r} here.")
