"""Windows of event time: a window is a key, made of a timestamp.

``window(departure, 10 minutes)`` is *tumbling*: each moment is in one window. ``window(departure, 1 hour, 10 minutes)``
is *sliding*: a window begins every 10 minutes, and each moment is in six. A window holds its start and not its end.
Windows are aligned to 1970-01-01T00:00 UTC; those of whole days may be aligned to local midnights:
``window(departure, 1 day, Europe/Berlin)``, where a day of a clock change has 23 or 25 hours. Arrow
knows the changes up to 2037.

Rows are aggregated by *panes* first, the largest pieces of time that no window divides; then each pane is added to its
windows. So a row in 24 windows is processed once, and memory grows with the panes of a flush, not with its rows.

A row whose time is null, or not in the years 1 to 9999, is in the window null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from downspout.errors import ConfigError
from downspout.sink.column_types import TIMESTAMP
from downspout.sink.log_entry import EventTimes, Partition, listed, moment, text, whole

START, END = "window_start", "window_end"
"""The columns that a window key becomes."""
LATE = "late_rows"
"""The column beside them: how many of a row's rows came when its window was final."""
UNITS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000}
"""Microseconds."""
_DURATION = re.compile(r"(\d{1,9})\s*(day|hour|minute|second|week)s?", re.ASCII)
_LIKE_DURATION = re.compile(r"\d+\s*([^\W\d]+)")
_LEAST, _MOST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, as Python and Spark have them
OVERLAP_MAX = 1_000  # Windows that a moment may be in
SIZE_MAX = 36_525 * UNITS["day"]
DAY = UNITS["day"]  # What a time zone is away from UTC at most


