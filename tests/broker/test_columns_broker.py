"""Columns of a real broker's topics, compared with the records of the ordinary client."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from downspout.broker import EmbeddedKafka
from downspout.kafka import Cluster, ConsumerPort, RecordColumns, TopicPartition, TopicReader, WideSocket, cluster_for
from downspout.kafka.columns import fetcher as hook
from downspout.kafka.columns import reading
from downspout.testing import UNHURRIED
from tests.broker.scene import Scene, run_until
from tests.kafka.stage import unique
from tests.kafka.wire_batches import as_tuple

pytestmark = pytest.mark.broker

QUICK = UNHURRIED | {"log.cleaner.backoff.ms": "200"}
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
MIB = 1024 * 1024
Reads = dict[TopicPartition, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("columns"), properties=QUICK) as made:
        yield made


@pytest.fixture
def cluster(broker: EmbeddedKafka) -> Cluster:
    return cluster_for(broker.bootstrap)


@contextmanager
def reader(cluster: Cluster, partitions: list[TopicPartition], columns: bool, **client: Any) -> Iterator[ConsumerPort]:
    """Give a consumer that stands at the beginning of each."""
    made = cluster.consumer(group=None, client=client, columns=columns)
    try:
        made.assign(partitions)
        for tp, begin in made.beginning_offsets(partitions).items():
            made.seek(tp, begin)
        yield made
    finally:
        made.close()


def read(
    consumer: ConsumerPort,
    partitions: list[TopicPartition],
    limit: Callable[[], int] = lambda: 500,
    meanwhile: Callable[[Reads], None] = lambda found: None,
) -> Reads:
    """Poll up to the ends; return what came of each partition."""
    ends = consumer.end_offsets(partitions)
    found: Reads = {tp: [] for tp in partitions}

    def at_the_end() -> bool:
        meanwhile(found)
        for tp, records in consumer.poll(20, limit()).items():
            found[tp] += [as_tuple(record) for record in records]
        return all(consumer.position(tp) >= end for tp, end in ends.items())

    run_until(at_the_end)
    return found


class Author:
    """Writes what is left to chance into a topic: codecs, nulls, headers, times, transactions, batches of any size."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._numbers = random.Random(seed)

    def write(self, rounds: int) -> None:
        for _ in range(rounds):
            numbers = self._numbers
            transactional = {"transactional_id": unique("author")} if numbers.random() < 0.5 else {}
            producer = KafkaProducer(
                bootstrap_servers=self._bootstrap,
                compression_type=numbers.choice(CODECS),
                batch_size=numbers.choice([1, 500, 16384]),
                linger_ms=5,
                **transactional,
            )
            if transactional:
                producer.init_transactions()
                producer.begin_transaction()
            for _ in range(numbers.randint(1, 60)):
                self._send(producer)
            producer.flush(30)
            if transactional:
                (producer.commit_transaction if numbers.random() < 0.5 else producer.abort_transaction)()
            producer.close()

    def _send(self, producer: KafkaProducer) -> None:
        numbers = self._numbers
        value = numbers.choice([None, b"", b"v" * numbers.choice([1, 10, 100, 5000]), numbers.randbytes(40)])
        key = numbers.choice([None, b"", b"k%d" % numbers.randrange(5)])
        producer.send(
            self._topic,
            key=b"null" if value is None and key is None else key,
            value=value,
            headers=numbers.choice([[], [], [("a", b"1")], [("a", b""), ("é", b"\xff"), ("a", b"x" * 200)]]),
            timestamp_ms=numbers.choice([0, 1000, 1_700_000_000_000 + numbers.randrange(10**6)]),
            partition=numbers.randrange(self._partitions),
        )


