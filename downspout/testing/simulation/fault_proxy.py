"""A simulated process's connections to Kafka and its disk, which die with it.

Each call with a visible effect is an *effect*: just before it, the world's plan may kill or pause the process. Calls of
a dead process (its ``finally`` blocks) raise :class:`Killed` and do nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kafka import errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from downspout.kafka.partitioners import Choose
from downspout.kafka.port import (
    TOPIC_LEGAL,
    Answered,
    GroupDescription,
    GroupMembership,
    OpenTransaction,
    ProducerPort,
    RebalanceHandler,
    Record,
    Sent,
    TopicState,
)
from downspout.sink.storage import Disk
from downspout.testing.fake_kafka import FakeConsumer, FakeKafka
from downspout.testing.fake_producer import FakeProducer, FakeTransactionalProducer

__all__ = ["Connection", "FaultyDisk", "Killed", "Living", "SharedFolder", "WatchedDisk", "places"]

OUTPUT_PARTITIONS = 2  # Of an automatically created topic
KAFKA, STORE = "Kafka", "its store"  # Services that may become silent
REQUESTS, ANSWERS = "requests", "answers"  # Dropped by a silent network
T = TypeVar("T")


class Killed(BaseException):
    """The process is dead; not caught by ``except Exception``."""


class Living(Protocol):
    """The interface of a process for its connections."""

    def effect(self, what: str) -> None:
        """Called before each visible effect. Raises Killed: the process is dead."""

    def note(self, what: str) -> None:
        """Add an event to the trace."""

    def travel(self) -> None:
        """Advance the clock by the time of a request."""

    def wait_in_vain(self) -> None:
        """Advance the clock by the timeout of a request."""

    def silence(self, service: str) -> str:
        """Return what the network drops between the process and a service: nothing, requests, or only answers."""

    def disk_error(self, operation: str) -> OSError | None:
        """Return the disk error for this operation, if any."""


def places(offsets: Mapping[TopicPartition, Any]) -> str:
    """Format partitions with their values, in order.

    >>> places({TopicPartition("b", 0): 7, TopicPartition("a", 1): 3})
    'a[1]@3 b[0]@7'
    """
    return " ".join(f"{tp.topic}[{tp.partition}]@{what}" for tp, what in sorted(offsets.items()))


class _Reached(FakeKafka):
    """The same Kafka for one process, whose requests get no answer while the network is silent."""

    def __init__(self, kafka: FakeKafka, process: Living) -> None:
        vars(self).update(_whole=kafka, _process=process)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._whole, name, value)

    @property
    def is_up(self) -> bool:  # type: ignore[override]  # what a test sets, the world sets for all processes
        """Whether brokers answer this process."""
        return self._whole.is_up and not self._process.silence(KAFKA)

    @property
    def coordinates(self) -> bool:
        """Whether the group coordinator answers this process."""
        return self._whole.coordinates and self.is_up

    def run_remote(self, operation: str, action: Callable[[], T]) -> T:
        """Run this process's request to a broker."""
        silence = self._process.silence(KAFKA)
        if not silence:
            answer: T = self._whole.run_remote(operation, action)
            return answer
        if silence == ANSWERS:
            with suppress(errors.KafkaError):
                self._whole.run_remote(operation, action)
        raise errors.KafkaTimeoutError(f"{operation}: {self.bootstrap} is silent")


