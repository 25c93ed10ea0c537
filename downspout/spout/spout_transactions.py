"""Commits that a transactional KafkaBolt makes for the spout: results and offsets together, or neither.

The spout says when a transaction ends, and the bolt ends it (``downspout/producing/transaction_routing.py``)::

    CLOSED ──open──▶ OPENING ──ack──▶ FENCED ──start──▶ STARTING ──ack──▶ OPEN ──commit──▶ ENDING ──ack──▶ OPEN
       ▲                                                                                     │
       └──────── a fail, another assignment, a partition that starts again ◀─────────────────┘

* The group's commits are read only from FENCED on: by then nothing that was sent earlier can be committed.
* Tuples leave only in OPEN. To commit, the spout stops emitting and waits until all that is out has its answer.
* After a fail the outcome is not known here. All partitions start again, from what Kafka says is committed.

An ack of a record says that its results are in the transaction, not that they are committed. So what is acked since
the last commit is lost with the transaction, and the ledger with it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from downspout.dead_letters.dead_letter import TOPIC_CONFIG, DeadLetters
from downspout.errors import BrokerError
from downspout.kafka.port import Cluster, ConsumerPort, Record, TopicPartition
from downspout.kafka.retry_gate import LogThrottle
from downspout.ledger.metadata import decode
from downspout.ledger.retry_schedule import Backoff
from downspout.producing.transaction import COMMIT, OPEN, START, PartitionCommit, SentDeadLetter, SpoutMessage
from downspout.protocols import Failure
from downspout.spout.assignment import PartitionAssignment
from downspout.spout.committing import CommitFailurePolicy, Due, due_commits, note_committed
from downspout.spout.partition import Partition
from downspout.spout.ports import SpoutMetrics
from downspout.spout.settings import Identity
from downspout.wire.side_streams import TRANSACTIONS

DEAD_LETTER_BYTES_MAX = 1024 * 1024
"""Dead letters of so many bytes end a transaction before its time: they travel in one tuple."""


class TransactionState(Enum):
    """The states of a transaction; see the module's docstring."""

    CLOSED = "closed"
    OPENING = "opening"
    FENCED = "fenced"
    STARTING = "starting"
    OPEN = "open"
    ENDING = "ending"


class Session(Protocol):
    """What is needed of :class:`~downspout.spout.rebalancing.GroupSession`."""

    consumer: ConsumerPort
    assignment: PartitionAssignment

    @property
    def parts(self) -> list[Partition]:
        """What is ours, started."""

    @property
    def idle(self) -> bool:
        """Whether no tuple is in flight."""

    @property
    def identity(self) -> Identity:
        """Who commits."""

    @property
    def metrics(self) -> SpoutMetrics:
        """The counters of the spout."""

    def restart(self, due: Due) -> None:
        """Start all partitions anew, from what is committed."""