@pytest.mark.parametrize(
    ("isolation", "stamped"),
    [
        ("read_committed", "CreateTime"),
        ("read_uncommitted", "LogAppendTime"),
        pytest.param("read_committed", "LogAppendTime", marks=pytest.mark.sweep),
        pytest.param("read_uncommitted", "CreateTime", marks=pytest.mark.sweep),
    ],
)
def test_a_random_topic(cluster: Cluster, broker: EmbeddedKafka, isolation: str, stamped: str) -> None:
    """All codecs, transactions, nulls and headers: columns hold the ordinary client's records, in any portions."""
    topic, seed = unique("random"), random.randrange(1 << 30)
    logging.getLogger("tests").info("seed %d", seed)
    cluster.ensure_topic(topic, 3, {"message.timestamp.type": stamped})
    partitions = [TopicPartition(topic, number) for number in range(3)]
    Author(broker.bootstrap, topic, 3, seed).write(12)
    client = {"isolation_level": isolation}
    with reader(cluster, partitions, False, **client) as plain, reader(cluster, partitions, True, **client) as ours:
        plain.note_aborted()
        ours.note_aborted()
        whole = read(plain, partitions)
        assert read(ours, partitions) == whole, f"seed {seed}"
        assert sorted(plain.take_aborted()) == sorted(ours.take_aborted())
    numbers = random.Random(seed)
    # A fetch that waits at the ends keeps what is resumed or gone back to waiting as well, half a second each time.
    small = {**client, "max_partition_fetch_bytes": 300, "fetch_max_wait_ms": 10}
    jumps = [numbers.random() < 0.05 for _ in range(400)]  # no more after that: it has to come to the end
    with reader(cluster, partitions, True, **small) as ours:

        def jump(found: Reads) -> None:
            """Pause, resume, and go back to any record; what is read again is forgotten."""
            tp = numbers.choice(partitions)
            (ours.pause if numbers.random() < 0.3 else ours.resume)([tp])
            if jumps and jumps.pop() and found[tp]:
                del found[tp][numbers.randrange(len(found[tp])) :]
                ours.seek(tp, found[tp][-1][2] + 1 if found[tp] else 0)

        assert read(ours, partitions, lambda: numbers.randint(1, 40), jump) == whole, f"seed {seed}"


COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0"}


def transaction(scene: Scene, keys: list[bytes], *, commit: bool) -> None:
    end = scene.bounds()[1] + len(keys) + 1
    producer = KafkaProducer(bootstrap_servers=scene.bootstrap, transactional_id=unique("compacted"))
    producer.init_transactions()
    producer.begin_transaction()
    for key in keys:
        producer.send(scene.topic, key=key, value=b"v", partition=0)
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.close()
    run_until(lambda: scene.bounds()[1] == end)