class Connection:
    """A :class:`~downspout.kafka.port.Cluster` for one process."""

    def __init__(self, kafka: FakeKafka, process: Living) -> None:
        self._kafka: FakeKafka = _Reached(kafka, process)
        self._process = process
        self.consumers: list[FakeConsumer] = []

    def consumer(
        self,
        *,
        group: str | None,
        instance_id: str | None = None,
        client: Mapping[str, Any] | None = None,
        auto_commit_ms: int | None = None,
        columns: bool = False,
    ) -> Consumer:
        """Return a consumer that dies with the process."""
        made = self._kafka.consumer(
            group=group, instance_id=instance_id, client=client, auto_commit_ms=auto_commit_ms, columns=columns
        )
        self.consumers.append(made)
        return Consumer(made, self._process)

    def producer(
        self, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> ProducerPort:
        """Return a producer that dies with the process and creates missing topics, like most brokers."""
        return Producer(
            self._kafka.producer(client=client, partitioner=partitioner), self._process, self._creator(client)
        )

    def transactional_producer(
        self, transactional_id: str, *, client: Mapping[str, Any] | None = None, partitioner: str | Choose = "sticky"
    ) -> TransactionalProducer:
        """Return a producer that dies with the process; its open transaction is aborted once another has its id."""
        real = self._kafka.transactional_producer(transactional_id, client=client, partitioner=partitioner)
        return TransactionalProducer(real, self._process, self._creator(client))

    def _creator(self, client: Mapping[str, Any] | None) -> Callable[[str], None]:
        """Return a function that creates a record's topic, unless ``produce.auto_create`` is off."""

        def create(topic: str) -> None:
            if isinstance(topic, str) and TOPIC_LEGAL.fullmatch(topic) and self._kafka.topic(topic) is None:
                self._kafka.create_topic(topic, OUTPUT_PARTITIONS)

        return create if (client or {}).get("allow_auto_create_topics", True) else lambda topic: None

    def open_transactions(self, group: str) -> Sequence[OpenTransaction]:
        """Return the open transactions that block a group's commits."""
        return remote(self._process, "open_transactions", lambda: self._kafka.open_transactions(group))

    def ensure_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int | None = None
    ) -> bool:
        """Create the topic unless it exists; return whether it was created."""
        how = topic, partitions, config, replication
        return remote(self._process, "ensure_topic", lambda: self._kafka.ensure_topic(*how))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition's log."""
        remote(self._process, "delete_records", lambda: self._kafka.delete_records(topic, partition, before))

    def group_offsets(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return all commits of a group."""
        return remote(self._process, "group_offsets", lambda: self._kafka.group_offsets(group))

    def group_members(self, group: str) -> Sequence[str]:
        """Return the names of a group's live members."""
        return remote(self._process, "group_members", lambda: self._kafka.group_members(group))

    def describe_group(self, group: str) -> GroupDescription | None:
        """Return a group's state, coordinator and live members."""
        return remote(self._process, "describe_group", lambda: self._kafka.describe_group(group))

    def describe_logs(self, topics: Collection[str]) -> Mapping[str, TopicState]:
        """Return the beginning and end of topics' logs."""
        return remote(self._process, "describe_logs", lambda: self._kafka.describe_logs(topics))

    def has_joined(self, group: str) -> bool:
        """Return whether a member has ever joined the group."""
        return remote(self._process, "has_joined", lambda: self._kafka.has_joined(group))

    def commit_ages(self, group: str, within_s: float) -> Mapping[TopicPartition, float] | None:
        """Return the ages of young commits."""
        return remote(self._process, "commit_ages", lambda: self._kafka.commit_ages(group, within_s))

    def remove_members(self, group: str, names: Collection[str]) -> None:
        """Remove static members from a group."""
        remote(self._process, "remove_members", lambda: self._kafka.remove_members(group, names))

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete a group's commits for these partitions."""
        remote(self._process, "delete_offsets", lambda: self._kafka.delete_offsets(group, partitions))

    def delete_groups(self, groups: Collection[str]) -> Sequence[str]:
        """Delete groups with their commits."""
        return remote(self._process, "delete_groups", lambda: self._kafka.delete_groups(groups))


def remote(process: Living, what: str, call: Callable[[], T], about: str = "") -> T:
    """Run a client's request to a broker: it takes time, and more if the broker does not answer."""
    process.effect(what)
    process.travel()
    try:
        answer = call()
    except errors.KafkaError as error:
        process.note(f"{what} {about}: {type(error).__name__}")
        if isinstance(error, errors.KafkaTimeoutError):
            process.wait_in_vain()
        raise
    if about:
        process.note(f"{what} {about}")
    return answer


class _Listener:
    """Traces the calls of a listener."""

    def __init__(self, real: RebalanceHandler, process: Living) -> None:
        self._real, self._process = real, process

    def _notify(self, what: str, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self._process.note(f"{what} {' '.join(f'{tp.topic}[{tp.partition}]' for tp in sorted(partitions))}")

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._notify("assigned", partitions)
        self._real.on_partitions_assigned(partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._notify("revoked", partitions)
        self._real.on_partitions_revoked(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._notify("lost", partitions)
        self._real.on_partitions_lost(partitions)


class Consumer:
    """A :class:`~downspout.kafka.port.ConsumerPort` for one process; local calls go to the fake directly."""

    def __init__(self, real: FakeConsumer, process: Living) -> None:
        self._real, self._process = real, process
        for name in ("assign", "assignment", "rejoin_pending", "position", "seek", "pause", "resume", "paused"):
            setattr(self, name, getattr(real, name))
        self.highwater, self.connected, self.membership = real.highwater, real.connected, real.membership
        self.note_aborted, self.take_aborted = real.note_aborted, real.take_aborted
        self.tolerate, self.take_unreadable = real.tolerate, real.take_unreadable
        self.fetches, self.gather = real.fetches, real.gather

    def __getattr__(self, name: str) -> Any:
        """Return a method that sends a request to the broker."""
        if name not in _ASKED:
            raise AttributeError(name)
        call = getattr(self._real, name)
        return lambda *args: remote(self._process, name, lambda: call(*args))

    def subscribe(self, topics: Sequence[str], listener: RebalanceHandler) -> None:
        """Join the group for these topics at the next poll."""
        self._real.subscribe(topics, _Listener(listener, self._process))

    def subscribe_pattern(self, pattern: str, listener: RebalanceHandler) -> None:
        """Join the group for topics whose whole name matches."""
        self._real.subscribe_pattern(pattern, _Listener(listener, self._process))

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return records; an error takes the time of the poll."""
        process = self._process
        process.effect("poll")
        try:
            found = self._real.poll(timeout_ms, max_records)
        except errors.KafkaError as error:
            process.note(f"poll: {type(error).__name__}")
            process.travel()
            raise
        for tp, records in found.items():
            process.note(
                f"read {tp.topic}[{tp.partition}]@{records[0].offset}..{records[-1].offset} ({len(records)} records)"
            )
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit and wait for the broker's answer."""
        told = places({tp: given.offset for tp, given in offsets.items()})
        remote(self._process, "commit", lambda: self._real.commit(offsets), told)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answered: Answered | None = None
    ) -> None:
        """Send a commit without waiting."""
        told = places({tp: given.offset for tp, given in offsets.items()})
        remote(self._process, "commit_async", lambda: self._real.commit_async(offsets, answered), told)

    def close(self, leave_group: bool = True) -> None:
        """Stop without committing."""
        remote(self._process, "close", lambda: self._real.close(leave_group), "consumer")


_ASKED = frozenset(
    {
        "committed", "beginning_offsets", "end_offsets", "offsets_for_times", "first_records",
        "partitions_for", "topic_names", "topic_id", "topic_ids",
    }
)  # fmt: skip


class Producer:
    """A :class:`~downspout.kafka.port.ProducerPort` for one process."""

    def __init__(self, real: FakeProducer, process: Living, create: Callable[[str], None]) -> None:
        self._real, self._process, self._create = real, process, create

    def send(self, topic: str, **record: Any) -> None:
        """Queue one record."""
        self._process.effect("send")
        self._create(topic)
        self._real.send(topic, **record)

    def results(self) -> Sequence[Sent]:
        """Return the results of records."""
        return self._real.results()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unanswered records."""
        return self._real.buffered_bytes

    def refuse_when_stuck(self, seconds: float) -> None:
        """Refuse records for a partition that is silent for so long."""
        self._real.refuse_when_stuck(seconds)

    def oldest_s(self) -> float:
        """Return the age in seconds of the oldest unanswered record."""
        return self._real.oldest_s()

    @property
    def retried(self) -> int:
        """How often records were sent again."""
        return self._real.retried

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all records are in the log."""
        remote(self._process, "flush", lambda: self._real.flush(timeout_s))

    def acknowledged(self) -> bool:
        """Return whether all records are in the log."""
        return remote(self._process, "acknowledged", self._real.acknowledged)

    def close(self) -> None:
        """Release the client."""
        self._real.close()


class TransactionalProducer(Producer):
    """A :class:`~downspout.kafka.port.TransactionalPort` for one process."""

    _real: FakeTransactionalProducer

    @property
    def is_over(self) -> bool:
        """Whether it must not be used again."""
        return self._real.is_over

    def begin(self) -> None:
        """Begin a transaction."""
        remote(self._process, "begin", self._real.begin)

    def has_successor(self) -> bool:
        """Return whether another producer has taken its id."""
        return remote(self._process, "has_successor", self._real.has_successor)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], membership: GroupMembership, timeout_s: float = 30.0
    ) -> None:
        """Add a consumer group's offsets to the transaction."""
        told = places({tp: given.offset for tp, given in offsets.items()})
        remote(
            self._process, "send_offsets", lambda: self._real.send_offsets(offsets, membership, timeout_s), about=told
        )

    def commit(self, timeout_s: float = 30.0) -> None:
        """Send queued records, and commit."""
        remote(self._process, "commit_transaction", lambda: self._real.commit(timeout_s))

    def abort(self, timeout_s: float = 30.0) -> None:
        """Drop queued records, and abort."""
        remote(self._process, "abort_transaction", lambda: self._real.abort(timeout_s))


@dataclass
class SharedFolder:
    """The folder that all processes of a world write to."""

    top: Path
    wall: Callable[[], float]  # the world's time in seconds since the epoch
    written: dict[Path, float] = field(default_factory=dict)  # when each file was written
    ahead_s: float = 0.0  # how far clocks are ahead of the files' times
    swept: int = 0  # how often a file's age was read meanwhile

    def set_right(self) -> None:
        """Correct the clocks."""
        self.ahead_s = 0.0


class WatchedDisk(Disk):
    """The local file system with hooks for tests: ``_change`` for each change, ``_look`` for each read.

    Listings are sorted.
    """

    def _change(self, operation: str, path: Path, change: Callable[[], None], source: Path | None = None) -> None:
        """Make a change to ``path``; a link and a rename have a ``source``."""
        change()

    def _look(self, operation: str, path: Path) -> None:
        """Called before each read."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and those above it."""
        self._change("make_folder", folder, lambda: super(WatchedDisk, self).make_folder(folder))

    def write(self, path: Path, content: bytes) -> None:
        """Write a file whole."""
        self._change("write", path, lambda: super(WatchedDisk, self).write(path, content))

    def sync(self, path: Path) -> None:
        """Force a file or a folder to the disk."""
        self._change("sync", path, lambda: super(WatchedDisk, self).sync(path))

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, exclusively."""
        self._change("link", target, lambda: super(WatchedDisk, self).link(source, target), source)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self._change("rename", target, lambda: super(WatchedDisk, self).rename(source, target), source)

    def remove(self, path: Path) -> None:
        """Remove a file that may be gone already."""
        self._change("remove", path, lambda: super(WatchedDisk, self).remove(path))

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        self._look("read", path)
        return super().read(path)

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or folder."""
        self._look("exists", path)
        return super().exists(path)

    def names(self, folder: Path, at_least: str = "") -> list[str]:
        """Return the names in a folder, which may not exist."""
        self._look("names", folder)
        return sorted(super().names(folder, at_least))

    def files_below(self, folder: Path, without: str = "") -> Iterator[Path]:
        """Yield all files below a folder that may not exist, as they are now."""
        self._look("files_below", folder)
        return iter(sorted(super().files_below(folder, without)))


class FaultyDisk(WatchedDisk):
    """The file system for one process. A failed step may have taken effect.

    A killed process loses no written file; only a power failure would.
    """

    def __init__(self, process: Living, shared: SharedFolder, chance: Callable[[], float]) -> None:
        self._process, self._shared, self._chance = process, shared, chance

    def sync(self, path: Path) -> None:
        """Do nothing: there are no power failures here."""
        self._change("sync", path, lambda: None)

    def modified(self, path: Path) -> float:
        """Return when a file was written, in virtual time."""
        self._look("modified", path)
        self._shared.swept += self._shared.ahead_s > 0
        return self._shared.written.get(path, 0.0) - self._shared.ahead_s if path.exists() else 0.0

    def _look(self, operation: str, path: Path) -> None:
        self._process.effect(operation)

    def _change(self, operation: str, path: Path, change: Callable[[], None], source: Path | None = None) -> None:
        written = self._shared.written
        if operation == "write":
            written[path] = self._shared.wall()
        elif source is not None:
            written[path] = written.get(source, 0.0)
        if not path.is_relative_to(self._shared.top):
            return  # a parent folder, which exists; its path differs between machines
        self._process.effect(operation)
        place = path.relative_to(self._shared.top).as_posix()
        failure = self._process.disk_error(operation)
        if failure is None:
            self._process.note(f"{operation} {place}")
            change()
            return
        happened = self._chance() < 0.3
        self._process.note(f"{operation} {place} fails, {'and happened' if happened else 'and did not happen'}")
        if happened:
            change()
        failure.filename = str(path)
        raise failure


def full() -> OSError:
    """Return the error of a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
