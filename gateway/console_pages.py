"""``/console``: the files of the console, as they lie in ``gateway/console/``, under a strict policy.

The page loads nothing from elsewhere, holds no script and no style of its own, and cannot be framed. The
files are read once, when the app is made.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headway.gateway.errors import ApiError

FOLDER: Final = Path(__file__).parent / "console"
PAGE: Final = "index.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Asked for each time, and answered with 304 as long as nothing changed: an upgrade shows at once.
    "cache-control": "no-cache",
}


def console_pages() -> APIRouter:
    """The console's files; they hold nothing that a key would have to guard."""
    router = APIRouter(include_in_schema=False)
    files = {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in sorted(FOLDER.iterdir())}
    tags = {name: f'"{sha256(content).hexdigest()[:20]}"' for name, (content, _) in files.items()}

    @router.get("/console")
    async def to_console() -> Response:
        """The page's own address ends with a slash, since its files lie below it."""
        return Response(status_code=308, headers=HEADERS | {"location": "console/"})

    @router.get("/console/")
    @router.get("/console/{name}")
    async def file(request: Request, name: str = PAGE) -> Response:
        """One of the files."""
        if name not in files:
            raise ApiError(404, f"the console has no file {name[:80]!r}; see /console/", code="not_found")
        headers = HEADERS | {"etag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        content, media_type = files[name]
        return Response(content, headers=headers | {"content-type": media_type})

    return router
