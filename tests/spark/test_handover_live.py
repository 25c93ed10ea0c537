"""A topic that is handed over from a spout to Spark and back: real processes, a real broker, real PySpark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.errors import StreamingQueryException

from downspout.broker import EmbeddedKafka, default_directory
from downspout.kafka import KafkaCluster, TopicPartition
from downspout.spark import read_checkpoint
from tests.spark.handover_support import Command
from tests.spark.handover_topology import DONE, HELD
from tests.spark.source_support import Bench, texts
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
Places = Counter[tuple[int, int]]
"""How often each (partition, offset) was processed."""


@pytest.fixture
def command(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(bench.cluster.bootstrap, capsys)


@pytest.fixture(scope="module")
def compacting_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that looks for something to compact all the time."""
    properties = {"log.cleaner.backoff.ms": "100"}
    with EmbeddedKafka(tmp_path_factory.mktemp("compacting"), properties=properties) as broker:
        yield broker


class Run:
    """``downspout run`` of the topology, in a process of its own."""

    def __init__(self, bench: Bench, name: str, held: str = "", **settings: str) -> None:
        self.done_file = bench.path / f"{name}.done"
        self.done_file.touch()
        given = {"kafka.bootstrap": bench.cluster.bootstrap, "kafka.topics": bench.topic, "kafka.group": bench.topic}
        sets = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        until = ["--until", "end"] if not held else []
        target = str(ROOT / "tests" / "spark" / "handover_topology.py")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "downspout", "run", target, "--quiet", *until, *sets],
            cwd=ROOT,
            env=os.environ | {"DOWNSPOUT_HOME": str(bench.path / "home"), "PYTHONPATH": str(ROOT)}
            | {DONE: str(self.done_file), HELD: held},
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def done(self) -> Places:
        lines = self.done_file.read_text(encoding="utf-8").splitlines()
        return Counter((int(partition), int(offset)) for partition, offset in map(str.split, lines))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> Places:
        """Wait until it ends by itself, and return what was processed."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, said
        return self.done()


def visible(bench: Bench) -> set[tuple[int, int]]:
    """Return the places of all records that a read_committed reader sees."""
    return {(row.partition, row.offset) for row in bench.read().select("partition", "offset").collect()}


def written(bench: Bench, name: str = "out") -> Places:
    rows = bench.spark.read.parquet(str(bench.path / name)).select("partition", "offset").collect()
    return Counter((row.partition, row.offset) for row in rows)


def begin_with_holes(bench: Bench) -> None:
    """Fill the topic: compaction and transactions leave offsets without records between the others."""
    compact = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.001"}
    bench.create(2, **compact, max_compaction_lag_ms="100")
    began_ms = int(time.time() * 1000) - 60_000
    for number in range(4):  # by these times each is older than a segment may be when the next one comes
        bench.send([f"twice-{number % 2}"] * 20, timestamp_ms=began_ms + 1000 * number)
    bench.send(["end of the old segments"])
    # One of each key, and nothing is left to compact: what is processed from now on is there at the end too.
    eventually(lambda: len(visible(bench)) == 3, every_s=0.1, otherwise="the broker did not compact")
    bench.transaction(["aborted"], commit=False)
    bench.send(range(30))
    bench.send(range(30, 60), partition=1)


@pytest.mark.sweep
def test_from_storm_to_spark_and_back(
    compacting_broker: EmbeddedKafka, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """A spout is killed with gaps, Spark goes on and is started again, the spout goes on: each record once."""
    bench = Bench(bench.spark, KafkaCluster(compacting_broker.bootstrap), bench.topic, bench.path)
    command = Command(compacting_broker.bootstrap, capsys)
    export = (bench.topic, "--to", "spark")
    begin_with_holes(bench)

    held = ["4", "9", "20", "33", "59"]
    run = Run(bench, "first", held=",".join(held))
    try:
        there = len(visible(bench))
        eventually(
            lambda: len(run.done()) == there - len(held),
            every_s=0.1,
            otherwise="the spout did not process what it may",
        )
        # Four ranges: after each record that is held but the last one of partition 1. Then all that is done is told.
        eventually(
            lambda: len(skipped_of(bench, command, export)) == 4,
            every_s=0.1,
            otherwise="the spout did not commit all it has done",
        )
    finally:
        run.kill()
    first = run.done()
    assert "cannot leave them out" in command.refused("export", *export, "--for", "jvm")
    options = command.facts("export", *export)["options"]
    assert options["subscribe"] == bench.topic

    bench.send(range(60, 80))
    for _ in range(2):  # the second run goes on from the checkpoint, under the same options
        bench.run(**options, maxOffsetsPerTrigger="17", minPartitions="4")
        bench.send(range(80, 90), partition=1)
    spark = written(bench)
    assert {"4", "9", "20", "33", "59"} <= set(bench.written())

    eventually(
        lambda: not bench.cluster.group_members(bench.topic),
        every_s=0.1,
        otherwise="the session of the killed spout did not end",
    )
    moves = command.facts("import", bench.topic, "--from-checkpoint", str(bench.path / "out.checkpoint"), "--yes")
    assert {move["partition"] for move in moves["moves"]} == {0, 1}
    bench.transaction(["committed"], commit=True)
    second = Run(bench, "second").end()
    assert first + spark + second == Counter(visible(bench))
    assert min(len(first), len(spark), len(second)) > 0
    assert command.facts("export", *export, "--for", "jvm")["skipOffsets"] == {}


def skipped_of(bench: Bench, command: Command, export: tuple[str, ...]) -> list[Any]:
    """Return the ranges beyond both commits; none before there are commits."""
    if not bench.cluster.group_offsets(bench.topic):
        return []
    found = command.facts("export", *export)["skipOffsets"].get(bench.topic, {})
    return [pair for key, pairs in found.items() if key != "id" for pair in pairs]


@pytest.mark.sweep
def test_a_batch_that_failed_is_the_spouts(bench: Bench, command: Command) -> None:
    """Where the second batch of a query over several sources failed, the spout does it: nothing is lost, none twice."""
    other = f"{bench.topic}-other"
    bench.create(1)
    bench.create(1, topic=other)
    bench.send(range(10))
    bench.send(range(100, 104), topic=other)
    seen: list[str] = []

    def write(frame: Any, batch: int) -> None:
        values = [row.value for row in frame.collect()]
        if batch == 1:
            raise RuntimeError("the second batch fails")
        seen.extend(values)

    limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    frames = [
        bench.stream(subscribe=topic, **limited).selectExpr("string(value) AS value") for topic in (bench.topic, other)
    ]
    rate = bench.spark.readStream.format("rate").load().selectExpr("string(value) AS value").where("false")
    frame = frames[0].union(frames[1]).union(rate)
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(bench.path / "failing")).start()
    with pytest.raises(StreamingQueryException, match="the second batch fails"):
        query.awaitTermination()
    found = read_checkpoint(bench.path / "failing")
    where = TopicPartition(bench.topic, 0)
    assert (found.batch, found.unfinished, found.others) == (0, 1, 1)
    assert (found.offsets, found.planned[where]) == ({where: 6, TopicPartition(other, 0): 4}, 10)
    assert found.query == query.id

    options = (bench.topic, "--from-checkpoint", str(bench.path / "failing"), "--topic", bench.topic, "--yes")
    assert "batch 1" in command.facts("import", *options)["notes"][0]
    assert Run(bench, "after").end() == Counter({(0, offset): 1 for offset in range(6, 10)})
    assert sorted(seen) == sorted([*texts(0, 6), *texts(100, 104)])


def test_both_forms_of_the_log_are_spark_s(bench: Bench) -> None:
    """Spark's second form of the log, in which sources have names, is read as the first."""
    bench.create(1)
    bench.send(range(7))
    bench.spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    try:
        bench.run(startingOffsets="earliest")
    finally:
        bench.spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    assert (bench.path / "out.checkpoint" / "offsets" / "0").read_text().startswith("v2\n")
    assert read_checkpoint(bench.path / "out.checkpoint").offsets == {TopicPartition(bench.topic, 0): 7}


