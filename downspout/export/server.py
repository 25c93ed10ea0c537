"""The HTTP server beside a run: ``/metrics``, ``/healthz``, ``/readyz`` and the page, all read-only.

It runs in its own thread, and listens on loopback by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from downspout.errors import ConfigError, MissingExtraError
from downspout.export.health import Health, Verdict
from downspout.run.run_snapshots import Snapshots
from downspout.system.loopback import is_loopback, may_ask_for

REQUEST_S = 10.0  # How long a request may take to arrive
CONNECTIONS_MAX = 64
END_S = 5.0  # Longest wait for the thread's end
OBSERVED = ("/metrics", "/healthz", "/readyz")
HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
"""Sent with every response: the page runs only its own script, whatever a record contains."""
log = logging.getLogger("downspout.export")


class Server:
    """Serves one address from :meth:`start` to :meth:`close`.

    Args:
        option: the option that set the port, for errors.
        beside: runs in the same thread.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """

    def __init__(
        self,
        host: str,
        port: int,  # 0: a free one
        routes: Sequence[BaseRoute],
        *,
        option: str,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._listener = listen(host, port, option)
        self.url = url_of(self._listener)
        app = Starlette(routes=routes, exception_handlers={404: _not_found})
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            Guarded(app, host, self.url, is_private=is_loopback(self._listener.getsockname()[0])),
            lifespan="off", log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1,
            ws="none", http=Bounded,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._beside = beside
        self._thread = threading.Thread(target=self._serve, name=f"downspout {option}", daemon=True)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        self._thread.join(END_S)
        self._listener.close()

    def _serve(self) -> None:
        async def both() -> None:
            task = None if self._beside is None else asyncio.create_task(self._beside())
            try:
                await self._server.serve(sockets=[self._listener])
            finally:
                if task is not None:
                    task.cancel()

        try:
            asyncio.run(both())
        except Exception:  # the run continues without it
            log.exception("the server at %s has ended", self.url)


class Guarded:
    """Refuses requests for a foreign host name, and adds HEADERS.

    Otherwise a foreign page could read responses by DNS rebinding. Prometheus uses the name of a service, which a
    process in a container does not know, so metrics and health accept any name if the port is not on loopback. A
    request without a host is not from a browser.
    """

    def __init__(self, app: ASGIApp, host: str, url: str, *, is_private: bool) -> None:
        self._app, self._host, self._url, self._is_private = app, host, url, is_private

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            return
        asked = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        app = self._app
        is_guarded = self._is_private or scope["path"] not in OBSERVED
        if asked is not None and is_guarded and not may_ask_for(asked, self._host):
            app = PlainTextResponse(f"This port does not have that name. Try: {self._url}\n", 421)
        await app(scope, receive, send_guarded)


class Bounded(H11Protocol):
    """A connection that is closed if too many are open, or if its request stays incomplete.

    Otherwise clients could exhaust the file descriptors of the run.
    """

    _unfinished: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or close it."""
        if len(self.connections) >= CONNECTIONS_MAX:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._unfinished is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request, or close."""
        super().on_response_complete()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._unfinished = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None


def listen(host: str, port: int, option: str) -> socket.socket:
    """Return a listening socket; ``option`` is the option that set the port, for errors.

    Raises:
        ConfigError: the port is taken, or the host is not an address of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        cure = "127.0.0.1 as the host, or 0.0.0.0 for all addresses"
        raise ConfigError(f"{option} {host}:{port}: {error.strerror}", cure=cure) from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(32)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"{option} {host}:{port}: cannot listen there: {error.strerror}",
            cure=f"stop what uses the port, perhaps this topology; or another port: {option} "
            f"{port + 1 if port else 9000} (0: a free one)",
        ) from None
    return found


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listener, without a trailing slash."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# --- metrics and health ---


@dataclass(frozen=True)
class Exposure:
    """The exporters of a run."""

    snapshots: Snapshots
    health: Health
    url: str  # where it is served


@contextlib.contextmanager
def exposed(
    host: str,  # to listen on
    port: int,  # 0: a free one
    groups: Mapping[str, str],  # the consumer group of each spout
    *,
    stuck_s: float,  # as ``run.stuck_s``
) -> Iterator[Exposure]:
    """Serve a run's metrics, health and readiness while the context lasts.

    Raises:
        MissingExtraError: prometheus_client is not installed.
        ConfigError: the port is in use, or the address cannot be listened on.
    """
    snapshots = Snapshots()
    health = Health(snapshots, stuck_s=stuck_s)
    server = Server(host, port, [metrics_route(snapshots, groups), *health_routes(health)], option="--metrics-port")
    server.start()
    log.info("metrics are at %s/metrics, health at /healthz and /readyz", server.url)
    try:
        yield Exposure(snapshots, health, server.url)
    finally:
        snapshots.close()
        server.close()


def metrics_route(snapshots: Snapshots, groups: Mapping[str, str]) -> Route:
    """Return the route for scrapes of a run.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
    except ModuleNotFoundError:
        raise MissingExtraError("metrics need prometheus_client", cure="pip install 'downspout[metrics]'") from None
    from downspout.export.prometheus import RunCollector

    registry = CollectorRegistry()
    registry.register(RunCollector(snapshots, groups))

    def scrape(request: Request) -> Response:  # not a coroutine, because it waits for the run
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        names = request.query_params.getlist("name[]")
        return Response(encode(registry.restricted_registry(names) if names else registry), media_type=kind)

    return Route("/metrics", scrape, methods=["GET"])


def health_routes(health: Health) -> list[Route]:
    """Return the routes for Kubernetes probes."""

    def route(path: str, ask: Callable[[], Verdict]) -> Route:
        def answer(request: Request) -> Response:
            verdict = ask()
            text = f"{verdict.text}\n".encode("utf-8", "replace").decode()
            return PlainTextResponse(text, 200 if verdict.good else 503)

        return Route(path, answer, methods=["GET"])

    return [route("/healthz", health.alive), route("/readyz", health.ready)]


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"there are {', '.join(OBSERVED)}\n", 404)
