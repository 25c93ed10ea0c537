"""The offsets that a group has skipped on purpose, as a sink's directory remembers them: ``skips.json`` beside the log.

Somebody moves a group forward (``downspout offsets seek --sink DIR``). What lies between will have no row, and nothing
in the log or in Kafka says why: an audit would call it missing. So the seek notes it here, and a seek back takes it
away again. Only what was committed is noted: a note too many would hide a loss. So a file that is torn counts as none.

A group may also go back without a word to this directory: a seek without ``--sink``, or commits that were deleted. Then
the records are read again and are to have rows. So what is noted has no row at the time, and a range that is noted
counts only while it has none (:func:`still_skipped`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from downspout import offset_ranges
from downspout.errors import SinkError
from downspout.offset_ranges import OffsetRanges
from downspout.sink.identity.coverage import Stream
from downspout.sink.log.commit_log import CommitLog
from downspout.sink.log.entry import from_document, listed, text, to_document
from downspout.sink.storage.layout import Layout, temporary_name
from downspout.sink.storage.places import storage_of
from downspout.sink.storage.port import Storage

FORMAT = 1

Source = tuple[str, str, int]
"""Topic, Kafka's id of it, partition."""


class Step(NamedTuple):
    """What a seek does to a partition."""

    source: Source
    skipped: OffsetRanges  # will not be read
    again: OffsetRanges  # will be read again


def read_skips(directory: Path, disk: Storage | None = None) -> dict[Source, OffsetRanges]:
    """Return the offsets that were skipped on purpose; none where there is no note of any."""
    try:
        document = from_document((disk or storage_of(directory)).read(Layout(directory).skips))
        if document.get("format") != FORMAT:
            return {}
        return dict(map(_from_json, listed(document.get("skips"))))
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def noted_of(skips: Mapping[Source, OffsetRanges], topic: str, topic_id: str, partition: int) -> OffsetRanges:
    """Return what is noted of a partition; an id that one side does not know may be any."""
    return offset_ranges.union(
        *(
            ranges
            for (name, known, number), ranges in skips.items()
            if (name, number) == (topic, partition) and (known == topic_id or not (known and topic_id))
        )
    )


def still_skipped(noted: OffsetRanges, rows: OffsetRanges) -> OffsetRanges:
    """Return the ranges without a row. One that has some was read again, and what has none there may be lost.

    >>> still_skipped([(3, 6), (8, 9)], [(0, 3), (5, 6)])
    [(8, 9)]
    """
    touched = offset_ranges.intersect(noted, rows)
    return [each for each in noted if not offset_ranges.intersect([each], touched)]


def note_skips(directory: Path, steps: Iterable[Step], log: CommitLog, writer: str) -> None:
    """Add what a seek has skipped and what has no row, and take away what will be read again.

    Raises:
        SinkError: the disk says no, or the log is damaged.
    """
    log.refresh()
    disk = log.disk
    skips = read_skips(directory, disk)
    for source, skipped, again in steps:
        rows = covered(log, *source)
        before = offset_ranges.subtract(still_skipped(skips.get(source, []), rows), again)
        skips[source] = offset_ranges.union(before, offset_ranges.subtract(skipped, rows))
    noted = [
        {"topic": topic, "topic_id": topic_id, "partition": partition, "offsets": [list(each) for each in ranges]}
        for (topic, topic_id, partition), ranges in sorted(skips.items())
        if ranges
    ]
    layout = Layout(directory)
    content = to_document({"format": FORMAT, "skips": noted})
    try:
        disk.replace(layout.skips, content, layout.staging / temporary_name(writer, 0))
    except OSError as error:
        raise SinkError(
            f"{layout.skips} cannot be written: {error.strerror}", cure="make room, or grant the right"
        ) from error


def rows_of(directory: Path) -> CommitLog:
    """Return the log of a sink's directory, as far as it goes now.

    Raises:
        SinkError: it has none, or it is damaged.
    """
    log = CommitLog(directory)
    log.refresh()
    if not log.length:
        raise SinkError(f"{directory} has no commit log", cure="the directory that parquet.directory names")
    return log


def covered(log: CommitLog, topic: str, topic_id: str, partition: int) -> OffsetRanges:
    """Return the offsets of a partition that have a row: records of these are left out."""

    def matches(stream: Stream) -> bool:
        same_topic = stream.topic_id == topic_id or not (stream.topic_id and topic_id)
        return (stream.topic, stream.partition) == (topic, partition) and same_topic

    return offset_ranges.union(*(log.coverage.ranges(stream) for stream in log.coverage.streams() if matches(stream)))


def _from_json(value: Any) -> tuple[Source, OffsetRanges]:
    source = text(value["topic"]), text(value["topic_id"]), value["partition"]
    ranges = [(start, end) for start, end in listed(value["offsets"])]
    numbers = [source[2], *(bound for each in ranges for bound in each)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(value)
    return source, offset_ranges.union(ranges)
