"""``downspout run``: a topology in one process, or in several on this machine."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from downspout.cli.arguments import add_bounds, add_settings, add_summary, add_topology
from downspout.cli.output import aside, check_writable, tell
from downspout.errors import BrokerError, ConfigError
from downspout.wording import counted

if TYPE_CHECKING:
    from downspout.local.result import RunResult

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="run a topology in this process, or in several",
        description="Runs a streamparse topology in this process; with --workers in several that share its Kafka "
        "partitions. Ctrl-C lets it finish what is in flight; a second Ctrl-C stops it at once.",
        epilog="Exit codes: 0 done; 130 stopped by Ctrl-C and 143 by SIGTERM (after a clean drain); 2 the topology or "
        "a setting is wrong; 4 no broker, or the last commit failed; 6 lost data; 7 the sink cannot write; "
        "8 a component failed.",
    )
    add_topology(parser)
    add_bounds(parser)
    parser.add_argument("--records", type=int, metavar="N", help="stop once at least this many tuple trees are done")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="run in N processes, which share the partitions; who dies is restarted"
    )
    parser.add_argument(
        "--member", type=int, metavar="N", help="number of this process, where several run one topology"
    )
    parser.add_argument("--redeploy", action="store_true", default=None, help="renew the topology id")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of shuffles")
    add_settings(parser)
    add_summary(parser, "no view and no summary")
    parser.add_argument("--channel", type=int, help=argparse.SUPPRESS)  # how a worker is started (downspout.workers)
    parser.set_defaults(handler=handle)


def seconds(text: str) -> float:
    """Return a duration in seconds.

    >>> seconds("30s"), seconds("1.5m"), seconds("200ms"), seconds("5")
    (30.0, 90.0, 0.2, 5.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|)\s*", text)
    if not found:
        raise ConfigError(f"--for {text} is no duration", cure="30s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def handle(arguments: argparse.Namespace) -> int:
    """Run, show, sum up."""
    from downspout.cli.logs import log_to_stderr
    from downspout.workers.serve import serve

    log_to_stderr(arguments.quiet)
    if arguments.channel is not None:
        return serve(arguments.channel, _exit_code)
    with summary_to(arguments.json_path) as out:
        name, result = _run(arguments)
        write_json(out, arguments.json_path, {"topology": name, **result.as_dict()})
    return _close(result)


def _run(arguments: argparse.Namespace) -> tuple[str, RunResult]:
    """Run the topology and sum up; return its name and what came of it."""
    from downspout.local import live, runner
    from downspout.local.load import load
    from downspout.local.settings import resolve
    from downspout.workers.channel import Job
    from downspout.workers.supervise import supervise

    options = _options(arguments)
    view = live.make_view(quiet=arguments.quiet)
    graph = load(arguments.target, arguments.topology)
    settings = resolve(graph, arguments.overrides, options=options)
    try:
        if (settings.run.values["run.workers"] or 1) > 1:
            job = Job(arguments.target, arguments.topology, arguments.overrides, options)
            result = supervise(graph, settings, job, view=view, quiet=arguments.quiet)
        else:
            result = runner.run(graph, overrides=arguments.overrides, options=options, view=view)
    finally:
        if view is not None:
            view.close()
    if not arguments.quiet:
        print(live.summary(graph.name, result), file=sys.stderr)
    letters = live.dead_letter_lines(result, runner.dead_letter_topics(graph, arguments.overrides, options))
    for line in letters:
        print(f"downspout: warning: {line}", file=sys.stderr)
    return graph.name, result


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that have an option of their own."""
    return {
        "run.until": arguments.until,
        "run.for_s": None if arguments.for_s is None else seconds(arguments.for_s),
        "run.records": arguments.records,
        "run.workers": arguments.workers,
        "run.member": arguments.member,
        "run.redeploy": arguments.redeploy,
        "run.seed": arguments.seed,
    }


def _exit_code(result: RunResult) -> int:
    """Return how a run that has ended in order counts."""
    if result.uncommitted:
        return BrokerError.exit_code
    return 0 if result.signal is None else 128 + result.signal


def _close(result: RunResult) -> int:
    """Say how the run ended, where that is not simply at its end; return the exit code."""
    how = f"stopped by {signal.Signals(result.signal).name}" if result.signal is not None else ""
    if result.uncommitted:
        how = f"{how}; " if how else ""
        what = " and ".join(f"{counted(count, 'record')} of {spout}" for spout, count in result.uncommitted.items())
        again = "are not committed and will be processed again at the next start"
        print(f"downspout: {how}the last commit failed: {what} {again}", file=sys.stderr)
    elif result.signal is not None:
        flying = f"with {counted(result.in_flight, 'tuple')} in flight, to be processed again at the next start"
        end = flying if result.in_flight else "at once"
        if result.drained:
            end = "at once, with nothing in flight" if result.reason == "aborted" else "after a clean drain"
        if result.retry_later:
            end += f"; {counted(result.retry_later, 'failed record')} will be tried again at the next start"
        print(f"downspout: {how} {end}", file=sys.stderr)
    return _exit_code(result)


@contextmanager
def summary_to(path: str | None) -> Iterator[TextIO]:
    """Give standard output, which is the summary's alone where ``--json`` says -; or look whether its file can be."""
    if path and path != "-":
        check_writable("--json", path)
    with aside(wanted=path == "-") as out:
        yield out


def write_json(out: TextIO, path: str | None, summary: dict[str, Any]) -> None:
    """Write a summary where ``--json`` says; - is standard output."""
    text = json.dumps(summary, indent=2, default=str)
    if path == "-":
        tell(text, out)
    elif path:
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise ConfigError(f"--json {path}: {error.strerror}", cure="a path that can be written, or -") from None
