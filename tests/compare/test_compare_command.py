"""``downspout compare`` as a user calls it: real engines on a real broker, equal, different, failing, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from demos.flights_data import Flights, load_flights, publish
from downspout.broker import EmbeddedKafka
from downspout.cli import main
from downspout.kafka import KafkaCluster, TopicPartition
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

TOPOLOGY = """\
from streamparse import Grouping, Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from bolts.split import SplitBolt
from spouts.kafka import KafkaSpout


class Words(Topology):
    config = {{"kafka.bootstrap": "{bootstrap}", "kafka.group": "real-{topic}", "kafka.retries_max": 0}}
    spout = KafkaSpout.spec(topics=["{topic}"], fields=["origin", "value"])
    split = SplitBolt.spec(inputs=[spout])
    words = ParquetBolt.spec(inputs=[split], directory="output/words", schema={{"word": "string"}})
    word_counts = AggregateBolt.spec(
        inputs={{split: Grouping.fields("word")}}, directory="output/counts", schema={{"word": "string"}},
        keys=["word"], aggregates=["count"],
    )
"""

NATIVE = """\
from pyspark.sql import functions as F


def native(spark, records):
    text = F.try_validate_utf8(records["spout"]["value"].cast("string"))
    words = records["spout"].select(F.explode(F.split(text, " ")).alias("word"))
    counts = words.groupBy("word").agg(F.count("*").alias("count"))
    {change}
    return {{"words": words, "word_counts": counts}}
"""

LINES = [b"to be or not to be", b"that is the question", b"\xff no text"]


class Project:
    """A folder with a topology and a native version, and a topic of its own."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.folder, self.topic, self.cluster = folder, topic, KafkaCluster(bootstrap)
        self.cluster.ensure_topic(topic, 2)
        (folder / "words.py").write_text(TOPOLOGY.format(bootstrap=bootstrap, topic=topic), encoding="utf-8")
        self.native_version()

    def native_version(self, change: str = "") -> None:
        """Write the native version, which does something else at its end."""
        (self.folder / "words_spark.py").write_text(NATIVE.format(change=change), encoding="utf-8")

    def send(self, lines: list[bytes]) -> None:
        producer = self.cluster.producer()
        for number, line in enumerate(lines):
            producer.send(self.topic, key=None, value=line, partition=number % 2)
        producer.flush()
        producer.close()

    def left(self) -> tuple[set[str], set[str]]:
        """Return the groups and topics of comparisons that Kafka knows."""
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        try:
            groups = {each["group_id"] if isinstance(each, dict) else each[0] for each in admin.list_groups()}
        finally:
            admin.close()
        return (
            {group for group in groups if group.startswith(("compare-", "real-"))},
            {topic for topic in self.cluster.topics() if topic.startswith("compare-")},
        )


