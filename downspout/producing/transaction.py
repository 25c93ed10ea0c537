"""The transactions of one spout task's records: begun by its first result, ended by its offsets.

The spout talks to the sink over the stream ``downspout.transactions``:

=========  ==================================================  ==================================================
message    meaning                                             meaning of its ack
=========  ==================================================  ==================================================
open       these partitions are mine; end what is open         nothing of an earlier session can be committed now
start      each partition begins with this commit              its records may come
commit     all records that are out have their answer;         the transaction is committed, with these offsets
           commit with these offsets and dead letters
=========  ==================================================  ==================================================

A fail of any of them means that the transaction is aborted, or that its outcome is unknown. Then the spout opens a new
session and continues from Kafka's committed offsets. How this works with other tasks and late tuples:
:mod:`downspout.producing.transaction_routing`.

**Fencing.** The transactional id is made of the names and numbers of the topology, sink and spout tasks. An ``open``
makes a new producer if there is none, or aborts the open transaction: no earlier result can be committed once the spout
reads its committed offsets. Kafka refuses the offsets of a member that has left the group. A partition that another
spout opens is taken out of the first one's transaction, which can then only be aborted.
"""

from __future__ import annotations

import base64
import json
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from kafka import errors
from numpy.typing import NDArray

from downspout.errors import BrokerError, RecordError, TakenOverError, coordinates
from downspout.kafka.port import GroupMembership, OffsetAndMetadata, TopicPartition, TransactionalPort
from downspout.kafka.retry_gate import describe
from downspout.ledger.metadata import decode
from downspout.ledger.origin import Origin
from downspout.producing.mapper import Outgoing
from downspout.producing.sending import FENCED, Row, TransactionalSending, concerns_all, error_of_all, is_its_own

# --- Messages ---

OPEN, START, COMMIT = "open", "start", "commit"


class PartitionCommit(NamedTuple):
    """A commit of one partition; without one, ``offset`` is -1."""

    topic_id: str
    offset: int = -1
    metadata: str = ""

    @property
    def entry(self) -> OffsetAndMetadata:
        """Return the commit as the producer's type."""
        return OffsetAndMetadata(self.offset, self.metadata, -1)


class SentDeadLetter(NamedTuple):
    """A dead letter that belongs to a transaction."""

    tp: TopicPartition
    """Of the record that failed."""
    offset: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    timestamp_ms: int | None


class SpoutMessage(NamedTuple):
    """A message of a spout task to the transactional sink.

    >>> tp = TopicPartition("orders", 3)
    >>> failed = SentDeadLetter(tp, 5, "dead", None, b"x", [("why", b"y")], 17)
    >>> commits, member = {tp: PartitionCommit("id", 7, "m")}, GroupMembership("g", 2, "m-1")
    >>> sent = SpoutMessage(COMMIT, "reader:0", "s1", commits, member, [failed])
    >>> SpoutMessage.of(sent.text()) == sent
    True
    """

    kind: str
    spout: str
    """Component and index of the task."""
    session: str
    """A new one at each start and after each abort; messages of an earlier one are refused."""
    partitions: Mapping[TopicPartition, PartitionCommit]
    membership: GroupMembership = GroupMembership("")
    dead_letters: Sequence[SentDeadLetter] = ()

    def text(self) -> str:
        """Return the message as JSON."""
        return json.dumps(
            [
                self.kind, self.spout, self.session, [[*tp, *found] for tp, found in self.partitions.items()],
                list(self.membership), [_dead_letter_values(each) for each in self.dead_letters],
            ]
        )  # fmt: skip

    @classmethod
    def of(cls, text: str) -> SpoutMessage:
        """Parse the JSON of :meth:`text`."""
        kind, spout, session, partitions, membership, dead_letters = json.loads(text)
        return cls(
            kind, spout, session,
            {TopicPartition(topic, number): PartitionCommit(*found) for topic, number, *found in partitions},
            GroupMembership(*membership), [_dead_letter_of(each) for each in dead_letters],
        )  # fmt: skip


def _dead_letter_values(dead_letter: SentDeadLetter) -> list[object]:
    tp, offset, topic, key, value, headers, timestamp_ms = dead_letter
    return [*tp, offset, topic, _text(key), _text(value), [[name, _text(held)] for name, held in headers], timestamp_ms]


def _dead_letter_of(values: Sequence[object]) -> SentDeadLetter:
    source, number, offset, topic, key, value, headers, at = values
    pairs = [(name, _bytes(held) or b"") for name, held in headers]  # type: ignore[attr-defined]
    return SentDeadLetter(TopicPartition(source, number), offset, topic, _bytes(key), _bytes(value), pairs, at)  # type: ignore[arg-type]


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(str(text))


