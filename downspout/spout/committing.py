"""Commits of our partitions: the next offset to read, and in the metadata what is done beyond it.

:func:`commit_acked` commits what is acked, :func:`commit_positions` what was read; both wait for the broker's answer.

:class:`AsyncCommits` sends without waiting (``kafka.commit=async`` and ``combined``), at most one commit at a time. Two
commits may arrive in either order, above all if one is resent after an error, and Kafka stores the last to arrive, even
if it is lower. So a commit is sent only after the previous one is answered, and never resent: after a failure the next
commit has the spout's progress by then. A synchronous commit first waits for the answer to the pending one. The client
delivers an answer in the middle of a later call, such as a poll. It is only recorded there; the session acts on it in
its own turn, when it knows which partitions are still its own.
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
"""Commits to make: offset and metadata of each partition, and the isolation state in the metadata."""
Heard = Callable[[Mapping[TopicPartition, int], KafkaError | None], None]
"""Called with the offsets of a commit and its error, if any."""
_LOG = logging.getLogger("downspout.spout")


def commit_fitting(limit: MetadataLimit, send: Callable[[], bool]) -> bool:
    """Commit; if the broker refuses so much metadata, retry with less. Return what ``send`` returns.

    Args:
        limit: the size limit of metadata; it is lowered.
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
    """Lower the limit if a commit failed only for too much metadata; return whether a retry may succeed."""
    refused = limit.bytes_max
    if not (isinstance(error, OffsetMetadataTooLargeError) and limit.lower()):
        return False
    _LOG.info(
        "the broker refuses %s bytes of metadata in a commit (offset.metadata.max.bytes): sending at most %s",
        f"{refused:,}",
        f"{limit.bytes_max:,}",
    )
    return True


@dataclass(frozen=True, slots=True)
class CommitFailurePolicy:
    """Decides which failed attempts the last commit before an orderly end omits, so that their records are retried.

    A record that used up its attempts, and whose dead letter is not written, gets one more try: otherwise the next
    owner would give it up untried, though the cause may be repaired, and without knowing why it failed.

    Process deaths are never omitted. Until a search (``downspout.ledger.isolation``) is over, an earlier owner's count
    may include such deaths, so it is recorded unchanged: otherwise each orderly end would clear the count of a record
    that kills its process, and the record would kill again.
    """

    retries_max: int  # no more attempts of a record are recorded
    # the circuit breaker is open, so the records are not to blame: no failed attempt is recorded
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
    """Commit what has changed, or is old, and wait for the broker's answer; return whether a request was sent.

    Args:
        last: whether this is an orderly hand-over, so that the next owner's start is not unclean.
        failure_policy: which failed attempts to omit; None: omit none, since the next commit may be far off.
        heard: called with the outcome.

    If it raises, the broker may or may not have applied the commit: nothing counts as committed, and the next commit
    repeats it.

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
    """Return the commits in the form of the client."""
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
    """Return the commits to make: those that have changed, or are old. Arguments as for :func:`commit_acked`."""
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
    """Note that the broker has these commits."""
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
        wait: for the broker's answer. Otherwise nothing counts as committed, and the next call repeats it. The first
            commit waits in any case: only its answer shows whether there is too much metadata.
        heard: called with the outcome, if it was waited for.

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
"""How long to wait for the answer to a commit: the client gives up a request long before that."""


class AsyncCommits:
    """The pending commit of a session."""

    def __init__(self, consumer: ConsumerPort, limit: MetadataLimit, heard: Heard) -> None:
        self._consumer, self._limit, self._heard = consumer, limit, heard
        self._due: Due = {}  # The commits of the request; empty: none is pending
        self._answer: list[KafkaError | None] = []
        self._sent_at = 0  # in ms

    @property
    def is_out(self) -> bool:
        """Whether a commit was sent and its answer not taken yet."""
        return bool(self._due)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to take."""
        return bool(self._answer)

    def is_overdue(self, now: int) -> bool:
        """Return whether the answer is overdue; while a bolt blocks the loop, no answer can be taken, either."""
        return self.is_out and not self.is_answered and now - self._sent_at >= OVERDUE_MS

    def send(self, due: Due, now: int) -> None:
        """Send a commit at a time in ms; none may be pending.

        Raises:
            KafkaError: what the client raises at once.
        """
        assert not self._due, "a commit is on its way"
        if due:
            answer: list[KafkaError | None] = []
            self._consumer.commit_async(requests_of(due), answer.append)
            self._due, self._answer, self._sent_at = due, answer, now

    def take_answer(self, parts: Mapping[TopicPartition, Partition], now: int) -> bool:
        """Process the answer; return True if the broker has the commit, False if it must be repeated with less
        metadata.

        Args:
            parts: our partitions now; those that were revoked meanwhile are left alone.
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
