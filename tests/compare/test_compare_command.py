"""``downspout compare`` as a user calls it: real engines on a real broker, equal, different, failing, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from downspout.cli import main
from downspout.kafka.client import KafkaCluster
from downspout.kafka.embedded import EmbeddedKafka
from topologies.flights_data import Flights, load_flights, publish

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

TWIN = """\
from pyspark.sql import functions as F


def twin(spark, records):
    text = F.try_validate_utf8(records["spout"]["value"].cast("string"))
    words = records["spout"].select(F.explode(F.split(text, " ")).alias("word"))
    counts = words.groupBy("word").agg(F.count("*").alias("count"))
    {change}
    return {{"words": words, "word_counts": counts}}
"""

LINES = [b"to be or not to be", b"that is the question", b"\xff no text"]


class Project:
    """A folder with a topology and a twin, and a topic of its own."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        self.folder, self.topic, self.cluster = folder, topic, KafkaCluster(bootstrap)
        self.cluster.ensure_topic(topic, 2)
        (folder / "words.py").write_text(TOPOLOGY.format(bootstrap=bootstrap, topic=topic), encoding="utf-8")
        self.twin()

    def twin(self, change: str = "") -> None:
        """Write the twin, which does something else at its end."""
        (self.folder / "words_spark.py").write_text(TWIN.format(change=change), encoding="utf-8")

    def send(self, lines: list[bytes]) -> None:
        """Publish lines, in turns to both partitions."""
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
    """A project, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    made = Project(tmp_path, kafka_broker.bootstrap, topic_name)
    yield made
    made.cluster.delete_topic(topic_name)


@pytest.mark.broker
@pytest.mark.spark
def test_the_flights_are_equal_on_all_engines(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Flights give equal tables on the local engine, on Spark and by the twin; nothing of the comparison stays."""
    publish(project.cluster, Flights(load_flights(900)), f"{project.topic}-flights")
    arguments = [
        f"--set=spout:kafka.topics={project.topic}-flights",
        f"--set=kafka.bootstrap={project.cluster.bootstrap}",
    ]
    code = main(["compare", str(ROOT / "topologies" / "flight_delays.py"), "--keep", "kept", *arguments])
    shown = capsys.readouterr()
    assert code == 0, shown
    rows = [line.split() for line in shown.out.splitlines()]
    assert [row[:4] for row in rows[2:5]] == [
        ["flights", "local", "900", "the"], ["flights", "spark", "900", "equal"], ["flights", "native", "900", "equal"],
    ]  # fmt: skip
    assert "storm is not there: Storm is stopped" in shown.out
    assert shown.out.splitlines()[-1] == "equal on local, spark, native"
    assert project.left() == (set(), set())
    assert {path.name for path in project.folder.iterdir()} == {"words.py", "words_spark.py", "kept"}
    assert {path.name for path in (project.folder / "kept").iterdir()} == {"local", "spark", "native"}


@pytest.mark.broker
@pytest.mark.spark
def test_the_flights_are_equal_in_chunk_mode(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Flights, some of them broken, give the same tables by record and in chunks, on the local engine and on Spark."""
    topic = f"{project.topic}-flights"
    publish(project.cluster, Flights(load_flights(1_200)), topic)
    producer = project.cluster.producer()
    for number in range(9):
        value = [b"{", b'{"month": "May"}', b"\xff", None][number % 4]
        producer.send(topic, key=None, value=value, partition=number % 4)
    producer.flush()
    producer.close()
    engines = ["local", "local-chunk", "spark", "spark-chunk"]
    arguments = [
        "--engines", ",".join(engines), f"--set=spout:kafka.topics={topic}",
        f"--set=kafka.bootstrap={project.cluster.bootstrap}", "--set=kafka.retries_max=0",
        "--set=spout:kafka.chunk_records_max=300",
    ]  # fmt: skip
    code = main(["compare", str(ROOT / "topologies" / "flight_delays.py"), "--keep", "kept", "--json", *arguments])
    shown = capsys.readouterr()
    assert code == 0, shown
    report = json.loads(shown.out)
    flights, delays = report["tables"]
    assert flights["rows"] == dict.fromkeys(engines, 1_200)
    assert len(set(delays["rows"].values())) == 1
    assert project.left() == (set(), set())


@pytest.mark.broker
def test_where_chunks_cannot_be_it_is_said(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A topology whose spout cannot emit chunks is not run in chunk mode, and the reason is told."""
    project.send(LINES)
    code = main(["compare", "words.py", "--engines", "local,local-chunk", "--set=spout:kafka.value_format=json"])
    shown = capsys.readouterr().out
    assert code == 2
    assert "local-chunk is not there: spout: kafka.value_format = json has a type for each record" in shown


@pytest.mark.broker
@pytest.mark.spark
def test_a_difference_is_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A row too many, one too few and a value that differs are counted and shown, and the exit code is 1."""
    project.send(LINES)
    project.twin(
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
    assert {path.name for path in project.folder.iterdir()} == {"words.py", "words_spark.py"}


@pytest.mark.broker
@pytest.mark.spark
def test_other_columns_are_a_difference(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A twin whose column has another type or name differs, and the columns are named."""
    project.send(LINES)
    project.twin("words, counts = words.toDF('term'), counts.withColumn('count', F.col('count').cast('int'))")
    assert main(["compare", "words.py", "--engines", "local,native"]) == 1
    shown = capsys.readouterr().out
    assert "words: native: no column word; a column term too many" in shown
    assert "word_counts: native: count is int32 instead of int64" in shown


@pytest.mark.broker
@pytest.mark.spark
def test_an_engine_that_fails_is_named(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What an engine said when it failed is shown, the exit code is 2, and its groups and topics are deleted too."""
    project.send(LINES)
    project.twin("raise ValueError('the twin is tired')")
    assert main(["compare", "words.py", "--engines", "native,local"]) == 2
    shown = capsys.readouterr().out
    assert "ValueError: the twin is tired" in shown
    assert shown.splitlines()[-1] == "nothing is compared: only local ran"
    assert project.left() == (set(), set())


@pytest.mark.broker
def test_one_that_is_asked_for_must_be_there(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that is named and is not there makes the exit code 2, and the reason is told."""
    project.send(LINES)
    (project.folder / "words_spark.py").unlink()
    assert main(["compare", "words.py", "--engines", "local,native,storm"]) == 2
    shown = capsys.readouterr().out
    assert "native is not there: there is no words_spark.py" in shown
    assert "storm is not there: Storm is stopped" in shown


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(project: Project, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM while an engine runs ends the engine; groups, topics and files are gone."""
    project.send([b"word " * 200] * 20_000)
    temporary = project.folder / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "downspout", "compare", "words.py", "--engines", "local,native"],
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
    while not list(temporary.glob("*/local/words/_downspout")):
        assert process.poll() is None, heard
        time.sleep(0.01)
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
        (["--engines", "local"], "one engine has nothing to be compared with"),
        (["--keep", str(tmp_path)], "the folder holds something already"),
        ([], "only Kafka gives the same records again, and count is no KafkaSpout"),
    ):
        assert main(["compare", str(tmp_path / "counting.py"), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "sinkless.py")]) == 2
    assert "sinkless has no sink whose table could be compared" in capsys.readouterr().err
