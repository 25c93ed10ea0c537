"""The records of a topic from one place to another, for a person or a program that looks: `downspout kafka consume`.

Partitions are read by assignment, in no group or for one whose members are away. Where reading ends is decided by
*positions*: a log may end with markers of transactions, or with offsets that the cleaner has emptied, and no record
ever comes from there. A bounded reading takes one partition after the other, so that it gives the same each time; one
that follows takes them all at once.

A batch counts as seen when the next one is asked for. So for a group, what was seen is committed and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

from kafka import errors

from downspout.clock import SYSTEM_CLOCK, Clock
from downspout.errors import BrokerError, ConfigError, UnreadableError, coordinates
from downspout.formatting import counted
from downspout.kafka.asking import answer_of
from downspout.kafka.port import Cluster, OffsetAndMetadata, Record, TopicPartition
from downspout.kafka.retry_gate import cure_of, describe
from downspout.kafka.unreadable import Limits
from downspout.ledger.metadata import NOTHING, decode

POLL_MS = 250
RECORDS_MAX = 500  # of one poll
IDLE_POLLS = 8  # polls without progress after which the brokers are asked where the log ends now
COMMIT_S = 1.0
NOTES_MAX = 3  # of one kind, for a topic of many partitions


class Place(NamedTuple):
    """Where to begin, or to end, in each partition."""

    kind: Literal["beginning", "end", "offset", "time"]
    value: int = 0  # an offset, or milliseconds since the epoch


BEGINNING, END = Place("beginning"), Place("end")

Offsets = Mapping[TopicPartition, int]


class TopicReader:
    """Reads a topic; a context, at whose end the group's offsets are committed and the consumer is released.

    Args:
        group: begin where this group stands, unless ``start`` says where, and commit what was seen for it.
        start: where to begin; None: where the group stands, or at the beginning.
        until: where to end, as of now; None: never.
        note: hears what else there is to say.

    Raises:
        BrokerError: there is no such topic or partition, or the brokers do not answer.
        ConfigError: the group is a topology's.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        partition: int | None = None,
        group: str | None = None,
        start: Place | None = None,
        until: Place | None = END,
        limit: int | None = None,
        isolation: str = "read_committed",
        note: Callable[[str], None] = lambda text: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._cluster, self._topic, self._group, self._limit = cluster, topic, group, limit
        self._note, self._clock = note, clock
        self._until_stable = until == END and isolation == "read_committed"
        self._consumer = cluster.consumer(group=group, client={"isolation_level": isolation})
        self._seen: dict[TopicPartition, int] = {}  # behind the last record that was seen
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

    # --- from where to where ----------------------------------------------------------------------------

    def _choose(self, partition: int | None) -> list[TopicPartition]:
        topic = self._topic
        numbers = answer_of(lambda: self._consumer.partitions_for(topic), f"the partitions of {topic}")
        if not numbers:
            raise BrokerError(f"there is no topic {topic}", cure="`downspout kafka topics` lists those that there are")
        if partition is not None and partition not in numbers:
            raise BrokerError(
                f"{coordinates(topic, partition)} does not exist: {topic} has {counted(len(numbers), 'partition')}, "
                "numbered from 0",
                cure=f"a partition below {len(numbers)}",
            )
        return [TopicPartition(topic, number) for number in (sorted(numbers) if partition is None else [partition])]

    def _bounds(self, start: Place | None, until: Place | None) -> tuple[dict[TopicPartition, int], Offsets | None]:
        chosen, what = self._partitions, f"where {self._topic} begins and ends"
        begins = answer_of(lambda: self._consumer.beginning_offsets(chosen), what)
        ends = answer_of(lambda: self._consumer.end_offsets(chosen), what)
        stands = self._stands() if self._group is not None else {}
        first = dict(begins)
        if start is None:
            first |= stands
            self._say_if_outside(first, begins, ends, f"group {self._group} stands at")
        elif start.kind == "offset":
            first = dict.fromkeys(chosen, start.value)
            self._say_if_outside(first, begins, ends, "reading was to begin at")
            first = {tp: min(offset, ends[tp]) for tp, offset in first.items()}
        else:
            first = self._offsets(start, begins, ends)
        first = {tp: max(offset, begins[tp]) for tp, offset in first.items()}
        if until is None:
            return first, None
        found = dict.fromkeys(chosen, until.value) if until.kind == "offset" else self._offsets(until, begins, ends)
        return first, {tp: min(offset, ends[tp]) for tp, offset in found.items()}

    def _offsets(self, place: Place, begins: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return the offsets of a place; that of a time is the first record with that time or a later one."""
        if place.kind != "time":
            return dict(begins if place.kind == "beginning" else ends)
        times = dict.fromkeys(self._partitions, place.value)
        found = answer_of(lambda: self._consumer.offsets_for_times(times), f"the offsets of a time in {self._topic}")
        return {tp: ends[tp] if (at := found[tp]) is None else at for tp in times}

    def _stands(self) -> Offsets:
        """Return where the group stands, in partitions for which it has a commit."""
        group = self._group
        found = answer_of(lambda: self._consumer.committed(self._partitions), f"the commits of group {group}")
        stands = {tp: entry for tp, entry in found.items() if entry is not None}
        for tp, entry in stands.items():
            if decode(entry.offset, entry.metadata) != NOTHING:
                raise ConfigError(
                    f"group {group} is a topology's: its commit of {coordinates(*tp)} says more than an offset, which "
                    "would be lost",
                    cure="another --group, or none",
                )
        return {tp: entry.offset for tp, entry in stands.items()}

    def _say_if_outside(self, first: Offsets, begins: Offsets, ends: Offsets, what: str) -> None:
        """Note which partitions are not read from the offset that was asked for."""
        gone = [tp for tp, offset in first.items() if offset < begins[tp]]
        late = [tp for tp, offset in first.items() if offset > ends[tp]]
        for tps, which, edges in ((gone, "begins", begins), (late, "ends", ends)):
            for tp in tps[:NOTES_MAX]:
                self._note(f"{coordinates(*tp)}: {what} {first[tp]}, and the log {which} at {edges[tp]}")
            if len(tps) > NOTES_MAX:
                self._note(f"so it is with {counted(len(tps) - NOTES_MAX, 'more partition')}")

    # --- reading ----------------------------------------------------------------------------------------

    def batches(self, stopped: Callable[[], object] = lambda: False) -> Iterator[Sequence[Record]]:
        """Yield records of one partition, until the end, the limit, or ``stopped``; sometimes none.

        Raises:
            BrokerError: records cannot be read.
            UnreadableError: at the end: some could not be given whole.
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
                self._say_what_is_open(some[0])
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
                self._look_for_the_end(open_)
            self._commit(due_only=True)
            open_ -= {tp for tp in open_ if self._ends is not None and at[tp] >= self._ends[tp]}

    def _poll(self) -> Mapping[TopicPartition, Sequence[Record]]:
        try:
            return self._consumer.poll(POLL_MS, RECORDS_MAX)
        except errors.OffsetOutOfRangeError as error:
            self._go_on_behind(error.args[0])
        except errors.KafkaError as error:
            if not error.retriable:
                raise BrokerError(
                    f"{self._topic} cannot be read: {describe(error)}", cure=cure_of(error, "look at the broker's log")
                ) from error
        return {}

    def _go_on_behind(self, places: Any) -> None:
        """Go on at the beginning of logs whose records were deleted before they were read."""
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
        """Note what cannot be given whole; return where a record stands in its place."""
        found = self._consumer.take_unreadable()
        for each in found:
            self._unreadable += each.count
            self._note(str(each))
        return {(each.partition, each.offset) for each in found}

    def _within(self, tp: TopicPartition, records: Sequence[Record]) -> tuple[Sequence[Record], int]:
        """Return those of some records that were asked for, and the offset behind them and all that is none."""
        after = self._consumer.position(tp)
        if self._ends is not None and after > (end := self._ends[tp]):
            records, after = [record for record in records if record.offset < end], end
        if self._limit is not None and len(records) > (left := self._limit - self.count):
            records = records[:left]
            after = records[-1].offset + 1
        return records, after

    def _look_for_the_end(self, open_: set[TopicPartition]) -> None:
        """Ask where logs end by now: one that was cut off never gets to where it ended.

        Raises:
            BrokerError: the brokers do not answer, for half a minute.
        """
        ends = answer_of(lambda: self._consumer.end_offsets(sorted(open_)), f"where {self._topic} ends")
        if self._ends is not None:
            for tp in open_:
                if ends[tp] < self._ends[tp]:
                    self._note(f"{coordinates(*tp)}: the log ends at {ends[tp]} by now, no longer at {self._ends[tp]}")
            self._ends = {**self._ends, **{tp: min(end, self._ends[tp]) for tp, end in ends.items()}}

    def _say_what_is_open(self, tp: TopicPartition) -> None:
        """Note a transaction without an end: what it wrote is not given, and nothing behind it."""
        assert self._ends is not None
        was_read = self._starts[tp] < self._ends[tp]
        if was_read and (self._consumer.highwater(tp) or 0) <= self._ends[tp]:
            return  # as most often, and then no broker is asked
        what = f"where {self._topic} ends"
        with closing(self._cluster.consumer(group=None, client={"isolation_level": "read_uncommitted"})) as other:
            end = answer_of(lambda: other.end_offsets([tp]), what)[tp]
        stable = answer_of(lambda: self._consumer.end_offsets([tp]), what)[
            tp
        ]  # later: what is new meanwhile is not open
        if stable < end:
            hidden = f"{counted(end - stable, 'offset')} from {stable} on are not given"
            self._note(f"{coordinates(*tp)}: a transaction is open; {hidden} (--isolation read_uncommitted gives them)")

    # --- commits ----------------------------------------------------------------------------------------

    def _commit(self, *, due_only: bool = False) -> None:
        """Commit for the group what was seen."""
        if self._group is None or (due_only and self._clock.monotonic() < self._commit_due):
            return
        fresh = {tp: offset for tp, offset in self._seen.items() if self._committed.get(tp) != offset}
        if fresh:
            offsets = {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in fresh.items()}
            answer_of(lambda: self._consumer.commit(offsets), f"whether it took the commit of group {self._group}")
            self._committed |= fresh
        self._commit_due = self._clock.monotonic() + COMMIT_S
