"""``downspout audit``: is every record in the files exactly once, and if not, why not?"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, open_cluster
from downspout.cli.arguments import add_settings
from downspout.cli.output import aside, tell
from downspout.errors import ConfigError
from downspout.wording import counted

if TYPE_CHECKING:
    from downspout.cli.audit_apart import ReplayApart
    from downspout.kafka.port import Cluster
    from downspout.parquet.audit import AuditReport, Window

COLUMNS = ("partition", "offsets", "rows", "present", "filtered", "dead_lettered", "compacted", "replayed",
           "missing", "duplicate", "lost", "extra")  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit",
        help="is every record in the files exactly once?",
        description="Compares a sink's directory with Kafka, offset by offset, and explains each difference.",
        epilog="Exit codes: 0 exact; 10 missing: a record without its row; 11 duplicate: a row more than once; "
        "12 lost: Kafka dropped records before they were processed; 13 extra: rows or files that log, Kafka or "
        "topology do not know. Several: the first of these. 4 no broker; 7 the directory's log is damaged.",
    )
    parser.add_argument("directory", metavar="DIR", help="what parquet.directory says")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        help="a topic that should be in it (default: those named there, and those that --topology reads)",
    )
    add_access(parser)
    parser.add_argument("--files-only", action="store_true", help="do not ask Kafka: compare files and log")
    parser.add_argument(
        "--topology",
        metavar="FILE",
        help="run its bolts, as they are now, again on records: on those without a row (filtered or missing?), and on "
        "the first of each partition, or on all where a record may have several rows (is a row extra?)",
    )
    parser.add_argument("--class", dest="topology_class", metavar="NAME", help="which class, where FILE holds several")
    add_settings(parser, "a setting that the topology was run with")
    parser.add_argument("--dead-letters", metavar="TOPIC", help="the dead-letter topic (default: --topology's)")
    parser.add_argument("--from", dest="start", metavar="OFFSET", help="first offset: 100, or by partition 0:100,1:250")
    parser.add_argument(
        "--to", dest="end", metavar="OFFSET", help="offset after the last one, likewise (default: the end)"
    )
    parser.add_argument(
        "--group", help="end at this consumer group's commits instead of the end: for a topology that is running"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the report as JSON; ranges of offsets are [first, end), `reasons` are why --topology fails on them",
    )
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Audit, print, and return the exit code."""
    if arguments.files_only and arguments.group:
        raise ConfigError("--group needs Kafka, and --files-only forbids it", cure="one of the two")
    with aside(wanted=bool(arguments.topology)) as out:  # what its file and its bolts print is no part of the report
        report = _audit(arguments)
        tell(json.dumps(report.as_dict(), indent=2) if arguments.json else render(report), out)
    return report.exit_code


def _audit(arguments: argparse.Namespace) -> AuditReport:
    """Ask Kafka, run the topology again, and compare."""
    from downspout.parquet.audit import REPLAY_SAMPLE, audit

    cluster = None if arguments.files_only else open_cluster(arguments)
    letters = arguments.dead_letters
    if cluster is not None and letters and not existing(cluster, [letters]):
        raise ConfigError(
            f"--dead-letters {letters}: there is no such topic",
            cure="mostly GROUP.dead-letters; a run names it in its last lines",
        )
    with _replay(arguments) as replay:
        read: Sequence[str] = ()
        if replay is not None and cluster is not None:
            letters = letters or existing(cluster, replay.dead_letters)
            read = [*replay.topics, *matching(cluster, replay)]
        report = audit(
            arguments.directory,
            cluster=cluster,
            topics=arguments.topic,
            also=read,
            dead_letters=letters,
            replay=replay,
            windows=parse_windows(arguments.start, arguments.end),
            group=arguments.group,
            sample=REPLAY_SAMPLE,
            several=replay is not None and replay.several,
        )
    if replay is None and report.kafka and report.count("missing"):
        report.hint = "(records that yield no row by design show as missing: add --topology FILE)"
    return report


