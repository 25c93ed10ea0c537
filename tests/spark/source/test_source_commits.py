"""Commits of finished batches to a consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from downspout.errors import ConfigError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.spark import ends_of, lag_of
from downspout.spark.query_progress import Committer, ProgressCommits, commit_progress, wait_until_stopped
from downspout.testing import FakeKafka
from tests.spark.source_support import Bench

FAKE_ONLY = pytest.mark.fake_only("faults on command; test_lag_tools_see_finished_batches is on the real broker")

_number = count()
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(f"commits-{next(_number)}") as fake:
        fake.create_topic("t", partitions=2)
        for _ in range(50):
            fake.produce("t", b"v")
        yield fake


@pytest.fixture
def committer(kafka: FakeKafka) -> Iterator[Committer]:
    """A committer of the group g that does not wait long after a failure."""
    made = Committer("g", lambda: kafka.consumer(group="g"), backoff_s=0.001)
    yield made
    made.close()


def committed(kafka: FakeKafka) -> list[int | None]:
    found = kafka.consumer(group="g").committed([A, B])
    return [entry.offset if entry else None for entry in (found[A], found[B])]


def report(*ends: Any, kind: str = "x.PythonMicroBatchStream@1") -> dict[str, Any]:
    return {"sources": [{"description": kind, "endOffset": end, "latestOffset": end} for end in ends]}


@FAKE_ONLY
def test_offsets_are_committed(kafka: FakeKafka, committer: Committer) -> None:
    committer.add({A: 5, B: 0})
    assert committer.flush()
    assert committed(kafka) == [5, 0]


@FAKE_ONLY
def test_a_group_is_never_moved_back(kafka: FakeKafka, committer: Committer) -> None:
    """Neither an older offset of ours nor one below another's commit changes the group."""
    kafka.consumer(group="g").commit({B: OffsetAndMetadata(20, "", -1)})
    committer.add({A: 9, B: 7})
    assert committer.flush()
    committer.add({A: 3})
    assert committer.flush()
    assert committed(kafka) == [9, 20]


@FAKE_ONLY
@pytest.mark.parametrize("operation", ["commit", "committed"])
def test_failures_are_tried_again(kafka: FakeKafka, committer: Committer, operation: str) -> None:
    """Whatever error Kafka gives, retriable or not, the offsets are committed in the end."""
    kafka.faults.fail_next(operation, errors.GroupAuthorizationFailedError("g"), times=3)
    committer.add({A: 5})
    assert committer.flush()
    assert committed(kafka) == [5, None]
    assert kafka.faults.pending() == {}


@FAKE_ONLY
def test_a_broker_that_is_away_holds_nobody_up(kafka: FakeKafka, committer: Committer) -> None:
    """While Kafka is down adding returns at once; when it is back, the newest is committed."""
    kafka.is_up = False
    for offset in range(1, 20):
        committer.add({A: offset})
    assert not committer.flush(0.05)
    kafka.is_up = True
    assert committer.flush()
    assert committed(kafka) == [19, None]


@FAKE_ONLY
def test_the_slowest_query_counts(kafka: FakeKafka, committer: Committer) -> None:
    """Where two queries read a partition, the group is where both have been; one that ends holds nothing back."""
    session: Any = SimpleNamespace(streams=SimpleNamespace(addListener=id))
    listener = ProgressCommits(session, committer, None)
    listener.finished("q1", report({"t": {"0": 10}}))
    listener.finished("q2", report({"t": {"0": 4, "1": 8}}))
    listener.finished("q1", report({"t": {"0": 30}}))
    listener.flush()
    assert committed(kafka) == [10, 8]

    class Terminated:
        id = runId = "q2"

    listener.onQueryTerminated(Terminated())
    listener.finished("q1", report({"t": {"0": 30}}))
    listener.flush()
    assert committed(kafka) == [30, 8]


def test_both_sources_are_understood() -> None:
    """Ends of this source and of the JVM connector are taken, as objects or as text; other sources are left out."""
    ends = {"t": {"0": 3, "1": 4}}
    found = {A: 3, B: 4}
    assert ends_of(report(ends)) == ends_of(report('{"t":{"1":4,"0":3}}', kind="KafkaV2[Subscribe[t]]")) == found
    assert ends_of(report({"logOffset": 7}, kind="FileStreamSource[file:/x]")) == {}
    assert ends_of(report({"logOffset": 7})) == {}
    assert ends_of(report(None)) == {}
    assert ends_of(report(ends, {"t": {"1": 2}})) == {A: 3, B: 2}
    assert lag_of(report(ends)) == {A: 0, B: 0}


@pytest.mark.parametrize(
    ("group", "options", "said"),
    [
        ("", {"kafka.bootstrap.servers": "h"}, "the group is missing"),
        ("g", {"subscribe": "t"}, "kafka.bootstrap.servers is missing"),
        ("g", {"kafka.bootstrap.servers": "h", "kafka.retris": "1"}, "kafka.retris is not a property"),
    ],
)
def test_mistakes_are_named(group: str, options: dict[str, str], said: str) -> None:
    """A missing group or address, or an unknown property, is an error before anything is heard."""
    with pytest.raises(ConfigError, match=said):
        commit_progress(None, group, options)


@pytest.mark.sweep
@pytest.mark.spark
@pytest.mark.broker
def test_lag_tools_see_finished_batches(bench: Bench) -> None:
    """After a query has ended, the group stands exactly at the end of its last batch; other queries do not count."""
    bench.create(1)
    bench.send(range(10))
    options = {"kafka.bootstrap.servers": bench.cluster.bootstrap}
    listener = commit_progress(bench.spark, f"{bench.topic}-group", options, query="meant")
    try:
        heard = []
        finished = listener.finished
        listener.finished = lambda query, progress: finished(query, progress) or heard.append(progress)
        for name, ends in (("other", 2), ("meant", 3)):
            frame = bench.stream(startingOffsets="earliest", maxOffsetsPerTrigger=str(ends))
            writer = frame.writeStream.format("noop").queryName(name).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(bench.path / name)).start()
            query.awaitTermination()
        bench.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(120_000)
        reached = [ends_of(progress)[TopicPartition(bench.topic, 0)] for progress in heard]
        assert sorted(set(reached)) == [3, 6, 9, 10]
        assert listener.flush()
    finally:
        listener.close()
    consumer = bench.cluster.consumer(group=f"{bench.topic}-group")
    where = TopicPartition(bench.topic, 0)
    found = consumer.committed([where])[where]
    consumer.close()
    assert found is not None
    assert found.offset == 10


class FakeQuery:
    """A query that runs until it is stopped, or fails at its first check."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error, self._checks, self.is_stopped = error, 0, False

    def awaitTermination(self, timeout: float) -> bool:
        if self._error is not None:
            raise self._error
        self._checks += 1
        assert self._checks < 100, "the failure of the other query is not noticed"
        return False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_of_any_query_ends_the_wait(failing: int) -> None:
    """The others are stopped, also those that come before it and would run for ever."""
    queries = [FakeQuery(), FakeQuery()]
    queries[failing] = FakeQuery(ValueError("no such column"))
    with pytest.raises(ValueError, match="no such column"):
        wait_until_stopped(*queries)
    assert [query.is_stopped for query in queries] == [True, True]
