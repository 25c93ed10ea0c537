"""``downspout spark``: run topologies on Spark."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli.arguments import (
    RUN_CODES,
    add_actions,
    add_bounds,
    add_requirements,
    add_settings,
    add_summary,
    add_topology,
    add_ui,
    exit_codes,
    place,
    positive,
)
from downspout.cli.terminal import shown
from downspout.errors import ConfigError
from downspout.formatting import counted

if TYPE_CHECKING:
    from downspout.engine.graph import Graph
    from downspout.engine.settings import Settings
    from downspout.spark.topology.batch_commit import CommittedBatch
    from downspout.spark.topology.query import SparkRun
    from downspout.web.spark import SparkPage


def add_parser(commands: Any) -> None:
    """Add the command with its subcommands."""
    parser = commands.add_parser("spark", help="run a topology on Spark", description="Run topologies on Spark.")
    actions = add_actions(parser)
    _add_run(actions)
    add_cluster_parsers(actions)


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
    """Run the query; return the exit code."""
    from downspout.cli.run import seconds, summary_to, write_json
    from downspout.cli.terminal import log_to_stderr
    from downspout.engine.load import load
    from downspout.engine.settings import dead_letter_topics, resolve
    from downspout.spark import check_pyspark

    check_pyspark()
    from downspout.spark.topology.driver import RECORDS_PER_BATCH, run

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
    """Serve a page with ``--ui``; otherwise import nothing."""
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
    """Print the progress of a batch."""
    if done.records:
        rate = done.records / max(done.seconds, 0.001)
        dead = f", {done.dead_lettered:,} dead-lettered" if done.dead_lettered else ""
        print(
            f"batch {done.number}: {counted(done.records, 'record')} in {done.seconds:.1f} s ({rate:,.0f}/s){dead}",
            file=sys.stderr,
        )


def _close(name: str, done: SparkRun, topics: Mapping[str, str], *, quiet: bool) -> int:
    from downspout.run.live_view import dead_letter_lines, summary

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


# --- clusters ---


def add_cluster_parsers(actions: Any) -> None:
    """Add ``bundle`` and ``submit``."""
    bundle = actions.add_parser(
        "bundle",
        help="pack all packages that executors import into an archive",
        description="Pack Downspout, its dependencies as installed here, and this project's spouts/, bolts/, "
        "topologies/ and src/ into one archive for Spark's executors. Python and PySpark are not in it.",
        epilog=exit_codes(),
    )
    bundle.add_argument(
        "topology",
        nargs="?",
        type=place,
        metavar="TOPOLOGY",
        help="file of the topology, which gives the archive its name; virtualenvs/NAME.txt is packed too",
    )
    add_requirements(bundle)
    bundle.add_argument(
        "--add",
        dest="added",
        action="append",
        default=[],
        type=place,
        metavar="PATH",
        help="also pack this file or folder of the project; may be repeated",
    )
    bundle.add_argument("-o", "--output", type=place, metavar="FILE", help="name of the archive (default: NAME.tar.gz)")
    bundle.set_defaults(handler=_bundle)
    submit = actions.add_parser(
        "submit",
        help="run a topology on a Spark cluster, with spark-submit",
        usage="downspout spark submit TOPOLOGY --master URL [--bundle FILE] [--python NAME] "
        "[options of `downspout spark run`] [-- options of spark-submit]",
        description="Run `downspout spark run` with PySpark's spark-submit. The driver is this machine.",
        epilog=exit_codes(*RUN_CODES, 9),
    )
    _add_own(submit)
    submit.add_argument("arguments", nargs=argparse.REMAINDER, metavar="TOPOLOGY …", help=argparse.SUPPRESS)
    submit.set_defaults(handler=_submit)


def _add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", metavar="URL", help="address of the cluster: spark://host:7077")
    parser.add_argument(
        "--bundle",
        type=place,
        metavar="FILE",
        help="archive of `downspout spark bundle`; without it, executors must have all packages installed",
    )
    parser.add_argument("--python", metavar="NAME", help="name of the Python program on this machine and the workers")


def _bundle(arguments: argparse.Namespace) -> int:
    from downspout.engine.load import component_modules
    from downspout.spark import submit
    from downspout.system.packaging import requirements

    topology: Path | None = arguments.topology
    if topology is not None and not topology.is_file():
        raise ConfigError(f"{topology} does not exist", cure="the path of a topology's .py file")
    project = Path() if topology is None else topology.resolve().parent.parent
    name = project.resolve().name if topology is None else topology.stem
    target = arguments.output or Path(f"{name}.tar.gz")
    modules = [] if topology is None else component_modules(str(topology))
    extra = [*requirements(project, name), *arguments.extra]
    packed = submit.write_bundle(target, project, extra=extra, added=arguments.added, modules=modules)
    print(f"{target}: {counted(len(packed), 'distribution')}, {target.stat().st_size / 1e6:,.0f} MB")
    print(f"Run it: downspout spark submit {topology or 'TOPOLOGY'} --master spark://HOST:7077 --bundle {target}")
    return 0


def _submit(arguments: argparse.Namespace) -> int:
    from downspout.spark import submit

    own, run, spark_options = split(arguments)
    if own.master is None:
        raise ConfigError("--master is missing: the address of the cluster", cure="--master spark://HOST:7077")
    name = _checked(run)
    script = Path(__file__).with_name("submitted.py")
    words = submit.command(script, run, name=name, master=own.master, bundle=own.bundle, spark_options=spark_options)
    return submit.run(words, submit.environment(own.python))


def split(arguments: argparse.Namespace) -> tuple[argparse.Namespace, list[str], list[str]]:
    """Return our own options, the arguments of ``downspout spark run``, and spark-submit's options."""
    rest: list[str] = arguments.arguments
    cut = rest.index("--") if "--" in rest else len(rest)
    # Ours may come before the topology or anywhere after it, up to ``--``.
    parser = argparse.ArgumentParser(prog="downspout spark submit", add_help=False, allow_abbrev=False)
    _add_own(parser)
    before = {key: getattr(arguments, key) for key in ("master", "bundle", "python")}
    own, run = parser.parse_known_args(rest[:cut], argparse.Namespace(**before))
    return own, run, rest[cut + 1 :]


def _checked(run: Sequence[str]) -> str:
    """Return the topology's name; reject arguments that ``downspout spark run`` would refuse, before Spark starts."""
    from downspout.cli import build_parser

    target = build_parser().parse_args(["spark", "run", *run]).target
    return Path(target.partition(":")[0]).stem if target.endswith(".py") else target
