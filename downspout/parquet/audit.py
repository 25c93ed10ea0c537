"""The audit: is every record in the files exactly once, and if not, why not?

It first takes what the data files and Kafka say by themselves, and only then explains the differences:

=============  ======================================================================================  =========
an offset is   when                                                                                    exit code
=============  ======================================================================================  =========
present        it has a row, and each of its rows is there once                                        0
filtered       it has no row, and the topology's bolts, run again on the record, make none             0
dead-lettered  it has no row, and the dead-letter topic names it                                       0
compacted      it has no row, and Kafka has no record there: compacted, aborted, or a marker           0
missing        it has no row (or a row that the log names is gone), and Kafka still has the record     10
duplicate      one of its rows is there more than once                                                 11
lost           it has no row, and Kafka's log begins behind it: retention was faster                   12
extra          it has a row that the log, Kafka or the topology does not know                          13
=============  ======================================================================================  =========

Where several hold, the first exit code of 10, 11, 12, 13 is given. A record without a row leaves no trace at the
sink, so *filtered* needs the topology; without it such a record is *missing*. Aggregates hold no origins: for them
the log's ranges stand for the files, as far as the files are as the log says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downspout.errors import BrokerError, SinkError
from downspout.kafka.port import Cluster, Record
from downspout.parquet import spans
from downspout.parquet.audit_files import Found, look_at_files
from downspout.parquet.audit_kafka import KafkaSide, Log, dead_lettered
from downspout.parquet.coverage import OFFSET_MAX, Stream
from downspout.parquet.spans import Spans

__all__ = ["EXIT_CODES", "AuditReport", "PartitionReport", "Replay", "Window", "audit"]

EXIT_CODES = {"missing": 10, "duplicate": 11, "lost": 12, "extra": 13}
EXPLAINED = ("filtered", "dead_lettered", "compacted")
REPLAY_RECORDS = 2_000

Replay = Callable[[Sequence[Record]], Mapping[tuple[str, int, int], Iterable[str]]]
"""Runs the topology on records: (topic, partition, offset) → the paths of the rows that reach the sink."""


@dataclass(frozen=True)
class Window:
    """Which offsets of a partition are audited: ``[start, end)``; None is the log's end.

    >>> Window(5, None).within(100)
    (5, 100)
    """

    start: int = 0
    end: int | None = None

    def within(self, log_end: int) -> tuple[int, int]:
        """Return the bounds in a log that ends there."""
        end = log_end if self.end is None else min(self.end, log_end)
        return min(self.start, end), end


@dataclass
class PartitionReport:
    """What became of the offsets of one partition.

    Attributes:
        topic: the topic.
        partition: its number.
        start: the first offset audited.
        end: the offset after the last one; None where Kafka was not asked.
        rows: rows in the files, of these offsets.
        present: offsets with a row.
        offsets: what else there is, by its name in the table above: the offsets.
        rows_of: for missing, duplicate and extra: how many rows that is.
    """

    topic: str
    partition: int
    start: int
    end: int | None
    rows: int = 0
    present: int = 0
    offsets: dict[str, Spans] = field(default_factory=dict)
    rows_of: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, found: Spans, rows: int | None = None) -> None:
        """Add offsets to a kind; ``rows`` where it is not one for each offset."""
        if found:
            self.offsets[kind] = spans.union(self.offsets.get(kind, []), found)
            self.rows_of[kind] = self.rows_of.get(kind, 0) + (spans.count(found) if rows is None else rows)

    def count(self, kind: str) -> int:
        """Return how many offsets are of a kind."""
        return spans.count(self.offsets.get(kind, []))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "topic": self.topic, "partition": self.partition, "start": self.start, "end": self.end,
            "rows": self.rows, "present": self.present,
            **{kind: self.count(kind) for kind in (*EXPLAINED, *EXIT_CODES)},
            "offsets": self.offsets, "rows_of": self.rows_of,
        }  # fmt: skip


@dataclass
class AuditReport:
    """What an audit found.

    Attributes:
        directory: what was audited.
        found: what files and log say.
        partitions: in the order of topic and number.
        kafka: whether Kafka was asked.
        notes: what a reader should know besides.
    """

    directory: Path
    found: Found
    partitions: list[PartitionReport] = field(default_factory=list)
    kafka: bool = False
    notes: list[str] = field(default_factory=list)

    def count(self, kind: str) -> int:
        """Return how many offsets of all partitions are of a kind."""
        return sum(part.count(kind) for part in self.partitions)

    @property
    def problems(self) -> list[str]:
        """The kinds of problems there are, worst first."""
        kinds = [kind for kind in EXIT_CODES if any(part.offsets.get(kind) for part in self.partitions)]
        damaged = self.found.gone or self.found.staged or self.found.unreadable
        if damaged and "missing" not in kinds:
            kinds.insert(0, "missing")
        if (self.found.unknown or self.found.changed) and "extra" not in kinds:
            kinds.append("extra")
        return kinds

    @property
    def exit_code(self) -> int:
        """0 where all is exact, else that of the worst problem."""
        return min((EXIT_CODES[kind] for kind in self.problems), default=0)

    @property
    def verdict(self) -> str:
        """One sentence."""
        present = sum(part.present for part in self.partitions)
        explained = [f"{self.count(kind):,} {kind.replace('_', '-')}" for kind in EXPLAINED if self.count(kind)]
        what = "added up" if self.found.aggregates else "in the files"
        if not self.problems:
            besides = f"; {', '.join(explained)}" if explained else ""
            asked = "" if self.kafka else " (Kafka was not asked)"
            return f"exact: {present:,} offsets are {what}, each exactly once{besides}{asked}"
        places = [
            f"{self.count(kind):,} {kind}" + (f" ({where})" if (where := self._examples(kind)) else "")
            for kind in self.problems
        ]
        return f"NOT exact: {'; '.join(places)}; {present:,} offsets are {what}"

    def _examples(self, kind: str) -> str:
        shown = [
            f"{part.topic}[{part.partition}]{spans.show(part.offsets[kind], 2)}"
            for part in self.partitions
            if part.offsets.get(kind)
        ]
        return ", ".join(shown[:2] + ["…"] * (len(shown) > 2))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = self.found
        return {
            "directory": str(self.directory), "exit_code": self.exit_code, "verdict": self.verdict,
            "problems": self.problems, "aggregates": found.aggregates, "rows": found.row_count,
            "partitions": [part.as_dict() for part in self.partitions],
            "files": {
                "visible": found.file_count, "gone": found.gone, "staged": found.staged, "unknown": found.unknown,
                "changed": found.changed, "unreadable": found.unreadable, "leftovers": found.leftovers,
            },
            "notes": self.notes,
        }  # fmt: skip


def audit(
    directory: str | os.PathLike[str],
    *,
    cluster: Cluster | None = None,
    topics: Sequence[str] = (),
    dead_letters: str | None = None,
    replay: Replay | None = None,
    windows: Mapping[int | None, Window] | None = None,
) -> AuditReport:
    """Audit a sink's directory.

    Args:
        directory: what ``parquet.directory`` says.
        cluster: Kafka; not given: the files are compared with the log alone.
        topics: which topics should be in the directory; not given: those that files or log name.
        dead_letters: the dead-letter topic.
        replay: runs the topology on records, so that a filtered record can be told from a missing one.
        windows: the offsets to audit, by partition number; the key None is for all others.

    Raises:
        SinkError: there is no such directory, or its log is damaged.
        BrokerError: Kafka does not answer, or has no such topic.
    """
    path = Path(directory)
    if not path.is_dir():
        raise SinkError(f"{path} does not exist", cure="the directory that parquet.directory names")
    report = AuditReport(path, look_at_files(path), kafka=cluster is not None)
    _Audit(report, list(topics), windows or {}, replay).run(cluster, dead_letters)
    _take_notes(report)
    return report


class _Audit:
    """One audit on its way."""

    def __init__(
        self, report: AuditReport, topics: list[str], windows: Mapping[int | None, Window], replay: Replay | None
    ) -> None:
        self.report = report
        self.found = report.found
        self.topics = topics or sorted({stream.topic for stream in self.found.streams})
        self.named = bool(topics)
        self.windows = windows
        self.replay = replay
        self.letters: dict[tuple[str, str, int], Spans] = {}

    def run(self, cluster: Cluster | None, dead_letters: str | None) -> None:
        """Go through all partitions."""
        if cluster is None:
            for topic in self.topics:
                self._files_only(topic, sorted({s.partition for s in self.found.streams if s.topic == topic}))
            return
        if dead_letters:
            self.letters = dead_lettered(cluster, dead_letters)
        side = KafkaSide(cluster)
        try:
            for topic in self.topics:
                self._topic(side, topic)
        finally:
            side.close()

    def _topic(self, side: KafkaSide, topic: str) -> None:
        logs = side.logs(topic)
        if not logs and self.named:
            raise BrokerError(f"topic {topic} does not exist", cure="look at the spelling of --topic")
        known = {stream.partition for stream in self.found.streams if stream.topic == topic}
        if absent := sorted(known - {log.partition for log in logs}):
            self.report.notes.append(f"Kafka has no {topic}{absent} any more: compared with the log alone")
            self._files_only(topic, absent)
        for log in logs:
            self._partition(side, log)

    def _files_only(self, topic: str, partitions: Iterable[int]) -> None:
        for partition in partitions:
            streams = [s for s in self.found.streams if (s.topic, s.partition) == (topic, partition)]
            window = self.windows.get(partition, self.windows.get(None, Window()))
            part = PartitionReport(topic, partition, window.start, window.end)
            self.report.partitions.append(part)
            self._compare_with_log(part, streams, [(window.start, OFFSET_MAX if window.end is None else window.end)])

    def _partition(self, side: KafkaSide, log: Log) -> None:
        streams = [s for s in self.found.streams if (s.topic, s.partition) == (log.topic, log.partition)]
        ours = [s for s in streams if s.topic_id == log.topic_id or not (s.topic_id and log.topic_id)]
        if earlier := sum(spans.count(self.found.rows.get(s, [])) for s in streams if s not in ours):
            self.report.notes.append(
                f"{log.topic}[{log.partition}]: {earlier:,} rows are of an earlier topic of that name, which is gone"
            )
        window = self.windows.get(log.partition, self.windows.get(None, Window()))
        start, end = window.within(log.end)
        part = PartitionReport(log.topic, log.partition, start, end)
        self.report.partitions.append(part)
        shown = [(start, end if window.end is not None else OFFSET_MAX)]
        present, vanished = self._compare_with_log(part, ours, shown)
        part.note("extra", spans.intersect(present, [(log.end, OFFSET_MAX)]))
        absent = spans.subtract([(start, end)], spans.union(present, vanished))
        # A letter holds the whole record, so what was dead-lettered is not lost, wherever Kafka's log begins by now.
        letters = [self.letters.get((log.topic, topic_id, log.partition), []) for topic_id in {log.topic_id, ""}]
        part.note("dead_lettered", spans.intersect(absent, spans.union(*letters)))
        absent = spans.subtract(absent, spans.union(*letters))
        part.note("lost", spans.intersect(absent, [(0, log.earliest)]))
        self._explain(side, log, part, spans.intersect(absent, [(log.earliest, end)]), ours)

    def _compare_with_log(self, part: PartitionReport, streams: Sequence[Stream], window: Spans) -> tuple[Spans, Spans]:
        """Note what files and log differ in; return the offsets with rows, and those that lost theirs."""
        present: Spans = []
        vanished: Spans = []
        for stream in streams:
            rows = spans.intersect(self.found.rows.get(stream, []), window)
            logged = spans.intersect(self.found.logged.get(stream, []), window)
            surplus = self.found.surplus.get(stream, 0)
            gone = spans.subtract(logged, rows)
            part.note("duplicate", spans.intersect(self.found.repeated.get(stream, []), window), surplus)
            part.note("missing", gone)
            if self.found.entries:
                part.note("extra", spans.subtract(rows, logged))
            part.rows += spans.count(rows) + surplus
            present, vanished = spans.union(present, rows), spans.union(vanished, gone)
        part.present = spans.count(present)
        return present, vanished

    def _explain(self, side: KafkaSide, log: Log, part: PartitionReport, absent: Spans, ours: Sequence[Stream]) -> None:
        """Say of each offset without a row why it has none; with a topology, of each row whether it should be there."""
        several = self.replay is not None and any(stream.path for stream in ours)
        everything = spans.subtract(
            [(max(part.start, log.earliest), part.end or 0)], part.offsets.get("dead_lettered", [])
        )
        wanted = everything if several else absent
        there: list[int] = []
        expected: dict[str, list[int]] = {}
        batch: list[Record] = []
        for record in side.records(log, wanted):
            there.append(record.offset)
            batch.append(record)
            if len(batch) >= REPLAY_RECORDS:
                self._run_again(batch, expected)
                batch = []
        self._run_again(batch, expected)
        seen = spans.of_offsets(there)
        part.note("compacted", spans.subtract(absent, seen))
        unexplained = spans.intersect(absent, seen)
        if self.replay is None:
            part.note("missing", unexplained)
            return
        part.note("filtered", spans.subtract(unexplained, spans.of_offsets(o for p in expected.values() for o in p)))
        self._compare_with_topology(part, ours, seen, expected)

    def _run_again(self, batch: Sequence[Record], expected: dict[str, list[int]]) -> None:
        if self.replay is None or not batch:
            return
        for (_, _, offset), paths in self.replay(batch).items():
            for path in paths:
                expected.setdefault(path, []).append(offset)

    def _compare_with_topology(
        self, part: PartitionReport, ours: Sequence[Stream], seen: Spans, expected: Mapping[str, Sequence[int]]
    ) -> None:
        """Note rows that the topology makes and that are not there, and the other way round."""
        for path in sorted({*expected, *(stream.path for stream in ours)}):
            mine = [stream for stream in ours if stream.path == path]
            rows = spans.union(*(self.found.rows.get(stream, []) for stream in mine))
            logged = spans.union(*(self.found.logged.get(stream, []) for stream in mine))
            wanted = spans.of_offsets(expected.get(path, ()))
            part.note("missing", spans.subtract(wanted, spans.union(rows, logged)))  # those logged are noted already
            part.note("extra", spans.subtract(spans.intersect(rows, seen), wanted))


def _take_notes(report: AuditReport) -> None:
    """Say what is odd about the files."""
    found, notes = report.found, report.notes
    if not found.entries:
        notes.append("there is no commit log, so rows cannot be compared with it")
    for names, what in (
        (found.gone, "named by the log, but gone"),
        (found.staged, "committed but not in sight yet; the next start of the topology renames them"),
        (found.unknown, "not named by the log"),
        (found.changed, "of another size or number of rows than the log says"),
        (list(found.unreadable), "unreadable"),
    ):
        if names:
            shown = ", ".join(names[:3] + ["…"] * (len(names) > 3))
            notes.append(f"{len(names):,} files {what}: {shown}")
    if found.leftovers:
        notes.append(f"{found.leftovers:,} staged files of flushes that were stopped; harmless")
    if found.without_origin:
        notes.append(f"{found.without_origin:,} rows tell no origin: they were written at least once")
    if found.aggregates:
        notes.append("the files hold aggregates: which offsets were added up is known from the log")
