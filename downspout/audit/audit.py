"""The audit checks that every record is in the files exactly once, and explains each one that is not.

It first compares the data files with Kafka, and then classifies the offsets:

=============  ======================================================================================  =========
class          condition                                                                               exit code
=============  ======================================================================================  =========
present        it has a row, and each of its rows is there once                                        0
filtered       it has no row, and the topology's bolts, rerun on the record, ack it without a row      0
dead-lettered  it has no row, and the dead-letter topic names it (or, again, the record it replays)    0
late           it has no row, but the directory of the stream ``late`` has one                         0
replayed       it has no row, but replays a dead letter, and the original record has a row             0
skipped        it has no row, and `downspout offsets seek` moved the group past it                     0
compacted      it has no row, and Kafka has no record there (compacted, aborted, or a marker)          0
missing        it has no row (or a row in the log is gone), but Kafka still has the record             10
duplicate      one of its rows is in the files more than once                                          11
lost           it has no row, and Kafka's log begins after it: retention was faster                   12
extra          it has a row that the log, Kafka or the topology does not have                         13
=============  ======================================================================================  =========

If several apply, the lowest exit code above 0 is returned. A record without a row leaves no trace at the sink, so
*filtered* needs the topology; without it such a record is *missing*. Aggregates hold no origins: the audit takes their
offsets from the log, as far as the files match it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from downspout import offset_ranges
from downspout.audit.expected import Expected, Replay
from downspout.audit.kafka import KafkaSide, Letters, Log, committed
from downspout.audit.output_files import FoundRows, look_at_files, look_at_rows
from downspout.audit.report import EXIT_CODES, EXPLAINED, AuditReport, PartitionReport, take_notes
from downspout.dead_letters.claims import origin_of, without_claim
from downspout.errors import BrokerError, ConfigError, SinkError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import Cluster, Record
from downspout.ledger.origin import Origin
from downspout.offset_ranges import OffsetRanges
from downspout.settings.object_path import ObjectPath
from downspout.settings.object_path import place as folder
from downspout.sink.identity import name_of
from downspout.sink.log import CommitLog
from downspout.sink.log_entry import OFFSET_MAX, Stream
from downspout.sink.notes import noted_of, read_runs, read_skips, still_skipped
from downspout.sink.recovery import only_holds_sinks

__all__ = ["EXIT_CODES", "EXPLAINED", "AuditReport", "AuditWindow", "PartitionReport", "audit", "directory_that_exists"]

REPLAY_RECORDS = 2_000
NOTES_MAX = 3  # Reasons for failures reported per partition

REPLAY_SAMPLE = 200
"""Records per partition that are rerun although they have a row, to find rows that share an identity."""


@dataclass(frozen=True)
class AuditWindow:
    """The offsets of a partition to audit: ``[start, end)``; None is the log's end.

    >>> AuditWindow(5, None).within(100)
    (5, 100)
    """

    start: int = 0
    end: int | None = None

    def within(self, log_end: int) -> tuple[int, int]:
        """Return the bounds, clipped to the end of the log."""
        end = log_end if self.end is None else min(self.end, log_end)
        return min(self.start, end), end


def audit(
    directory: str | os.PathLike[str],
    *,
    cluster: Cluster | None = None,
    topics: Sequence[str] = (),
    also: Sequence[str] = (),
    dead_letters: str | Sequence[str] | None = None,
    replay: Replay | None = None,
    windows: Mapping[int | None, AuditWindow] | None = None,
    group: str | None = None,
    sample: int = 0,
    several: bool = False,
    late: str | os.PathLike[str] | None = None,
    deep: bool = False,
    read_back: Callable[[Path], pa.Table | None] = lambda directory: None,
) -> AuditReport:
    """Audit a sink's directory.

    Args:
        directory: the value of ``parquet.directory``.
        cluster: Kafka; if None, the files are compared with the log alone.
        topics: the topics that should be in the directory; by default, those in the files or the log, and ``also``.
        also: topics that the topology reads; they may have no rows at all.
        dead_letters: the dead-letter topic, or several.
        replay: runs the topology on records, to tell a filtered record from a missing one.
        windows: the offsets to audit, by partition number; the key None is for all others.
        group: a consumer group, at whose commits the audit ends instead of the log's end. While a topology runs,
            records beyond its commit may not have rows yet; those below must.
        sample: number of records per partition to rerun although they have a row.
        several: a record may have several rows, so all records are rerun. The audit detects this from the files, but
            not if the same row of all records is missing.
        late: the directory with the rows of the sink's stream ``late``.
        deep: compare every file's content with its hash in the log.
        read_back: of the :class:`~downspout.sink.row_sink.RowSink` that writes there, if it is not ours.

    Raises:
        SinkError: the directory holds nothing to audit, or its log is damaged.
        BrokerError: Kafka does not answer, or a topic does not exist.
        ConfigError: the directory is neither a local path nor on a supported object store.
    """
    path = directory_that_exists(directory)
    # Read the group's commits before the files: everything below them is then in the files.
    commits = (
        dict[tuple[str, int], int]() if cluster is None or not group else committed(cluster, group, path, topics, also)
    )
    found = look_at_files(path, deep=deep) if (own := read_back(path)) is None else look_at_rows(own)
    _check_auditable(path, found, named=bool(topics or also))
    aside = _late_rows(path, late) if late is not None else {}
    report = AuditReport(path, found, kafka=cluster is not None)
    _Audit(report, topics, also, windows or {}, replay, commits if group else None, sample, several, aside).run(
        cluster, dead_letters
    )
    take_notes(report)
    runs = {run.topology for run in read_runs(path)}
    if found.topology and runs and found.topology not in runs:
        report.notes.append(
            f"the log belongs to topology {found.topology}, but the recorded runs belong to {', '.join(sorted(runs))}: "
            "one of the two was edited by hand"
        )
    return report


def _late_rows(directory: Path, late: str | os.PathLike[str]) -> Mapping[Stream, OffsetRanges]:
    """Return the rows in the directory of the sink's stream ``late``."""
    path = directory_that_exists(late)
    own, other = CommitLog(directory), CommitLog(path)
    own.refresh()
    other.refresh()
    wanted, known = name_of(own.component or "", "late"), other.inputs.steps
    if path == directory or (known and wanted not in known):
        raise ConfigError(
            f"--late {late}: it does not hold the stream 'late' of {own.component}",
            cure="the directory of the ParquetBolt that reads this stream",
        )
    return look_at_files(path).rows


