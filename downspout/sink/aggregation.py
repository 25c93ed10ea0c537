"""Partial aggregates: a flush aggregates its rows, and a reader combines the results.

An aggregate is declared as ``count`` (rows), or ``function:column`` with sum, min, max or count (values that are not
null). Its column is named ``count`` or ``function_column``. Rows are folded *after* the check against the log, so each
row is aggregated in exactly one committed file. Readers combine sums and counts by adding, minima and maxima by min and
max. A mean is a sum and a count.

A key is a column, or a window of one, which becomes the columns ``window_start`` and ``window_end``. With a window,
rows whose windows were already final are counted separately (``late_rows``).

**Windows.** ``window(departure, 10 minutes)`` is *tumbling*: each moment is in one window. ``window(departure, 1 hour,
10 minutes)`` is *sliding*: a window begins every 10 minutes, and each moment is in six. A window holds its start and
not its end. Windows are aligned to 1970-01-01T00:00 UTC; those of whole days may be aligned to local midnights:
``window(departure, 1 day, Europe/Berlin)``, where a day of a clock change has 23 or 25 hours. Arrow knows the changes
up to 2037. A row whose time is null, or not in the years 1 to 9999, is in the window null.

Rows are aggregated by *panes* first, the largest pieces of time that no window divides; then each pane is added to its
windows. So a row in 24 windows is processed once, and memory grows with the panes of a flush, not with its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
from downspout.sink.schema import ORIGIN_SCHEMA, Columns, logged_folders, rejoin

# --- windows ---

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


# --- aggregates ---

FUNCTIONS = ("sum", "min", "max", "count")
FINISHERS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""Which function finishes an aggregate's partial results."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: ``function`` over ``column``; a column of None counts rows."""

    function: str
    column: str | None

    @property
    def name(self) -> str:
        """The column in the files."""
        return f"{self.function}_{self.column}" if self.column else self.function


ROWS = Aggregate("count", None)


