"""Writing the rows of one task to Kafka, on an executor.

A task writes all of its rows and waits for the brokers' answers before it says that it is done. Nothing takes back
what a task wrote that failed, nor what a batch wrote that is computed again: a record is written *at least once*. By
three headers a reader can drop the repeats:

=======================  ============================================================================================
``__downspout.batch``    the batch: id of the query and number of the batch; of a batch query, an id of this write
``__downspout.record``   the row in it: Spark's partition, number of the row in that, and a hash of the record
``__downspout.run``      who wrote it: the run of the query, and Spark's number of the try
=======================  ============================================================================================

Two records that are equal in the first two are repeats. If rows come in another order when a batch is computed again,
as after a shuffle, the hash differs: such repeats stay, and nothing is dropped that is not there.

Spark's Python workers live for many tasks, so a producer is kept from one to the next, as long as all went well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError

from downspout.errors import BrokerError, DownspoutError, RecordError
from downspout.kafka.clusters import cluster_for
from downspout.kafka.port import ProducerPort
from downspout.producing.faults import concerns_all, error_of_all, error_of_record
from downspout.spark.writing.columns import rows_of
from downspout.spark.writing.options import SinkOptions

BATCH, RECORD, RUN = "__downspout.batch", "__downspout.record", "__downspout.run"
NAME = "downspout-kafka"
LOOK_EVERY = 256  # rows between two looks at answers and at the buffer
BUFFER_BYTES = 32 * 1024 * 1024  # at so many bytes without an answer a task waits
FULL_LOOK_S = 0.002
DELIVERY_MS, TOPIC_WAIT_MS, GRACE_S = 120_000, 10_000, 5.0
# What KafkaBolt's settings are called here, in cures.
SETTINGS = {
    "produce.request_bytes_max": "kafka.max.request.size",
    "produce.batch_bytes": "kafka.batch.size",
    "produce.idempotence=false": "kafka.enable.idempotence=false",
}

# Producers between two tasks, by what they were made with. One process runs one task at a time.
idle: dict[str, ProducerPort] = {}


@dataclass(frozen=True)
class Task:
    """Which task writes."""

    batch: str
    run: str  # and the try
    partition: int  # Spark's number of it within the batch


def write_rows(options: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> int:
    """Write all rows, wait until brokers have them, and return how many.

    Raises:
        RecordError: a record cannot be written; the error names Spark's partition and the row in it.
        BrokerError: brokers do not answer, or take nothing from this client.
    """
    key = f"{options.bootstrap} {sorted(options.client.items())} {options.partitioner}"
    producer = idle.pop(key, None) or _connect(options)
    is_sound = False
    try:
        count = _Writing(options, task, producer).write(batches)
        is_sound = True
    finally:
        if is_sound and key not in idle:
            idle[key] = producer
        else:
            producer.close()  # takes 5 s at most, and leaves no thread behind
    return count


def hash_of(
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> str:
    """Return a hash of all that makes a record what it is. Lengths stand before parts, so none runs into the next.

    >>> hash_of("t", None, b"a", b"bc", ()) == hash_of("t", None, b"ab", b"c", ())
    False
    >>> hash_of("t", None, None, b"x", ()) == hash_of("t", None, b"x", None, ())
    False
    """
    parts = [topic.encode(), None if partition is None else b"%d" % partition, key, value]
    for name, content in headers:
        parts += [name.encode(), content]
    framed = [b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts]
    return blake2b(b"".join(framed), digest_size=8).hexdigest()


def _connect(options: SinkOptions) -> ProducerPort:
    client = {"delivery_timeout_ms": DELIVERY_MS, "max_block_ms": TOPIC_WAIT_MS, **options.client}
    return cluster_for(options.bootstrap, options.client).producer(client=client, partitioner=options.partitioner)


class _Writing:
    """The rows of one task on their way; a record's token is the number of its row."""

    def __init__(self, options: SinkOptions, task: Task, producer: ProducerPort) -> None:
        self._options, self._task, self._producer = options, task, producer
        given = options.client
        delivery_ms, wait_ms = given.get("delivery_timeout_ms", DELIVERY_MS), given.get("max_block_ms", TOPIC_WAIT_MS)
        self._patience_s = (delivery_ms + wait_ms) / 1000 + GRACE_S  # by then the client itself has given a record up

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Write them and wait for the answers; return how many there were."""
        send, topic, has_ids, number = self._producer.send, self._options.topic, self._options.has_ids, 0
        batch = (BATCH, self._task.batch.encode())
        run, prefix = (RUN, self._task.run.encode()), f"{self._task.partition}/"
        for rows in batches:
            for row_topic, key, value, given, partition in rows_of(rows):
                to = topic or row_topic
                if not to:
                    raise self._wrong(number, "its topic is null", "a topic for each row, or the option topic")
                headers: Any = self._headers(number, given) if given else ()
                if has_ids:
                    record = (RECORD, f"{prefix}{number}/{hash_of(to, partition, key, value, headers)}".encode())
                    headers = [*headers, batch, record, run]
                send(to, key=key, value=value, headers=headers, partition=partition, token=number)
                number += 1
                if not number % LOOK_EVERY:
                    self._look()
        self._finish()
        return number

    def _headers(self, number: int, given: list[dict[str, Any]]) -> list[tuple[str, bytes | None]]:
        found = []
        for header in given:
            if header is None or header["key"] is None:
                raise self._wrong(number, "a header has no key", "a key for each header; its value may be null")
            found.append((header["key"], header["value"]))
        return found

    def _look(self) -> None:
        """Take answers; where the buffer is full, wait for some."""
        producer = self._producer
        self._collect()
        while producer.buffered_bytes >= BUFFER_BYTES:
            if producer.oldest_s() > self._patience_s:
                raise self._silent()
            time.sleep(FULL_LOOK_S)
            self._collect()

    def _finish(self) -> None:
        late = False
        try:
            self._producer.flush(self._patience_s)
        except KafkaError:
            late = True
        self._collect()
        if late:
            raise self._silent()

    def _silent(self) -> BrokerError:
        return BrokerError(
            f"partition {self._task.partition}: Kafka at {self._options.bootstrap} has not answered for "
            f"{self._producer.oldest_s():.0f} s",
            cure="look at the brokers; kafka.delivery.timeout.ms says how long a record may take",
        )

    def _collect(self) -> None:
        """Take answers; raise where a record was refused."""
        for sent in self._producer.results():
            if sent.error is None:
                continue
            if concerns_all(sent.error, one_topic=self._options.topic is not None):
                raise _in_our_words(error_of_all(NAME, sent.topic, sent.error))
            where = sent.topic if sent.partition < 0 else f"{sent.topic}[{sent.partition}]"
            raise _in_our_words(error_of_record(NAME, self._place(min(sent.tokens)), where, sent.error))

    def _place(self, number: int) -> str:
        return f"partition {self._task.partition}, row {number}: "

    def _wrong(self, number: int, what: str, cure: str) -> RecordError:
        return RecordError(f"{self._place(number)}{what}", cure=cure)


def _in_our_words(error: DownspoutError) -> DownspoutError:
    cure = error.cure or ""
    for theirs, ours in SETTINGS.items():
        cure = cure.replace(theirs, ours)
    return type(error)(error.message, cure=cure or None)