def directory_that_exists(directory: str | os.PathLike[str]) -> Path:
    """Return a directory's path; raise a SinkError if it does not exist."""
    path = folder(directory)
    try:
        is_there = isinstance(path, ObjectPath) or path.is_dir()
    except OSError as error:  # its name is too long, for example
        raise SinkError(f"{path}: {error.strerror}", cure="the directory that parquet.directory names") from error
    if not is_there:
        state = "is not a directory" if path.exists() else "does not exist"
        raise SinkError(f"{path} {state}", cure="the directory that parquet.directory names")
    return path


def _check_auditable(path: Path, found: FoundRows, *, named: bool) -> None:
    """Raise a SinkError if the directory holds nothing that can be audited."""
    if not found.file_count and not found.streams and not named:
        state = "no flush is committed yet" if found.entries else "it holds neither data files nor a commit log"
        raise SinkError(
            f"{path}: there is nothing to audit: {state}",
            cure="later, or --topic to name what should be in it"
            if found.entries
            else "another directory, or --topic to name what should be in it",
        )
    if not found.entries and (error := only_holds_sinks(CommitLog(path), found.unknown)) is not None:
        raise error
    if found.without_origin and not found.streams:
        raise SinkError(
            f"{path}: none of its {found.without_origin:,} rows has an origin, so the directory cannot be audited",
            cure="pass the field `origin` on to the sink; rows already written without it cannot be audited",
        )


def _is_of(stream: Stream, log: Log) -> bool:
    """Return whether a stream's rows are from this partition, and not from an earlier topic of the same name."""
    is_same = stream.topic_id == log.topic_id or not (stream.topic_id and log.topic_id)
    return is_same and (stream.topic, stream.partition) == (log.topic, log.partition)


