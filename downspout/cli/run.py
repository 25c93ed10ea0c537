"""``downspout run``: a topology in one process, or in several on this machine."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from downspout.cli.arguments import (
    RUN_CODES,
    add_bounds,
    add_metrics_port,
    add_settings,
    add_summary,
    add_topology,
    add_ui,
    exit_codes,
)
from downspout.cli.terminal import aside, check_writable, complain, print_result, shown
from downspout.errors import BrokerError, ComponentError, ConfigError, DownspoutError
from downspout.formatting import counted, seconds_of

if TYPE_CHECKING:
    from downspout.engine.graph import Graph
    from downspout.engine.result import RunResult
    from downspout.engine.settings import Settings
    from downspout.run.watchdog import Watchdog
    from downspout.web.page import RunPage


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="run a topology in this process, or in several",
        description="Run a streamparse topology in this process, or with --workers in several that share its Kafka "
        "partitions. Ctrl-C lets it finish what is in flight; a second Ctrl-C stops it at once.",
        epilog=exit_codes(*RUN_CODES, _130="stopped by Ctrl-C (after a clean drain, as for 143)"),
    )
    add_topology(parser)
    add_bounds(parser)
    parser.add_argument("--records", type=int, metavar="N", help="stop when at least this many tuple trees are done")
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="run N processes, which share the partitions; crashed workers are restarted",
    )
    parser.add_argument(
        "--member",
        type=int,
        metavar="N",
        help="number of this process, if several are started by hand for one topology",
    )
    parser.add_argument(
        "--redeploy", action="store_true", default=None, help="use a new topology id, as a new submit on Storm does"
    )
    add_metrics_port(parser, "metrics for Prometheus, /healthz and /readyz")
    parser.add_argument(
        "--otel",
        action="store_true",
        default=None,
        help="export the metrics with OpenTelemetry, to OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="json: each line of standard error is an object with time, level, logger, message, and topic, partition, "
        "offset, component, task and worker if they are known",
    )
    add_ui(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="seed of shuffles and message ids")
    add_settings(parser)
    add_summary(parser, "no view and no summary")
    parser.add_argument("--channel", type=int, help=argparse.SUPPRESS)  # of a worker (downspout.run.worker_process)
    parser.set_defaults(handler=handle)


def seconds(text: str, option: str = "--for") -> float:
    """Return the seconds of an option; a bare number means seconds."""
    if (found := seconds_of(text, "s")) is None:
        raise ConfigError(f"{option} {text} is not a duration", cure="30s, 5m or 1h")
    return found


def handle(arguments: argparse.Namespace) -> int:
    """Run the topology; return the exit code."""
    from downspout.cli.terminal import log_to_stderr

    handler = None
    if arguments.log_format == "json":
        from downspout.export import json_log

        handler = json_log.install()
    log_to_stderr(arguments.quiet, handler)
    if arguments.channel is not None:
        from downspout.run.worker_process import serve

        return serve(arguments.channel, exit_code_of)
    # With --json -, prints go to standard error, where each line must be JSON too.
    prints_are_log = handler is not None and arguments.json_path == "-"
    with summary_to(arguments.json_path) as out, redirect_stdout(sys.stderr) if prints_are_log else nullcontext():
        name, result = _run(arguments)
        from downspout.spout.observe import totals_by_topic

        topics = {reader: totals_by_topic(partitions) for reader, partitions in result.partitions.items()}
        write_json(out, arguments.json_path, {"topology": name, **result.as_dict(), "topics": topics})
    return _close(result)


def _run(arguments: argparse.Namespace) -> tuple[str, RunResult]:
    """Run the topology and print a summary; return its name and result."""
    from downspout.engine.load import load
    from downspout.engine.settings import resolve

    options = _options(arguments)
    graph = load(arguments.target, arguments.topology)
    settings = resolve(graph, arguments.overrides, options=options)
    if not arguments.quiet:
        print(f"{graph.name} starts: {', '.join(graph.components)}", file=sys.stderr, flush=True)
    # Imported late: these take a third of the startup time.
    from downspout.engine.settings import dead_letter_topics
    from downspout.run.call import make_view
    from downspout.run.live_view import dead_letter_lines, summary

    view = make_view(quiet=arguments.quiet)
    try:
        result = _shown(graph, settings, arguments, view, options)
    finally:
        if view is not None:
            view.close()
    if not arguments.quiet:
        print(summary(graph.name, result), file=sys.stderr)
    dead_letters = dead_letter_lines(result, dead_letter_topics(graph, settings))
    for line in dead_letters:
        print(f"downspout: warning: {line}", file=sys.stderr)
    return graph.name, result


def _shown(
    graph: Graph, settings: Settings, arguments: argparse.Namespace, view: Any, options: dict[str, Any]
) -> RunResult:
    """Run the topology with its view, exporters and page."""
    from downspout.export.beside import beside
    from downspout.run import runner
    from downspout.run.run_snapshots import Several
    from downspout.run.start_workers import supervise
    from downspout.run.worker_process import WorkerJob

    with (
        beside(graph, settings) as (views, watches),
        _page(settings.run.values["run.ui"], graph, settings) as page,
    ):
        view = Several(view, *views, None if page is None else page.snapshots)
        if (settings.run.values["run.workers"] or 1) > 1:
            job = WorkerJob(arguments.target, arguments.topology, arguments.overrides, options)
            is_json = arguments.log_format == "json"
            how = [*(["--quiet"] if arguments.quiet else []), *(["--log-format=json"] if is_json else [])]
            return supervise(graph, settings, job, view=view, options=how, hand_on=_hand_on() if is_json else None)

        def watching(watchdog: Watchdog) -> None:
            for watch in (*watches, *([] if page is None else [page.watch])):
                watch(watchdog)

        return runner.run(graph, overrides=arguments.overrides, options=options, view=view, watching=watching)


def _hand_on() -> Callable[[int, str], None]:
    """Return the function that writes a worker's line as JSON."""
    from downspout.export.json_log import hand_on

    return hand_on


