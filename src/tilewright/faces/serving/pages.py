"""Runs in a browser, under `/site/` of the server: the pages of `tilewright site`, each as it is now."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...facts.errors import UserError
from ...report.site import LiveSite
from .gate import PAGES, Refusal


def page_routes(site: LiveSite) -> list[Route]:
    """The routes of the site; whoever may submit may look at it."""

    async def start(request: Request) -> Response:
        return RedirectResponse(f"{PAGES}/")

    async def page(request: Request) -> Response:
        try:
            found = await run_in_threadpool(site.render, request.path_params["path"])
        except UserError as error:  # a folder of runs is gone
            raise Refusal(404, "not_found", str(error)) from None
        if found is None:
            raise Refusal(404, "not_found", "no such page; the site begins at /site/")
        return Response(found.data, media_type=found.kind, headers={"x-frame-options": "DENY"})

    return [Route(PAGES, start, methods=["GET"]), Route(f"{PAGES}/{{path:path}}", page, methods=["GET"])]
