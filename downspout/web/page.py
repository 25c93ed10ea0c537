"""The page's server: it takes snapshots, stores them, and answers GET requests, in one thread.

Once a second it requests the metrics of a run in this process (:mod:`downspout.run.run_snapshots`), its only access to
the run. While one call blocks the loop, no metrics arrive, and the watchdog names the call. A query on Spark provides
its metrics as another :class:`MetricsSource`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from downspout.engine.graph import Graph
from downspout.engine.settings import Settings
from downspout.errors import ConfigError, MissingExtraError
from downspout.export.beside import groups_of
from downspout.export.health import Health
from downspout.export.server import Server, health_routes, metrics_route
from downspout.outages import OUTAGES
from downspout.run.run_snapshots import Snapshot, Snapshots
from downspout.run.watchdog import Watchdog
from downspout.web.history import History
from downspout.web.processes import Processes
from downspout.web.state import LIMIT_MAX, SORTS, WORST_MAX, State

EVERY_S = 1.0  # Interval of snapshots
ANSWER_S = 1.0  # Longest wait for a snapshot
HOST, PORT = "127.0.0.1", 8650  # Defaults of ``--ui``
STATIC = Path(__file__).parent / "static"
PageType = TypeVar("PageType", bound="Page")
log = logging.getLogger("downspout.web")


class MetricsSource(Protocol):
    """Provides a page with metrics."""

    def latest(self, wait_s: float) -> Snapshot | None:
        """Return the latest metrics; None before the first. Called by one thread at a time."""

    def close(self) -> None:
        """End a wait."""


class Page:
    """Serves the page of one topology."""

    def __init__(
        self, state: State, asked: MetricsSource, address: str, every_s: float = EVERY_S, more: Sequence[Route] = ()
    ) -> None:
        self._state, self._asked, self._every_s = state, asked, every_s
        self._history = state.past
        routes = [*self._routes(), *more, Mount("/", StaticFiles(directory=STATIC, html=True))]
        self._server = Server(*parse_address(address), routes, option="--ui", beside=self._take)
        self.url = f"{self._server.url}/"

    def start(self) -> None:
        """Start to serve."""
        self._server.start()

    def stuck(self) -> str:
        """Return why the metrics are not updated, or nothing."""
        return ""

    def close(self) -> None:
        """Stop the server."""
        self._asked.close()
        self._server.close()

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

    # --- the API ---

    def _routes(self) -> list[Route]:
        return [
            Route(f"/api/{name}", _json(answer), methods=["GET"])
            for name, answer in {
                "topology": lambda request: self._state.topology(),
                "run": lambda request: self._state.run(time.time(), self.stuck()),
                "partitions": self._partitions,
                "history": lambda request: self._state.history(_number(request, "since_ms", 0.0)),
                "settings": lambda request: self._state.settings(),
            }.items()
        ]

    def _partitions(self, request: Request) -> dict[str, Any]:
        sort = request.query_params.get("sort", "lag")
        if sort not in SORTS:
            raise ValueError(f"sort={sort} is not known. Try: one of {', '.join(SORTS)}")
        offset, limit = _number(request, "offset", 0), _number(request, "limit", WORST_MAX)
        return self._state.partitions(sort=sort, offset=int(offset), limit=min(int(limit), LIMIT_MAX))


class RunPage(Page):
    """Serves the page, metrics and health of a run in this process; the run's view must fill ``snapshots``."""

    def __init__(self, graph: Graph, settings: Settings, address: str) -> None:
        self.snapshots = Snapshots()
        self._watchdog: Watchdog | None = None
        self._health = Health(self.snapshots, stuck_s=settings.run.values["run.stuck_s"])
        routes = health_routes(self._health)
        with contextlib.suppress(MissingExtraError):  # the page needs no metrics
            routes.append(metrics_route(self.snapshots, groups_of(graph, settings)))
        state = State(graph, settings, History(), Processes(), os.getpid())
        super().__init__(state, self.snapshots, address, more=routes)

    def watch(self, watchdog: Watchdog) -> None:
        """Use this watchdog, if this process runs the topology itself."""
        self._watchdog = watchdog
        self._health.watch(watchdog)

    def stuck(self) -> str:
        """Return the call that blocks the loop, or the outages that components wait for."""
        if away := OUTAGES.current():
            return "; ".join(map(str, away))
        return self._watchdog.hang(time.monotonic()) if self._watchdog is not None else ""


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``--ui [HOST:]PORT``.

    Raises:
        ConfigError: it is neither a port nor a host with one.

    >>> parse_address(""), parse_address("9000"), parse_address("0.0.0.0:9000"), parse_address("[::1]:9000")
    (('127.0.0.1', 8650), ('127.0.0.1', 9000), ('0.0.0.0', 9000), ('::1', 9000))
    """
    if not text:
        return HOST, PORT
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or text.startswith(":"):
        raise ConfigError(
            f"--ui {text} is neither a port nor HOST:PORT",
            cure="--ui 9000, after the topology's file (0: a free port)",
        )
    return host.strip("[]") or HOST, int(port)


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
    """Return an answer as JSON. An error's text may contain a lone surrogate, which is not valid UTF-8."""
    try:
        return orjson.dumps(content, default=str)
    except TypeError:
        return orjson.dumps(_writable(content), default=str)


def _writable(value: Any) -> Any:
    """Convert a value for JSON: lone surrogates are escaped, keys and large numbers become text.

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
    """Serve the page of a run while the context lasts; the run's view must fill its ``snapshots``.

    Raises:
        ConfigError: the address is invalid, or its port is taken.
    """
    return serving(RunPage(graph, settings, address))
