"""GET /docs: Swagger UI over /openapi.json, with all its files served from here. Nothing is loaded from another host.

The scripts come from the package fastapi-offline, which ships current releases of Swagger UI. The page holds no
inline script, so that it works under a strict content security policy.
"""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

router = APIRouter(include_in_schema=False)

ASSETS: Final = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon.png")
# Swagger UI sets styles inline and draws its icons from data URLs.
_POLICY: Final = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
_CACHED: Final = {"Cache-Control": "public, max-age=86400"}

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>PSD server: API</title>
<link rel="icon" href="{root}/docs/favicon.png">
<link rel="stylesheet" href="{root}/docs/swagger-ui.css">
</head>
<body>
<div id="api"></div>
<script src="{root}/docs/swagger-ui-bundle.js"></script>
<script src="{root}/docs/start.js"></script>
</body>
</html>
"""


@router.get("/docs")
async def page(request: Request) -> Response:
    """The page itself; its paths respect the prefix of a proxy in front."""
    return HTMLResponse(_PAGE.format(root=html.escape(_root(request))), headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/start.js")
async def start(request: Request) -> Response:
    """The script that opens the schema in the page."""
    options = {"url": f"{_root(request)}/openapi.json", "dom_id": "#api", "deepLinking": True, "validatorUrl": None}
    return Response(f"SwaggerUIBundle({json.dumps(options)});\n", media_type="text/javascript")


@router.get("/docs/{name}")
async def asset(name: str) -> Response:
    """One of Swagger UI's files; nothing else of the package can be asked for."""
    if name not in ASSETS:
        raise HTTPException(404)
    return FileResponse(Path(str(files("fastapi_offline"))) / "static" / name, headers=_CACHED)


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")