class CommittedOffsets:
    """The offsets of a partition that a commit marks as done. A look-up is O(log ranges).

    >>> done = CommittedOffsets(PartitionCommit(""))
    >>> 0 in done
    False
    """

    def __init__(self, progress: PartitionCommit) -> None:
        found = (
            decode(progress.offset, progress.metadata, topic_id=progress.topic_id).done if progress.offset >= 0 else ()
        )
        self.base, self._topic_id = progress.offset, progress.topic_id
        self._starts = [start for start, _ in found]
        self._ends = [end for _, end in found]
        self.end = self._ends[-1] if found else self.base  # No offset from here on is done

    def is_of_another_topic(self, topic_id: str) -> bool:
        """Return whether a record is of an earlier topic of this name."""
        return bool(self._topic_id and topic_id) and self._topic_id != topic_id

    def __contains__(self, offset: int) -> bool:
        if offset < self.base:
            return True
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]


# --- Results of one partition ---

Offsets = NDArray[np.int64]


class _Run(NamedTuple):
    """The results of a chunk."""

    offsets: Offsets  # They increase
    topics: Sequence[str]
    path: str  # Of all
    contents: Sequence[int]  # Hashes

    @property
    def last(self) -> int:
        return int(self.offsets[-1])


class PartitionResults:
    """The results of one partition.

    >>> results = PartitionResults(PartitionCommit("", 10))
    >>> [results.is_new(Origin("in", "", 0, offset), "out", Outgoing(None, b"x")) for offset in (9, 10, 10)]
    [False, True, False]
    """

    def __init__(self, progress: PartitionCommit) -> None:
        self._one_by_one: dict[tuple[int, str, str], int] = {}
        """Hashes of what is in the transaction, by offset, topic and path."""
        self._runs: list[_Run] = []
        """The others, by their offsets. None of them lies between the first and the last one of another."""
        self.committed(progress)

    def committed(self, progress: PartitionCommit) -> None:
        """Continue from a new commit."""
        self.done = CommittedOffsets(progress)
        self.forget()

    def forget(self) -> None:
        """Drop the results of the transaction, which has ended."""
        self._one_by_one.clear()
        self._runs.clear()

    # --- results in -------------------------------------------------------------------------------------

    def is_new(self, origin: Origin, topic: str, record: Outgoing) -> bool:
        """Record a result; return whether it is neither committed nor in the transaction.

        This runs for each record.

        Raises:
            RecordError: another result has the same origin.
        """
        _, _, _, offset, path = origin
        if offset < self.done.end and offset in self.done:
            return False
        if self._runs and self._run_between(offset, offset) is not None:
            self._keep_one_by_one()
        identity, content = (offset, topic, path), hash(record[:2])
        before = self._one_by_one.get(identity)
        if before is None:
            self._one_by_one[identity] = content
            return True
        if before != content:
            raise RecordError(
                f"two results for topic {topic} have the same origin, and differ",
                cure="give each tuple that a bolt makes from one input origin.child(name, number)",
            )
        return False

    def are_new(self, offsets: Offsets, path: str, rows: Sequence[Row]) -> bool:
        """Record the results of a chunk if their offsets show that all are new; otherwise record none.

        Returns:
            Whether all are new; if False, call :meth:`is_new` for each.
        """
        first, last = int(offsets[0]), int(offsets[-1])
        if self._one_by_one or first < self.done.end or not bool((offsets[1:] > offsets[:-1]).all()):
            return False
        if self._run_between(first, last) is not None:
            return False
        contents = array("q", [hash(record[:2]) for _, _, record in rows])
        self._runs.insert(self._place(first), _Run(offsets, [topic for _, topic, _ in rows], path, contents))
        return True

    def _place(self, offset: int) -> int:
        """Return the index of the first run that ends at or after an offset."""
        return bisect_left(self._runs, offset, key=lambda run: run.last)

    def _run_between(self, first: int, last: int) -> _Run | None:
        """Return a run that overlaps the span of these offsets, or None."""
        at = self._place(first)
        return self._runs[at] if at < len(self._runs) and self._runs[at].offsets[0] <= last else None

    def _keep_one_by_one(self) -> None:
        for run in self._runs:
            identities = zip(run.offsets.tolist(), run.topics, repeat(run.path), strict=False)
            self._one_by_one.update(zip(identities, run.contents, strict=True))
        self._runs.clear()

    # --- the end ----------------------------------------------------------------------------------------

    def not_in(self, done: CommittedOffsets, dead: Collection[int]) -> int | None:
        """Return an offset that has a result in the transaction but is not done, or is dead; None if there is none."""
        if dead:
            self._keep_one_by_one()
        beyond = [offset for offset, _, _ in self._one_by_one if offset >= done.base or offset in dead]
        for run in self._runs:
            beyond += run.offsets[run.offsets >= done.base].tolist()
        return next((offset for offset in beyond if offset in dead or offset not in done), None)