class SpoutTransactions:
    """The transactions of one spout task.

    Args:
        spout: component and index of the task.
        emit: emits a text on the stream of transactions, with a message id.
    """

    def __init__(self, spout: str, emit: Callable[..., Any], log: logging.Logger) -> None:
        self.state = TransactionState.CLOSED
        self.is_wanted = False
        """Whether the transaction is to end as soon as no tuple is in flight."""
        self.is_dirty = False
        """Whether anything was emitted, or dead-lettered, since the last commit."""
        self.dead_letters: list[SentDeadLetter] = []
        self._sent_dead_letters = 0  # How many of them are in the commit that is on its way
        self._dead_letter_bytes = 0
        self._spout, self._emit, self._log = spout, emit, log
        self._session = ""
        self._opened: frozenset[TopicPartition] = frozenset()  # What the session is for
        self._epoch = -1
        """The assignment's latest epoch as of the start."""
        self._out: str | None = None
        """The id of the message that has no answer."""
        self._due: Due = {}
        self._again_at = self._failures = 0
        self._backoff = Backoff(100, 5_000)
        self._throttle = LogThrottle()

    @property
    def holds_back(self) -> bool:
        """Whether no record may leave."""
        return self.state is not TransactionState.OPEN or self.is_wanted

    @property
    def awaits_answers(self) -> bool:
        """Whether nothing is to be done but to wait for bolts."""
        return self._out is not None or self.is_wanted

    def is_answer(self, tup_id: Any) -> bool:
        """Return whether this is the id of a message of ours, an old one perhaps."""
        return isinstance(tup_id, str) and tup_id.startswith("transaction/")

    def add(self, dead_letter: SentDeadLetter) -> None:
        """Add a dead letter: it belongs to the transaction of its record's offset."""
        self.dead_letters.append(dead_letter)
        self.is_dirty = True
        self._dead_letter_bytes += len(dead_letter.key or b"") + len(dead_letter.value or b"")
        self.is_wanted = self.is_wanted or self._dead_letter_bytes >= DEAD_LETTER_BYTES_MAX

    # --- the session ------------------------------------------------------------------------------------

    def look(self, session: Session, now: int) -> bool:
        """Follow the assignment; return whether partitions may start."""
        assignment, state = session.assignment, TransactionState
        begun = self.state in (state.STARTING, state.OPEN, state.ENDING)
        if begun and (not assignment.started or assignment.last_epoch != self._epoch):
            self.reset(session)
        owned = assignment.owned
        if self.state is state.FENCED and owned != self._opened:
            self.state = state.CLOSED
        # Where nothing is left to us, what is open has to end too: readers wait for it.
        if self.state is state.CLOSED and now >= self._again_at and (owned or self._opened):
            self._session, self._opened = uuid.uuid4().hex, owned
            group = session.consumer.membership()
            self._send(state.OPENING, OPEN, dict.fromkeys(owned, PartitionCommit("")), membership=group)
        elif not owned:
            return True
        elif self.state is state.FENCED and assignment.started:
            self._epoch = assignment.last_epoch
            positions = {part.tp: PartitionCommit(part.topic_id, *(part.commits.last or ())) for part in session.parts}
            self._send(state.STARTING, START, positions)
        return self.state is state.FENCED

    def reset(self, session: Session) -> None:
        """Close the session; what is not committed, or not known to be, comes again."""
        if self.is_dirty or self.state is TransactionState.ENDING:
            session.restart(self._due)
        session.metrics.dead_lettered -= len(self.dead_letters)
        self._clear()
        self.state = TransactionState.CLOSED
        self._out = None

    def _clear(self) -> None:
        self.dead_letters, self._sent_dead_letters, self._dead_letter_bytes, self._due = [], 0, 0, {}
        self.is_dirty = self.is_wanted = False

    def _send(
        self, state: TransactionState, kind: str, partitions: Mapping[TopicPartition, PartitionCommit], **more: Any
    ) -> None:
        self.state = state
        self._out = f"transaction/{uuid.uuid4().hex}"
        text = SpoutMessage(kind, self._spout, self._session, partitions, **more).text()
        self._emit([text], tup_id=self._out, stream=TRANSACTIONS)

    # --- commits ----------------------------------------------------------------------------------------

    def commit(self, session: Session, now: int, *, last: bool, failure_policy: CommitFailurePolicy | None) -> bool:
        """Let the transaction end as soon as it can; return whether nothing is left to commit.

        Raises:
            BrokerError: the metadata of a commit cannot hold what is done.
        """
        if self.state is not TransactionState.OPEN:
            return self.state is not TransactionState.ENDING and not self.is_dirty
        if not session.idle:
            self.is_wanted = True
            return False
        due = due_commits(
            session.consumer, session.parts, session.identity, now, last=last, failure_policy=failure_policy
        )
        if not due and not self.is_dirty:
            self.is_wanted = False
            return True
        for part, point, metadata, _ in due.values():
            _check_whole(part, point, metadata)
        self._due = due
        found = {tp: PartitionCommit(part.topic_id, point, text) for tp, (part, point, text, _) in due.items()}
        self._sent_dead_letters, self._dead_letter_bytes = len(self.dead_letters), 0
        self._send(
            TransactionState.ENDING,
            COMMIT,
            found,
            membership=session.consumer.membership(),
            dead_letters=self.dead_letters,
        )
        return False

    # --- answers ----------------------------------------------------------------------------------------

    def answered(self, session: Session, tup_id: str, failure: Failure | None, now: int) -> bool:
        """Take the answer to a message; return whether it was a commit that is made."""
        if tup_id != self._out:
            return False
        self._out = None
        states = TransactionState
        if failure is not None:
            self._failed(session, failure, now)
        elif self.state is states.OPENING:
            self.state = states.FENCED
        elif self.state is states.STARTING:
            # Where the partitions start is committed before anything leaves. Otherwise an abort would let them start
            # anew, which under LATEST loses records; and what the group committed before may not be where they start.
            self.state, self.is_wanted = states.OPEN, True
        else:
            note_committed(session.consumer, self._due, now)
            for part in session.parts:
                part.tried = {}
            # A dead letter that came while the commit was on its way belongs to the next one.
            later = self.dead_letters[self._sent_dead_letters :]
            self._clear()
            self.dead_letters, self.is_dirty = later, bool(later) or not session.idle
            self.state, self._failures = states.OPEN, 0
            return True
        return False

    def _failed(self, session: Session, failure: Failure, now: int) -> None:
        self._failures += 1
        self._again_at = now + self._backoff.delay(self._failures)
        session.metrics.errors += 1
        if failure.kind == "timeout" and self._throttle.due("timeout", now):  # of other reasons the bolt tells
            self._log.warning("the bolt that commits did not answer in time; what is not committed is read again")
        self.reset(session)
        self.state = TransactionState.CLOSED


def _check_whole(part: Any, point: int, metadata: str) -> None:
    """Raise where the metadata holds less than what is done: it would be done twice after a restart."""
    done = tuple(part.ledger.done_beyond(point))
    if done and decode(point, metadata, topic_id=part.topic_id).done != done:
        raise BrokerError(
            f"{part.place(point)}: {len(done):,} separate ranges beyond this offset are done, and the metadata of a "
            f"commit does not hold them; none of this transaction is committed",
            cure="see why so many records fail; a lower kafka.transaction_ms makes transactions smaller",
        )


class TransactionDeadLetters(DeadLetters):
    """Dead letters that go with the transaction of their record's offset, in the place of a producer of their own."""

    def __init__(self, cluster: Cluster, topic: str, transactions: SpoutTransactions) -> None:
        super().__init__(cluster, topic)
        self._transactions = transactions
        self._of = TopicPartition("", 0), 0
        self._is_ready = False

    def queue(self, record: Record, **about: Any) -> None:
        """Take one dead letter."""
        self._of = TopicPartition(record.topic, record.partition), record.offset
        super().queue(record, **about)

    @property
    def is_open(self) -> bool:
        """Whether the topic is there."""
        return self._is_ready

    def _ready(self) -> Any:
        if not self._is_ready:
            self._cluster.ensure_topic(self.topic, 1, TOPIC_CONFIG)
            self._is_ready = True
        return self

    def send(self, topic: str, *, key: Any, value: Any, headers: Any, timestamp_ms: int | None) -> None:
        """Hand a dead letter to the transaction."""
        dead_letter = SentDeadLetter(*self._of, topic, key, value, headers, timestamp_ms)
        self._transactions.add(dead_letter)

    def acknowledged(self) -> bool:
        """Return that all is in the transaction."""
        self._are_durable()
        return True
