"""``downspout spark``: topologies on Spark."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from downspout.cli import spark_cluster
from downspout.cli.arguments import (
    RUN_CODES,
    add_actions,
    add_bounds,
    add_settings,
    add_summary,
    add_topology,
    add_ui,
    exit_codes,
    place,
    positive,
)
from downspout.cli.output import shown
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.engine.graph import Graph
    from downspout.engine.settings import Settings
    from downspout.spark.topology import SparkRun
    from downspout.spark.topology.driver.batches import CommittedBatch
    from downspout.web.spark import SparkPage


def add_parser(commands: Any) -> None:
    """Add the command and what it can do."""
    parser = commands.add_parser("spark", help="run a topology on Spark", description="Run topologies on Spark.")
    actions = add_actions(parser)
    _add_run(actions)
    spark_cluster.add_parsers(actions)


def _add_run(actions: Any) -> None:
    parser = actions.add_parser(
        "run",
        help="run a topology as a streaming query",
        description="Run a streamparse topology, with unmodified bolts, as a streaming query of PySpark. Ctrl-C lets "
        "the current batch finish; a second Ctrl-C stops at once, and the next run processes that batch again.",
        epilog=exit_codes(*RUN_CODES, 9),
    )
    add_topology(parser)
    add_bounds(parser)
    parser.add_argument(
        "--checkpoint", type=place, metavar="DIR", help="checkpoint of the query (.downspout/spark/NAME)"
    )
    parser.add_argument("--master", metavar="URL", help="master of the Spark session: local[2], spark://host:7077")
    parser.add_argument(
        "--trigger", metavar="TIME", default="0s", help="time from the start of one batch to the next (0s: no pause)"
    )
    parser.add_argument("--records-per-batch", type=positive, metavar="N", help="most records of one batch (500000)")
    add_ui(parser)
    add_settings(parser)
    add_summary(parser, "no progress and no summary")
    parser.set_defaults(handler=handle_run)


def handle_run(arguments: argparse.Namespace) -> int:
    """Run, show, sum up."""
    from downspout.cli.logs import log_to_stderr
    from downspout.cli.run import seconds, summary_to, write_json
    from downspout.engine.load import load
    from downspout.engine.settings import dead_letter_topics, resolve
    from downspout.spark import check_pyspark

    check_pyspark()
    from downspout.spark.topology.driver.run import RECORDS_PER_BATCH, run

    log_to_stderr(arguments.quiet)
    with summary_to(arguments.json_path) as out:
        graph = load(arguments.target, arguments.topology)
        options = {
            "run.until": arguments.until,
            "run.for_s": None if arguments.for_s is None else seconds(arguments.for_s),
        }
        settings = resolve(graph, arguments.overrides, options=options)
        with _page(arguments.ui, graph, settings) as page:
            done = run(
                graph,
                master=arguments.master,
                overrides=arguments.overrides,
                options=options,
                checkpoint=arguments.checkpoint,
                trigger_s=seconds(arguments.trigger, "--trigger"),
                records_per_batch=arguments.records_per_batch or RECORDS_PER_BATCH,
                on_batch=None if arguments.quiet else _show_batch,
                report=None if arguments.quiet else _say,
                watching=None if page is None else page.watch,
            )
        summary = {"batches": done.batches, "computed_again": done.computed_again, "checkpoint": str(done.checkpoint)}
        write_json(out, arguments.json_path, {"topology": graph.name, **summary, **done.result.as_dict()})
    return _close(graph.name, done, dead_letter_topics(graph, settings), quiet=arguments.quiet)


def _page(address: str | None, graph: Graph, settings: Settings) -> AbstractContextManager[SparkPage | None]:
    """With ``--ui`` serve a page; without, import nothing."""
    if address is None:
        return nullcontext()

    def serve() -> AbstractContextManager[SparkPage]:
        from downspout.web.page import serving
        from downspout.web.spark import SparkPage

        return serving(SparkPage(graph, settings, address))

    return shown(serve, "the run")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _show_batch(done: CommittedBatch) -> None:
    """Print what a batch did."""
    if done.records:
        rate = done.records / max(done.seconds, 0.001)
        dead = f", {done.dead_lettered:,} dead-lettered" if done.dead_lettered else ""
        print(
            f"batch {done.number}: {counted(done.records, 'record')} in {done.seconds:.1f} s ({rate:,.0f}/s){dead}",
            file=sys.stderr,
        )


def _close(name: str, done: SparkRun, topics: Mapping[str, str], *, quiet: bool) -> int:
    from downspout.run.live import dead_letter_lines, summary

    result = done.result
    if not quiet:
        print(summary(name, result), file=sys.stderr)
        again = f", computed again {counted(done.computed_again, 'time')}" if done.computed_again else ""
        print(f"  {counted(done.batches, 'batch', 'batches')}{again}; checkpoint {done.checkpoint}", file=sys.stderr)
    for line in dead_letter_lines(result, topics):
        print(f"downspout: warning: {line}", file=sys.stderr)
    if result.signal is None:
        return 0
    how = "after the batch that was under way" if result.reason == "signal" else "at once"
    print(f"downspout: stopped by {signal.Signals(result.signal).name} {how}", file=sys.stderr)
    return 128 + result.signal