@pytest.fixture
def project(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    made = Project(tmp_path, kafka_broker.bootstrap, topic_name)
    yield made
    made.cluster.delete_topic(topic_name)


def publish_flights(project: Project, count: int) -> list[str]:
    """Publish flights, and nine records that are none; return the settings that read them."""
    topic = f"{project.topic}-flights"
    publish(project.cluster, Flights(load_flights(count)), topic)
    producer = project.cluster.producer()
    for number in range(9):
        value = [b"{", b'{"month": "May"}', b"\xff", None][number % 4]
        producer.send(topic, key=None, value=value, partition=number % 4)
    producer.flush()
    producer.close()
    given = [f"spout:kafka.topics={topic}", f"kafka.bootstrap={project.cluster.bootstrap}", "kafka.retries_max=0"]
    return [f"--set={setting}" for setting in given]


@pytest.mark.sweep
@pytest.mark.broker
@pytest.mark.spark
def test_the_flights_are_equal_by_record_in_chunks_and_natively(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flights and records that are none give equal tables on all engines and in both modes; nothing of it stays."""
    settings = publish_flights(project, 1_200)
    engines = ["local-record", "local-chunk", "spark-chunk", "native"]  # and "spark" is in the test below
    arguments = ["--engines", ",".join(engines), *settings, "--set=spout:kafka.chunk_records_max=300"]
    code = main(["compare", str(ROOT / "topologies" / "flight_delays.py"), "--keep", "kept", "--json", *arguments])
    shown = capsys.readouterr()
    assert code == 0, shown
    report = json.loads(shown.out)
    assert report["verdict"] == f"equal on {', '.join(engines)}"
    flights, delays = report["tables"]
    assert flights["rows"] == dict.fromkeys(engines, 1_200)
    assert len(set(delays["rows"].values())) == 1
    assert project.left() == (set(), set())
    assert {path.name for path in project.folder.iterdir()} - {"__pycache__"} == {"words.py", "words_spark.py", "kept"}
    assert {path.name for path in (project.folder / "kept").iterdir()} == set(engines)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.sweep
def test_all_engines_that_are_there_are_compared(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --engines, flights give equal tables on the local engine, on Spark and natively."""
    arguments = publish_flights(project, 900)
    code = main(["compare", str(ROOT / "topologies" / "flight_delays.py"), *arguments])
    shown = capsys.readouterr()
    assert code == 0, shown
    rows = [line.split() for line in shown.out.splitlines()]
    assert [row[:4] for row in rows[2:5]] == [
        ["flights", "local", "900", "the"], ["flights", "spark", "900", "equal"], ["flights", "native", "900", "equal"],
    ]  # fmt: skip
    assert "storm is not available: Storm is stopped" in shown.out
    assert shown.out.splitlines()[-1] == "equal on local, spark, native"
    assert project.left() == (set(), set())


BATCHES = """\
from streamparse import Grouping, Topology

from bolts.state import StateBolt
from spouts.batches import KafkaBatches
from topologies.batch_word_count import SplitBolt


class Words(Topology):
    config = {{"kafka.bootstrap": "{bootstrap}"}}
    coordinator, lines = KafkaBatches.spec(topics=["{topic}"], fields=["value"], store="sqlite:///batches.db")
    split = SplitBolt.spec(inputs=[lines])
    counts = StateBolt.spec(
        coordinator=coordinator, inputs={{split: Grouping.fields("word")}}, store="sqlite:///counts.db",
        key="word", update="count",
    )
"""


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.sweep
def test_states_of_batches_are_compared(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What a StateBolt keeps is a table; the run has files of its own; and there are no chunks of batches."""
    project.send([b"to be or not to be"] * 20)
    text = BATCHES.format(bootstrap=project.cluster.bootstrap, topic=project.topic)
    (project.folder / "batches.py").write_text(text, encoding="utf-8")
    assert main(["compare", "batches.py", "--engines", "local,spark", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert (table["name"], table["rows"]) == ("counts", {"local": 4, "spark": 4})
    assert not list(project.folder.glob("*.db"))
    assert main(["compare", "batches.py", "--engines", "local,local-chunk"]) == 2
    assert "coordinator: batches are emitted record by record" in capsys.readouterr().out


@pytest.mark.broker
def test_where_chunks_cannot_be_it_is_said(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A topology whose spout cannot emit chunks is not run in chunk mode, and the reason is told."""
    project.send(LINES)
    code = main(["compare", "words.py", "--engines", "local,local-chunk", "--set=spout:kafka.value_format=json"])
    shown = capsys.readouterr().out
    assert code == 2
    assert "local-chunk is not available: spout: kafka.value_format = json has a type for each record" in shown


@pytest.mark.broker
@pytest.mark.spark
def test_a_difference_is_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A row too many, one too few and a value that differs are counted and shown, and the exit code is 1."""
    project.send(LINES)
    project.native_version(
        "words = words.where(\"word != 'question'\").union(spark.sql(\"SELECT 'is' AS word\"))\n"
        "    counts = counts.withColumn('count', F.when(F.col('word') == 'be', 3).otherwise(F.col('count')))"
    )
    assert main(["compare", "words.py", "--engines", "local,native", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "different: words, word_counts"
    words, counts = report["tables"]
    assert words["rows"] == {"local": 10, "native": 10}
    assert words["duplicates"] == {"local": 2, "native": 3}
    assert [(each["row"], each["counts"]) for each in words["differences"]] == [
        ({"word": "is"}, {"local": 1, "native": 2}),
        ({"word": "question"}, {"local": 1, "native": 0}),
    ]
    assert [each["row"] for each in counts["differences"]] == [{"word": "be", "count": 2}, {"word": "be", "count": 3}]
    assert project.left() == (set(), set())
    assert {path.name for path in project.folder.iterdir()} - {"__pycache__"} == {"words.py", "words_spark.py"}


@pytest.mark.sweep
@pytest.mark.broker
@pytest.mark.spark
def test_what_bolts_write_to_kafka_is_compared(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A KafkaBolt writes to a topic of each engine, which are compared and deleted; its own topic stays empty."""
    project.send(LINES)
    own = f"{project.topic}-out"
    project.cluster.ensure_topic(own, 3)
    text = (project.folder / "words.py").read_text(encoding="utf-8")
    bolt = f'    out = KafkaBolt.spec(inputs=[split], topic="{own}", fields=["key=word", "message=word"])\n'
    (project.folder / "words.py").write_text(f"from bolts.kafka import KafkaBolt\n{text}{bolt}", encoding="utf-8")
    code = main(["compare", "words.py", "--engines", "local,spark", "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown
    tables = {table["name"]: table for table in json.loads(shown.out)["tables"]}
    assert tables["out"]["rows"] == tables["words"]["rows"] == {"local": 10, "spark": 10}
    assert tables["out"]["duplicates"] == {"local": 2, "spark": 2}
    assert project.left() == (set(), set())
    with closing(project.cluster.consumer(group=None)) as consumer:
        assert set(consumer.end_offsets([TopicPartition(own, number) for number in range(3)]).values()) == {0}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.sweep
def test_other_columns_are_a_difference(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A native version whose column has another type or name differs, and the columns are named."""
    project.send(LINES)
    project.native_version("words, counts = words.toDF('term'), counts.withColumn('count', F.col('count').cast('int'))")
    assert main(["compare", "words.py", "--engines", "local,native"]) == 1
    shown = capsys.readouterr().out
    assert "words: native: no column word; a column term too many" in shown
    assert "word_counts: native: count is int32 instead of int64" in shown


@pytest.mark.broker
def test_an_engine_that_fails_is_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What an engine wrote when it failed is shown, the exit code is 2, and its groups and topics are deleted too."""
    project.send(LINES)
    (project.folder / "words_spark.py").write_text("raise ValueError('the native version is tired')", encoding="utf-8")
    assert main(["compare", "words.py", "--engines", "native,local"]) == 2
    shown = capsys.readouterr().out
    assert "ValueError: the native version is tired" in shown
    assert shown.splitlines()[-1] == "nothing was compared: only local ran"
    assert project.left() == (set(), set())


@pytest.mark.broker
def test_one_that_is_asked_for_must_be_there(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that is named and is not there makes the exit code 2, and the reason is told."""
    project.send(LINES)
    (project.folder / "words_spark.py").unlink()
    assert main(["compare", "words.py", "--engines", "local,native,storm"]) == 2
    shown = capsys.readouterr().out
    assert "native is not available: there is no words_spark.py" in shown
    assert "storm is not available: Storm is stopped" in shown


@pytest.mark.broker
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.sweep), signal.SIGTERM])
def test_interrupted_it_leaves_nothing(project: Project, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM while an engine runs ends the engine; groups, topics and files are gone."""
    project.send([b"word " * 200] * 20_000)
    temporary = project.folder / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "downspout", "compare", "words.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    heard = []
    for line in process.stderr:
        heard.append(line)
        if line == "local: runs\n":
            break
    eventually(lambda: list(temporary.glob("*/local/words/_downspout")), alive=process, otherwise=lambda: heard)
    process.send_signal(number)
    _, rest = process.communicate()
    assert process.returncode == 130, [*heard, rest]
    assert rest.splitlines()[-1] == "downspout: interrupted"
    assert list(temporary.iterdir()) == []
    assert project.left() == (set(), set())


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong engines, a folder that holds something and topologies without Kafka or sinks are errors with a cure."""
    (tmp_path / "x").touch()
    (tmp_path / "counting.py").write_text(
        "from streamparse import Bolt, Spout, Topology\n"
        "class Count(Spout):\n    outputs = ['n']\n"
        "class Show(Bolt):\n    outputs = []\n"
        "class Numbers(Topology):\n    count = Count.spec()\n    show = Show.spec(inputs=[count])\n",
        encoding="utf-8",
    )
    (tmp_path / "sinkless.py").write_text(
        "from streamparse import Bolt, Topology\nfrom spouts.kafka import KafkaSpout\n"
        "class Show(Bolt):\n    outputs = []\n"
        "class Sinkless(Topology):\n    spout = KafkaSpout.spec(topics=['t'])\n    show = Show.spec(inputs=[spout])\n",
        encoding="utf-8",
    )
    for arguments, said in (
        (["--engines", "local,flink"], "there is no engine 'flink'"),
        (["--engines", "local"], "a comparison needs at least two engines"),
        (["--keep", str(tmp_path)], "the folder is not empty"),
        ([], "only Kafka can return the same records again, but count reads something else"),
    ):
        assert main(["compare", str(tmp_path / "counting.py"), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "sinkless.py")]) == 2
    assert "sinkless has no sink whose table can be compared" in capsys.readouterr().err