@pytest.mark.sweep
def test_a_stream_stops_for_ever(bench: Bench) -> None:
    """At its stop a running query idles, whatever comes, and a bounded one ends; also after a restart."""
    bench.create(2)
    bench.send(range(10))
    stops = {"startingOffsets": "earliest", "stoppingOffsets": f'{{"{bench.topic}": {{"0": 15}}}}'}
    bench.run(**stops)
    assert bench.written() == texts(0, 10)
    query = bench.start(bench.stream(**stops), processingTime="100 milliseconds")
    try:
        bench.send(range(10, 30))
        bench.send(range(30, 33), partition=1)
        query.processAllAvailable()
        bench.send(range(33, 40))
        query.processAllAvailable()
        assert bench.written() == [*texts(0, 15), *texts(30, 33)]
    finally:
        query.stop()
    bench.run(**stops)
    assert bench.written() == [*texts(0, 15), *texts(30, 33)]
    assert bench.values(stoppingOffsets=stops["stoppingOffsets"]) == [*texts(0, 15), *texts(30, 33)]


@pytest.mark.sweep
def test_skipped_offsets_are_not_delivered(bench: Bench) -> None:
    """In batch and stream, with tasks cut anywhere and after a restart, the ranges are left out, and nothing else."""
    bench.create(1)
    bench.send(range(40))
    skips = {"skipOffsets": f'{{"{bench.topic}": {{"0": [[0, 3], [11, 12], [13, 29]]}}}}', "minPartitions": "7"}
    left = [*texts(3, 11), *texts(12, 13), *texts(29, 40)]
    assert bench.values(**skips) == left
    progress = bench.run(**skips, startingOffsets="earliest", maxOffsetsPerTrigger="9")
    assert sum(batch["numInputRows"] for batch in progress) == len(left)
    bench.send(range(40, 50))
    bench.run(**skips, startingOffsets="earliest")
    assert bench.written() == [*left, *texts(40, 50)]


@pytest.mark.sweep
def test_the_how_to_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands and the query of the how-to, in its order, process each line exactly once on the two engines."""
    page = (ROOT / "docs" / "how-to" / "change-engines.md").read_text(encoding="utf-8")
    page = page.partition("## From a spout to Spark")[2]
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["", "python", ""]
    monkeypatch.setenv("DOWNSPOUT_HOME", str(tmp_path / ".downspout"))
    for name in ("topologies", "bolts", "spouts", "downspout"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with EmbeddedKafka(default_directory()) as broker:
        cluster = KafkaCluster(broker.bootstrap)
        cluster.ensure_topic("lines", 2)
        for number, (kind, text) in enumerate(blocks):
            producer = cluster.producer()
            for partition in (0, 1):
                producer.send("lines", key=None, value=b"block%d" % number, partition=partition)
            producer.flush()
            producer.close()
            code = text.replace("localhost:9092", broker.bootstrap)
            line = [sys.executable, "-c", code] if kind else ["bash", "-ec", code]
            done = subprocess.run(
                line, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, timeout=800
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    counts = parquet.read_table(tmp_path / "output" / "word_counts").to_pylist()
    assert Counter({row["word"]: row["count"] for row in counts}) == {"block0": 2, "block2": 2}
    assert parquet.read_table(tmp_path / "output" / "lines").to_pylist() == [{"line": "block1"}] * 2