@pytest.mark.slow
def test_a_topic_that_the_log_cleaner_has_compacted(broker: EmbeddedKafka) -> None:
    """Gaps inside batches, batches of which the end is gone, and markers: the same records, and the same end."""
    with Scene(broker.bootstrap, unique("compacted"), 1, COMPACTED) as scene:
        scene.fill(60, key=lambda n: b"%d" % (n % 10), batch=7)
        for commit in (False, True):
            transaction(scene, [b"a", b"b", b"c"], commit=commit)
        scene.fill(35, key=lambda n: b"%d" % (n % 7), batch=5)
        before = scene.offsets()
        with scene.admin() as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, scene.topic, {"segment.ms": "1"})])
        scene.fill(1, key=lambda n: b"last", start_ms=1_000_000)
        run_until(lambda: len(scene.offsets()) < len(before) // 2)
        tp = scene.tp()
        with reader(scene.cluster, [tp], False) as plain, reader(scene.cluster, [tp], True) as ours:
            whole = read(plain, [tp])
            assert len(whole[tp]) < len(before) // 2
            assert read(ours, [tp]) == whole
            assert ours.position(tp) == plain.position(tp) == scene.bounds()[1]
        kept = [record[2] for record in whole[tp]]
        transaction(scene, [b"z"], commit=False)  # so that no record is at the end
        with TopicReader(scene.cluster, scene.topic) as looked:
            assert [record.offset for records in looked.batches() for record in records] == kept
        assert any(after - at > 1 for at, after in pairwise(kept))
        with reader(scene.cluster, [tp], True, fetch_max_wait_ms=1) as ours:
            for start in range(kept[-1] + 1):  # the middle of every batch, and every gap
                ours.seek(tp, start)
                (found,) = ours.poll(60_000, 5).values()
                assert found[0].offset == min(offset for offset in kept if offset >= start)


@pytest.mark.sweep
@pytest.mark.parametrize("codec", [None, "zstd"])
def test_records_of_ten_mebibytes(cluster: Cluster, codec: str | None) -> None:
    """Records far above the fetch size come whole, in their turn."""
    topic = unique("large")
    cluster.ensure_topic(topic, 1, {"max.message.bytes": str(12 * MIB)})
    tp = TopicPartition(topic, 0)
    producer = cluster.producer(client={"compression_type": codec})
    sizes = [10, 10 * MIB, 10, 10 * MIB, 10 * MIB, 10]
    for size in sizes:
        producer.send(topic, key=None, value=random.randbytes(size), partition=0, timestamp_ms=1)
    producer.flush()
    producer.close()
    with reader(cluster, [tp], True) as ours, reader(cluster, [tp], False) as plain:
        assert read(ours, [tp]) == read(plain, [tp])


def test_what_is_too_much_for_one_piece_comes_with_the_next_poll(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost or read twice when a poll has to leave something."""
    monkeypatch.setattr(hook, "JOINED_BYTES_MAX", 1000)
    monkeypatch.setattr(reading, "PIECE_BYTES", 500)
    topic = unique("pieces")
    cluster.ensure_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    producer = cluster.producer()
    for number in range(60):
        producer.send(topic, key=None, value=b"%03d" % number * 100, partition=0, timestamp_ms=1)
        producer.flush()
    producer.close()
    with reader(cluster, [tp], True) as ours:
        assert [record[2] for record in read(ours, [tp])[tp]] == list(range(60))


def test_connections_read_much_at_once(cluster: Cluster) -> None:
    """The connection that fetches has a socket that gives more than the client's 4 KiB."""
    topic = unique("wide")
    cluster.ensure_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    producer = cluster.producer()
    producer.send(topic, key=None, value=b"x", partition=0)
    producer.flush()
    producer.close()
    with reader(cluster, [tp], True) as ours:
        read(ours, [tp])
        client: Any = ours
        leader = client._consumer._cluster.leader_for_partition(tp)
        assert isinstance(client._consumer._manager._conns[leader].transport._sock, WideSocket)


def test_an_unknown_client_gives_columns_of_its_records(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the self-test fails, polls give columns all the same, made of records, and the log says so once."""
    monkeypatch.setattr(hook, "trouble", lambda *_: "something has moved")
    hook._warn_of.cache_clear()
    topic = unique("unknown")
    cluster.ensure_topic(topic, 1)
    tp = TopicPartition(topic, 0)
    producer = cluster.producer()
    for number in range(5):
        producer.send(topic, key=b"k", value=b"%d" % number, headers=[("h", b"x")], partition=0, timestamp_ms=number)
    producer.flush()
    producer.close()
    with caplog.at_level(logging.WARNING, "downspout.kafka"):
        for _ in range(2):
            with reader(cluster, [tp], True) as ours, reader(cluster, [tp], False) as plain:
                assert read(ours, [tp]) == read(plain, [tp])
                ours.seek(tp, 3)
                (columns,) = ours.poll(60_000, 10).values()
                assert isinstance(columns, RecordColumns)
                assert columns.values.to_pylist() == [b"3", b"4"]
    assert len([record for record in caplog.records if "something has moved" in record.getMessage()]) == 1
    hook._warn_of.cache_clear()