@dataclass(frozen=True)
class Aggregation:
    """Which columns are aggregated, and by which keys.

    >>> columns = Columns.parse(["route:string", "delay:int16", "at:timestamp"])
    >>> made = Aggregation.parse(["route", "window(at, 1 hour)"], ["count", "sum:delay"], columns)
    >>> made.keys, [each.name for each in made.aggregates]
    (('route', 'window_start', 'window_end'), ['count', 'sum_delay'])
    """

    by: tuple[str | Window, ...]  # columns and at most one window
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def parse(cls, keys: Sequence[str], aggregates: Sequence[str], columns: Columns) -> Aggregation:
        """Return what the settings ``parquet.keys`` and ``parquet.aggregates`` declare.

        Raises:
            ConfigError: a column is missing or has an unsuitable type, or two would have one name.
        """
        if not keys:
            raise ConfigError("parquet.keys is not set", cure=f"some of {', '.join(columns.names)}")
        if not aggregates:
            raise ConfigError("parquet.aggregates is not set", cure='aggregates=["count", "sum:delay"]')
        made = cls(_by(keys), tuple(_aggregate(text, columns) for text in aggregates))
        for key in made.by:
            _check_key(key, columns)
        seen: dict[str, str] = {}
        for name in [*made.keys, *(aggregate.name for aggregate in made.aggregates)]:
            if name.lower() in seen:  # to Spark case makes no difference
                raise ConfigError(
                    f"parquet.keys, parquet.aggregates: {seen[name.lower()]} and {name} would be one column of the "
                    "files",
                    cure="name each once, with at most one window; rename a key that is named like another column",
                )
            seen[name.lower()] = name
        if made.window is not None and "count" in (key.lower() for key in made.keys):
            raise ConfigError("parquet.keys: beside a window, no key can be named count", cure="another name for it")
        return made

    @classmethod
    def logged(cls, words: Sequence[str]) -> Aggregation | None:
        """Parse the words of a commit log; None if the rows are no aggregates."""
        keys = [word[4:] for word in words if word.startswith("key ") and ":" not in word]
        names = [word for word in words if ":" not in word and not word.startswith(("/", "key "))]
        parts = [name.partition("_") for name in names]
        return cls(_by(keys), tuple(Aggregate(each, column or None) for each, _, column in parts)) if keys else None

    @property
    def words(self) -> list[str]:
        """Its form in a commit log, beside the columns: partial results of different aggregations must not mix.

        >>> made = Aggregation(("route", Window("at", 60_000_000, 60_000_000)), (Aggregate("sum", "delay"),))
        >>> made.words, Aggregation.logged(made.words) == made
        (['key route', 'key window(at, 1 minute)', 'sum_delay'], True)
        """
        keys = [key.text if isinstance(key, Window) else key for key in self.by]
        return [*(f"key {key}" for key in keys), *(each.name for each in self.aggregates)]

    @property
    def window(self) -> Window | None:
        """The window among the keys."""
        return next((key for key in self.by if isinstance(key, Window)), None)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The columns of the files that are the key."""
        return tuple(name for key in self.by for name in ((START, END) if isinstance(key, Window) else (key,)))

    def fold(self, table: pa.Table, watermark: int | None = None) -> pa.Table:
        """Return one row per key; with a window the column ``late_rows`` too, by the watermark in µs.

        Types do not depend on the data: counts and sums of whole numbers are int64, of floats float64, of decimals
        ``decimal(38,s)``; minima and maxima keep their type. If a sum might overflow its type, which Arrow would not
        report, the rows are halved until it cannot: a key then has several partial aggregates.

        >>> rows = pa.table({"route": ["a", "b", "a"], "delay": [1, 2, None]})
        >>> made = Aggregation(("route",), (Aggregate("count", None), Aggregate("sum", "delay")))
        >>> made.fold(rows).sort_by("route").to_pylist()
        [{'route': 'a', 'count': 2, 'sum_delay': 1}, {'route': 'b', 'count': 1, 'sum_delay': 2}]
        """
        if any(a.function == "sum" and _may_overflow(table.column(str(a.column))) for a in self.aggregates):
            half = table.num_rows // 2
            return pa.concat_tables([self.fold(table[:half], watermark), self.fold(table[half:], watermark)])
        if self.window is None:
            return _folded(table, self.keys, self.aggregates)
        table = table.append_column(START, self.window.panes(table.column(self.window.column)))
        keys = [name for name in self.keys if name != END]
        panes = _folded(table, keys, dict.fromkeys([*self.aggregates, ROWS]))
        windows = self.window.spread(panes)
        return self._finished(self.window.mark(windows, windows.column(ROWS.name), watermark), {LATE: "sum"})

    def finish(self, partials: pa.Table) -> pa.Table:
        """Return one row per key from partial aggregates; late rows are among them.

        Raises:
            OverflowError: a sum is too large for its type.
        """
        for name in (each.name for each in self.aggregates if FINISHERS[each.function] == "sum"):
            if _may_overflow(partials.column(name)):
                self._check_sums(partials, name)
        return self._finished(partials, {})

    def _check_sums(self, partials: pa.Table, name: str) -> None:
        """Raise if a sum overflows its type: Arrow's sums wrap around."""
        column: Any = partials.column(name)
        wide = pa.decimal256(76, getattr(column.type, "scale", 0))
        keys: dict[str, Any] = {key: partials.column(key) for key in self.keys}
        grouped = pa.table({**keys, name: column.cast(wide)})
        sums: Any = grouped.group_by(list(self.keys)).aggregate([(name, "sum")]).column(f"{name}_sum")
        try:
            sums.cast(column.type)
        except pa.ArrowInvalid as error:
            raise OverflowError(f"{name}: the sum of a key does not fit {column.type}: {error}") from error

    def _finished(self, partials: pa.Table, more: Mapping[str, str]) -> pa.Table:
        wanted = {**{each.name: FINISHERS[each.function] for each in self.aggregates}, **more}
        grouped = partials.group_by(list(self.keys)).aggregate(list(wanted.items()))  # type: ignore[arg-type]
        columns = grouped.select([*self.keys, *(f"{name}_{function}" for name, function in wanted.items())])
        names = [*self.keys, *wanted]
        return columns.rename_columns(names).cast(partials.select(names).schema)

    def schema(self, columns: Columns) -> pa.Schema:
        """Return the columns of the files."""
        return self.fold(columns.schema.empty_table()).schema


