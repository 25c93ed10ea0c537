"""The page of a run, here or on Spark, that was started without ``--ui``: the run serves it while ``downspout ui run``
asks for it.

A run listens on a Unix socket in a folder that only its user can open, with one thread that does nothing but wait for
a connection. The connection is lines of JSON:

==============  ===================================================================================
the run says    ``{"topology": "orders", "pid": 4711, "groups": ["orders"]}``, as soon as it is connected
the command     ``{"address": "127.0.0.1:8650"}``, or nothing: it looks for another run
the run says    ``{"url": "http://…"}``, or ``{"error": …, "cure": …}``
==============  ===================================================================================

As long as the connection lasts the page is served, by the process of the run as with ``--ui``: one page for all
connections. Until then nothing of it is imported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from downspout.errors import ConfigError, DownspoutError, MissingExtraError

if TYPE_CHECKING:
    from downspout.engine.graph import Graph
    from downspout.engine.loop import Engine
    from downspout.engine.values import Settings
    from downspout.run.metrics import RunMetrics
    from downspout.web.server import RunPage
    from downspout.web.spark import SparkPage

ANSWER_S = 10.0  # How long a run may take to answer
AT_START_S = 0.3  # How long a run that begins waits for another's answer
Served = TypeVar("Served", "RunPage", "SparkPage")
Made = TypeVar("Made", bound="PageOnRequest[Any]")
log = logging.getLogger("downspout.web")


def folder() -> Path:
    """Return where this user's runs listen."""
    return Path(tempfile.gettempdir()) / f"downspout-{os.getuid()}"


