"""Read part of a log: up to an offset, between two points for `downspout kafka consume`, or single records.

Reading ends by *position*: a log may end with transaction markers or compacted offsets, which return no record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

import numpy as np
from kafka import errors

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, ConfigError, UnreadableError, coordinates
from downspout.formatting import counted
from downspout.kafka.port import Cluster, ConsumerPort, OffsetAndMetadata, Record, TopicPartition
from downspout.kafka.retry_gate import answer_of, cure_of, describe
from downspout.kafka.unreadable import Limits
from downspout.ledger.metadata import NOTHING, decode

SCAN_POLL_MS = 200
IDLE_POLLS_MAX = 150  # Polls in a row without progress (30 s) before a scan gives up
SCAN_RECORDS = 2_000  # of one poll


def scan(
    consumer: ConsumerPort, tp: TopicPartition, start: int, end: int, *, idle_polls: int = IDLE_POLLS_MAX
) -> Iterator[Sequence[Record]]:
    """Yield the records of an assigned partition from ``start`` to below ``end``, one poll at a time.

    Skips records that retention deletes meanwhile. The consumer's ``take_unreadable`` covers the last records yielded.

    Raises:
        KafkaError: the broker refuses; or (KafkaTimeoutError) nothing has arrived for ``idle_polls`` polls of 0.2 s.
    """
    consumer.seek(tp, start)
    idle = 0
    while (position := consumer.position(tp)) < end:
        try:
            records = consumer.poll(SCAN_POLL_MS, SCAN_RECORDS).get(tp, ())
        except errors.OffsetOutOfRangeError:
            begin = consumer.beginning_offsets([tp])[tp]
            if begin <= position:
                raise
            consumer.seek(tp, begin)
            continue
        if found := [record for record in records if record.offset < end]:
            yield found
        idle = idle + 1 if consumer.position(tp) == position else 0
        if idle > idle_polls:
            raise errors.KafkaTimeoutError(
                f"{coordinates(tp.topic, tp.partition, position)}: no record arrives, although the log ends at {end}"
            )


# --- A topic, between two points ---

POLL_MS = 250
RECORDS_MAX = 500  # of one poll
IDLE_POLLS = 8  # Polls without progress before the ends of the logs are checked again
COMMIT_S = 1.0
NOTES_MAX = 3  # Notes of one kind, if a topic has many partitions


class LogPoint(NamedTuple):
    """A point to begin or end at in each partition."""

    kind: Literal["beginning", "end", "offset", "time"]
    value: int = 0  # an offset, or milliseconds since the epoch


BEGINNING, END = LogPoint("beginning"), LogPoint("end")

Offsets = Mapping[TopicPartition, int]


class TopicReader:
    """Reads a topic; leaving its context commits the group's offsets and releases the consumer.

    It assigns partitions itself, without a group or for an inactive one. A bounded reader reads one partition after the
    other, so its output is repeatable; an unbounded one reads all at once. Requesting the next batch marks the previous
    one as seen; exactly the records seen are committed.

    Args:
        group: begin at this group's commits unless ``start`` is given, and commit for it.
        start: None: the group's commits, or the beginning.
        until: the end, as of now; None: unbounded.
        note: receives messages, such as offsets outside the log.

    Raises:
        BrokerError: no such topic or partition, or the brokers do not answer.
        ConfigError: the group belongs to a topology.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        partition: int | None = None,
        group: str | None = None,
        start: LogPoint | None = None,
        until: LogPoint | None = END,
        limit: int | None = None,
        isolation: str = "read_committed",
        note: Callable[[str], None] = lambda text: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._cluster, self._topic, self._group, self._limit = cluster, topic, group, limit
        self._note, self._clock = note, clock
        self._until_stable = until == END and isolation == "read_committed"
        self._consumer = cluster.consumer(group=group, client={"isolation_level": isolation})
        self._seen: dict[TopicPartition, int] = {}  # the offset after the last record seen
        self._committed: dict[TopicPartition, int] = {}
        self._commit_due = 0.0
        self.count = 0
        self._unreadable = 0
        try:
            self._consumer.tolerate(Limits(), corrupt=True)
            self._partitions = self._choose(partition)
            self._starts, self._ends = self._bounds(start, until)
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._commit()
        finally:
            self._consumer.close()

    # --- bounds ----------------------------------------------------------------------------

    def _choose(self, partition: int | None) -> list[TopicPartition]:
        topic = self._topic
        numbers = answer_of(lambda: self._consumer.partitions_for(topic), f"the partitions of {topic}")
        if not numbers:
            raise BrokerError(f"there is no topic {topic}", cure="`downspout kafka topics` lists the topics")
        if partition is not None and partition not in numbers:
            raise BrokerError(
                f"{coordinates(topic, partition)} does not exist: {topic} has {counted(len(numbers), 'partition')}, "
                "numbered from 0",
                cure=f"a partition below {len(numbers)}",
            )
        return [TopicPartition(topic, number) for number in (sorted(numbers) if partition is None else [partition])]

    def _bounds(
        self, start: LogPoint | None, until: LogPoint | None
    ) -> tuple[dict[TopicPartition, int], Offsets | None]:
        chosen, what = self._partitions, f"where {self._topic} begins and ends"
        begins = answer_of(lambda: self._consumer.beginning_offsets(chosen), what)
        ends = answer_of(lambda: self._consumer.end_offsets(chosen), what)
        stands = self._stands() if self._group is not None else {}
        first = dict(begins)
        if start is None:
            first |= stands
            self._note_outside(first, begins, ends, f"group {self._group} is at")
        elif start.kind == "offset":
            first = dict.fromkeys(chosen, start.value)
            self._note_outside(first, begins, ends, "reading was to start at")
            first = {tp: min(offset, ends[tp]) for tp, offset in first.items()}
        else:
            first = self._offsets(start, begins, ends)
        first = {tp: max(offset, begins[tp]) for tp, offset in first.items()}
        if until is None:
            return first, None
        found = dict.fromkeys(chosen, until.value) if until.kind == "offset" else self._offsets(until, begins, ends)
        return first, {tp: min(offset, ends[tp]) for tp, offset in found.items()}

    def _offsets(self, point: LogPoint, begins: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return the offsets of a point; for a time, those of the first records at or after it."""
        if point.kind != "time":
            return dict(begins if point.kind == "beginning" else ends)
        times = dict.fromkeys(self._partitions, point.value)
        found = answer_of(lambda: self._consumer.offsets_for_times(times), f"the offsets of a time in {self._topic}")
        return {tp: ends[tp] if (at := found[tp]) is None else at for tp in times}

    def _stands(self) -> Offsets:
        """Return the group's commits."""
        group = self._group
        found = answer_of(lambda: self._consumer.committed(self._partitions), f"the commits of group {group}")
        stands = {tp: entry for tp, entry in found.items() if entry is not None}
        for tp, entry in stands.items():
            if decode(entry.offset, entry.metadata) != NOTHING:
                raise ConfigError(
                    f"group {group} belongs to a topology: its commit of {coordinates(*tp)} holds more than an offset, "
                    "which would be lost",
                    cure="another --group, or none",
                )
        return {tp: entry.offset for tp, entry in stands.items()}

    def _note_outside(self, first: Offsets, begins: Offsets, ends: Offsets, what: str) -> None:
        """Note the partitions whose requested start lies outside the log."""
        gone = [tp for tp, offset in first.items() if offset < begins[tp]]
        late = [tp for tp, offset in first.items() if offset > ends[tp]]
        for tps, which, edges in ((gone, "begins", begins), (late, "ends", ends)):
            for tp in tps[:NOTES_MAX]:
                self._note(f"{coordinates(*tp)}: {what} {first[tp]}, but the log {which} at {edges[tp]}")
            if len(tps) > NOTES_MAX:
                self._note(f"the same applies to {counted(len(tps) - NOTES_MAX, 'more partition')}")

    # --- reading ----------------------------------------------------------------------------------------

    def batches(self, stopped: Callable[[], object] = lambda: False) -> Iterator[Sequence[Record]]:
        """Yield records of one partition, possibly none, until the end, the limit, or ``stopped``.

        Raises:
            BrokerError: records cannot be read.
            UnreadableError: at the end, if some records were unreadable.
        """
        together = [self._partitions] if self._ends is None else [[tp] for tp in self._partitions]
        for some in together:
            open_ = [tp for tp in some if self._ends is None or self._starts[tp] < self._ends[tp]]
            if open_:
                self._consumer.assign(open_)
                for tp in open_:
                    self._consumer.seek(tp, self._starts[tp])
                yield from self._read(set(open_), stopped)
            if stopped() or self.count == self._limit:
                break
            if self._until_stable:
                self._note_open_transaction(some[0])
        if self._unreadable:
            raise UnreadableError(f"{counted(self._unreadable, 'offset')} of {self._topic} cannot be read: see above")

    def _read(self, open_: set[TopicPartition], stopped: Callable[[], object]) -> Iterator[Sequence[Record]]:
        at = {tp: self._starts[tp] for tp in open_}
        idle = 0
        while open_ and not stopped() and self.count != self._limit:
            found = self._poll()
            unreadable = self._take_unreadable()
            moved = False
            for tp in sorted(open_):
                given = [r for r in found.get(tp, ()) if (tp, r.offset) not in unreadable]
                records, after = self._within(tp, given)
                if after == at[tp]:
                    continue
                moved, at[tp] = True, after
                self.count += len(records)
                yield records
                self._seen[tp] = after
                if stopped() or self.count == self._limit:
                    return
            idle = 0 if moved else idle + 1
            if idle == IDLE_POLLS:
                idle = 0
                self._check_ends(open_)
            self._commit(due_only=True)
            open_ -= {tp for tp in open_ if self._ends is not None and at[tp] >= self._ends[tp]}

    def _poll(self) -> Mapping[TopicPartition, Sequence[Record]]:
        try:
            return self._consumer.poll(POLL_MS, RECORDS_MAX)
        except errors.OffsetOutOfRangeError as error:
            self._skip_deleted(error.args[0])
        except errors.KafkaError as error:
            if not error.retriable:
                raise BrokerError(
                    f"{self._topic} cannot be read: {describe(error)}", cure=cure_of(error, "check the broker's log")
                ) from error
        return {}

    def _skip_deleted(self, places: Any) -> None:
        """Continue at the beginning of logs if the next records were deleted before they were read."""
        begins = answer_of(lambda: self._consumer.beginning_offsets(list(places)), f"where {self._topic} begins")
        for tp, offset in places.items():
            if offset >= begins[tp]:
                raise BrokerError(
                    f"{coordinates(tp.topic, tp.partition, offset)} is beyond the end of the log",
                    cure="--from beginning, or --from end",
                )
            self._note(f"{coordinates(*tp)}: {offset} to {begins[tp] - 1} were deleted before they were read")
            self._consumer.seek(tp, begins[tp])

    def _take_unreadable(self) -> set[tuple[TopicPartition, int]]:
        """Note unreadable offsets; return those of their placeholder records."""
        found = self._consumer.take_unreadable()
        for each in found:
            self._unreadable += each.count
            self._note(str(each))
        return {(each.partition, each.offset) for each in found}

    def _within(self, tp: TopicPartition, records: Sequence[Record]) -> tuple[Sequence[Record], int]:
        """Return the records within the end and the limit, and the next offset."""
        after = self._consumer.position(tp)
        if self._ends is not None and after > (end := self._ends[tp]):
            records, after = [record for record in records if record.offset < end], end
        if self._limit is not None and len(records) > (left := self._limit - self.count):
            records = records[:left]
            after = records[-1].offset + 1
        return records, after

    def _check_ends(self, open_: set[TopicPartition]) -> None:
        """Update the ends of the logs: a truncated one never reaches its former end.

        Raises:
            BrokerError: the brokers have not answered for 30 s.
        """
        ends = answer_of(lambda: self._consumer.end_offsets(sorted(open_)), f"where {self._topic} ends")
        if self._ends is not None:
            for tp in open_:
                if ends[tp] < self._ends[tp]:
                    self._note(f"{coordinates(*tp)}: the log now ends at {ends[tp]}, no longer at {self._ends[tp]}")
            self._ends = {**self._ends, **{tp: min(end, self._ends[tp]) for tp, end in ends.items()}}

    def _note_open_transaction(self, tp: TopicPartition) -> None:
        """Note an open transaction: its records, and all after them, are withheld."""
        assert self._ends is not None
        was_read = self._starts[tp] < self._ends[tp]
        if was_read and (self._consumer.highwater(tp) or 0) <= self._ends[tp]:
            return  # the usual case, without a request
        what = f"where {self._topic} ends"
        with closing(self._cluster.consumer(group=None, client={"isolation_level": "read_uncommitted"})) as other:
            end = answer_of(lambda: other.end_offsets([tp]), what)[tp]
        # Asked after the end, so records written meanwhile do not look open.
        stable = answer_of(lambda: self._consumer.end_offsets([tp]), what)[tp]
        if stable < end:
            hidden = f"{counted(end - stable, 'offset')} from {stable} on are withheld"
            self._note(
                f"{coordinates(*tp)}: a transaction is open; {hidden} (--isolation read_uncommitted prints them)"
            )

    # --- commits ----------------------------------------------------------------------------------------

    def _commit(self, *, due_only: bool = False) -> None:
        """Commit the offsets seen for the group."""
        if self._group is None or (due_only and self._clock.monotonic() < self._commit_due):
            return
        fresh = {tp: offset for tp, offset in self._seen.items() if self._committed.get(tp) != offset}
        if fresh:
            offsets = {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in fresh.items()}
            answer_of(lambda: self._consumer.commit(offsets), f"whether it took the commit of group {self._group}")
            self._committed |= fresh
        self._commit_due = self._clock.monotonic() + COMMIT_S


# --- Single records ---

RecordPlace = tuple[str, str, int, int]  # Topic, topic id (empty: unknown), partition and offset

NEAR = 3_000  # Up to this distance, read on instead of seeking: a seek costs as much as reading that many records
CLIENT = {"max_partition_fetch_bytes": 256 * 1024, "fetch_max_wait_ms": 100, "auto_offset_reset": "none"}
REREAD_POLL_MS = 100


class Rereader:
    """Reads single records again, with a consumer outside any group.

    It seeks to each record, or reads on to a near one, because a seek discards fetched records.
    """

    def __init__(self, cluster: Cluster, clock: Clock, client: Mapping[str, Any] | None = None) -> None:
        self._cluster = cluster
        self._clock = clock
        self._client = {**(client or {}), **CLIENT}
        self._consumer: ConsumerPort | None = None
        self._partitions: dict[str, frozenset[int]] = {}
        self._until, self._idle_left = 0.0, 0

    def read(self, places: Collection[RecordPlace], wait_s: float) -> dict[RecordPlace, Record | None]:
        """Return the records at these places; None: gone for good. Omit those not read in time.

        Raises:
            KafkaError: the broker does not answer, or refuses.
        """
        found: dict[RecordPlace, Record | None] = {}
        self._until = self._clock.monotonic() + wait_s
        self._idle_left = max(1, round(wait_s * 1000 / REREAD_POLL_MS))  # a test's clock may not move during polls
        if self._consumer is None:
            self._consumer = self._cluster.consumer(group=None, client=self._client, columns=True)
            self._partitions.clear()
        try:
            ids = self._consumer.topic_ids({place[0] for place in places})
            parts: dict[TopicPartition, list[RecordPlace]] = {}
            for place in sorted(places):
                if place[1] and ids.get(place[0]) != place[1]:
                    found[place] = None  # its topic was deleted; a new one has that name
                else:
                    parts.setdefault(TopicPartition(place[0], place[2]), []).append(place)
            for partition, wanted in parts.items():
                if self._is_there(self._consumer, partition):
                    self._read_partition(self._consumer, partition, wanted, found)
                else:
                    found.update(dict.fromkeys(wanted))
        except errors.KafkaError:
            self.close()
            raise
        return found

    def _is_there(self, consumer: ConsumerPort, partition: TopicPartition) -> bool:
        if partition.partition not in self._partitions.get(partition.topic, ()):
            self._partitions[partition.topic] = consumer.partitions_for(partition.topic)
        return partition.partition in self._partitions[partition.topic]

    def _read_partition(
        self,
        consumer: ConsumerPort,
        partition: TopicPartition,
        wanted: Sequence[RecordPlace],
        found: dict[RecordPlace, Record | None],
    ) -> None:
        """Read the records at ascending places of a partition."""
        consumer.assign([partition])
        at: int | None = None
        for place in wanted:
            if place in found:
                continue
            if at is None or not at <= place[3] < at + NEAR:
                consumer.seek(partition, place[3])
            try:
                at = self._read_on(consumer, partition, place, wanted, found)
            except errors.OffsetOutOfRangeError:  # deleted, or truncated
                found[place], at = None, None
                continue
            if at is None:
                return  # out of time

    def _read_on(
        self,
        consumer: ConsumerPort,
        partition: TopicPartition,
        place: RecordPlace,
        wanted: Sequence[RecordPlace],
        found: dict[RecordPlace, Record | None],
    ) -> int | None:
        """Read up to one place, and collect others on the way; return the position; None: out of time."""
        while self._idle_left and self._clock.monotonic() < self._until:
            records = consumer.poll(REREAD_POLL_MS, NEAR).get(partition, ())
            if len(records):
                _pick(records, wanted, found)
            elif place[3] >= consumer.end_offsets([partition])[partition]:
                found[place] = None
                return place[3]
            else:
                self._idle_left -= 1
            at = consumer.position(partition)
            if place not in found and at > place[3]:
                found[place] = None  # compacted
            if place in found:
                return at
        return None

    def close(self) -> None:
        """Release the consumer; the next call makes another."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _pick(records: Sequence[Record], wanted: Sequence[RecordPlace], found: dict[RecordPlace, Record | None]) -> None:
    """Collect the records at wanted, ascending places."""
    columns: Any = records  # the consumer was made with ``columns=True``
    offsets = columns.offsets
    first = bisect_left(wanted, int(offsets[0]), key=_offset)
    last = bisect_left(wanted, int(offsets[-1]) + 1, key=_offset)
    asked = np.array([place[3] for place in wanted[first:last]], dtype=np.int64)
    at = np.searchsorted(offsets, asked)
    for place, row in zip(wanted[first:last], at.tolist(), strict=True):
        if offsets[row] == place[3]:
            found[place] = columns[row]


def _offset(place: RecordPlace) -> int:
    return place[3]
