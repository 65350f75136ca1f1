"""The two applications: the public API on TCP and the admin API on the unix socket."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from slotdeck.engine.server import errors
from slotdeck.engine.server.admin_routes import admin_router
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.http_limits import HttpLimits
from slotdeck.engine.server.openai_routes import openai_router
from slotdeck.engine.server.security import GuardMiddleware, HostRule
from slotdeck.engine.server.status_routes import status_router


def create_app(context: ServerContext, limits: HttpLimits) -> ASGIApp:
    """The public API, guarded by keys, the checks of Host and Origin, and ``limits``."""
    hosts = HostRule(context.settings.host, context.settings.allowed_host)
    app = _framework(openai_router(context), status_router(context))
    return GuardMiddleware(
        app, limits, hosts=hosts, keys=context.keys, on_refused_body=context.engine.count_refused_body
    )


def create_admin_app(context: ServerContext, limits: HttpLimits) -> ASGIApp:
    """The admin API. Whoever may open its socket may do everything."""
    return GuardMiddleware(_framework(admin_router(context)), limits)


def _framework(*routers: APIRouter) -> FastAPI:
    # Without a schema and documentation pages, since these load scripts from other servers.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    errors.install(app)
    for router in routers:
        app.include_router(router)
    return app