class _Audit:
    """One audit."""

    def __init__(
        self,
        report: AuditReport,
        topics: Sequence[str],
        also: Sequence[str],
        windows: Mapping[int | None, AuditWindow],
        replay: Replay | None,
        commits: Mapping[tuple[str, int], int] | None,
        sample: int,
        several: bool,
        late: Mapping[Stream, OffsetRanges],
    ) -> None:
        self.report = report
        self.found = report.found
        self.streams: dict[tuple[str, int], list[Stream]] = {}  # by topic and partition
        for stream in self.found.streams:
            self.streams.setdefault((stream.topic, stream.partition), []).append(stream)
        self.topics = topics or sorted({*(topic for topic, _ in self.streams), *also})
        self.named = bool(topics)
        self.windows = windows
        self.replay = replay
        self.commits = commits
        self.sample = sample if replay is not None else 0
        self.several = several
        self.late = late
        self.dead_letters = Letters()
        self.skips = read_skips(report.directory)
        self.ends: dict[str, int] = {}  # of the partitions that end before their window
        self.also = frozenset(also)

    def run(self, cluster: Cluster | None, dead_letters: str | Sequence[str] | None) -> None:
        """Audit all partitions."""
        if cluster is None:
            for topic in self.topics:
                self._files_only(topic, sorted(partition for name, partition in self.streams if name == topic))
            self._check_windows()
            return
        for topic in [dead_letters] if isinstance(dead_letters, str) else dead_letters or ():
            if not self.dead_letters.read(cluster, topic):
                self.report.notes.append(f"topic {topic} does not exist, so it has no dead letters")
        with closing(KafkaSide(cluster)) as side:
            for topic in self.topics:
                self._topic(side, topic)
        self._check_windows()

    def _check_windows(self) -> None:
        """Raise an error if nothing was compared, for example because of a typing error."""
        partitions = self.report.partitions
        if not partitions and self.topics and self.report.kafka:
            raise SinkError(
                f"{self.report.directory}: there is nothing to audit: its log does not name a topic, and "
                f"{', '.join(self.topics)} does not exist",
                cure="--topic to name what should be in it",
            )
        named = {number for number in self.windows if number is not None}
        if partitions and (unknown := sorted(named - {part.partition for part in partitions})):
            raise ConfigError(
                f"there is no partition {unknown[0]} in {', '.join(self.topics)}",
                cure=f"offsets of partitions 0 to {max(part.partition for part in partitions)}",
            )
        if self.ends and len(self.ends) == len(partitions):
            ends = [f"{name} at {end:,}" for name, end in self.ends.items()]
            shown = ", ".join([*ends[:NOTES_MAX], *(["…"] if len(ends) > NOTES_MAX else [])])
            raise ConfigError(
                f"there is nothing to audit: each partition ends before that offset ({shown})",
                cure="an earlier first offset",
            )

    def _topic(self, side: KafkaSide, topic: str) -> None:
        logs = side.logs(topic)
        if not logs and topic in self.also and all(name != topic for name, _ in self.streams):
            self.report.notes.append(
                f"the topology reads {topic}, which does not exist in Kafka: its records are unknown"
            )
            return
        if not logs:
            cure = "check the spelling of --topic" if self.named else "--topic for those that are left, or --files-only"
            raise BrokerError(f"topic {topic} does not exist", cure=cure)
        known = {partition for name, partition in self.streams if name == topic}
        if absent := sorted(known - {log.partition for log in logs}):
            self.report.notes.append(f"Kafka has no {topic}{absent} any more: compared with the log alone")
            self._files_only(topic, absent)
        for log in logs:
            self._partition(side, log)

    def _files_only(self, topic: str, partitions: Iterable[int]) -> None:
        for partition in partitions:
            streams = self.streams.get((topic, partition), [])
            window = self.windows.get(partition, self.windows.get(None, AuditWindow()))
            part = PartitionReport(topic, partition, window.start, window.end)
            self.report.partitions.append(part)
            self._compare_with_log(part, streams, [(window.start, OFFSET_MAX if window.end is None else window.end)])

    def _partition(self, side: KafkaSide, log: Log) -> None:
        streams = self.streams.get((log.topic, log.partition), [])
        ours = [s for s in streams if _is_of(s, log)]
        if earlier := sum(offset_ranges.count(self.found.rows.get(s, [])) for s in streams if s not in ours):
            self.report.notes.append(
                f"{coordinates(log.topic, log.partition)}: {counted(earlier, 'row')} of an earlier topic of the same "
                "name, which was deleted"
            )
        window = self.windows.get(log.partition, self.windows.get(None, AuditWindow()))
        if self.commits is not None:
            commit = self.commits.get((log.topic, log.partition), 0)
            window = AuditWindow(window.start, commit if window.end is None else min(commit, window.end))
        start, end = window.within(log.end)
        if window.start > log.end:
            self.ends[coordinates(log.topic, log.partition)] = log.end
        part = PartitionReport(log.topic, log.partition, start, end)
        self.report.partitions.append(part)
        shown = [(start, end if window.end is not None else OFFSET_MAX)]
        present, vanished = self._compare_with_log(part, ours, shown)
        part.note("extra", offset_ranges.intersect(present, [(log.end, OFFSET_MAX)]))
        absent = offset_ranges.subtract([(start, end)], offset_ranges.union(present, vanished))
        # A dead letter holds the whole record, so a dead-lettered record is not lost, even if Kafka's log begins after
        # it. The exceptions, of which only a part was saved, are noted below.
        dead_letters = self.dead_letters.of(log)
        part.note("dead_lettered", offset_ranges.intersect(absent, dead_letters))
        cut = offset_ranges.intersect(absent, self.dead_letters.cut.get((log.topic, log.partition), []))
        if cut := offset_ranges.intersect(cut, dead_letters):
            self.report.notes.append(
                f"{coordinates(log.topic, log.partition)}{offset_ranges.show(cut, 2)}: dead-lettered, but without the "
                f"whole record, which Kafka could not return: {counted(offset_ranges.count(cut), 'offset')}"
            )
        absent = offset_ranges.subtract(absent, dead_letters)
        late = offset_ranges.union(*(rows for stream, rows in self.late.items() if _is_of(stream, log)))
        part.note("late", offset_ranges.intersect(absent, late))
        absent = offset_ranges.subtract(absent, late)
        skipped = self._skipped(log, ours, absent)
        part.note("skipped", offset_ranges.intersect(absent, skipped))
        absent = offset_ranges.subtract(absent, skipped)
        part.note("lost", offset_ranges.intersect(absent, [(0, log.earliest)]))
        self._explain(side, log, part, offset_ranges.intersect(absent, [(log.earliest, end)]), ours)

    def _skipped(self, log: Log, ours: Sequence[Stream], absent: OffsetRanges) -> OffsetRanges:
        """Return the offsets that a seek skipped and that were not read again since."""
        noted = noted_of(self.skips, log.topic, log.topic_id, log.partition)
        if not noted:
            return []
        rows = offset_ranges.union(
            *(found.get(each, []) for found in (self.found.rows, self.found.logged) for each in ours)
        )
        skipped = still_skipped(noted, rows)
        if again := offset_ranges.intersect(absent, offset_ranges.subtract(noted, skipped)):
            self.report.notes.append(
                f"{coordinates(log.topic, log.partition)}{offset_ranges.show(again, 2)}: a seek skipped these offsets, "
                "but the group came back and the directory now has their rows, so they count as usual"
            )
        return skipped

    def _compare_with_log(
        self, part: PartitionReport, streams: Sequence[Stream], window: OffsetRanges
    ) -> tuple[OffsetRanges, OffsetRanges]:
        """Note the differences between files and log; return the offsets with rows, and those that lost theirs."""
        present: OffsetRanges = []
        vanished: OffsetRanges = []
        by_path: dict[str, OffsetRanges] = {}
        for stream in streams:
            rows = offset_ranges.intersect(self.found.rows.get(stream, []), window)
            logged = offset_ranges.intersect(self.found.logged.get(stream, []), window)
            # Duplicates: further rows of this stream, and rows of the same records under another spelling of the id.
            further = offset_ranges.clip(self.found.surplus.get(stream, []), window)
            known = by_path.get(stream.path, [])
            again = offset_ranges.intersect(rows, known)
            by_path[stream.path] = offset_ranges.union(known, rows)
            part.note(
                "duplicate",
                offset_ranges.union(further, again),
                offset_ranges.count(further) + offset_ranges.count(again),
            )
            gone = offset_ranges.subtract(logged, rows)
            part.note("missing", gone)
            if self.found.entries:
                part.note("extra", offset_ranges.subtract(rows, logged))
            part.rows += offset_ranges.count(rows) + offset_ranges.count(further)
            present, vanished = offset_ranges.union(present, rows), offset_ranges.union(vanished, gone)
        part.present = offset_ranges.count(present)
        return present, vanished

    def _explain(
        self, side: KafkaSide, log: Log, part: PartitionReport, absent: OffsetRanges, ours: Sequence[Stream]
    ) -> None:
        """Classify each offset without a row; with a topology, also check each row."""
        several = self.replay is not None and (self.several or any(stream.path for stream in ours))
        explained = offset_ranges.union(part.offsets.get("dead_lettered", []), part.offsets.get("skipped", []))
        everything = offset_ranges.subtract([(max(part.start, log.earliest), part.end or 0)], explained)
        wanted = everything if several else absent
        asked = wanted
        if self.sample and everything and not several:
            first = everything[0][0]
            asked = offset_ranges.union(absent, offset_ranges.intersect(everything, [(first, first + self.sample)]))
        there: list[int] = []
        expected = Expected()
        batch: list[Record] = []
        replays: list[tuple[int, Origin]] = []
        rejected: list[int] = []
        for found in side.records(log, asked):
            record: Record = found
            there.append(record.offset)
            if (origin := origin_of(record, log.topic_id)) is not None:
                if offset_ranges.holds(absent, record.offset):
                    if self._has_row(origin):
                        replays.append((record.offset, origin))
                        continue
                    if self.dead_letters.take_again(origin):
                        rejected.append(record.offset)
                        continue
                record = without_claim(record)  # rerun, its rows must get the identity of its own offset
            batch.append(record)
            if len(batch) >= REPLAY_RECORDS:
                expected.add(self.replay, batch)
                batch = []
        expected.add(self.replay, batch)
        if broken := offset_ranges.intersect(absent, side.unreadable(log)):
            part.note("missing", broken)
            absent = offset_ranges.subtract(absent, broken)
            wanted = offset_ranges.subtract(wanted, broken)
            self.report.notes.append(
                f"{coordinates(log.topic, log.partition)}{offset_ranges.show(broken, 2)}: Kafka cannot return these "
                "records in full, and no dead letter names them"
            )
        unjudged = self._note_unjudged(part, ours, expected)
        told = offset_ranges.subtract(offset_ranges.subtract(wanted, self.dead_letters.of(log)), unjudged)
        expected.failed = {offset: why for offset, why in expected.failed.items() if offset_ranges.holds(told, offset)}
        seen = offset_ranges.of_offsets(there)
        part.note("compacted", offset_ranges.subtract(absent, seen))
        part.note("dead_lettered", offset_ranges.of_offsets(rejected))
        replayed = offset_ranges.union(self._note_replays(part, replays), offset_ranges.of_offsets(rejected))
        unexplained = offset_ranges.subtract(offset_ranges.intersect(absent, seen), replayed)
        if self.replay is None:
            part.note("missing", unexplained)
            return
        not_filtered = [*expected.failed, *(offset for offsets in expected.rows.values() for offset in offsets)]
        part.note("filtered", offset_ranges.subtract(unexplained, offset_ranges.of_offsets(not_filtered)))
        part.note("missing", offset_ranges.of_offsets(expected.failed))
        self._note_troubles(part, expected)
        self._compare_with_topology(part, ours, offset_ranges.subtract(seen, unjudged), expected.rows)

    def _note_unjudged(self, part: PartitionReport, ours: Sequence[Stream], expected: Expected) -> OffsetRanges:
        """Note the records that have rows but fail when rerun; return them: their expected rows are unknown.

        A bolt that calls a service may fail occasionally.
        """
        rows = offset_ranges.union(*(self.found.rows.get(stream, []) for stream in ours))
        found = offset_ranges.intersect(offset_ranges.of_offsets(expected.failed), rows)
        if found:
            first = found[0][0]
            self.report.notes.append(
                f"{coordinates(part.topic, part.partition)}{offset_ranges.show(found, 2)}: in the files, but not "
                f"compared with the topology: when run again, {counted(offset_ranges.count(found), 'record')} failed "
                f"(@{first} {expected.failed[first]})"
            )
        return found

    def _has_row(self, origin: Origin) -> bool:
        """Return whether the files hold a row of the record."""
        topic, topic_id, partition, offset, _ = origin
        return any(
            (s.topic, s.partition) == (topic, partition)
            and (s.topic_id == topic_id or not (s.topic_id and topic_id))
            and offset_ranges.holds(rows, offset)
            for s, rows in self.found.rows.items()
        )

    def _note_replays(self, part: PartitionReport, replays: Sequence[tuple[int, Origin]]) -> OffsetRanges:
        """Note the offsets that are replays, with their originals; return them."""
        found = offset_ranges.of_offsets(offset for offset, _ in replays)
        part.note("replayed", found)
        if replays:
            shown = [
                f"@{offset} of {coordinates(origin.topic, origin.partition, origin.offset)}"
                for offset, origin in replays[:3]
            ]
            shown += ["…"] * (len(replays) > len(shown))
            place, count = coordinates(part.topic, part.partition), len(replays)
            self.report.notes.append(
                f"{place}: {counted(count, 'replay')}, whose rows keep the identities of the original records: "
                f"{', '.join(shown)}"
            )
        return found

    def _note_troubles(self, part: PartitionReport, expected: Expected) -> None:
        """Note the records that fail, with reasons, and those with two rows of one identity."""
        place = coordinates(part.topic, part.partition)
        by_reason: dict[str, list[int]] = {}
        for offset, reason in sorted(expected.failed.items()):
            by_reason.setdefault(reason, []).append(offset)
        part.reasons = {why: offset_ranges.of_offsets(found) for why, found in by_reason.items()}
        shown = [f"{place}{offset_ranges.show(found, 2)} {why}" for why, found in part.reasons.items()]
        self.report.notes += [*shown[:NOTES_MAX], *(["…"] if len(shown) > NOTES_MAX else [])]
        if expected.twins:
            twins = offset_ranges.of_offsets(expected.twins)
            # The sink drops the second as a repetition of the first.
            part.note("missing", twins)
            self.report.notes.append(
                f"{place}{offset_ranges.show(twins, 2)}: two rows with one identity: a bolt must use origin.child"
            )

    def _compare_with_topology(
        self, part: PartitionReport, ours: Sequence[Stream], seen: OffsetRanges, expected: Mapping[str, Sequence[int]]
    ) -> None:
        """Note the rows that the topology makes but the files lack, and the opposite."""
        for path in sorted({*expected, *(stream.path for stream in ours)}):
            mine = [stream for stream in ours if stream.path == path]
            rows = offset_ranges.union(*(self.found.rows.get(stream, []) for stream in mine))
            logged = offset_ranges.union(*(self.found.logged.get(stream, []) for stream in mine))
            wanted = offset_ranges.of_offsets(expected.get(path, ()))
            part.note(
                "missing", offset_ranges.subtract(wanted, offset_ranges.union(rows, logged))
            )  # those in the log are noted already
            unmade = offset_ranges.subtract(offset_ranges.intersect(rows, seen), wanted)
            part.note("extra", unmade)
            if unmade and not self.report.hint:  # its bolts may have changed since
                place = f"{coordinates(part.topic, part.partition)}{offset_ranges.show(unmade, 1)}"
                row = "such row" if path else "row"
                self.report.hint = f"({place}: the current topology makes no {row} from it)"