def _page(address: str | None, graph: Graph, settings: Settings) -> AbstractContextManager[RunPage | None]:
    """Serve a page with ``run.ui``; otherwise import nothing."""
    if address is None:
        return nullcontext()

    def serve() -> AbstractContextManager[RunPage]:
        from downspout.web.page import served

        return served(graph, settings, address)

    return shown(serve, "the run")


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings given by options."""
    return {
        "run.until": arguments.until,
        "run.for_s": None if arguments.for_s is None else seconds(arguments.for_s),
        "run.records": arguments.records,
        "run.workers": arguments.workers,
        "run.member": arguments.member,
        "run.redeploy": arguments.redeploy,
        "run.seed": arguments.seed,
        "run.metrics_port": arguments.metrics_port,
        "run.metrics_host": arguments.metrics_host,
        "run.otel": arguments.otel,
        "run.ui": arguments.ui,
    }


def exit_code_of(result: RunResult) -> int:
    """Return the exit code of a run that ended without an error."""
    if result.uncommitted:
        return BrokerError.exit_code
    if result.signal is not None:
        return 128 + result.signal
    return ComponentError.exit_code if result.not_retried else 0


def _close(result: RunResult) -> int:
    """Report a signal, a failed commit or lost tuples; return the exit code."""
    how = f"stopped by {signal.Signals(result.signal).name}" if result.signal is not None else ""
    if result.uncommitted:
        how = f"{how}; " if how else ""
        what = " and ".join(f"{counted(count, 'record')} of {spout}" for spout, count in result.uncommitted.items())
        again = "are not committed and will be processed again at the next start"
        complain(f"{how}the last commit failed: {what} {again}")
    elif result.signal is not None:
        flying = f"with {counted(result.in_flight, 'tuple')} in flight, to be processed again at the next start"
        end = flying if result.in_flight else "at once"
        if result.drained:
            end = "at once, with nothing in flight" if result.reason == "aborted" else "after a clean drain"
        if result.retry_later:
            end += f"; {counted(result.retry_later, 'failed record')} will be tried again at the next start"
        print(f"downspout: {how} {end}", file=sys.stderr)
    if result.not_retried:
        count = counted(result.not_retried, "tuple")
        complain(
            f"{count} failed and will not be tried again, because no spout emitted them with an id. "
            "Try: correct the bolt, and let the spout emit with tup_id=... and emit again what fails"
        )
    return exit_code_of(result)


@contextmanager
def summary_to(path: str | None) -> Iterator[TextIO]:
    """Yield standard output, reserved for the summary with ``--json -``; otherwise check that its file is writable."""
    if path and path != "-":
        check_writable("--json", path)
    with aside(wanted=path == "-") as out:
        try:
            yield out
        except DownspoutError as error:
            # An error that ends the run is written too, so that readers of the JSON always find an object.
            write_json(out, path, error.as_dict())
            raise


def write_json(out: TextIO, path: str | None, summary: dict[str, Any]) -> None:
    """Write a summary to the file of ``--json``; - is standard output."""
    text = json.dumps(summary, indent=2, default=str)
    if path == "-":
        print_result(text, out)
    elif path:
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise ConfigError(f"--json {path}: {error.strerror}", cure="a path that can be written, or -") from None