# --- The transaction of one spout task ---

ANSWER_S_MAX = 4.0
"""How long the brokers may take for each step: the offsets, the commit, the abort."""

NewSending = Callable[[str], "tuple[TransactionalPort, TransactionalSending]"]
"""Makes the producer of a transactional id, and the Sending that uses it."""


class Refused(Exception):
    """The reason why a message of the spout is failed."""


class SpoutTransaction:
    """The transactions that hold the results of one spout task's records.

    Args:
        transactional_id: of its producer.
        new: makes the producer.
        name: of the sink, for messages.
    """

    def __init__(self, transactional_id: str, new: NewSending, name: str) -> None:
        self._id, self._new, self._name = transactional_id, new, name
        self._producer: TransactionalPort | None = None
        self.sending: TransactionalSending | None = None
        self.session = ""
        self.group = ""
        self._is_begun = False
        self._why = ""
        """Why the transaction can only be aborted; empty: it can be committed."""
        self._fenced: errors.KafkaError | None = None
        """With what the brokers refuse the producer; whether another has its place is asked before the next one."""
        self.results: dict[TopicPartition, PartitionResults] = {}
        """By partition of the input, as soon as it is known what is committed of it."""
        self._counted = Counter[str]()  # by producers before the current one
        self.committed = self.aborted = self.fenced = self.repeated = 0

    # --- the session ------------------------------------------------------------------------------------

    def open(self, session: str, *, is_needed: bool) -> None:
        """Abort the open transaction; afterwards no result of an earlier session can be committed.

        Args:
            session: the spout's.
            is_needed: whether results will come.

        Raises:
            KafkaError, SilentBrokersError: the brokers do not answer in time; open again.
            TakenOverError: another instance has taken over.
        """
        self.session = ""
        self._end()
        if is_needed:
            self._look_for_successor()
        self.results = {}
        if is_needed and (self._producer is None or self._producer.is_over):
            if self.sending is not None:
                self.sending.release()
                self._counted.update(self.sending.report())
            self._producer, self.sending = self._new(self._id)
            self.sending.check = self.check
        self.session = session

    def _look_for_successor(self) -> None:
        """Raise if another producer has fenced ours: a new producer would fence that one in turn."""
        error, producer = self._fenced, self._producer
        if error is not None and producer is not None and producer.has_successor():
            raise TakenOverError(
                f"{self._name}: another producer has the transactional id {self._id} ({describe(error)}); nothing of "
                "the transaction that was open here is visible",
                cure=f"find the other member of group {self.group or 'of the spout'}, and stop one of the two runs",
            ) from error
        self._fenced = None  # the brokers have aborted a transaction that took too long: this process stood still

    def start(self, positions: Mapping[TopicPartition, PartitionCommit]) -> None:
        """Record the commits that partitions start from."""
        self.results = {tp: PartitionResults(progress) for tp, progress in positions.items()}

    def report(self) -> Counter[str]:
        """Return the metrics of all producers so far."""
        found = self._counted.copy()
        if self.sending is not None:
            found.update(self.sending.report())
        return found

    def taint(self, why: str) -> None:
        """Mark the transaction to be aborted when it ends."""
        self._why = self._why or why

    def lose(self) -> None:
        """Note that another spout has a partition of this session: its transaction may hold results now."""
        self.session = ""
        self.taint("a partition has another owner")

    @property
    def sends(self) -> TransactionalSending:
        """The Sending that uses its producer."""
        assert self.sending is not None
        return self.sending

    def why(self) -> str:
        """Return why the transaction can only be aborted; empty: it can be committed."""
        sending, producer = self.sending, self._producer
        if producer is not None and producer.is_over:
            return self._why or "its producer has failed"
        return self._why or (sending.broken if sending is not None else "")

    # --- results in -------------------------------------------------------------------------------------

    def takes(self, results: PartitionResults, origin: Origin, topic: str, record: Outgoing) -> bool:
        """Return whether to send a result: it is new, and the transaction can still be committed.

        Raises:
            RecordError: another result has the same origin.
        """
        if self.why():
            return False
        if not results.is_new(origin, topic, record):
            self.repeated += 1
            return False
        if not self._is_begun:
            self._begin()
        return True

    def takes_all(self, results: PartitionResults, offsets: Offsets, path: str, rows: Sequence[Row]) -> bool:
        """Return whether to send all results of a chunk; if False, call :meth:`takes` for each."""
        if self.why() or not results.are_new(offsets, path, rows):
            return False
        if not self._is_begun:
            self._begin()
        return True

    def _begin(self) -> None:
        assert self._producer is not None
        try:
            self._producer.begin()
        except errors.KafkaError:
            self.taint("it could not be begun")  # a result that is noted is not sent
            raise
        self._is_begun = True

    # --- the end ----------------------------------------------------------------------------------------

    def commit(self, message: SpoutMessage) -> None:
        """Commit the transaction with these offsets, or abort it.

        Raises:
            Refused: it was aborted, or its outcome is unknown.
            BrokerError: no record can be written any more.
        """
        if why := self.why() or self._uncovered(message):
            self._end()
            raise Refused(why)
        if not (self._is_begun or message.partitions or message.dead_letters):
            return
        producer = self._producer
        assert producer is not None
        try:
            if not self._is_begun:
                self._begin()
            self._send_dead_letters(producer, message.dead_letters)
            if self.sending is not None:
                self.sending.collect()
            if why := self.why():  # refused since: by a topic that was waited for
                self._end()
                raise Refused(why)
            offsets = {tp: progress.entry for tp, progress in message.partitions.items()}
            producer.send_offsets(offsets, message.membership, ANSWER_S_MAX)
            producer.commit(ANSWER_S_MAX)
        except errors.KafkaError as error:
            self.check(error)
            why = self._why or describe(error)
            self._end()
            raise Refused(why) from error
        self.committed += 1
        for tp, progress in message.partitions.items():
            self.results[tp].committed(progress)
        self._forget()

    def _send_dead_letters(self, producer: TransactionalPort, dead_letters: Sequence[SentDeadLetter]) -> None:
        """Send the dead letters, and wait for all answers.

        Raises:
            BrokerError: a dead letter can never be written.
        """
        for _, _, topic, key, value, headers, timestamp_ms in dead_letters:
            producer.send(topic, key=key, value=value, headers=headers, partition=None, timestamp_ms=timestamp_ms)
        try:
            producer.flush(ANSWER_S_MAX)  # raises for what has no token: the dead letters
        except errors.KafkaError as error:
            if not dead_letters or not is_its_own(error, 0):
                raise
            self._end()
            first = dead_letters[0]
            place = coordinates(first.tp.topic, first.tp.partition, first.offset)
            more = f" (or of {len(dead_letters) - 1:,} others)" if len(dead_letters) > 1 else ""
            raise BrokerError(
                f"{place}: failed for good, and its dead letter{more} cannot be written to {first.topic}: "
                f"{describe(error)}",
                cure="correct the dead-letter topic (max.message.bytes, permissions); nothing after it is committed",
            ) from error

    def _uncovered(self, message: SpoutMessage) -> str:
        """Name a failed record (its offset is not done, or dead) with results in the transaction; empty: none."""
        for tp, results in self.results.items():
            dead = {each.offset for each in message.dead_letters if each.tp == tp}
            done = CommittedOffsets(message.partitions.get(tp, PartitionCommit("")))
            if (offset := results.not_in(done, dead)) is not None:
                return f"{coordinates(tp.topic, tp.partition, offset)} failed after a result of it was sent"
        return ""

    def check(self, error: BaseException) -> None:
        """Process an error of the transaction; raise it if it concerns all later transactions."""
        if isinstance(error, FENCED):
            self.fenced += self._fenced is None
            self._fenced = error
            self.taint(
                "it took longer than produce.transaction_timeout_ms, or another producer has its transactional id "
                f"({describe(error)})"
            )
            if self._producer is not None:
                self._producer.is_over = True
        if concerns_all(error, one_topic=False):
            raise error_of_all(self._name, "the transaction", error) from error

    def _end(self) -> None:
        """Abort the open transaction. If the brokers do not answer, the next producer's start aborts it."""
        producer = self._producer
        if self._is_begun and producer is not None and not producer.is_over:
            try:
                producer.abort(ANSWER_S_MAX)
            except errors.KafkaError as error:
                self.check(error)
                producer.is_over = True
        self.aborted += self._is_begun
        if self.sending is not None:
            self.sending.collect()  # what the abort has dropped, before the next transaction
        self._forget()

    def _forget(self) -> None:
        self._is_begun, self._why = False, ""
        for results in self.results.values():
            results.forget()
        if self.sending is not None:
            self.sending.broken = ""

    def close(self, log: logging.Logger) -> None:
        """Abort the open transaction, so that no reader waits for its time-out, and release the producer."""
        try:
            self._end()
        except (errors.KafkaError, BrokerError) as error:
            log.warning(
                "%s: the open transaction %s is left to its time-out: %s", self._name, self._id, describe(error)
            )
        if self.sending is not None:
            self.sending.release()
