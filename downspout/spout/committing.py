"""Commits: the next offset to read, with what is done beyond it in the metadata, for the partitions that are ours.

:func:`commit_acked` commits what is acked, :func:`commit_positions` what was read; both wait for the broker's answer.

:class:`AsyncCommits` sends and does not wait (``kafka.commit=async`` and ``combined``): at most one commit is on its
way. Of two either may arrive last, above all if one is sent again after an error, and Kafka stores what arrives last,
even if it is lower. So none is sent before the last one is answered, and none is ever sent again: after a failure the
next commit says how far the spout has come by then. A commit that is waited for lets the one on its way have its
answer first. The client delivers an answer in the middle of a later call, such as a poll. It is only recorded there;
the session acts on it in its own turn, when it knows which partitions are still its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafka.errors import KafkaError, OffsetMetadataTooLargeError

from downspout.kafka.port import ConsumerPort, OffsetAndMetadata, TopicPartition
from downspout.ledger.isolation import Isolation
from downspout.ledger.metadata import ENDED, encode
from downspout.spout.partition import Partition
from downspout.spout.settings import Identity, MetadataLimit

Due = dict[TopicPartition, tuple[Partition, int, str, Isolation]]
"""What is to be committed: offset and metadata of each partition, and the isolation that these hold."""
Heard = Callable[[Mapping[TopicPartition, int], KafkaError | None], None]
"""Hears which offsets a commit was for, and how it ended."""
_LOG = logging.getLogger("downspout.spout")


def commit_fitting(limit: MetadataLimit, send: Callable[[], bool]) -> bool:
    """Commit; where the broker takes less metadata than we thought, again with less; return what ``send`` returns.

    Args:
        limit: how much metadata may have; it is lowered.
        send: makes the metadata, commits, and returns whether there was anything to commit.

    Raises:
        KafkaError: what the client raises.
    """
    while True:
        try:
            found = send()
        except OffsetMetadataTooLargeError as error:
            if not fits_next(limit, error):
                raise
        else:
            limit.is_known = limit.is_known or found
            return found


def fits_next(limit: MetadataLimit, error: KafkaError) -> bool:
    """Return whether a commit failed for too much metadata alone, and the next one has less: the limit is lowered."""
    refused = limit.bytes_max
    if not (isinstance(error, OffsetMetadataTooLargeError) and limit.lower()):
        return False
    _LOG.info(
        "the broker refuses %s bytes of metadata for a commit (offset.metadata.max.bytes): it gets %s",
        f"{refused:,}",
        f"{limit.bytes_max:,}",
    )
    return True


@dataclass(frozen=True, slots=True)
class CommitFailurePolicy:
    """Which failed attempts a commit before an orderly end leaves out, so that their records are tried again.

    A record that used up its attempts, and whose dead letter is not written, gets one more try: the next owner would
    otherwise give it up untried, though it may have been repaired for, and without knowing why it failed.

    Deaths of processes are no part of it. Below the end of a search (``downspout.ledger.isolation``) what an earlier
    owner counted may be such deaths, and is recorded as it is: a record that kills would do it again after each orderly
    end.
    """

    retries_max: int  # no more attempts of a record are recorded
    # the circuit breaker is open, so it was not the records' fault: no failed attempt is recorded
    tripped: bool = False

    def attempts(self, part: Partition, point: int, state: Isolation) -> Iterator[tuple[int, int]]:
        """Yield (offset, failed attempts) for a commit at ``point``."""
        for offset, failures in part.ledger.failures_from(point):
            suspected = offset < state.until
            if suspected and not part.failed_here(offset):
                yield offset, failures
                continue
            attempts_max = 0 if self.tripped and not suspected else self.retries_max
            if attempts_max:
                yield offset, min(failures, attempts_max)


def commit_acked(
    consumer: ConsumerPort,
    parts: Iterable[Partition],
    identity: Identity,
    now: int,
    *,
    last: bool = False,
    failure_policy: CommitFailurePolicy | None = None,
    heard: Heard = lambda offsets, error: None,
) -> bool:
    """Commit what has changed, or is old, and wait for the broker's word; return whether a request was sent.

    Args:
        last: whether we give the partitions up in order now, so that the next owner's start is no unclean one.
        failure_policy: about records that failed; None: it may be long until the next commit, and what failed has
        failed.
        heard: hears how it ended.

    If it raises, the broker may have applied it or not: nothing is taken as committed, and the next commit says it
    again.

    Raises:
        KafkaError: what the client raises.
    """
    limit = identity.metadata_limit

    def send() -> bool:
        due = due_commits(consumer, parts, identity, now, last=last, failure_policy=failure_policy)
        if not due:
            return False
        try:
            consumer.commit(requests_of(due))
        except KafkaError as error:
            note_failed(due, error, limit, heard)
            raise
        note_committed(consumer, due, now)
        heard(next_offsets(due), None)
        return True

    return commit_fitting(limit, send)


def requests_of(due: Due) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what a client is to commit."""
    return {tp: OffsetAndMetadata(point, metadata, -1) for tp, (_, point, metadata, _) in due.items()}


def next_offsets(due: Due) -> dict[TopicPartition, int]:
    """Return the next offset to read of each partition."""
    return {tp: point for tp, (_, point, _, _) in due.items()}


def note_failed(due: Due, error: KafkaError, limit: MetadataLimit, heard: Heard) -> None:
    """Note that the broker may or may not have these commits; a commit repeated with less metadata is no failure."""
    for part, *_ in due.values():
        part.commits.in_doubt()
    if not (isinstance(error, OffsetMetadataTooLargeError) and limit.bytes_max):
        heard(next_offsets(due), error)


