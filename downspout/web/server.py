"""The page's side: one thread that takes snapshots, remembers them, and answers GET requests.

It asks a run in this process for its metrics once a second (:mod:`downspout.run.snapshots`), and reads nothing else of
it. While one call keeps the loop there is no answer; then the watchdog says which. A query on Spark is
asked in the same way, by what implements :class:`Asked`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from downspout.engine.graph import Graph
from downspout.engine.values import Settings
from downspout.run.snapshots import Snapshot, Snapshots
from downspout.run.watchdog import Watchdog
from downspout.system.hosts import may_ask_for
from downspout.web.addresses import listen, parse_address, url_of
from downspout.web.history import History
from downspout.web.processes import Processes
from downspout.web.state import LIMIT_MAX, SORTS, WORST_MAX, State

EVERY_S = 1.0  # How often the run is asked for its metrics
ANSWER_S = 1.0  # How long it may take to answer
END_S = 5.0  # How long the thread may take to end
REQUEST_S = 10.0  # How long a request may take to arrive
CONNECTIONS_MAX = 64
STATIC = Path(__file__).parent / "static"
HEADERS = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
"""Sent with every answer: the page runs its own script and nothing else, whatever a record holds."""
PageType = TypeVar("PageType", bound="Page")
log = logging.getLogger("downspout.web")


class Guarded:
    """Refuses requests under a foreign name, and all that would change something; adds HEADERS."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        asked = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        app = self._app
        if not may_ask_for(asked, self._host):
            app = PlainTextResponse("This page does not have that name. Try: its address, as it was printed\n", 421)
        await app(scope, receive, send_guarded)


class Bounded(H11Protocol):
    """A connection that is closed where there are too many, or where its request does not come to its end.

    Whoever reaches the port would otherwise take the descriptors of the run, which then cannot open its own files.
    """

    _unfinished: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or close it."""
        if len(self.connections) >= CONNECTIONS_MAX:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
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
        """Forget it."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._unfinished = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None


class Asked(Protocol):
    """What a page asks for metrics."""

    def latest(self, wait_s: float) -> Snapshot | None:
        """Return the latest metrics; None where there are none yet. Not called by two threads at once."""

    def close(self) -> None:
        """End a wait."""


class Page:
    """Serves the page of one topology."""

    def __init__(self, state: State, asked: Asked, address: str, every_s: float = EVERY_S) -> None:
        host, port = parse_address(address)
        self._state, self._asked, self._every_s = state, asked, every_s
        self._history = state.past
        self._listener = listen(host, port, "--ui")
        self.url = url_of(self._listener)
        config = uvicorn.Config(
            Guarded(self._app(), host), lifespan="off", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=1, ws="none", http=Bounded,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="downspout-ui", daemon=True)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stuck(self) -> str:
        """Return what keeps the metrics from being renewed, if anything does."""
        return ""

    def close(self) -> None:
        """Answer no more."""
        self._asked.close()
        self._server.should_exit = True
        self._thread.join(END_S)
        self._listener.close()

    def _serve(self) -> None:
        async def both() -> None:
            taking = asyncio.create_task(self._take())
            try:
                await self._server.serve(sockets=[self._listener])
            finally:
                taking.cancel()

        try:
            asyncio.run(both())
        except Exception:  # the run goes on without its page
            log.exception("the page has ended")

    async def _take(self) -> None:
        while True:
            begun = time.monotonic()
            snapshot = await asyncio.to_thread(self._asked.latest, ANSWER_S)
            if snapshot is not None and snapshot.metrics is not self._history.latest:
                try:
                    self._history.add(time.time() - snapshot.age_s, snapshot.metrics)
                except Exception:
                    log.exception("a snapshot was left out of the page")
            await asyncio.sleep(max(0.0, begun + self._every_s - time.monotonic()))

    # --- the answers ---

    def _app(self) -> ASGIApp:
        routes = [
            Route(f"/api/{name}", _json(answer), methods=["GET"])
            for name, answer in {
                "topology": lambda request: self._state.topology(),
                "run": lambda request: self._state.run(time.time(), self.stuck()),
                "partitions": self._partitions,
                "history": lambda request: self._state.history(_number(request, "since_ms", 0.0)),
                "settings": lambda request: self._state.settings(),
            }.items()
        ]
        return Starlette(routes=[*routes, Mount("/", StaticFiles(directory=STATIC, html=True))])

    def _partitions(self, request: Request) -> dict[str, Any]:
        sort = request.query_params.get("sort", "lag")
        if sort not in SORTS:
            raise ValueError(f"sort={sort} is not known. Try: one of {', '.join(SORTS)}")
        offset, limit = _number(request, "offset", 0), _number(request, "limit", WORST_MAX)
        return self._state.partitions(sort=sort, offset=int(offset), limit=min(int(limit), LIMIT_MAX))


class RunPage(Page):
    """Serves the page of a run in this process; the run's view must ask its ``snapshots``."""

    def __init__(self, graph: Graph, settings: Settings, address: str) -> None:
        self.snapshots = Snapshots()
        self._watchdog: Watchdog | None = None
        super().__init__(State(graph, settings, History(), Processes(), os.getpid()), self.snapshots, address)

    def watch(self, watchdog: Watchdog) -> None:
        """Learn from what watches the loop, where this process runs the topology itself."""
        self._watchdog = watchdog

    def stuck(self) -> str:
        """Return which call keeps the loop, if one does."""
        return self._watchdog.hang(time.monotonic()) if self._watchdog is not None else ""


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name, "")
    try:
        found = float(text) if text else float(default)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise ValueError(f"{name}={text} is not a number of at least 0. Try: {name}=0")
    return found


def _json(answer: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            content, status = answer(request), 200
        except ValueError as error:
            content, status = {"error": str(error)}, 400
        return Response(_dumped(content), status, media_type="application/json")

    return respond


def _dumped(content: dict[str, Any]) -> bytes:
    """Return an answer as JSON. What a run has met may be no UTF-8: half of a character in an error's text."""
    try:
        return orjson.dumps(content, default=str)
    except TypeError:
        return orjson.dumps(_writable(content), default=str)


def _writable(value: Any) -> Any:
    """Return a value as JSON can hold it: text with escapes for what is no character, keys as text, large numbers too.

    >>> _writable({"error": "half \\ud800", 7: [2**70]})
    {'error': 'half \\\\ud800', '7': ['1180591620717411303424']}
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_writable(str(name)): _writable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(each) for each in value]
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value


@contextlib.contextmanager
def serving(page: PageType) -> Iterator[PageType]:
    """Serve a page while the context lasts."""
    page.start()
    try:
        yield page
    finally:
        page.close()


def served(graph: Graph, settings: Settings, address: str) -> contextlib.AbstractContextManager[RunPage]:
    """Serve the page of a run while the context lasts; the run's view must ask its ``snapshots``.

    Raises:
        ConfigError: the address makes no sense, or its port is taken.
    """
    return serving(RunPage(graph, settings, address))
