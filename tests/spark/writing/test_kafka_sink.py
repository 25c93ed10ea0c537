"""``format("downspout-kafka")`` on real PySpark, over the real broker: frames and streams become records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.errors import PySparkException

from downspout.spark.kafka_sink import BATCH, RECORD, RUN, without_repeats
from tests.spark.source_support import Bench, texts

pytestmark = [pytest.mark.spark, pytest.mark.broker]

NUMBERED = "string(id) AS value"


def writer(bench: Bench, frame: Any, **options: str) -> Any:
    """Return the writer of a frame, to the topic unless another is named."""
    given = {"kafka.bootstrap.servers": bench.cluster.bootstrap, "topic": bench.topic}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    return (frame.writeStream if frame.isStreaming else frame.write).format("downspout-kafka").options(**given)


def ids_in(bench: Bench, topic: str) -> list[dict[str, str]]:
    rows = bench.read(includeHeaders="true", subscribe=topic).collect()
    return [{header.key: bytes(header.value).decode() for header in row.headers or ()} for row in rows]


def test_a_frame_becomes_records(bench: Bench) -> None:
    """All of the connector's columns arrive, topics by the column; the source reads by either name of the format."""
    other = f"{bench.topic}-b"
    bench.create(2)
    bench.create(1, topic=other)
    rows = bench.spark.range(6).selectExpr(
        f"if(id < 4, '{bench.topic}', '{other}') AS topic",
        "if(id = 1, null, string(id)) AS key",
        "if(id = 2, null, binary(string(id))) AS value",
        "if(id = 3, null, array(struct('h' AS key, if(id = 0, null, binary('x')) AS value))) AS headers",
        "int(if(id < 4, id % 2, null)) AS partition",
    )
    writer(bench, rows, includeRecordIds="false", topic="").mode("append").save()
    found = bench.spark.read.format("downspout-kafka").options(
        **{"kafka.bootstrap.servers": bench.cluster.bootstrap, "subscribe": f"{bench.topic},{other}"},
        includeHeaders="true",
    )
    text = found.load().selectExpr("topic", "partition", "string(key)", "string(value)", "headers")
    there = {
        (row.topic == other, row.partition, row.key, row.value): row.headers and [tuple(h) for h in row.headers]
        for row in text.collect()
    }
    assert there == {
        (False, 0, "0", "0"): [("h", None)],
        (False, 1, None, "1"): [("h", b"x")],
        (False, 0, "2", None): [("h", b"x")],
        (False, 1, "3", "3"): None,
        (True, 0, "4", "4"): [("h", b"x")],
        (True, 0, "5", "5"): [("h", b"x")],
    }


def test_a_write_has_an_id(bench: Bench) -> None:
    """Records of one write share the batch that it is given, or else one of its own; rows are told apart."""
    bench.create(1)
    frame = bench.spark.range(0, 4, 1, 2).selectExpr(NUMBERED)
    writer(bench, frame, batchId="nightly/7").mode("append").save()
    named = ids_in(bench, bench.topic)
    assert {each[BATCH] for each in named} == {"nightly/7"}
    assert sorted(each[RECORD][:4] for each in named) == ["0/0/", "0/1/", "1/0/", "1/1/"]
    writer(bench, frame).mode("append").save()
    assert len({each[BATCH] for each in ids_in(bench, bench.topic)}) == 2
    assert len({each[RUN] for each in ids_in(bench, bench.topic)}) == 4


@pytest.mark.sweep
def test_a_frame_that_cannot_be_written(bench: Bench) -> None:
    """Modes, columns and single rows that cannot be written end the job with an error that says what helps."""
    bench.create(1, max_message_bytes="2000")
    frame = bench.spark.range(0, 4, 1, 2)
    plain = frame.selectExpr(NUMBERED)
    with pytest.raises(PySparkException, match=r'Please use either the "Append"'):  # Spark's own words
        writer(bench, plain).save()
    with pytest.raises(PySparkException, match=r'records in Kafka cannot be replaced.*\.mode\("append"\)'):
        writer(bench, plain).mode("overwrite").save()
    with pytest.raises(PySparkException, match="the column id cannot be written to Kafka"):
        writer(bench, frame).mode("append").save()
    large = frame.selectExpr("if(id = 3, repeat('x', 9999), string(id)) AS value")
    with pytest.raises(PySparkException, match=r"partition 1, row 1: .*MessageSizeTooLarge.*max\.message\.bytes"):
        writer(bench, large).mode("append").save()
    with pytest.raises(PySparkException, match=r"there is no topic .*create the topic"):
        writer(bench, plain, topic=f"{bench.topic}-no", kafka__max__block__ms="300").mode("append").save()
    with pytest.raises(PySparkException, match=r"No Kafka at 127\.0\.0\.1:1"):
        writer(bench, plain, kafka__bootstrap__servers="127.0.0.1:1").mode("append").save()
    assert set(bench.values()) <= {"0", "1", "2"}


@pytest.mark.sweep
def test_a_stream_resumes_and_its_repeats_can_be_dropped(bench: Bench) -> None:
    """A batch whose end Spark had not written down is written again: its records' ids are those of the first time.

    That is what a kill between the last answer and Spark's own note leaves. Records of others have no ids and stay.
    """
    source, out = f"{bench.topic}-in", bench.topic
    bench.create(1, topic=out)
    bench.create(2, topic=source)
    for partition in (0, 1):
        bench.send(texts(partition * 100, partition * 100 + 20), partition, topic=source)
    stream = bench.stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="20").select(
        "key", "value"
    )
    checkpoint = bench.path / "checkpoint"

    def run() -> str:
        query = writer(bench, stream, checkpointLocation=str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    query = run()
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()), key=lambda p: int(p.name)
    )
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    bench.send(["x", "x"], topic=out)
    bench.send(["20"], topic=source)
    assert run() == query
    expected = Counter([*texts(0, 21), *texts(100, 120), "x", "x"])
    found = Counter(bench.values(subscribe=out))
    assert found > expected
    assert found.keys() == expected.keys()
    frame = without_repeats(bench.read(subscribe=out, includeHeaders="true"))
    assert Counter(row.value for row in frame.selectExpr("string(value) AS value").collect()) == expected
    ids = [each for each in ids_in(bench, out) if each]
    repeated = [key for key, count in Counter((each[BATCH], each[RECORD]) for each in ids).items() if count > 1]
    assert {batch for batch, _ in repeated} == {f"{query}/{last.name}"}
    assert len({each[RUN].split("/")[0] for each in ids}) == 2
