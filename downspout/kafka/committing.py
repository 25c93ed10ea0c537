"""Commits: the next offset to read, with what is done beyond it in the metadata, for what is ours and nothing else.

:func:`commit` goes by what is acked, :func:`commit_positions` by what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kafka.errors import KafkaError

from downspout.kafka.guarantee import RENEW_MS
from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.kafka.spout_state import Partition
from downspout.kafka.starts import Identity
from downspout.ledger.metadata import ENDED, encode
from downspout.ledger.watch import Watch

__all__ = ["Leniency", "commit", "commit_positions"]


@dataclass(frozen=True, slots=True)
class Leniency:
    """What a commit before an orderly end keeps back of failed attempts, so that their records are tried again.

    A record that used up its attempts, and whose dead letter is not written, gets one more try: the next owner would
    otherwise give it up untried, though it may have been repaired for, and without knowing why it failed.

    Attributes:
        retries_max: no record is told to have failed more often.
        tripped: the circuit breaker is open, so it was not the records' fault: no failed attempt is told.

    Deaths of processes are no part of it. Where there is a watch (``downspout.ledger.watch``), what an earlier owner
    counted may be such deaths, and is told as it is: a record that kills would do it again after each orderly end.
    """

    retries_max: int
    tripped: bool = False

    def attempts(self, part: Partition, point: int, watch: Watch) -> Iterator[tuple[int, int]]:
        """Yield (offset, failed attempts) that a commit at ``point`` tells."""
        for offset, failures in part.ledger.failures_from(point):
            suspected = offset < watch.until
            if suspected and not part.failed_here(offset):
                yield offset, failures
                continue
            attempts_max = 0 if self.tripped and not suspected else self.retries_max
            if attempts_max:
                yield offset, min(failures, attempts_max)


def commit(
    consumer: ConsumerPort,
    parts: Iterable[Partition],
    identity: Identity,
    now: int,
    *,
    last: bool = False,
    leniency: Leniency | None = None,
) -> bool:
    """Commit what has changed, or is old, and wait for the broker's word; return whether a request was sent.

    Args:
        consumer: what reads.
        parts: what is ours.
        identity: who commits.
        now: the time in ms.
        last: whether we give the partitions up in order now, so that the next owner's start is no unclean one.
        leniency: about records that failed; None: it may be long until the next commit, and what failed has failed.

    If it raises, the broker may have applied it or not: nothing is taken as committed, and the next commit says it
    again.

    Raises:
        KafkaError: what the client raises.
    """
    due: dict[TopicPartition, tuple[Partition, int, str, Watch]] = {}
    for part in parts:
        point = part.commit_point(consumer)
        watch = part.watch_at(point)
        told = watch.end(idle=part.untouched) if last else watch
        failures = leniency.attempts(part, point, watch) if leniency else part.ledger.failures_from(point)
        metadata = _metadata(part, point, identity, failures, told)
        if _is_due(part, point, metadata, now):
            due[part.tp] = (part, point, metadata, watch)
    if not due:
        return False
    try:
        consumer.commit({tp: OffsetAndMetadata(point, metadata, -1) for tp, (_, point, metadata, _) in due.items()})
    except KafkaError:
        for part, *_ in due.values():
            # What the broker has is not known: the next commit says all, even what it said before.
            part.committed_at = None
        raise
    for part, point, metadata, watch in due.values():
        part.commit, part.committed_at = (point, metadata), now
        part.keep_watch(point, watch)
        part.ledger.committed(point)
        part.drop_waiting_below(point)
        if part.reading < point:
            part.seek(consumer, point)
    return True


def commit_positions(
    consumer: ConsumerPort, parts: Iterable[Partition], identity: Identity, now: int, wait: bool = True
) -> None:
    """Commit how far each partition was read, emitted or not.

    Args:
        consumer: what reads.
        parts: what is ours.
        identity: who commits.
        now: the time in ms.
        wait: for the broker's word. Otherwise nothing is known to be committed, and it is said again next time.

    Raises:
        KafkaError: what the client raises.
    """
    due: dict[TopicPartition, OffsetAndMetadata] = {}
    for part in parts:
        point = part.position(consumer)
        metadata = _metadata(part, point, identity, (), ENDED)  # no watch: what is out is not expected back
        if _is_due(part, point, metadata, now):
            due[part.tp] = OffsetAndMetadata(point, metadata, -1)
    if not due:
        return
    if not wait:
        consumer.commit_async(due)
        return
    consumer.commit(due)
    for part in parts:
        if (told := due.get(part.tp)) is not None:
            part.commit, part.committed_at = (told.offset, told.metadata), now
            part.ledger.committed(min(told.offset, part.ledger.next))


def _is_due(part: Partition, point: int, metadata: str, now: int) -> bool:
    """Return whether a commit says something new, or something that was said long ago, nobody knows when."""
    said_at = part.committed_at
    return part.commit != (point, metadata) or said_at is None or now - said_at >= RENEW_MS


def _metadata(
    part: Partition, point: int, identity: Identity, failures: Iterable[tuple[int, int]], watch: Watch
) -> str:
    """Return what a commit at ``point`` tells the next owner."""
    return encode(
        point,
        topology_id=identity.topology_id,
        task=identity.task,
        topic_id=part.topic_id,
        done=part.ledger.done_beyond(point),
        failures=failures,
        watch=watch,
    )
