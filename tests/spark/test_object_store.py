"""Spark and a bucket: topologies write to it, and batch queries and streams read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demos.s3 import FaultProxy
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.settings import ObjectPath
from downspout.sink import Compactor, read_table, storage_of
from downspout.spark import read_sink, stream_sink
from downspout.spark.event_time import event_time
from tests.object_store_faults import Faults, options_of
from tests.sink.cloud_support import server_of
from tests.sink.support import write
from tests.spark.pipelines_support import START, drain, rows_in
from tests.spark.topology.scene import PLAIN, Scene, last_batch, lines_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from downspout.broker import EmbeddedKafka

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    """Return what stands before an S3 server, and is quiet unless a test says otherwise."""
    with server_of("s3proxy") as url, FaultProxy(url, lambda line: None) as made:
        yield made


@pytest.fixture
def options(proxy: FaultProxy, tmp_path: Path) -> list[str]:
    """Return how the bucket is reached, also by Python workers that were started before."""
    return options_of(proxy.url, tmp_path)


@pytest.mark.broker
@pytest.mark.parametrize(
    "emit", [pytest.param("record", marks=pytest.mark.sweep), pytest.param("chunk", marks=pytest.mark.sweep)]
)
def test_a_topology_writes_each_row_once(
    spark: SparkSession, kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    proxy: FaultProxy, options: list[str], emit: str,
) -> None:  # fmt: skip
    """Words and counts are there once, through 503s, lost answers, and a batch that Spark does not know was committed.

    The local engine goes on in the same directory, and writes what is new alone.
    """
    monkeypatch.setenv("DOWNSPOUT_PARQUET_STORAGE_OPTIONS", ",".join(options))
    scene = Scene(spark, kafka_broker.bootstrap, topic_name, tmp_path, monkeypatch)
    top = f"s3://bucket/{topic_name}"
    given = [f"kafka.emit={emit}", f"parquet.storage_options={','.join(options)}"]
    given += [f"{sink}:parquet.directory={top}/{sink}" for sink in ("words", "counts")]
    proxy.fault = Faults()
    try:
        scene.send(*lines_of(60))
        scene.run(PLAIN, *given, records_per_batch=30)
        commits = tmp_path / "checkpoint" / "commits"
        last = last_batch(commits)
        for known in (str(last), f".{last}.crc"):  # as if the driver had died between our commit and Spark's
            (commits / known).unlink(missing_ok=True)
        scene.send(*lines_of(30, seed=1))
        scene.run(PLAIN, *given)
    finally:
        proxy.fault = lambda line: None
    assert {text.partition(" ")[0] for text in proxy.injected} == {"slow", "lose"}
    words = sorted(word for line in scene.sent for word in line.split())
    assert sorted(read_table(f"{top}/words").column("word").to_pylist()) == words
    every = words + [word.upper() for word in words if len(word) > 4]
    counted = Counter((row["word"], row["n"]) for row in read_table(f"{top}/counts").to_pylist())
    assert counted == Counter((word, n + 1) for word, count in Counter(every).items() for n in range(count))
    scene.send("another line")
    scene.run_locally(PLAIN, *given, into=tmp_path)
    assert sorted(read_table(f"{top}/words").column("word").to_pylist()) == sorted([*words, "another", "line"])
    assert audit(f"{top}/words", cluster=scene.cluster, several=True, deep=True).exit_code == 0


@pytest.mark.sweep
def test_queries_read_a_bucket(
    spark: SparkSession, tmp_path: Path, proxy: FaultProxy, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch and stream see each row once, before and after a compaction; a frame keeps the rows that it had."""
    monkeypatch.setenv("DOWNSPOUT_PARQUET_STORAGE_OPTIONS", ",".join(options))
    directory = ObjectPath(f"s3://bucket/{tmp_path.name}/numbers")
    schema = ["word:string", "n:int32", "at:timestamp"]

    def flush(offsets: range, **conf: Any) -> None:
        write(
            directory, schema, offsets, lambda n: ("ab"[n % 2], n, START), **{"parquet.partition_by": ["word"], **conf}
        )

    with pytest.raises(SinkError, match="has no commit log"):
        read_sink(spark, str(directory), storage_options=options)
    flush(range(10))
    flush(range(10, 20))
    frame = read_sink(spark, str(directory), storage_options=options)
    stream = stream_sink(spark, str(directory), storage_options=options, origins=True)
    checkpoint = tmp_path / "out"
    drain(stream.select("word", "n"), checkpoint)
    Compactor(directory, disk=storage_of(directory, options)).run()
    flush(range(20, 25))
    assert sorted(row.n for row in frame.collect()) == list(range(20))
    assert {(row.word, row.n) for row in frame.where("word = 'a'").collect()} == {("a", n) for n in range(0, 20, 2)}
    now = read_sink(spark, str(directory), storage_options=options)
    assert sorted(row.n for row in now.collect()) == list(range(25))
    assert now.columns == ["n", "at", "word"]
    timed = event_time(
        stream_sink(spark, str(directory), storage_options=options, origins=True),
        "at", "1 hour", partitions=2, checkpoint=f"{checkpoint}.checkpoint",
    )  # fmt: skip
    assert timed.isStreaming
    drain(stream.select("word", "n"), checkpoint)
    assert rows_in(spark, checkpoint) == sorted(("ab"[n % 2], n) for n in range(25))