@contextmanager
def _replay(arguments: argparse.Namespace) -> Iterator[ReplayApart | None]:
    """Give what runs the topology again; it ends with the context."""
    if not arguments.topology:
        yield None
        return
    from downspout.cli.audit_apart import ReplayApart

    overrides = _with_group(arguments.overrides, arguments.group)
    replay = ReplayApart(
        arguments.topology, Path(arguments.directory), topology=arguments.topology_class, overrides=overrides
    )
    with closing(replay):
        yield replay


def _with_group(overrides: Sequence[str], group: str | None) -> list[str]:
    """Return the settings that the topology was run with: the group whose commits are asked for is its own.

    >>> _with_group(["parquet.directory=x"], "g"), _with_group(["spout:kafka.group=h"], "g")
    (['parquet.directory=x', 'kafka.group=g'], ['spout:kafka.group=h'])
    """
    named = any(given.partition("=")[0].rpartition(":")[2].strip() == "kafka.group" for given in overrides)
    return [*overrides, *([f"kafka.group={group}"] if group and not named else [])]


def existing(cluster: Cluster, topics: Sequence[str]) -> list[str]:
    """Return the topics that exist."""
    from downspout.parquet.audit_kafka import KafkaSide

    side = KafkaSide(cluster)
    try:
        return [topic for topic in topics if side.logs(topic)]
    finally:
        side.close()


def matching(cluster: Cluster, replay: ReplayApart) -> list[str]:
    """Return the topics that the topology's patterns match now; its own dead letters and Kafka's topics are none."""
    if not replay.patterns:
        return []
    from downspout.parquet.audit_kafka import KafkaSide

    side = KafkaSide(cluster)
    try:
        names = [name for name in side.topics() if name not in replay.dead_letters]
    finally:
        side.close()
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in replay.patterns)]


def parse_windows(start: str | None, end: str | None) -> dict[int | None, Window]:
    """Return the offsets to audit, by partition; None is for those that are not named.

    >>> parse_windows("0:100,1:250", "1000")[1]
    Window(start=250, end=1000)

    Raises:
        ConfigError: they are not offsets.
    """
    from downspout.parquet.audit import Window

    starts, ends = parse_offset_list("--from", start), parse_offset_list("--to", end)
    for partition, to in ends.items():
        if to is not None and to < (begin := starts.get(partition, starts.get(None, 0))):
            raise ConfigError(f"--to {to} is before --from {begin}", cure="the offset after the last one")
    return {
        partition: Window(starts.get(partition, starts.get(None, 0)), ends.get(partition, ends.get(None)))
        for partition in {None, *starts, *ends}
    }


def parse_offset_list(option: str, text: str | None) -> dict[int | None, int]:
    """Return offsets by partition (``0:100,1:250``); None is for those that are not named (``100``).

    Raises:
        ConfigError: they are not offsets.
    """
    found: dict[int | None, int] = {}
    for part in (text or "").split(",") if text else ():
        partition, colon, offset = part.strip().rpartition(":")
        if not offset.isdecimal() or (colon and not partition.isdecimal()):
            raise ConfigError(f"{option} {text}: {part!r} is no offset", cure="100, or 0:100,1:250")
        found[int(partition) if colon else None] = int(offset)
    return found


def render(report: AuditReport) -> str:
    """Return the report for people: a line per partition, what is odd, and the verdict last."""
    lines = [
        f"{report.directory}: {counted(report.found.row_count, 'row')} in {counted(report.found.file_count, 'file')}"
    ]
    table = [[name.replace("_", "-") for name in COLUMNS]]
    for part in report.partitions:
        window = f"{part.start:,}–" if part.end is None else f"{part.start:,}–{part.end:,}"
        counts = [f"{part.count(kind):,}" for kind in COLUMNS[4:]]
        table.append([f"{part.topic}[{part.partition}]", window, f"{part.rows:,}", f"{part.present:,}", *counts])
    shown = [0, 1, 2, 3] + [i for i in range(4, len(COLUMNS)) if any(row[i] != "0" for row in table[1:])]
    widths = {i: max(len(row[i]) for row in table) for i in shown}
    if report.partitions:
        lines += [
            "  " + "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in shown[1:])]) for row in table
        ]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join([*lines, report.verdict])