def _folded(table: pa.Table, keys: Sequence[str], aggregates: Iterable[Aggregate]) -> pa.Table:
    """Return one row per key."""
    wanted: list[Any] = [([], "count_all") if a.column is None else (a.column, a.function) for a in aggregates]
    grouped = table.group_by(list(keys)).aggregate(wanted)
    columns: dict[str, Any] = {name: grouped.column(name) for name in keys}
    for each in aggregates:
        made = grouped.column("count_all" if each.column is None else f"{each.column}_{each.function}")
        columns[each.name] = made.cast(pa.int64()) if each.function == "count" else made
    return pa.table(columns)


def _by(keys: Sequence[str]) -> tuple[str | Window, ...]:
    return tuple(Window.parse(text) or text for text in rejoin(keys))


def _check_key(key: str | Window, columns: Columns) -> None:
    name = key.column if isinstance(key, Window) else key
    column = next((column for column in columns.columns if column.name == name), None)
    if column is None:
        raise ConfigError(f"parquet.keys: no column {name}", cure=f"some of {', '.join(columns.names)}")
    if isinstance(key, Window):
        if column.type != TIMESTAMP:
            raise ConfigError(
                f"parquet.keys: {key.text}: {column.declared} is not a timestamp", cure=f"{name}:timestamp"
            )
        if taken := {START, END, LATE}.intersection(columns.names):
            raise ConfigError(
                f"parquet.keys: {key.text}: a window brings the column {min(taken)} itself", cure="another name for it"
            )


def _aggregate(text: str, columns: Columns) -> Aggregate:
    function, colon, column = text.partition(":")
    if text == "count":
        return Aggregate("count", None)
    if function not in FUNCTIONS or not colon:
        raise ConfigError(
            f"parquet.aggregates: {text!r} is not an aggregate", cure="count, sum:x, min:x, max:x or count:x"
        )
    kind = next((c.kind for c in columns.columns if c.name == column), None)
    if kind is None:
        raise ConfigError(f"parquet.aggregates: {text}: no column {column}", cure=f"one of {', '.join(columns.names)}")
    if function == "sum" and not kind.startswith(("int", "float", "decimal")):
        raise ConfigError(f"parquet.aggregates: {text}: a {kind} cannot be added up", cure="min, max or count")
    return Aggregate(function, column)


def logged_schema(logged: Sequence[str]) -> pa.Schema:
    """Return the columns of the rows, from the words in which a commit log holds them. Those of folders are last.

    >>> logged_schema(["word:string", "n:int16", "key word", "count", "sum_n"]).names
    ['word', 'count', 'sum_n']
    >>> logged_schema(["word:string", "n:int16", "/word"]).names
    ['n', '_topic', '_topic_id', '_partition', '_offset', '_path', 'word']
    """
    columns = Columns.parse([text for text in logged if ":" in text])
    folders = logged_folders(logged)
    aggregation = Aggregation.logged(logged)
    rows = aggregation.schema(columns) if aggregation else pa.schema([*columns.schema, *ORIGIN_SCHEMA])
    ends = [columns.schema.field(name) for name in folders]
    return pa.schema([field for field in rows if field.name not in folders] + ends)


def _may_overflow(column: Any) -> bool:
    if len(column) < 2:
        return False
    if pa.types.is_decimal(column.type):
        limit, unit = 10**38 - 10**12, 10**column.type.scale  # Python's products are right to 28 digits
    elif column.type == pa.int64():
        limit, unit = 2**63, 1
    else:  # sums of smaller whole numbers do not get there in one flush; those of floats are inf
        return False
    bounds: Any = pc.min_max(column).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    return bool(largest * unit * len(column) >= limit)