def _is_ours(path: Path) -> bool:
    """Return whether a folder is this user's, and nobody else can open it."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077


# --- the run's side ---


class PageOnRequest(ABC, Generic[Served]):
    """Serves a run's page while it is asked for.

    Args:
        topology: its name.
        groups: of its spouts, each behind its brokers.
        always: what ``--ui`` serves anyway.
    """

    def __init__(self, topology: str, groups: Sequence[str] = (), always: Served | None = None) -> None:
        self._topology, self._groups = topology, list(groups)
        self._always: Served | None = always
        self._page: Served | None = None  # what is served on request
        self._watched: Any = None
        self._asking = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    @abstractmethod
    def _make(self, address: str) -> Served:
        """Return the page; imports what it needs."""

    def watch(self, watched: Any) -> None:
        """Learn from what such a page watches."""
        with self._lock:
            self._watched = watched
            for page in (self._always, self._page):
                if page is not None:
                    page.watch(watched)

    def answer(self, connection: socket.socket) -> None:
        """Speak with a command until it goes."""
        self._connections.add(connection)
        try:
            with contextlib.suppress(OSError), connection, connection.makefile("rw", encoding="utf-8") as lines:
                self._speak(lines)
        finally:
            self._connections.discard(connection)

    def close(self) -> None:
        """Let the commands know that the run has ended."""
        for connection in [*self._connections]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _speak(self, lines: Any) -> None:
        _say(lines, topology=self._topology, pid=os.getpid(), groups=self._groups)
        if not (asked := lines.readline()):
            return
        try:
            with self._served(json.loads(asked)["address"]) as page:
                _say(lines, url=page.url)
                lines.readline()
        except ModuleNotFoundError as error:
            _say(lines, error=f"the run needs the package {error.name}", cure="pip install 'downspout[ui]'")
        except DownspoutError as error:
            _say(lines, error=error.message, cure=error.cure)

    @contextlib.contextmanager
    def _served(self, address: str) -> Iterator[Served]:
        if self._always is not None:
            yield self._always
            return
        with self._lock:
            if self._page is None:
                page = self._make(address)
                if self._watched is not None:
                    page.watch(self._watched)
                page.start()
                self._page = page
            self._asking += 1
        try:
            yield self._page
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._page.close()
                    self._page = None


class RunOnRequest(PageOnRequest["RunPage"]):
    """A view of a run in this process or its workers, which serves the page on request."""

    def __init__(self, graph: Graph, settings: Settings, always: RunPage | None = None) -> None:
        super().__init__(graph.name, _groups(graph, settings), always)
        self._graph, self._settings = graph, settings

    def update(self, engine: Engine) -> None:
        """Let the page look at an engine."""
        if (page := self._page) is not None:
            page.snapshots.update(engine)

    def look(self, now: float, take: Callable[[], RunMetrics]) -> None:
        """Let the page look at metrics."""
        if (page := self._page) is not None:
            page.snapshots.look(now, take)

    def _make(self, address: str) -> RunPage:
        from downspout.web.server import RunPage

        return RunPage(self._graph, self._settings, address, comes_late=True)


class SparkOnRequest(PageOnRequest["SparkPage"]):
    """Serves the page of a run on Spark, whose driver is this process, on request."""

    def __init__(self, graph: Graph, settings: Settings, always: SparkPage | None = None) -> None:
        super().__init__(graph.name, always=always)  # on Spark a topology does not join its spouts' consumer groups
        self._graph, self._settings = graph, settings

    def _make(self, address: str) -> SparkPage:
        from downspout.web.spark import SparkPage

        return SparkPage(self._graph, self._settings, address, comes_late=True)


def _groups(graph: Graph, settings: Settings) -> list[str]:
    """Return the groups of a topology, each behind its brokers, whose members keep their places in them."""
    from downspout.engine.values import reads

    spouts = [spout for spout in graph.spouts if reads(spout, "kafka") and not reads(spout, "batch")]
    confs = [settings.components[spout.name].values for spout in spouts]
    found = [conf for conf in confs if conf["kafka.mode"] == "subscribe"]
    return [f"{conf['kafka.bootstrap']} {conf.get('kafka.group') or graph.name}" for conf in found]


def _say(lines: Any, **content: Any) -> None:
    lines.write(json.dumps(content) + "\n")
    lines.flush()


def _listen(path: Path) -> socket.socket:
    folder().mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(folder()):
        raise PermissionError(f"{folder()} can be opened by others")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


@contextlib.contextmanager
def on_request(made: Made) -> Iterator[Made]:
    """Wait for connections while the context lasts. A machine that does not allow it has runs without such a page."""
    path = folder() / str(os.getpid())
    try:
        try:
            listener = _listen(path)
        except FileNotFoundError:  # a run that ended just then has removed the empty folder
            listener = _listen(path)
    except OSError as error:
        log.debug("no page on request: %s", error)
        yield made
        return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=made.answer, args=(connection,), name="downspout-ui-ask", daemon=True).start()

    threading.Thread(target=accept, name="downspout-ui-wait", daemon=True).start()
    try:
        yield made
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread in its wait
        listener.close()
        made.close()
        with contextlib.suppress(OSError):
            folder().rmdir()  # where nothing else is in it


# --- the command's side ---


@dataclass(frozen=True)
class RunUnderWay:
    """A run of this user on this machine; it must be closed."""

    topology: str
    pid: int
    groups: tuple[str, ...]  # of its spouts, each behind its brokers
    connection: socket.socket
    lines: Any  # that come and go

    def open_page(self, address: str) -> str:
        """Have the run serve its page; return where.

        Raises:
            ConfigError: the address makes no sense, or its port is taken.
            MissingExtraError: the run has not what a page needs.
        """
        _say(self.lines, address=address)
        said = json.loads(self.lines.readline() or '{"error": "the run has ended", "cure": null}')
        if "error" in said:
            kind = MissingExtraError if "package" in said["error"] else ConfigError
            raise kind(said["error"], cure=said["cure"])
        return str(said["url"])

    def wait(self) -> None:
        """Wait until the run has ended, or until :meth:`leave`."""
        with contextlib.suppress(OSError):
            self.lines.readline()

    def leave(self) -> None:
        """End the wait. May be called from a signal handler."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Look no more."""
        with contextlib.suppress(OSError):
            self.lines.close()
        self.connection.close()


def replaced_by(graph: Graph, settings: Settings) -> list[int]:
    """Return the processes of this user whose places in their groups a run of this topology is about to take."""
    found, own = runs_under_way(AT_START_S), set(_groups(graph, settings))
    for run in found:
        run.close()
    return [run.pid for run in found if run.topology == graph.name and own.intersection(run.groups)]


def runs_under_way(answer_s: float = ANSWER_S) -> list[RunUnderWay]:
    """Return the runs of this user on this machine, by process; those that do not answer in time are left out."""
    # Others of this project's processes keep what they need in the folder too.
    paths = (
        [path for path in folder().iterdir() if path.is_socket()] if folder().is_dir() and _is_ours(folder()) else ()
    )
    found = [run for path in paths if (run := _connected(path, answer_s)) is not None]
    return sorted(found, key=lambda run: run.pid)


def _connected(path: Path, answer_s: float) -> RunUnderWay | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(answer_s)
    try:
        connection.connect(str(path))
        lines = connection.makefile("rw", encoding="utf-8")
        said = json.loads(lines.readline())
        connection.settimeout(None)
        return RunUnderWay(said["topology"], said["pid"], tuple(said.get("groups", ())), connection, lines)
    except (OSError, ValueError) as error:
        connection.close()
        if isinstance(error, ConnectionRefusedError):  # it was killed
            path.unlink(missing_ok=True)
        return None
