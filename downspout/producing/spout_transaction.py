"""The transactions of one spout task's records: begun by its first result, ended by its offsets.

How they fit together with other tasks and with late tuples is said in :mod:`downspout.producing.transactions`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from kafka import errors

from downspout.errors import BrokerError, TakenOverError, coordinates
from downspout.kafka.port import TopicPartition, TransactionalPort
from downspout.kafka.retry_gate import describe
from downspout.ledger.origin import Origin
from downspout.producing.faults import FENCED, concerns_all, error_of_all, is_its_own
from downspout.producing.mapper import Outgoing
from downspout.producing.messages import Done, Message, Progress, SentDeadLetter
from downspout.producing.partition_results import Offsets, PartitionResults
from downspout.producing.sending import Row, TransactionalSending

ANSWER_S_MAX = 4.0
"""How long the brokers may take for each of: the offsets, the commit, the abort."""

NewSending = Callable[[str], "tuple[TransactionalPort, TransactionalSending]"]
"""Makes the producer of a transactional id, and what sends with it."""


class Refused(Exception):
    """A message of the spout is answered by a fail; the text says why."""


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
        self._counted = Counter[str]()  # by producers before the present one
        self.committed = self.aborted = self.fenced = self.repeated = 0

    # --- the session ------------------------------------------------------------------------------------

    def open(self, session: str, *, is_needed: bool) -> None:
        """Abort what is open; afterwards nothing of an earlier session can be committed.

        Args:
            session: the spout's.
            is_needed: whether results are to come.

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
        """Raise if another producer has fenced ours: to begin anew would fence that one in turn."""
        error, producer = self._fenced, self._producer
        if error is not None and producer is not None and producer.has_successor():
            raise TakenOverError(
                f"{self._name}: another producer has the transactional id {self._id} ({describe(error)}); nothing of "
                "the transaction that was open here is visible",
                cure=f"see who else is in group {self.group or 'of the spout'}, and end one of the two runs",
            ) from error
        self._fenced = None  # the brokers have aborted a transaction that took too long: this process stood still

    def start(self, positions: Mapping[TopicPartition, Progress]) -> None:
        """Take note of what is committed already."""
        self.results = {tp: PartitionResults(progress) for tp, progress in positions.items()}

    def report(self) -> Counter[str]:
        """Return the metrics of all that was sent."""
        found = self._counted.copy()
        if self.sending is not None:
            found.update(self.sending.report())
        return found

    def taint(self, why: str) -> None:
        """Let the transaction be aborted when its end comes."""
        self._why = self._why or why

    def lose(self) -> None:
        """Another spout has a partition of this session: results may be in its transaction now."""
        self.session = ""
        self.taint("a partition has another owner")

    @property
    def sends(self) -> TransactionalSending:
        """What sends with its producer."""
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
        """Return whether a result is to be sent: it is new, and the transaction may still be committed.

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
        """Return whether all results of a chunk are to be sent; if not, each is to be asked about."""
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

    def commit(self, message: Message) -> None:
        """Commit the transaction with these offsets, or abort it.

        Raises:
            Refused: it is aborted, or its outcome is not known.
            BrokerError: nothing can be written any more.
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
            BrokerError: one can never be written.
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
                cure="correct the dead-letter topic (max.message.bytes, rights); nothing is committed past it",
            ) from error

    def _uncovered(self, message: Message) -> str:
        """Return which record has results in the transaction, though it failed: as its offset is not done, or dead."""
        for tp, results in self.results.items():
            dead = {each.offset for each in message.dead_letters if each.tp == tp}
            done = Done(message.partitions.get(tp, Progress("")))
            if (offset := results.not_in(done, dead)) is not None:
                return f"{coordinates(tp.topic, tp.partition, offset)} failed after a result of it was sent"
        return ""

    def check(self, error: BaseException) -> None:
        """Take an error of the transaction; raise what concerns all transactions to come."""
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
        """Abort what is open. Where the brokers do not answer, the next producer's start aborts it."""
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
        """Abort what is open, so that no reader waits for its time-out, and release the producer."""
        try:
            self._end()
        except (errors.KafkaError, BrokerError) as error:
            log.warning(
                "%s: the open transaction %s is left to its time-out: %s", self._name, self._id, describe(error)
            )
        if self.sending is not None:
            self.sending.release()