@dataclass(frozen=True)
class Window:
    """A window key.

    >>> window = Window.parse("window(departure, 60 minutes, 10 minutes)")
    >>> window.column, window.text
    ('departure', 'window(departure, 1 hour, 10 minutes)')
    """

    column: str  # whose times are cut
    size: int  # µs
    slide: int  # µs from the start of one window to that of the next
    zone: str = ""  # whose midnights days begin at; empty: UTC

    @classmethod
    def parse(cls, text: str) -> Window | None:
        """Return the window that a key declares; None if the key is the name of a column.

        Raises:
            ConfigError: the window cannot be computed.
        """
        if not text.startswith("window(") or not text.endswith(")"):
            return None
        column, *rest = [part.strip() for part in text[len("window(") : -1].split(",")]
        durations = [found for part in rest[:2] if (found := _DURATION.fullmatch(part))]
        zone = rest[len(durations) :]
        for part in rest[:2]:
            if (unit := _LIKE_DURATION.fullmatch(part)) and not _DURATION.fullmatch(f"1 {unit[1]}"):
                raise ConfigError(
                    f"parquet.keys: {text}: {unit[1]!r} is not a unit of time",
                    cure="seconds, minutes, hours, days or weeks, as in window(departure, 10 minutes)",
                )
        if not column or not durations or len(zone) > 1:
            raise ConfigError(
                f"parquet.keys: {text} is not a window",
                cure="window(departure, 10 minutes), window(departure, 1 hour, 10 minutes) or "
                "window(departure, 1 day, Europe/Berlin)",
            )
        size, slide = (_microseconds(found) for found in (durations[0], durations[-1]))
        if not 0 < slide <= size <= SIZE_MAX:
            raise ConfigError(
                f"parquet.keys: {text}: windows would leave gaps, be empty or longer than 100 years",
                cure="a slide that is at most the size",
            )
        if size > OVERLAP_MAX * slide:
            raise ConfigError(
                f"parquet.keys: {text}: each row would be in {-(-size // slide):,} windows",
                cure=f"a slide of at least a {OVERLAP_MAX:,}th of the size",
            )
        made = cls(column, size, slide, "".join(zone))
        if zone:
            made._check_zone()
        return made

    def _check_zone(self) -> None:
        if self.size % UNITS["day"] or self.slide % UNITS["day"]:
            raise ConfigError(
                f"parquet.keys: {self.text}: only windows of whole days have a time zone",
                cure=f"leave {self.zone} out: shorter windows are aligned to UTC",
            )
        try:
            if not re.fullmatch(r"[A-Za-z0-9_/+-]+", self.zone):
                raise ValueError(self.zone)
            self._instants(np.zeros(1, dtype=np.int64), None)
        except ValueError:  # Arrow's errors are of this kind
            raise ConfigError(
                f"parquet.keys: {self.text}: there is no time zone {self.zone} on this machine",
                cure="a name such as Europe/Berlin; the package tzdata, if /usr/share/zoneinfo is missing",
            ) from None

    @property
    def text(self) -> str:
        """The key in its canonical form, as in the commit log."""
        durations = [self.size] if self.slide == self.size else [self.size, self.slide]
        return f"window({', '.join([self.column, *map(_duration, durations), *([self.zone] if self.zone else [])])})"

    @cached_property
    def _pane(self) -> int:
        return gcd(self.size, self.slide)

    def panes(self, times: Any) -> Any:
        """Return the start of each moment's pane, in µs of local time; null if it is in no window.

        >>> window = Window("at", UNITS["hour"], UNITS["hour"])
        >>> window.panes(pa.array([-1, 3_600_000_001, None], pa.int64()).cast(TIMESTAMP)).to_pylist()
        [-3600000000, 3600000000, None]
        """
        moments = times.combine_chunks() if isinstance(times, pa.ChunkedArray) else times
        values = np.asarray(moments.cast(pa.int64()).fill_null(_LEAST - 1))
        # A window that begins before the year 1, or ends after 9999, has no ``datetime``: such a moment is in none.
        outside = (values < _LEAST + self.size + DAY) | (values > _MOST - self.size - DAY)
        if self.zone:
            inside: Any = pa.array(np.where(outside, 0, values)).cast(pa.timestamp("us", self.zone))
            values = np.asarray(pc.local_timestamp(inside).cast(pa.int64()))
        return pa.array(np.where(outside, 0, values) // self._pane * self._pane, mask=outside)

    def spread(self, panes: pa.Table) -> pa.Table:
        """Return rows by pane as rows by window: one for each window that the pane in column START is in."""
        column: Any = panes.column(START).combine_chunks()
        outside, starts = np.asarray(column.is_null()), np.asarray(column.fill_null(0))
        latest = starts // self.slide * self.slide
        parts = []
        for back in range(-(-self.size // self.slide)):
            begins = latest - back * self.slide
            holds = np.where(outside, back == 0, begins + self.size > starts)
            begin, end = (self._instants(each[holds], outside[holds]) for each in (begins, begins + self.size))
            place = panes.schema.get_field_index(START)
            part = panes.filter(pa.array(holds)).set_column(place, START, begin)
            parts.append(part.add_column(place + 1, END, end))
        return pa.concat_tables(parts)

    def mark(self, windows: pa.Table, counts: Any, watermark: int | None) -> pa.Table:
        """Return rows by window with the column LATE: their counts if the window is final, else 0."""
        final = self._is_final(windows.column(END), watermark)
        return windows.append_column(LATE, pc.if_else(final, counts, pa.scalar(0, pa.int64())))

    def late(self, times: Any, watermark: int | None) -> NDArray[np.bool_]:
        """Return which moments are in no window that is still open.

        >>> window = Window("at", UNITS["hour"], UNITS["minute"])
        >>> times = pa.array([0, 60_000_000, None], pa.int64()).cast(TIMESTAMP)
        >>> window.late(times, UNITS["hour"]).tolist(), window.late(times, None).tolist()
        ([True, False, False], [False, False, False])
        """
        panes = self.panes(times)
        starts = np.asarray(panes.fill_null(0)) // self.slide * self.slide
        ends = self._instants(starts + self.size, np.asarray(panes.is_null()))
        return np.asarray(self._is_final(ends, watermark))

    def _is_final(self, ends: Any, watermark: int | None) -> Any:
        least: Any = pa.scalar(watermark, pa.int64())
        return pc.less_equal(ends.cast(pa.int64()), least).fill_null(False)

    def _instants(self, local: NDArray[np.int64], outside: NDArray[np.bool_] | None) -> Any:
        """Return moments in UTC. A midnight that a clock change skips is the moment of the change."""
        moments: Any = pa.array(local, pa.int64(), mask=outside).cast(pa.timestamp("us"))
        if self.zone:
            moments = pc.assume_timezone(moments, self.zone, ambiguous="earliest", nonexistent="latest")
        return moments.cast(TIMESTAMP)


def _microseconds(found: re.Match[str]) -> int:
    number, unit = int(found[1]), found[2]
    return number * (7 * UNITS["day"] if unit == "week" else UNITS[unit])


def _duration(microseconds: int) -> str:
    unit, length = next((unit, length) for unit, length in UNITS.items() if microseconds % length == 0)
    number = microseconds // length
    return f"{number} {unit}{'' if number == 1 else 's'}"


# --- the watermark: which windows are final ---
#
# A window is *final* when it ends at or before the watermark. Each ``flush`` entry of a sink with a window holds, for
# each partition, the greatest time among its rows, and the watermark after the entry; readers use that watermark as it
# is. All writers append to one log, and each reads all earlier entries before it appends. So the watermark after *n*
# entries is one number for everybody, and it never goes back. A row is *late* if its window was final before the row's
# own entry; the entry counts such rows in ``late_rows``. Readers rely on this rule: **the rows of a final window that
# are not marked late never change**.
#
# The watermark is the least of the greatest times, minus ``parquet.lateness_s``, taken over pairs of a partition and a
# writer:
#
# * *Each writer counts separately.* Two tasks of a sink, or two workers, may both get rows of a partition and flush at
#   different times. A flush of one does not show which rows the other still holds. A restarted task is a new writer. So
#   after a crash, a rebalance, a seek or a change of the number of tasks, the old pairs hold the watermark back until
#   they are idle. (Spark commits a batch as a whole: all its tasks are one writer.)
# * *Idle pairs are dropped.* A pair counts until the directory was written to for ``parquet.idle_s`` without a row of
#   that pair. In a new directory nothing is final for that long, so that every partition can show up. A partition that
#   has never had a row is not waited for; its first rows may be late.
# * *Idle time passes only while entries are written*: it is counted from one flush entry to the next, and each interval
#   counts as at most a quarter of ``idle_s``. So neither a night without a run nor a clock that jumps makes a pair
#   idle.
# * *A time in the future counts as now*, so that one device with a wrong clock closes no window.
#
# Replays do not change the watermark: rows that are covered are in no entry. Nor does a ``compact`` or ``fence`` entry;
# a ``rebuild`` starts from none. If the settings change, later entries use the new ones, and the watermark stands still
# until the new rule goes beyond it.
#
# ``lateness_s`` must cover how far out of order the rows of a partition reach the sink: the disorder in the topic, and
# what the topology adds (retries, parallel bolts before the sink).

PAUSES = 4  # An interval between entries counts as at most this part of ``idle_s``


class Watermark:
    """The watermark after some entries, and the state that the next one depends on.

    >>> known, found = Watermark(), []
    >>> for second in range(12):        # partition 1 has rows at first, and then none
    ...     latest = {("t", 0): 10 * second, ("t", 1): 5} if second < 4 else {("t", 0): 10 * second}
    ...     told = known.next("w", latest, now_ms=1_000 * second, lateness_us=2, idle_ms=6_000)
    ...     known.take(told, 1_000 * second)
    ...     found.append(known.value)
    >>> found
    [None, None, None, None, None, None, 3, 3, 3, 88, 98, 108]
    """

    def __init__(self) -> None:
        self.value: int | None = None  # µs since the epoch; None: nothing is final
        self.seen: dict[tuple[str, int, str], tuple[int, int]] = {}
        """topic, partition and writer → greatest time in µs, and ``written_ms`` at its last row"""
        self.written_ms = 0  # how long the directory was written to, without pauses
        self._last_ms: int | None = None  # when the last entry with times was made

    def next(
        self, writer: str, latest: Mapping[Partition, int], *, now_ms: int, lateness_us: int, idle_ms: int
    ) -> EventTimes | None:
        """Return the event times for the next entry; None if its rows have no times.

        Args:
            writer: which writer.
            latest: by partition the greatest time of the rows, in µs.
            now_ms: when the entry is made.
            lateness_us: how far behind a later row of its pair a row may be.
            idle_ms: for how long a pair counts.
        """
        if not latest:
            return None
        now_us = now_ms * 1_000
        told = EventTimes(writer, {place: min(time, now_us) for place, time in latest.items()}, idle_ms, self.value)
        after = Watermark()
        vars(after).update(vars(self))
        after.take(told, now_ms)
        if after.written_ms < idle_ms:
            return told
        slowest = min(time for time, _ in after.seen.values()) - lateness_us
        watermark = slowest if self.value is None else max(self.value, slowest)
        return EventTimes(told.writer, told.latest, idle_ms, watermark)

    def take(self, told: EventTimes | None, now_ms: int) -> None:
        """Add the event times of an entry made at ``now_ms``."""
        if told is None:
            return
        pause_ms = 0 if self._last_ms is None else max(0, now_ms - self._last_ms)
        self.written_ms += min(pause_ms, told.idle_ms // PAUSES)
        self._last_ms = now_ms
        seen = dict(self.seen)
        for (topic, partition), time in told.latest.items():
            pair = topic, partition, told.writer
            seen[pair] = max(time, seen.get(pair, (time, 0))[0]), self.written_ms
        self.seen = {pair: each for pair, each in seen.items() if self.written_ms - each[1] < told.idle_ms}
        self.value = told.watermark

    def to_json(self) -> list[Any]:
        """Return it as JSON values; empty if no entry had times."""
        pairs = [[*pair, *self.seen[pair]] for pair in sorted(self.seen)]
        return [] if self._last_ms is None else [self.value, self.written_ms, self._last_ms, pairs]

    @classmethod
    def from_json(cls, value: Any) -> Watermark:
        """Return what :meth:`to_json` made. It is untrusted."""
        made = cls()
        if listed(value):
            watermark, written_ms, last_ms, pairs = value
            made.value = None if watermark is None else moment(watermark)
            made.written_ms, made._last_ms = whole(written_ms), moment(last_ms)
            for topic, partition, writer, time, written in map(listed, listed(pairs)):
                made.seen[text(topic), whole(partition), text(writer)] = moment(time), whole(written)
        return made