def due_commits(
    consumer: ConsumerPort,
    parts: Iterable[Partition],
    identity: Identity,
    now: int,
    *,
    last: bool,
    failure_policy: CommitFailurePolicy | None,
) -> Due:
    """Return what is to be committed: what has changed, or is old. Arguments as for :func:`commit_acked`."""
    due: Due = {}
    for part in parts:
        point = part.commit_point(consumer)
        state = part.isolation.to_commit(point)
        failures = failure_policy.attempts(part, point, state) if failure_policy else part.ledger.failures_from(point)
        metadata = _metadata(part, point, identity, failures, part.isolation.at_end(state) if last else state)
        if part.commits.is_due(point, metadata, now):
            due[part.tp] = (part, point, metadata, state)
    return due


def note_committed(consumer: ConsumerPort, due: Due, now: int) -> None:
    """The broker has these commits."""
    for part, point, metadata, state in due.values():
        part.commits.sent(point, metadata, now)
        part.isolation.committed(point, state)
        part.ledger.committed(point)
        part.cursor.skip_below(point)
        if part.cursor.reading < point:
            part.cursor.seek(consumer, point)


def commit_positions(
    consumer: ConsumerPort,
    parts: Iterable[Partition],
    identity: Identity,
    now: int,
    wait: bool = True,
    heard: Heard = lambda offsets, error: None,
) -> None:
    """Commit how far each partition was read, emitted or not.

    Args:
        wait: for the broker's word. Otherwise nothing is known to be committed, and it is said again next time. The
            first commit waits all the same: only so it is heard of that there is too much metadata.
        heard: hears how one ended that was waited for.

    Raises:
        KafkaError: what the client raises.
    """
    wait = wait or not identity.metadata_limit.is_known
    commit_fitting(identity.metadata_limit, lambda: _commit_positions(consumer, parts, identity, now, wait, heard))


def _commit_positions(
    consumer: ConsumerPort, parts: Iterable[Partition], identity: Identity, now: int, wait: bool, heard: Heard
) -> bool:
    due: dict[TopicPartition, OffsetAndMetadata] = {}
    for part in parts:
        point = part.cursor.position(consumer)
        metadata = _metadata(part, point, identity, (), ENDED)  # no search: what is out is not expected back
        if part.commits.is_due(point, metadata, now):
            due[part.tp] = OffsetAndMetadata(point, metadata, -1)
    if not due:
        return False
    if not wait:
        consumer.commit_async(due)
        return True
    offsets = {tp: each.offset for tp, each in due.items()}
    try:
        consumer.commit(due)
    except KafkaError as error:
        if not (isinstance(error, OffsetMetadataTooLargeError) and identity.metadata_limit.bytes_max):
            heard(offsets, error)
        raise
    for part in parts:
        if (sent := due.get(part.tp)) is not None:
            part.commits.sent(sent.offset, sent.metadata, now)
            part.ledger.committed(min(sent.offset, part.ledger.next))
    heard(offsets, None)
    return True


def _metadata(
    part: Partition, point: int, identity: Identity, failures: Iterable[tuple[int, int]], isolation: Isolation
) -> str:
    """Return the metadata of a commit at ``point``, for the next owner."""
    return encode(
        point,
        topology_id=identity.topology_id,
        task=identity.task,
        topic_id=part.topic_id,
        done=part.ledger.done_beyond(point),
        failures=failures,
        isolation=isolation,
        bytes_max=identity.metadata_limit.bytes_max,
    )


OVERDUE_MS = 120_000
"""So long after a commit was sent its answer is waited for: the client gives up a request long before that."""


class AsyncCommits:
    """The commit of a session that is on its way."""

    def __init__(self, consumer: ConsumerPort, limit: MetadataLimit, heard: Heard) -> None:
        self._consumer, self._limit, self._heard = consumer, limit, heard
        self._due: Due = {}  # What it is for; empty: none is on its way
        self._answer: list[KafkaError | None] = []
        self._sent_at = 0  # in ms

    @property
    def is_out(self) -> bool:
        """Whether one was sent whose answer was not taken."""
        return bool(self._due)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to take."""
        return bool(self._answer)

    def is_overdue(self, now: int) -> bool:
        """Return whether the answer has not come for too long; while a bolt keeps the loop none is taken, either."""
        return self.is_out and not self.is_answered and now - self._sent_at >= OVERDUE_MS

    def send(self, due: Due, now: int) -> None:
        """Send a commit at a time in ms; none may be on its way.

        Raises:
            KafkaError: what the client raises at once.
        """
        assert not self._due, "a commit is on its way"
        if due:
            answer: list[KafkaError | None] = []
            self._consumer.commit_async(requests_of(due), answer.append)
            self._due, self._answer, self._sent_at = due, answer, now

    def take_answer(self, parts: Mapping[TopicPartition, Partition], now: int) -> bool:
        """Act on the answer; return whether the broker has it, and False if it is to get less metadata.

        Args:
            parts: what is ours now; what was taken away meanwhile is left alone.
            now: the time in ms.

        Raises:
            KafkaError: the commit failed.
        """
        due, (error,) = self._due, self._answer
        self._due, self._answer = {}, []
        if error is None:
            self._limit.is_known = True
            note_committed(self._consumer, {tp: each for tp, each in due.items() if parts.get(tp) is each[0]}, now)
            self._heard(next_offsets(due), None)
            return True
        note_failed(due, error, self._limit, self._heard)
        if not fits_next(self._limit, error):
            raise error
        return False
