"""HTTP beside a run: ``/metrics``, ``/healthz`` and ``/readyz``. All of it is only read.

It listens on loopback unless it is told otherwise, in threads of its own, which end with the process.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from downspout.errors import ConfigError, MissingExtraError
from downspout.export.health import Health, Verdict
from downspout.run.snapshots import Snapshots
from downspout.system.hosts import is_loopback, may_ask_for

CLIENT_S = 10  # How long a client may take over a request
CONNECTIONS_MAX = 64
log = logging.getLogger("downspout.export")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class Exposure:
    """What a run is given, so that it can be looked at."""

    snapshots: Snapshots  # a view of the run
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
    with serving(application(snapshots, groups, health), host, port) as url:
        log.info("metrics are at %s/metrics, health at /healthz and /readyz", url)
        try:
            yield Exposure(snapshots, health, url)
        finally:
            snapshots.close()


def application(snapshots: Snapshots, groups: Mapping[str, str], health: Health | None) -> Application:
    """Return what answers requests about a run."""
    registry = new_registry()
    from downspout.export.prometheus import RunCollector

    registry.register(RunCollector(snapshots, groups))
    return routes(registry, health)


def new_registry() -> Any:
    """Return a registry for metrics.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError:
        raise MissingExtraError(
            "--metrics-port needs prometheus_client", cure="pip install 'downspout[metrics]'"
        ) from None
    return CollectorRegistry()


def routes(registry: Any, health: Health | None) -> Application:
    """Return what answers requests: metrics of a registry, and of a run's health."""
    from prometheus_client import make_wsgi_app

    metrics: Application = make_wsgi_app(registry)
    checks = {} if health is None else {"/healthz": health.alive, "/readyz": health.ready}

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _text(start, "405 Method Not Allowed", "GET only\n")
        if path == "/metrics":
            return metrics(environ, start)
        if path in checks:
            verdict: Verdict = checks[path]()
            return _text(start, "200 OK" if verdict.good else "503 Service Unavailable", f"{verdict.text}\n")
        known = ", ".join(["/metrics", *checks])
        return _text(start, "404 Not Found", f"there are {known}\n")

    return answer


def _guarded(application: Application, host: str, url: str) -> Application:
    """Return an application that refuses foreign names: a browser's page could read loopback by DNS rebinding.

    A request without a name is no browser's: probes that speak HTTP/1.0 send none.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked = environ.get("HTTP_HOST")
        if asked is not None and not may_ask_for(asked, host):
            return _text(start, "421 Misdirected Request", f"This port does not have that name. Try: {url}\n")
        return application(environ, start)

    return answer


def _text(start: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    body = text.encode("utf-8", "replace")
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    start(status, [*headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")])
    return [body]


@contextlib.contextmanager
def serving(application: Application, host: str, port: int) -> Iterator[str]:
    """Serve an application while the context lasts; yield its address.

    Raises:
        ConfigError: the port is in use, or the address cannot be listened on.
    """
    server = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{server.server_port}"
    server.set_app(_guarded(application, host, url) if is_loopback(server.server_name) else application)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="downspout-metrics", daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # a client that says nothing must not keep the run from its end

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, or close it above the limit: a client must not use up the descriptors of a run."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, within :data:`CLIENT_S`."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def server_bind(self) -> None:
        """Bind, and do not ask the network for the name of this machine, as WSGIServer does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or a scrape that fails, is no matter of the run's."""
        log.debug("a request failed", exc_info=True)


class Quiet(WSGIRequestHandler):
    """Answers a request, and logs none."""

    timeout = CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests: a probe comes every few seconds."""


def _listen(host: str, port: int) -> _Server:
    where = f"run.metrics_port = {port} on {host}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("Server", (_Server,), {"address_family": family})
        server: _Server = kind((host, port), Quiet)
    except socket.gaierror as error:
        raise ConfigError(f"{where}: {error.strerror}", cure="--metrics-host 127.0.0.1, or 0.0.0.0 for all") from None
    except OSError as error:
        raise ConfigError(
            f"{where}: {error.strerror}", cure="another port, or 0 for a free one; perhaps this topology runs already"
        ) from None
    return server
