"""Before a run: has the group moved on without the sink's directory?

Somebody restores a copy of the directory that is older than the group's commit. The run would go on at the commit, and
what lies between the copy and the commit would never be written, without a word, until retention takes it.

A record below the commit may well have no row: it was filtered, dead-lettered, compacted away or a marker. Neither the
log nor the commit tells these apart, so the topology is asked, as an audit asks it: of the records that the log does
not cover, the first ones are run again, and only those of which it makes rows count. In a directory that has all its
rows and no filtered records near its end, there is nothing to run, and this costs a few requests to the broker.

A directory without any row was deleted, or is another one: then the whole topic is looked at in this way.

What it does not find: rows that are missing behind more than :data:`LOOK_MAX` records that make none; rows of records
that were dead-lettered and replayed; and anything in a partition of which the directory holds no row at all, if it has
rows of others. ``downspout audit`` finds all of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

from kafka.errors import KafkaError

from downspout import offset_ranges
from downspout.audit.apart import ReplayApart
from downspout.audit.expected import Failed
from downspout.audit.files import visible_files
from downspout.audit.kafka import KafkaSide, Letters, Log
from downspout.audit.replay import RunOn
from downspout.dead_letters.replayed import origin_of
from downspout.engine.graph import Graph
from downspout.engine.values import Settings, reads
from downspout.errors import DownspoutError, coordinates
from downspout.formatting import counted
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import Cluster
from downspout.kafka.retry_gate import describe
from downspout.offset_ranges import OffsetRanges
from downspout.settings.secrets import with_secrets
from downspout.settings.table import parse_scope
from downspout.sink import skips
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.runs import read_runs
from downspout.sink.sink_bolt import directory_of
from downspout.sink.storage.layout import incarnation_of
from downspout.sink.storage.places import storage_of
from downspout.spout.group.bounds import partitions_of

_REPLACED = frozenset({"kafka.group", "kafka.start", "run.until"})
"""Settings that the command to read records again has itself."""
LOOK_MAX = 2_000  # Records of a partition that are run again
LOOK_BACK = 10_000
"""Offsets below the last one with a row that are looked at, too: a copy was made while several tasks were writing."""

Commits = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class _Gap:
    """What a partition's log does not cover below the commit."""

    log: Log
    absent: OffsetRanges


def behind(
    graph: Graph,
    settings: Settings,
    run_on: RunOn,
    target: str,
    overrides: Sequence[str] = (),
    topology: str | None = None,
) -> list[str]:
    """Return a warning for each sink whose directory lacks rows of records that its group has committed."""
    given = [text for text in overrides if text.partition("=")[0].rpartition(":")[2] not in _REPLACED]
    options = [*(("--topology", topology) if topology else ()), *(word for text in given for word in ("--set", text))]
    command = shlex.join(["downspout", "run", target, *options])
    found: list[str] = []
    for sink in graph.bolts:
        if not reads(sink, "parquet"):
            continue
        ours = settings.components[sink.name].values
        upstream = graph.upstream([sink.name])
        for spout in graph.spouts:
            if spout.name in upstream and reads(spout, "kafka"):
                theirs = settings.components[spout.name].values
                try:
                    found += _behind(graph, sink.name, ours, theirs, run_on, target, overrides, command)
                except (DownspoutError, KafkaError, OSError) as error:
                    # The run may meet it as well; but it may also be of the look alone, and nothing was looked at.
                    directory = ours["parquet.directory"]
                    # Where there is no looking, a warning says why; the run goes on all the same.
                    found.append(f"could not look whether {directory} is behind its group: {describe(error)}")
    return found


def _behind(
    graph: Graph,
    sink: str,
    conf: Mapping[str, Any],
    spout_conf: Mapping[str, Any],
    run_on: RunOn,
    target: str,
    overrides: Sequence[str],
    command: str,
) -> Iterator[str]:
    values = parse_scope(with_secrets(spout_conf), "kafka")
    directory = directory_of(str(conf["parquet.directory"]), conf)
    log = CommitLog(directory, storage_of(directory, conf.get("parquet.storage_options")))
    log.refresh()
    starts_anew = int(conf["parquet.rebuild"] or 0) > log.rebuild
    # With another kafka.start the group's commit may not be where reading begins.
    if starts_anew or not values["start"].startswith("UNCOMMITTED") or _is_refused(log):
        return
    group = values["group"] or graph.name
    cluster = cluster_for(values["bootstrap"], values["client"])
    topics = sorted({stream.topic for stream in log.coverage.streams()}) or values["topics"] or []
    commits = _commits(cluster, group, topics)
    log.refresh()  # the commits first: what is below them by now is in the log by now
    with closing(KafkaSide(cluster)) as side:
        yield from _without_commits(side, log, group, values["start"], {topic for topic, _ in commits})
        gaps = [gap for topic in {topic for topic, _ in commits} for gap in _gaps(side, log, topic, commits)]
        if not gaps:
            return
        with closing(ReplayApart(target, directory, run_on, overrides=overrides, topology=graph.cls or None)) as replay:
            letters = cache(partial(_letters, cluster, replay.dead_letters))  # only read where something is missing
            places = [place for gap in gaps if (place := _missing(side, gap, replay, letters))]
    if places:
        yield (
            f"{directory} is behind group {group}: {'; '.join(places)}. Was an older copy of it restored, or the group "
            f"moved? The run goes on at the commit, so they stay missing. To read them again before Kafka's retention "
            f"takes them: {command} --set kafka.group={shlex.quote(group)}.again --set kafka.start=EARLIEST "
            f"--until end (the sink {sink} skips rows that it already has); downspout audit {directory} names all of "
            "them"
        )


