"""Frozen ranges of a comparison, and the settings that isolate its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from downspout.compare import freeze
from downspout.compare.engines import isolated, storm_settings
from downspout.compare.outputs import Job, WrittenTopic
from downspout.engine import resolve
from downspout.engine.load import load
from downspout.errors import BrokerError, ConfigError
from downspout.kafka import TopicPartition
from downspout.settings import parse_scope
from tests.spout.spout_driver import Kafka

TARGET = "topologies.word_count:WordCount"


def frozen(kafka: Kafka, path: Path, *settings: str) -> Job:
    """Return the job of the word count on a Kafka."""
    return freeze(TARGET, None, [f"kafka.bootstrap={kafka.bootstrap}", *settings], path)


def fill(kafka: Kafka, records: int = 10) -> None:
    kafka.ensure_topic("lines", 2)
    for number in range(records):
        kafka.produce("lines", b"a b", partition=number % 2, timestamp_ms=1_000 * number)


@pytest.mark.parametrize(
    ("settings", "ranges"),
    [
        ([], [(0, 5), (0, 5)]),
        (["kafka.start=LATEST"], [(0, 5), (0, 5)]),
        (["kafka.start=TIMESTAMP", "kafka.start_timestamp_ms=4500"], [(3, 5), (2, 5)]),
        (["kafka.start=UNCOMMITTED_TIMESTAMP", "kafka.start_timestamp_ms=8500"], [(5, 5), (4, 5)]),
        (["kafka.start=OFFSETS", "kafka.start_offsets=lines[1]=2"], [(0, 5), (2, 5)]),
    ],
)
def test_ranges_begin_where_the_settings_say(
    bare_kafka: Kafka, tmp_path: Path, settings: list[str], ranges: list[tuple[int, int]]
) -> None:
    """Each partition is read from where kafka.start says to its end as of now; LATEST counts as the beginning."""
    fill(bare_kafka)
    (spout,) = frozen(bare_kafka, tmp_path, *settings).spouts
    assert spout.ranges == {TopicPartition("lines", number): given for number, given in enumerate(ranges)}


def test_a_pattern_leaves_the_spouts_own_dead_letters_out(bare_kafka: Kafka, tmp_path: Path) -> None:
    fill(bare_kafka)
    bare_kafka.produce("lines-lost", b"a", partition=0)
    given = ["kafka.topics=", "kafka.pattern=lines.*", "kafka.dead_letter_topic=lines-lost"]
    (spout,) = frozen(bare_kafka, tmp_path, *given).spouts
    assert {tp.topic for tp in spout.ranges} == {"lines"}


def test_without_topic_or_records_there_is_nothing_to_compare(bare_kafka: Kafka, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="topic lines does not exist"):
        frozen(bare_kafka, tmp_path)
    bare_kafka.ensure_topic("lines", 2)
    with pytest.raises(ConfigError, match="there are no records to read"):
        frozen(bare_kafka, tmp_path)


def test_nothing_of_the_users_is_touched(bare_kafka: Kafka, tmp_path: Path) -> None:
    """Whatever the user sets, groups, dead letters and directories are each engine's own; other settings stay."""
    fill(bare_kafka)
    theirs = ["spout:kafka.group=real", "kafka.dead_letter_topic=real-letters", "parquet.directory=/real",
              "word_counts:parquet.directory=/real", "parquet.flush_rows=7"]  # fmt: skip
    job = frozen(bare_kafka, tmp_path, *theirs)
    seen = set()
    for engine in ("local", "spark"):
        overrides = [option.removeprefix("--set=") for option in job.options(engine)]
        settings = resolve(load(TARGET), overrides).components
        kafka = parse_scope(settings["spout"].values, "kafka")
        parquet = parse_scope(settings["word_counts"].values, "parquet")
        assert kafka["start"] == "OFFSETS"
        assert kafka["stop_offsets"] == ["lines[0]=5", "lines[1]=5"]
        assert parquet["flush_rows"] == 7
        assert Path(parquet["directory"]).is_relative_to(tmp_path)
        seen |= {kafka["group"], kafka["dead_letter_topic"], parquet["directory"]}
    assert len(seen) == 6
    assert not [name for name in seen if "real" in name]


ASIDE = """\
from streamparse import Topology
from bolts.dead_letter import DeadLetterBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from spouts.kafka import KafkaSpout

class Aside(Topology):
    config = {"kafka.group": "real", "kafka.dead_letter_topic": "real-letters"}
    spout = KafkaSpout.spec(topics=["lines"], fields=["origin", "value"])
    parse = JsonParseBolt.spec(inputs=[spout], fields=["n"])
    letters = DeadLetterBolt.spec(inputs=[parse["rejects"]])
    rows = ParquetBolt.spec(inputs=[parse], directory="/real", schema={"n": "int64"})
"""


def test_rejects_go_to_the_letters_of_the_run(bare_kafka: Kafka, tmp_path: Path) -> None:
    """A bolt that writes dead letters writes them to the topic of its engine's run, which is deleted at the end."""
    fill(bare_kafka)
    target = tmp_path / "aside.py"
    target.write_text(ASIDE, encoding="utf-8")
    job = freeze(str(target), None, [f"kafka.bootstrap={bare_kafka.bootstrap}"], tmp_path)
    (spout,) = job.spouts
    for engine in ("local", "spark-chunk"):
        overrides = [option.removeprefix("--set=") for option in job.options(engine)]
        settings = resolve(load(str(target)), overrides).components
        kafka = parse_scope(settings["letters"].values, "kafka")
        assert kafka["dead_letter_topic"] == job.dead_letter_topic(engine, spout)
        assert (kafka["group"], kafka["bootstrap"]) == (job.group(engine, spout), bare_kafka.bootstrap)


def test_on_storm_the_settings_are_in_the_components(
    bare_kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class that is submitted to Storm holds our settings in its components, where `-o` cannot override them."""
    fill(bare_kafka)
    job = frozen(bare_kafka, tmp_path, "parquet.flush_rows=7")
    from topologies.word_count import WordCount

    for component in {**WordCount.thrift_spouts, **WordCount.thrift_bolts}.values():
        monkeypatch.setattr(component.common, "json_conf", component.common.json_conf)
    cls = isolated(TARGET, None, str(Path.cwd()), storm_settings(job, "storm"))
    spout, sink = cls.thrift_spouts["spout"].common.json_conf, cls.thrift_bolts["word_counts"].common.json_conf
    assert '"kafka.stop_offsets": "lines[0]=5,lines[1]=5"' in spout
    assert '"run.until": "end"' in spout
    assert f'"parquet.directory": "{tmp_path}/storm/word_counts"' in sink
    assert '"parquet.flush_rows": 7' in sink
    assert '"parquet.keys": ["word"]' in sink


@pytest.mark.parametrize(("way", "given"), [("fields", ["topic=kind"]), ("mapper", "x.y")])
def test_a_bolt_that_may_write_anywhere_is_refused(way: str, given: object) -> None:
    """A KafkaBolt is compared only where one setting names its topic, which a temporary one can stand for."""
    with pytest.raises(ConfigError, match=rf"out: produce\.{way} may name any topic"):
        WrittenTopic.of("out", {"produce.topic": "t", f"produce.{way}": given}, "localhost:1", {})
