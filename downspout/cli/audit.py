"""``downspout audit``: check that every record is in the files exactly once, and explain differences."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from downspout.cli.access import add_access, open_cluster
from downspout.cli.arguments import add_settings, exit_codes, sink_place
from downspout.cli.terminal import aside, print_result
from downspout.errors import BrokerError, ConfigError
from downspout.formatting import columns, counted

if TYPE_CHECKING:
    from pathlib import Path

    from downspout.audit.audit import AuditReport, AuditWindow
    from downspout.audit.replays import ReplayApart
    from downspout.kafka.port import Cluster
    from downspout.sink.notes import Run

COLUMNS = ("partition", "offsets", "rows", "present", "filtered", "dead_lettered", "late", "skipped", "compacted",
           "replayed", "missing", "duplicate", "lost", "extra")  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "audit",
        help="check that every record is in the files exactly once",
        description="Compare a sink's directory with Kafka, offset by offset, and explain each difference.",
        epilog=exit_codes(
            _0="exact",
            _4="no broker",
            _7="the directory's log is damaged",
            _10="missing: a record without its row",
            _11="duplicate: a row more than once",
            _12="lost: Kafka dropped records before they were processed",
            _13="extra: rows or files unknown to the log, Kafka or the topology. Of 10 to 13, the lowest that applies "
            "is returned",
        ),
    )
    parser.add_argument("directory", type=sink_place, metavar="DIR", help="the sink's directory (parquet.directory)")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        help="a topic that the directory must contain (default: those in its log, and those that --topology reads); "
        "may be repeated",
    )
    add_access(parser)
    parser.add_argument("--files-only", action="store_true", help="compare only the files and the log, without Kafka")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="read all files whole and compare them with the hashes in the log, to find changed values",
    )
    parser.add_argument(
        "--topology",
        metavar="FILE",
        help="run the bolts of this topology again, side effects included: on records without a row, to tell filtered "
        "from missing records, and on some records with rows, to find extra rows; without this option, an audit runs "
        "no component",
    )
    parser.add_argument(
        "--class", dest="topology_class", metavar="NAME", help="name of the class, if FILE holds several"
    )
    add_settings(parser, "a setting that the topology was run with; may be repeated")
    parser.add_argument(
        "--dead-letters", metavar="TOPIC", help="the dead-letter topic (default: those recorded by the runs)"
    )
    parser.add_argument(
        "--late",
        type=sink_place,
        metavar="DIR",
        help="the directory with the rows of the stream `late`: records with a row there count as late, not as missing",
    )
    parser.add_argument("--from", dest="start", metavar="OFFSET", help="first offset: 100, or 0:100,1:250 by partition")
    parser.add_argument(
        "--to", dest="end", metavar="OFFSET", help="offset after the last one, in the same form (default: the end)"
    )
    parser.add_argument("--group", help="stop at the commits of this consumer group, for a topology that is running")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the report as JSON; offset ranges are [first, end), and `reasons` say why --topology fails on them",
    )
    parser.set_defaults(handler=handle)


def handle(arguments: argparse.Namespace) -> int:
    """Audit, print, and return the exit code."""
    if arguments.files_only and arguments.group:
        raise ConfigError("--group needs Kafka, which --files-only does not use", cure="one of the two")
    if arguments.files_only and arguments.late:
        raise ConfigError("--late needs Kafka, which --files-only does not use", cure="one of the two")
    with aside(wanted=bool(arguments.topology)) as out:  # keeps output of its file and bolts out of the report
        report = _audit(arguments)
        print_result(json.dumps(report.as_dict(), indent=2) if arguments.json else render(report), out)
    return report.exit_code


def _audit(arguments: argparse.Namespace) -> AuditReport:
    """Compare the directory with Kafka, and with a replay of the topology if requested."""
    from downspout.audit.audit import REPLAY_SAMPLE, directory_that_exists
    from downspout.audit.expected import dead_letters_of, noted_run

    directory = directory_that_exists(arguments.directory)
    run = noted_run(directory)
    cluster = None if arguments.files_only else open_cluster(arguments, run.access)
    dead_letters = _dead_letters(arguments.dead_letters, cluster)
    if cluster is not None and not dead_letters:
        dead_letters = existing(cluster, dead_letters_of(directory, run, arguments.group))
    if arguments.topology:
        with _replay(arguments, arguments.topology, arguments.topology_class, run) as replay:
            if cluster is not None and not dead_letters:
                dead_letters = existing(cluster, replay.dead_letters)
            read = [*replay.topics, *matching(cluster, replay)] if cluster is not None else []
            return _compare(
                arguments, cluster, dead_letters, also=read, replay=replay, sample=REPLAY_SAMPLE,
                several=replay.several, read_back=replay.read_back,
            )  # fmt: skip
    group, commits = _commits(arguments, cluster, directory, run)  # before the files are read: these hold all below
    report = _compare(arguments, cluster, dead_letters, also=run.topics if cluster is not None else [])
    if report.kafka and (missing := report.count("missing")):
        file = run.file or "FILE"
        if beyond := report.missing_beyond(commits) if commits else 0:
            which = "they are" if beyond == missing else f"{beyond:,} of those missing are"
            report.hint = f"({which} beyond the commits of group {group}, so they may be still to process: --group "
            report.hint += f"{group} leaves them out) "
        if beyond == missing:
            report.hint = report.hint.strip()
            return report
        report.hint += (
            f"(those that yield no row by design count as missing; --topology {file} tells them apart: it runs the "
            "topology's bolts on them again)"
        )
        if report.found.aggregates and arguments.late is None:
            report.hint += " (with parquet.late=stream, --late DIR finds the rows that were late)"
    return report


def _commits(
    arguments: argparse.Namespace, cluster: Cluster | None, directory: Path, run: Run
) -> tuple[str, Mapping[tuple[str, int], int]]:
    """Return the group that writes to a directory, and its commits; none if they are unknown."""
    from downspout.audit.kafka import committed

    if cluster is None or arguments.group or len(run.groups) != 1:
        return "", {}
    try:
        return run.groups[0], committed(cluster, run.groups[0], directory, arguments.topic, run.topics)
    except BrokerError:
        return "", {}


def _dead_letters(given: str | None, cluster: Cluster | None) -> list[str]:
    """Return the dead-letter topic given by the user, which must exist."""
    if cluster is not None and given and not existing(cluster, [given]):
        raise ConfigError(
            f"--dead-letters {given}: there is no such topic",
            cure="usually GROUP.dead-letters; the summary of a run names it",
        )
    return [given] if given else []


def _compare(
    arguments: argparse.Namespace, cluster: Cluster | None, dead_letters: Sequence[str], **options: Any
) -> AuditReport:
    """Audit with the arguments and these options."""
    from downspout.audit.audit import audit

    return audit(
        arguments.directory,
        cluster=cluster,
        topics=arguments.topic,
        dead_letters=dead_letters,
        windows=parse_windows(arguments.start, arguments.end),
        group=arguments.group,
        late=arguments.late,
        deep=arguments.deep,
        **options,
    )


@contextmanager
def _replay(arguments: argparse.Namespace, file: str, topology_class: str | None, run: Run) -> Iterator[ReplayApart]:
    """Yield a process that replays the topology."""
    from downspout.audit.replays import ReplayApart
    from downspout.testing.harness import run_on_records

    overrides = _with_group(arguments.overrides, arguments.group)
    replay = ReplayApart(
        file, arguments.directory, run_on_records, topology=topology_class, overrides=overrides, run=run
    )
    with closing(replay):
        yield replay


def _with_group(overrides: Sequence[str], group: str | None) -> list[str]:
    """Return the settings of the topology, in which ``--group`` is its ``kafka.group``.

    >>> _with_group(["parquet.directory=x"], "g"), _with_group(["spout:kafka.group=h"], "g")
    (['parquet.directory=x', 'kafka.group=g'], ['spout:kafka.group=h'])
    """
    named = any(given.partition("=")[0].rpartition(":")[2].strip() == "kafka.group" for given in overrides)
    return [*overrides, *([f"kafka.group={group}"] if group and not named else [])]


def existing(cluster: Cluster, topics: Sequence[str]) -> list[str]:
    """Return the topics that exist."""
    from downspout.audit.kafka import KafkaSide

    with closing(KafkaSide(cluster)) as side:
        return [topic for topic in topics if side.logs(topic)]


def matching(cluster: Cluster, replay: ReplayApart) -> list[str]:
    """Return the topics that the topology's patterns match now, except its dead letters and Kafka's own topics."""
    if not replay.patterns:
        return []
    from downspout.audit.kafka import KafkaSide

    with closing(KafkaSide(cluster)) as side:
        names = [name for name in side.topics() if name not in replay.dead_letters]
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in replay.patterns)]


def parse_windows(start: str | None, end: str | None) -> dict[int | None, AuditWindow]:
    """Return the offsets to audit, by partition; those of None apply to all others.

    >>> parse_windows("0:100,1:250", "1000")[1]
    AuditWindow(start=250, end=1000)
    """
    from downspout.audit.audit import AuditWindow

    starts, ends = parse_offset_list("--from", start), parse_offset_list("--to", end)
    for partition, to in ends.items():
        if to is not None and to < (begin := starts.get(partition, starts.get(None, 0))):
            raise ConfigError(f"--to {to} is before --from {begin}", cure="the offset after the last one")
    return {
        partition: AuditWindow(starts.get(partition, starts.get(None, 0)), ends.get(partition, ends.get(None)))
        for partition in {None, *starts, *ends}
    }


def parse_offset_list(option: str, text: str | None) -> dict[int | None, int]:
    """Return offsets by partition (``0:100,1:250``), or under None for all partitions (``100``)."""
    found: dict[int | None, int] = {}
    for part in (text or "").split(",") if text else ():
        partition, colon, offset = part.strip().rpartition(":")
        if not offset.isdecimal() or (colon and not partition.isdecimal()):
            raise ConfigError(f"{option} {text}: {part!r} is not an offset", cure="100, or 0:100,1:250")
        found[int(partition) if colon else None] = int(offset)
    return found


def render(report: AuditReport) -> str:
    """Return the report as text: a line per partition, the differences, and the verdict."""
    lines = [
        f"{report.directory}: {counted(report.found.row_count, 'row')} in {counted(report.found.file_count, 'file')}"
    ]
    table = [[name.replace("_", "-") for name in COLUMNS]]
    for part in report.partitions:
        window = f"{part.start:,}–" if part.end is None else f"{part.start:,}–{part.end:,}"
        counts = [f"{part.count(kind):,}" for kind in COLUMNS[4:]]
        table.append([f"{part.topic}[{part.partition}]", window, f"{part.rows:,}", f"{part.present:,}", *counts])
    shown = [0, 1, 2, 3] + [i for i in range(4, len(COLUMNS)) if any(row[i] != "0" for row in table[1:])]
    if report.partitions:
        rows = [[row[i] for i in shown] for row in table]
        lines += [f"  {line}" for line in columns(rows, range(1, len(shown)))]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join([*lines, report.verdict])
