"""Swagger UI from our own files: works without a network, under a content security policy without inline scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from app.schemas.problem_details import ProblemDetails

STATIC: Final = Path(__file__).parent / "static"
# Swagger UI sets style attributes on its elements and paints icons from data URLs.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Paraplan API</title>
<link rel="icon" type="image/png" href="static/swagger-ui/favicon-32x32.png">
<link rel="stylesheet" href="static/swagger-ui/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="static/swagger-ui/swagger-ui-bundle.js"></script>
<script src="static/docs.js"></script>
</body>
</html>
"""


def install_docs(app: FastAPI) -> None:
    """`/docs`, its assets under `/static`, and the schema of problems in `/openapi.json`."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        # Problems are rendered by hand, so that FastAPI knows their media type but not their schema.
        if app.openapi_schema is None:
            problem = ProblemDetails.model_json_schema(
                mode="serialization", ref_template="#/components/schemas/{model}"
            )
            schemas = describe()["components"]["schemas"]
            schemas |= problem.pop("$defs") | {"ProblemDetails": problem}
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the description
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})
