"""`/docs`: the API's documentation as a page that works without the internet.

Scripts and styles are those of Swagger UI (Apache-2.0) as the package fastapi-offline carries them; no other host is
named, and the page's own policy would not let one be asked. Open without a key, as the document behind it is.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response

from api import errors as door
from api.http.errors import responses

router = APIRouter(include_in_schema=False)

# Inline styles are how Swagger UI draws; scripts come from files alone.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_YEAR_SECONDS = 365 * 86_400

_START = """\
window.addEventListener("load", () => SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  filter: true,
  validatorUrl: null,
}));
"""
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ppo-service</title>
<link rel="icon" href="docs/{version}/favicon.png">
<link rel="stylesheet" href="docs/{version}/swagger-ui.css">
<script src="docs/{version}/swagger-ui-bundle.js"></script>
<script src="docs/{version}/start.js"></script>
</head>
<body><div id="page"></div></body>
</html>
"""
_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "start.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page, as it is and compressed."""

    content: bytes
    gzipped: bytes
    media_type: str


@router.get("/docs", responses=responses())
def page() -> Response:
    """The page; its files carry their version in their path and may be kept for ever."""
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(_PAGE.format(version=_version()), headers=headers, media_type="text/html")


@router.get("/docs/{version}/{name}", responses=responses(door.RouteNotFound))
def asset(request: Request, version: str, name: str) -> Response:
    """One file of the page."""
    found = _assets().get(name) if version == _version() else None
    if found is None:
        raise door.RouteNotFound(f"there is nothing at {request.url.path}")
    headers = {"Cache-Control": f"public, max-age={_YEAR_SECONDS}, immutable", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.gzipped, headers=headers, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)


@cache
def _assets() -> dict[str, Asset]:
    """The files by name; 1.7 MB, of which 0.5 MB compressed."""
    package = find_spec("fastapi_offline")
    if package is None or package.origin is None:
        raise RuntimeError("the package fastapi-offline is not installed")
    # Looked up, not imported: it would replace FastAPI's class by its own.
    folder = Path(package.origin).parent / "static"
    contents = {name: _START.encode() if name == "start.js" else (folder / name).read_bytes() for name in _TYPES}
    return {name: Asset(body, gzip.compress(body, 6, mtime=0), _TYPES[name]) for name, body in contents.items()}


@cache
def _version() -> str:
    return hashlib.sha256(b"".join(asset.content for asset in _assets().values())).hexdigest()[:16]
