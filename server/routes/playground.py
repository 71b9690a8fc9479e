"""GET / and /playground/*: the built-in page. No key is asked for: the page holds nothing, and sends the key itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.playground import Asset

# Nothing inline, nothing from elsewhere, no frame around it, and no string ever becomes markup.
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
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


def make_router(assets: Sequence[Asset]) -> APIRouter:
    """One route per file: no path of a request ever reaches the file system."""
    router = APIRouter(include_in_schema=False)
    for asset in assets:
        router.add_api_route(asset.path, _endpoint(asset), methods=["GET", "HEAD"], response_model=None)
    return router


def _endpoint(asset: Asset) -> Endpoint:
    async def get_asset(request: Request) -> Response:
        headers = HEADERS | {"ETag": asset.etag}
        if asset.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    return get_asset
