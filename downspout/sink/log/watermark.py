"""The watermark of a directory: which windows are final, the same for all who ask, and for ever.

A window is *final* when its end is at or before the watermark. Each ``flush`` entry of a sink with a window carries
the greatest time of each partition among its rows, and the watermark after it; readers take that as it is. The log is
one order that all writers see, and whoever appends has read all entries before. So the watermark after *n* entries is
one number; it never goes back; and whether a row is *late*, by the watermark before its own entry, is as certain as its
place in the log. What an entry adds to a window that is final before it, it marks (``late_rows``). Hence the rule that
readers rely on: **the rows of a final window that are not marked late never change**, whatever comes later.

How a writer advances it. The watermark is the least of the greatest times, less ``parquet.lateness_s``. The least of
what, matters:

* *Of partitions, and of writers.* Two tasks of a sink, or two workers, may both get rows of a partition, and flush at
  different moments. What one has flushed says nothing about the rows that the other holds: so each pair of a partition
  and a writer has a time of its own. A task that is started anew is another writer. So after a crash, a rebalance, a
  seek, or a change of the number of tasks, the old pairs hold the watermark until the new ones have caught up. (Spark
  commits a batch whole: all its tasks are one writer.)
* *Idle ones are left out.* A pair counts until the directory was written to for ``parquet.idle_s`` without a row of it.
  For so long nothing is final in a new directory either: which partitions there are shows by then. A partition that
  has no row at all is never waited for; its first rows may be late.
* *Time is counted while somebody writes*: from one such entry to the next, but at most a quarter of ``idle_s``. So a
  night without a run makes nobody idle, nor does a clock that jumps.
* *A time in the future counts as now*: the clock of one broken device closes nothing.

Replays carry no times: rows that are covered are in no entry. A ``compact`` or ``fence`` entry changes nothing here; a
``rebuild`` begins anew. Where the settings change, entries from then on go by the new ones, and the watermark stays
where it is until those have passed it.

What ``lateness_s`` must cover is the disorder of the times within a partition, as rows arrive: that of the topic, and
what the topology adds (a record that is tried again, parallel bolts before the sink).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from downspout.sink.log.entry import EventTimes, Partition, listed, moment, text, whole

PAUSES = 4  # A pause counts as at most this part of ``idle_s``


class Watermark:
    """The watermark after some entries, and what the next one depends on.

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
        """Return what the next entry carries; None where its rows have no times.

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
        """Take what an entry carries, which was made at ``now_ms``."""
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
        """Return it as JSON values; empty where no entry carried times."""
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
