"""Static files under addresses that contain a digest of their content."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request, Response

from app.ledger.errors import NotFoundError

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OWN: Final = files("app.dashboard") / "static"
_LIBRARIES: Final[dict[str, tuple[str, str]]] = {
    "chart.js": ("app.dashboard", "chart_js/chart.umd.min.js"),
    "swagger-ui.css": ("fastapi_swagger", "resources/swagger-ui.css"),
    "swagger-ui.js": ("fastapi_swagger", "resources/swagger-ui-bundle.js"),
}
"""Package and path of files that others wrote; hatch_build.py fetches Chart.js."""

routes = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file; `compressed` is its gzip, `kind` its media type."""

    content: bytes
    compressed: bytes
    kind: str
    digest: str


def asset_url(name: str) -> str:
    """Get the versioned address of a file such as "live_update.js". NotFoundError: no such file."""
    return f"/assets/{asset(name).digest}/{name}"


@cache
def asset(name: str) -> Asset:
    """Read a file, once. NotFoundError: no such file."""
    package, place = _LIBRARIES.get(name, ("app.dashboard", f"static/{name}"))
    if name not in _LIBRARIES and name not in {own.name for own in _OWN.iterdir()}:
        raise NotFoundError(f"There is no file {name!r} here.")
    content = files(package).joinpath(place).read_bytes()
    kind = _TYPES[f".{name.rpartition('.')[2]}"]
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Asset(content, gzip.compress(content, mtime=0), f"{kind}; charset=utf-8", digest)


@routes.get("/assets/{digest}/{name}")
async def get_asset(digest: str, name: str, request: Request) -> Response:
    """Serve a file, cacheable for ever; at an outdated address, serve the current content uncached."""
    wanted = asset(name)
    headers = {"Vary": "Accept-Encoding"}
    if digest == wanted.digest:
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(wanted.compressed, 200, headers | {"Content-Encoding": "gzip"}, wanted.kind)
    return Response(wanted.content, 200, headers, wanted.kind)