def _without_commits(side: KafkaSide, log: CommitLog, group: str, start: str, known: set[str]) -> Iterator[str]:
    """Yield a warning for each topic of which the group wrote rows here, and for which it has no commit at all.

    Without the rows, a group whose commits expired looks like one that never read.
    """
    wrote = {
        str(values.get("kafka.group") or run.topology)
        for run in read_runs(log.directory, log.disk)
        for values in run.spouts.values()
    }
    if group not in wrote:
        return
    for topic in sorted({stream.topic for stream in log.coverage.streams()} - known):
        ends = {
            part.partition: covered[-1][1]
            for part in side.logs(topic)
            if (covered := skips.covered(log, topic, part.topic_id, part.partition))
        }
        if not ends:
            continue  # the rows are of an earlier topic of the name
        rows = ", ".join(coordinates(topic, number, end - 1) for number, end in list(ends.items())[:3])
        number, end = min(ends.items())
        yield (
            f"group {group} has no commit for {topic}, and {log.directory} has rows up to {rows}"
            f"{', …' if len(ends) > 3 else ''}: its commits expired (offsets.retention.minutes of the broker) or were "
            f"deleted. kafka.start = {start} decides where it begins; rows that are there already are left out. To go "
            "on behind them, for each partition: downspout offsets seek "
            f"{shlex.quote(group)} --topic {topic}:{number} --to-offset {end} --force --yes"
        )


def _is_refused(log: CommitLog) -> bool:
    """Return whether the run will end before its first record: the sink will say why, and no row is missing for that.

    Raises:
        SinkError: the log has holes.
    """
    log.check_complete()
    staging, directory, _ = log.layout.places
    there = {path.relative_to(directory).as_posix() for path in visible_files(directory, log.disk)}
    gone = [path for path in log.files if path not in there and not log.layout.holds(log.disk, staging, path)]
    unknown = [path for path in there if incarnation_of(path) and path not in log.files and path not in log.removed]
    return bool(gone or unknown)


def _commits(cluster: Cluster, group: str, topics: Sequence[str]) -> Commits:
    """Return where a group has committed something."""
    with closing(cluster.consumer(group=group)) as consumer:
        wanted = partitions_of(consumer, topics)
        found = consumer.committed(wanted) if wanted else {}
    return {(tp.topic, tp.partition): commit.offset for tp, commit in found.items() if commit}


def _gaps(side: KafkaSide, log: CommitLog, topic: str, commits: Commits) -> Iterator[_Gap]:
    """Yield what the log does not cover, from a partition's first row, or a little before the last, to the commit."""
    passed = skips.read_skips(log.directory, log.disk)
    for part in side.logs(topic):
        covered = skips.covered(log, part.topic, part.topic_id, part.partition)
        commit = min(commits.get((part.topic, part.partition), 0), part.end)
        # Before its first row it was perhaps never meant to have any: it began with the latest records. But where there
        # is no row at all, the directory was deleted, and the group goes on as if it had not been.
        if covered:
            start = max(covered[0][0], covered[-1][1] - LOOK_BACK, part.earliest)
        elif not len(log.coverage):
            start = part.earliest
        else:
            continue
        noted = skips.noted_of(passed, part.topic, part.topic_id, part.partition)
        known = offset_ranges.union(covered, skips.still_skipped(noted, covered))
        if absent := offset_ranges.subtract([(start, commit)] if start < commit else [], known):
            yield _Gap(part, absent)


def _letters(cluster: Cluster, topics: Sequence[str]) -> Letters:
    """Return what the topology's spouts have dead-lettered."""
    found = Letters()
    for topic in topics:
        found.read(cluster, topic)
    return found


def _missing(side: KafkaSide, gap: _Gap, replay: ReplayApart, letters: Callable[[], Letters]) -> str:
    """Return which records of a gap should have rows; empty, if none of those that were run again should.

    One that was dead-lettered should not, although a bolt that was repaired since makes a row of it.
    """
    records = [
        record
        for record in islice(side.records(gap.log, gap.absent), LOOK_MAX)
        if origin_of(record, gap.log.topic_id) is None  # a replay's rows are those of another record
    ]
    outcomes = replay(records) if records else {}
    missing = offset_ranges.of_offsets(
        offset for (_, _, offset), outcome in outcomes.items() if not isinstance(outcome, Failed) and list(outcome)
    )
    if missing:
        missing = offset_ranges.subtract(missing, letters().of(gap.log))
    if not missing:
        return ""
    first, last = missing[0][0], gap.absent[-1][1] - 1
    place = coordinates(gap.log.topic, gap.log.partition, first)
    made = offset_ranges.count(missing)
    looked = f"the topology makes rows of {made:,} of the {counted(len(records), 'record')} looked at"
    return f"it has no rows of {place} to @{last} ({looked})"
