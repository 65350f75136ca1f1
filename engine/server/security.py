"""The checks that every request passes before a route sees it. With keys set, only ``/health`` answers without one.

The middleware is pure ASGI and lies outside the framework, so that it also guards unknown paths and wrong methods.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotdeck.engine.server.body import Body, BodyMemory, read_body
from slotdeck.engine.server.client_watch import ClientDisconnectedError
from slotdeck.engine.server.connections import HEALTH_ONLY
from slotdeck.engine.server.errors import TOO_MANY_BODIES, ApiError, log_unexpected, unavailable
from slotdeck.engine.server.http_limits import HttpLimits
from slotdeck.engine.server.keys import KeyRing

PUBLIC_PATH = "/health"
METHODS_WITH_BODY = ("POST", "PUT", "PATCH")
"""The body of a request with another method is discarded unread."""
MAX_REQUEST_ID = 128
"""Characters of an ``X-Request-Id`` that is sent back."""
MAX_HEADER_BYTES = 32 << 10


class HostRule:
    """The host names that this server answers to: loopback, the bind address, and those of ``--allowed-host``."""

    def __init__(self, bind: str, allowed: list[str]) -> None:
        self._names = {"localhost", bind.strip("[]").lower()} | {_host_name(name) for name in allowed}

    def allows(self, name: str, local_address: str | None) -> bool:
        """Whether ``name``, in lower case, is one of them. ``local_address``: where the connection arrived."""
        name = name.rstrip(".")
        # A socket for both address families writes IPv4 addresses as ::ffff:192.0.2.7.
        is_own_address = local_address is not None and name == local_address.removeprefix("::ffff:")
        return name in self._names or is_own_address or is_loopback(name)


class GuardMiddleware:
    """Checks headers and reads the body before the app runs. Answers every error in the same shape.

    Puts the request's ``Body`` into ``scope["state"]["body"]`` and the user into ``scope["state"]["user"]``. The public
    API needs ``hosts`` and ``keys``. The unix socket needs neither, since its file mode guards it.
    ``on_refused_body`` is called with the user and the reason when too many bodies are in progress.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: HttpLimits,
        *,
        hosts: HostRule | None = None,
        keys: KeyRing | None = None,
        on_refused_body: Callable[[str, str], None] | None = None,
    ) -> None:
        self._app, self._limits, self._hosts, self._keys = app, limits, hosts, keys
        self._on_refused_body = on_refused_body
        self._memory = BodyMemory(limits.max_body_bytes, limits.max_body_bytes_per_user)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = complete = False
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        state = scope.setdefault("state", {})
        body: Body | None = None

        async def reply(message: Message) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start":
                started = True
                out = MutableHeaders(scope=message)
                out["x-content-type-options"] = "nosniff"
                if request_id:
                    out["x-request-id"] = request_id
                if state.get(HEALTH_ONLY):
                    out["connection"] = "close"
            else:
                complete = not message.get("more_body", False)
            await send(message)

        try:
            state["user"] = user = self._check(scope, headers)
            state["body"] = body = Body(self._memory, user)
            if scope["method"] in METHODS_WITH_BODY:
                await read_body(body, headers, receive, self._limits)
            await self._app(scope, receive, reply)
        except ClientDisconnectedError:
            return
        except ApiError as error:
            if error.code == TOO_MANY_BODIES and self._on_refused_body is not None:
                self._on_refused_body(state["user"], error.message)
            await error.response()(scope, receive, reply)
        except Exception as error:  # the framework raises on what it has already logged and answered
            if not started:
                await log_unexpected(error).response()(scope, receive, reply)
            elif not complete:
                raise ConnectionAbortedError("an error ended an answer that had begun") from None
        finally:
            if body is not None:
                body.release()

    def _check(self, scope: Scope, headers: Headers) -> str:
        """Check the headers before anything of the body is read. Returns the user. Raises ApiError."""
        public = scope["path"] == PUBLIC_PATH and scope["method"] in ("GET", "HEAD")
        if scope["state"].get(HEALTH_ONLY) and not public:
            raise unavailable("too many connections are open, try again later", "too_many_connections", 5)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise ApiError(431, f"the headers are larger than {MAX_HEADER_BYTES} bytes", code="headers_too_large")
        if self._hosts is not None:
            self._check_names(self._hosts, scope, headers)
        user = self._user(scope, headers, public)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "compressed bodies are not accepted: send plain JSON", code="unsupported_encoding")
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        # A web page can send other content types to another origin without a preflight request.
        from_page = "origin" in headers and scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if from_page and content_type != "application/json":
            raise ApiError(415, "send the body as application/json", code="unsupported_content_type")
        return user

    @staticmethod
    def _check_names(hosts: HostRule, scope: Scope, headers: Headers) -> None:
        local = (scope.get("server") or (None,))[0]
        if "host" in headers and not hosts.allows(_host_name(headers["host"]), local):
            raise ApiError(
                421,
                "this server is not known by that host name: start it with --allowed-host NAME",
                code="host_refused",
            )
        if "origin" in headers:
            scheme, _, place = headers["origin"].partition("://")
            name = _host_name(place) if scheme in ("http", "https") else ""
            if not name or not hosts.allows(name, local):
                raise ApiError(
                    403, "pages of that origin may not call this server: start it with --allowed-host NAME",
                    code="origin_refused",
                )  # fmt: skip

    def _user(self, scope: Scope, headers: Headers, public: bool) -> str:
        """The label of the key, or without a key the client's address. Raises ApiError 401 unless ``public``."""
        address = (scope.get("client") or ("local",))[0]
        if self._keys is None:
            return str(address)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        label = self._keys.label(key.strip()) if scheme.lower() == "bearer" else None
        if label is None and self._keys.required and not public:
            raise ApiError(
                401,
                "send a valid API key: 'Authorization: Bearer KEY'",
                type="authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return label or str(address)


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and the loopback addresses of both families."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(value: str) -> str:
    """``NAS.local:8000`` → ``nas.local``, ``[::1]:8000`` → ``::1``."""
    value = value.strip().lower().rpartition("@")[2]
    if value.startswith("["):
        address, closed, _ = value[1:].partition("]")
        return address if closed else ""
    return value if value.count(":") > 1 else value.partition(":")[0]


def _request_id(value: str | None) -> str | None:
    """The client's own request id if it is short and printable. It is only sent back, and identifies nothing here."""
    return value if value and len(value) <= MAX_REQUEST_ID and value.isascii() and value.isprintable() else None
