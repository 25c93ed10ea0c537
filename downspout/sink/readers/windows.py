"""The windows of a directory: which are final, and where rows came late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from downspout.settings.object_path import place
from downspout.sink.columns.window import END, LATE, START
from downspout.sink.log.entry import Partition
from downspout.sink.readers.snapshot import read_view
from downspout.sink.readers.view import View, restarting

COUNT = "count"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class WindowRow:
    """One window, over all its keys."""

    start: datetime | None  # None: of rows without a time
    end: datetime | None
    final: bool
    rows: int | None  # with the late ones; None where the sink does not count
    late_rows: int  # those that came when it was final


@dataclass(frozen=True)
class WindowReport:
    """The windows of a directory at one moment."""

    watermark: datetime | None  # windows that end by then are final
    windows: Sequence[WindowRow]  # in the order of their starts
    partitions: Mapping[Partition, datetime]  # how far each is that counts: of its writers, the one that is behind

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "watermark": _text(self.watermark),
            "final": sum(row.final for row in self.windows),
            "open": sum(not row.final for row in self.windows),
            "late_rows": sum(row.late_rows for row in self.windows),
            "windows": [{**vars(row), "start": _text(row.start), "end": _text(row.end)} for row in self.windows],
            "partitions": [
                {"topic": topic, "partition": number, "time": _text(at)}
                for (topic, number), at in self.partitions.items()
            ],
        }


def read_windows(directory: str | Path) -> WindowReport:
    """Return the windows of a sink's directory as they are now.

    Raises:
        SinkError: the directory does not exist, has no log, or is damaged.
        ConfigError: the rows have no windows; or it is no place that sinks write to.
    """
    return restarting(place(directory), None, _report)


def _report(view: View) -> WindowReport:
    view.check_windows()
    counts = [LATE, *([COUNT] if COUNT in view.schema.names else [])]
    table = read_view(view, [START, END, *counts]).group_by([START, END]).aggregate([(name, "sum") for name in counts])
    watermark = None if view.watermark.value is None else _moment(view.watermark.value)
    windows = [
        WindowRow(
            row[START], row[END], watermark is not None and row[END] is not None and row[END] <= watermark,
            row.get(f"{COUNT}_sum"), row[f"{LATE}_sum"],
        )
        for row in table.sort_by(START).to_pylist()
    ]  # fmt: skip
    partitions: dict[Partition, int] = {}
    for (topic, partition, _), (time, _) in sorted(view.watermark.seen.items()):
        partitions[topic, partition] = min(time, partitions.get((topic, partition), time))
    return WindowReport(watermark, windows, {each: _moment(time) for each, time in partitions.items()})


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
