"""Exactly once from Kafka to Kafka: the results of a spout's records, and its offsets, in one transaction.

Each task of the sink has one transactional producer for each spout task whose records it gets. The spout says when a
transaction ends: it stops emitting, waits until all tuples in flight are answered, and sends the offsets to commit
(:mod:`downspout.producing.transaction`). So a transaction then holds the results of whole records, and it is
committed only if the offsets cover all of them. If a record fails after some of its results were sent, the transaction
is aborted, and all of it comes again.

**Late tuples.** A tuple that timed out is emitted again while the first may still be in flight, into this transaction
or a later one. A result is dropped if its offset is committed or the transaction already holds it. Results are
identified by their origin, like rows in the Parquet sink, and by their topic. The results of a chunk are kept as
columns while no other result has an offset between its first and last; then they are kept one by one until the
transaction ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from kafka import errors

from downspout.errors import BrokerError, RecordError, SilentBrokersError
from downspout.kafka.port import TopicPartition
from downspout.kafka.retry_gate import describe
from downspout.ledger.origin import Origin
from downspout.origins import common_of, offsets_of, values_of
from downspout.producing.mapper import Outgoing
from downspout.producing.sending import Acks, Chunk, Row, TransactionalSending
from downspout.producing.transaction import (
    COMMIT,
    OPEN,
    NewSending,
    PartitionCommit,
    PartitionResults,
    Refused,
    SpoutMessage,
    SpoutTransaction,
)

Destination = tuple[SpoutTransaction, PartitionResults, TransactionalSending]
"""The transaction for results of a partition, the results it holds, and the Sending."""


class Results(Acks, Protocol):
    """What is needed of the bolt."""

    def origin_of(self, tup: Any) -> Origin:
        """Return the origin of a tuple; raise a RecordError if it has none."""

    def origins_of(self, tup: Any) -> pa.Array[Any]:
        """Return the column of origins of a chunk; raise a RecordError if it has none."""


class Transactions:
    """The transactions of one sink task; it replaces :class:`~downspout.producing.sending.Sending`.

    Args:
        bolt: acks and fails.
        prefix: of its transactional ids: topology, sink and task.
        new: makes a producer.
        owns: whether this task sends the results of a partition; another task sends the others.
        log: where warnings go.
    """

    def __init__(
        self,
        bolt: Results,
        prefix: str,
        new: NewSending,
        owns: Callable[[TopicPartition], bool],
        log: logging.Logger,
    ) -> None:
        self._bolt, self._prefix, self._new, self._owns, self._log = bolt, prefix, new, owns, log
        self.by_spout: dict[str, SpoutTransaction] = {}
        self._owners: dict[TopicPartition, tuple[str, SpoutTransaction]] = {}
        """Which spout has opened a partition, and its transaction."""
        self._found: dict[tuple[Any, ...], Destination | None] = {}
        """Where results go by topic, its id, and partition, as they were looked up; None: to another task."""
        self.discarded = 0
        """Tuples of partitions that no spout has opened: they come again."""

    def of(self, origin: Origin) -> Destination | None:
        """Return the destination of a record's results; None: this task does not send them."""
        place = origin[:3]
        try:
            return self._found[place]
        except KeyError:
            return self._look_up(place)

    def _look_up(self, place: tuple[str, str, int]) -> Destination | None:
        topic, topic_id, number = place
        tp = TopicPartition(topic, number)
        if not self._owns(tp):
            self._found[place] = None
            return None
        _, transaction = self._owners.get(tp, ("", None))
        results = transaction.results.get(tp) if transaction is not None else None
        if transaction is None or results is None:
            self.discarded += 1
            return None
        if results.done.is_of_another_topic(topic_id):
            transaction.repeated += 1
            return None
        found = self._found[place] = transaction, results, transaction.sends
        return found

    # --- results in, as of a Sending --------------------------------------------------------------------

    def send(self, tup: Any, topic: str, record: Outgoing) -> None:
        """Send the record of a tuple, or ack it if it need not be sent."""
        try:
            origin = self._bolt.origin_of(tup)
            found = self._found.get(origin[:3]) or self.of(origin)
            if found is not None and found[0].takes(found[1], origin, topic, record):
                found[2].send(tup, topic, record)
            else:
                self._bolt.ack_many([tup])
        except RecordError as error:
            self._bolt.fail_because(tup, self._placed(tup, None, error))

    def send_chunk(self, tup: Any, rows: Sequence[Row]) -> None:
        """Send the records of a chunk; records that need not be sent count as done."""
        taken: dict[SpoutTransaction, list[Row]] = {}
        row = None
        try:
            column = self._bolt.origins_of(tup)
            if not self._take_whole(column, rows, taken):
                origins = values_of(column)
                for row, topic, record in rows:
                    found = self.of(origins[row])
                    if found is not None and found[0].takes(found[1], origins[row], topic, record):
                        taken.setdefault(found[0], []).append((row, topic, record))
        except RecordError as error:
            for transaction in taken:
                transaction.taint("a chunk was taken in part")
            self._bolt.fail_because(tup, self._placed(tup, row, error))
            return
        if not taken:
            self._bolt.ack_many([tup])
            return
        chunk = Chunk(tup, sum(map(len, taken.values())))
        for transaction, some in taken.items():
            transaction.sends.send_rows(chunk, some)
        for transaction in taken:
            transaction.sends.after_sending()

    def _take_whole(self, column: Any, rows: Sequence[Row], taken: dict[SpoutTransaction, list[Row]]) -> bool:
        """Take all rows of a chunk if they are of one partition and all new; return whether they are."""
        first = common_of(column)
        found = self.of(first) if first is not None and rows else None
        if first is None or found is None:
            return False
        offsets = offsets_of(column)
        if len(rows) < len(offsets):  # others have no topic
            offsets = offsets[[row for row, _, _ in rows]]
        if not found[0].takes_all(found[1], offsets, first.path, rows):
            return False
        taken[found[0]] = list(rows)
        return True

    def _placed(self, tup: Any, row: int | None, error: RecordError) -> RecordError:
        return RecordError(
            f"{self._bolt.place_of(tup, row)}{self._bolt.component_name}: {error.message}", cure=error.cure
        )

    @property
    def _sendings(self) -> list[TransactionalSending]:
        return [each.sending for each in self.by_spout.values() if each.sending is not None]

    @property
    def in_flight(self) -> int:
        """How many records have no answer yet."""
        return sum(each.in_flight for each in self._sendings)

    def look_at(self) -> float | None:
        """Return when results should be looked at; None: nothing is in flight."""
        return min((at for each in self._sendings if (at := each.look_at()) is not None), default=None)

    def hand_over(self) -> None:
        """Send what lingers, and settle what is answered; wait for nothing."""
        for each in self._sendings:
            each.hand_over()

    def collect(self) -> None:
        """Settle the tuples whose records are answered."""
        for each in self._sendings:
            each.collect()

    def flush(self, timeout_s: float) -> None:
        """Wait for the answers, at most so long, and settle what has one."""
        for each in self._sendings:
            each.flush(timeout_s)

    def report(self) -> dict[str, float]:
        """Return the metrics of all."""
        found: Counter[str] = Counter()
        transactions = self.by_spout.values()
        for transaction in transactions:
            found.update(transaction.report())
        return {
            **found,
            "answer_s": max((each.latency_s for each in self._sendings), default=0.0),
            "transactions_committed": sum(each.committed for each in transactions),
            "transactions_aborted": sum(each.aborted for each in transactions),
            "transactions_fenced": sum(each.fenced for each in transactions),
            "repeated": sum(each.repeated for each in transactions),
            "discarded": self.discarded,
        }

    # --- the spouts' messages ---------------------------------------------------------------------------

    def take(self, message: SpoutMessage) -> None:
        """Do what the spout says.

        Raises:
            Refused: it is not done; the spout is to begin a new session.
            TakenOverError: another instance has taken over.
            BrokerError: nothing can be written any more.
        """
        self._found.clear()
        mine = {tp: progress for tp, progress in message.partitions.items() if self._owns(tp)}
        transaction = self.by_spout.get(message.spout)
        if message.kind == OPEN:
            self._open(message, mine)
        elif transaction is None or transaction.session != message.session:
            raise Refused("the session is not known here: this task was started again")
        elif message.kind == COMMIT:
            dead_letters = [dead_letter for dead_letter in message.dead_letters if self._owns(dead_letter.tp)]
            transaction.commit(message._replace(partitions=mine, dead_letters=dead_letters))
        else:
            transaction.start(mine)

    def _open(self, message: SpoutMessage, mine: Mapping[TopicPartition, PartitionCommit]) -> None:
        transaction = self.by_spout.get(message.spout)
        if transaction is None:
            transactional_id = f"{self._prefix}.{message.spout}"
            transaction = self.by_spout[message.spout] = SpoutTransaction(
                transactional_id, self._new, str(self._bolt.component_name)
            )
        for tp in [tp for tp, (_, owner) in self._owners.items() if owner is transaction]:
            del self._owners[tp]
        for tp in mine:
            if tp in self._owners:  # and not in one that was taken over with another of its partitions
                self._take_over(tp, message)
        transaction.group = message.membership.group
        try:
            transaction.open(message.session, is_needed=bool(mine))
        except SilentBrokersError as error:
            raise Refused(f"no transaction can be begun: {error.message}") from error
        except errors.KafkaError as error:
            transaction.check(error)
            raise Refused(f"no transaction can be begun: {describe(error)}") from error
        # Results are taken from the start on: until then it is not known which of them are committed already.
        self._owners.update(dict.fromkeys(mine, (message.spout, transaction)))

    def _take_over(self, tp: TopicPartition, message: SpoutMessage) -> None:
        """Another spout's session ends, since a partition of it is this one's now."""
        other, owner = self._owners[tp]
        is_same = other.rpartition(".")[0] == message.spout.rpartition(".")[0]
        if not is_same and owner.group != message.membership.group:  # both have it, and would take it over for ever
            raise BrokerError(
                f"{self._bolt.component_name}: {other} and {message.spout} both read {tp.topic}[{tp.partition}], for "
                f"the groups {owner.group} and {message.membership.group}: a result cannot be in two transactions",
                cure="one KafkaSpout for each topic, the same kafka.group for both, or a KafkaBolt for each KafkaSpout",
            )
        owner.lose()
        for lost in [each for each, (_, held) in self._owners.items() if held is owner]:
            del self._owners[lost]

    def close(self, timeout_s: float) -> None:
        """Abort what is open, and release the producers."""
        for transaction in self.by_spout.values():
            transaction.close(self._log)
