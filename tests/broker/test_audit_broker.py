"""The audit on a real broker: offsets without a row, for which a fake could be wrong."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from downspout.audit import AuditReport
from downspout.audit.audit import audit
from downspout.cli import main
from downspout.dead_letters import DeadLetters
from downspout.kafka import Cluster, TopicPartition, cluster_for
from downspout.sink import ORIGIN_SCHEMA, CommitLog, Coverage, DataFile, Entry, Stream
from tests.broker.scene import run_until

if TYPE_CHECKING:
    from downspout.broker import EmbeddedKafka

pytestmark = pytest.mark.broker


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = cluster.producer()
    for number in range(count):
        producer.send(topic, key=None, value=str(number).encode(), partition=0)
    producer.flush()
    producer.close()


def transaction(bootstrap: str, topic: str, count: int, *, commit: bool) -> None:
    """Append so many records in a transaction, and the marker that ends it."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-writer")
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(count):
            last = producer.send(topic, value=str(number).encode(), partition=0).get(timeout=60).offset
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        wait_for_marker(bootstrap, TopicPartition(topic, 0), last)
    finally:
        producer.close()


def wait_for_marker(bootstrap: str, partition: TopicPartition, last: int) -> None:
    """Wait until a transaction's end is in the log: the answer comes before, and what is written next would precede it.

    While the marker is not there, the log of a read_committed reader ends at the transaction's first record.
    """
    consumer = cluster_for(bootstrap).consumer(group=None)
    try:
        run_until(lambda: consumer.end_offsets([partition])[partition] == last + 2)
    finally:
        consumer.close()


def commit_rows(directory: Path, topic: str, topic_id: str, offsets: Sequence[int]) -> None:
    """Put a row for each offset into a file, and the file into the log, as a sink does."""
    log = CommitLog(directory)
    log.refresh()
    covered = Coverage()
    covered.add(Stream(topic, topic_id, 0, ""), offsets)
    name = f"part-{log.length}.parquet"
    rows = [
        {"n": o, "_topic": topic, "_topic_id": topic_id, "_partition": 0, "_offset": o, "_path": ""} for o in offsets
    ]
    schema = pa.schema([("n", pa.int64()), *ORIGIN_SCHEMA])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), directory / name)
    file = DataFile(name, len(rows), (directory / name).stat().st_size)
    assert log.append(Entry(log.length, "w", "topo", ("n:int64",), 1, (file,), covered))


def listed(report: AuditReport) -> dict[str, list[int]]:
    (part,) = report.partitions
    return {kind: [o for span in spans for o in range(*span)] for kind, spans in part.offsets.items()}


def test_every_kind_of_absence_is_told_apart(kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> None:
    """Deleted, dead-lettered, aborted and marker offsets are told from a record that is there and has no row."""
    cluster, letters = cluster_for(kafka_broker.bootstrap), f"{topic_name}-dead"
    cluster.ensure_topic(topic_name, 1)
    produce(cluster, topic_name, 6)  # 0 to 5
    transaction(kafka_broker.bootstrap, topic_name, 2, commit=False)  # 6, 7 and the marker 8
    transaction(kafka_broker.bootstrap, topic_name, 1, commit=True)  # 9 and the marker 10
    produce(cluster, topic_name, 1)  # 11
    consumer = cluster.consumer(group=None)
    try:
        partition = TopicPartition(topic_name, 0)
        topic_id = consumer.topic_id(topic_name)
        assert consumer.end_offsets([partition])[partition] == 12
        consumer.assign([partition])
        consumer.seek(partition, 3)
        failed = next(r for _ in range(300) for r in consumer.poll(200, 1).get(partition, ()) if r.offset == 3)
    finally:
        consumer.close()
    DeadLetters(cluster, letters).write(
        failed, attempts=3, first_failure_ms=1, last_failure_ms=2, failure=None, topic_id=topic_id
    )
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    try:
        admin.delete_records({partition: 2})
    finally:
        admin.close()
    commit_rows(tmp_path, topic_name, topic_id, [0, 2, 4])

    report = audit(tmp_path, cluster=cluster, dead_letters=letters)
    explained = {"dead_lettered": [3], "compacted": [6, 7, 8, 10]}
    assert listed(report) == {**explained, "lost": [1], "missing": [5, 9, 11]}
    assert report.exit_code == 10

    commit_rows(tmp_path, topic_name, topic_id, [1, 5, 9, 11])
    report = audit(tmp_path, cluster=cluster, dead_letters=letters)
    assert listed(report) == explained
    assert report.exit_code == 0


def test_a_topic_made_again_is_another_topic(kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> None:
    """Rows of a topic that was deleted do not stand for the records of a new one of the same name."""
    cluster = cluster_for(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    produce(cluster, topic_name, 3)
    commit_rows(tmp_path, topic_name, "6jPMvg1sQ2uJmzGz1yRHQw", [0, 1, 2])  # as if written before the topic was deleted
    report = audit(tmp_path, cluster=cluster)
    assert listed(report) == {"missing": [0, 1, 2]}
    assert any("earlier topic" in note for note in report.notes)


WORDS = """
from streamparse import Topology
from bolts.parquet import ParquetBolt
from downspout.component import Bolt
from spouts.kafka import KafkaSpout

class Picky(Bolt):
    outputs = ["origin", "value"]

    def process(self, tup):
        if tup.values.value == "3":
            raise ValueError("no such number")
        if tup.values.value != "1":
            self.emit([*tup.values])

class Words(Topology):
    spout = KafkaSpout.spec(topics=["TOPIC"], fields=["origin", "value"], retries_max=0)
    picky = Picky.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[picky], directory="words", schema=["value:string"])
"""


@pytest.mark.sweep
def test_a_run_and_an_audit_need_no_more_than_their_names(
    kafka_broker: EmbeddedKafka,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first audit after bad and filtered records is exact; after an old copy was restored the run names what it
    lacks, and the audit agrees."""
    monkeypatch.chdir(tmp_path)
    file = f"words_{topic_name.replace('-', '_')}.py"
    Path(file).write_text(WORDS.replace("TOPIC", topic_name), encoding="utf-8")
    cluster = cluster_for(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    produce(cluster, topic_name, 5)
    given = ["--set", f"kafka.bootstrap={kafka_broker.bootstrap}", "--until", "end", "--quiet"]
    assert main(["run", file, *given]) == 0
    capsys.readouterr()
    assert main(["audit", "words", "--topology", file]) == 0
    assert "each exactly once; 1 filtered, 1 dead-lettered" in capsys.readouterr().out
    shutil.copytree(Path("words"), Path("copy"))
    produce(cluster, topic_name, 3)
    assert main(["run", file, *given]) == 0
    assert "is behind" not in caplog.text
    shutil.rmtree(Path("words"))
    shutil.move(Path("copy"), Path("words"))
    assert main(["run", file, *given]) == 0
    assert f"it has no rows of {topic_name}[0]@5 to @7" in caplog.text
    assert main(["audit", "words"]) == 10
