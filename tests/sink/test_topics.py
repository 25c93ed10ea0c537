"""Two topologies with one name are told apart by their topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from streamparse import Topology

from bolts.aggregate import AggregateBolt
from bolts.parquet import ParquetBolt
from downspout.audit.audit import audit
from downspout.errors import SinkError
from downspout.sink import CommitLog, Disk, Identities, Layout, Run, SinkWriter
from downspout.sink.recovery import refuse_other_topics
from downspout.testing import FakeKafka, run_topology
from spouts.kafka import KafkaSpout
from tests.sink.support import sink, write_rows

pytestmark = pytest.mark.fake_only("topologies run in virtual time, and what is tested is the directory")


class Sales(Topology):
    """Rows and an aggregate of what a spout reads."""

    spout = KafkaSpout.spec(topics=["orders"], fields=["origin", "value"])
    rows = ParquetBolt.spec(inputs=[spout], directory="rows", schema=["value:string"])
    sums = AggregateBolt.spec(
        inputs=[spout], directory="sums", schema=["value:string"], keys=["value"], aggregates=["count"]
    )


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka("topics") as fake:
        for topic in ("orders", "returns", "orders.eu"):
            fake.create_topic(topic)
            for number in range(4):
                fake.produce(topic, f"{topic} {number}".encode(), partition=0)
        yield fake


def run(kafka: FakeKafka, output: Path, **settings: Any) -> None:
    """Run the topology to its end; the spout's settings have no prefix."""
    given = {f"kafka.{name}" if "." not in name else name: value for name, value in settings.items()}
    run_topology(Sales, config={"kafka.bootstrap": kafka.bootstrap, "kafka.group": "g", **given}, output=output)


@pytest.mark.parametrize("selection", [{"topics": ["returns"]}, {"topics": None, "pattern": "ret.*"}])
def test_a_directory_of_other_topics_is_refused(tmp_path: Path, kafka: FakeKafka, selection: dict[str, Any]) -> None:
    """A topology of the same name that reads nothing of what the directory holds is refused, with both named."""
    run(kafka, tmp_path)
    (named,) = [str(value if isinstance(value, str) else value[0]) for value in selection.values() if value]
    with pytest.raises(SinkError) as caught:
        run(kafka, tmp_path, **selection, group="h")
    message = str(caught.value)
    assert f"holds only rows of orders, and topology test_topics reads {named}; it may be another topology" in message
    assert "Try: another parquet.directory" in message
    assert "parquet.rebuild=1" in message
    assert ("kafka.topics=orders,returns" in message) == ("pattern" not in selection)
    for name in ("rows", "sums"):
        assert {stream.topic for stream in audit(tmp_path / name).found.streams} == {"orders"}


@pytest.mark.parametrize("selection", [
    {"topics": ["orders", "returns"]}, {"topics": None, "pattern": "orders.*"}, {"group": "again"},
])  # fmt: skip
def test_a_directory_with_a_topic_in_common_goes_on(
    tmp_path: Path, kafka: FakeKafka, selection: dict[str, Any]
) -> None:
    """A topic more, one less, a pattern instead of names, another group: ordinary changes of one topology."""
    run(kafka, tmp_path)
    run(kafka, tmp_path, **selection)
    run(kafka, tmp_path)
    assert audit(tmp_path / "rows").exit_code == 0
    assert len(CommitLog(tmp_path / "rows").refresh()) >= 1


def test_both_cures_help(tmp_path: Path, kafka: FakeKafka) -> None:
    """After one run that read both topics the new one is enough; and a directory that was started anew is free."""
    run(kafka, tmp_path / "renamed")
    run(kafka, tmp_path / "renamed", topics=["orders", "returns"])
    run(kafka, tmp_path / "renamed", topics=["returns"])
    run(kafka, tmp_path / "anew", group="h")
    run(kafka, tmp_path / "anew", group="i", topics=["returns"], **{"parquet.rebuild": 1})
    run(kafka, tmp_path / "anew", group="i", topics=["returns"])
    assert {stream.topic for stream in audit(tmp_path / "anew" / "rows").found.streams} == {"returns"}


def test_on_storm_the_spec_says_what_is_read(tmp_path: Path) -> None:
    """A sink on Storm compares with what the topology's file says, and with topics that sparse -o gives as text."""
    write_rows(tmp_path, [("orders", "id", 0, 1, "")])
    spec = {"topology": "", "file": "", "class": "", "settings": {}, "spouts": {"spout": {"kafka.topics": ["returns"]}}}
    conf = {"parquet.schema": ["n:int64"], "sink.run": spec}
    with pytest.raises(SinkError, match="holds only rows of orders, and topology t reads returns"):
        sink(ParquetBolt, tmp_path, fields=["origin", "n"], **conf)
    spec["spouts"] = {"spout": {}}
    with pytest.raises(SinkError, match="reads returns, refunds"):
        sink(ParquetBolt, tmp_path, fields=["origin", "n"], **conf, **{"kafka.topics": "returns,refunds"})
    sink(ParquetBolt, tmp_path, fields=["origin", "n"], **conf, **{"kafka.topics": "returns, orders"})


@pytest.mark.parametrize("run_", [
    None, Run("t"), Run("t", spouts={"a": {"kafka.topics": ["x"]}, "b": {}}),
    Run("t", spouts={"a": {"kafka.pattern": "("}}),
])  # fmt: skip
def test_what_is_not_known_is_not_refused(tmp_path: Path, run_: Run | None) -> None:
    """Where a run does not say what it reads, or says it in a way that its spout refuses, the sink does not guess."""
    write_rows(tmp_path, [("orders", "id", 0, 1, "")])
    log = CommitLog(tmp_path)
    log.refresh()
    refuse_other_topics(log, run_)


def writer(directory: Path, *topics: str, name: str = "w", disk: Disk | None = None) -> SinkWriter:
    """Return an open writer of a run that reads some topics."""
    made = SinkWriter(
        directory, topology="t", component="sink", columns=["n:int64"], writer=name, disk=disk,
        run=Run("t", spouts={"spout": {"kafka.topics": list(topics)}}),
    )  # fmt: skip
    made.open()
    return made


def flush(made: SinkWriter, *places: tuple[str, int]) -> None:
    identities = Identities.of([(topic, f"id of {topic}", 0, offset, "") for topic, offset in places])
    table = pa.table({"n": pa.array([offset for _, offset in places], pa.int64())})
    made.flush(identities, lambda mask, _: table.filter(pa.array(mask)))


class Overtaken(Disk):
    """Somebody else commits before the entry that this one was about to link."""

    def __init__(self) -> None:
        self.overtake: Callable[[], None] | None = None

    def link(self, source: Path, target: Path) -> None:
        if (overtake := self.overtake) is not None:
            self.overtake = None
            overtake()
        super().link(source, target)


@pytest.mark.parametrize("when", ["before the flush", "during the flush"])
def test_of_two_that_start_together_the_second_is_refused(tmp_path: Path, when: str) -> None:
    """Both find the directory empty; whose rows come second is refused as at a start, and leaves nothing."""
    disk = Overtaken()
    orders, returns = writer(tmp_path, "orders", name="a"), writer(tmp_path, "returns", name="b", disk=disk)
    if when == "before the flush":
        flush(orders, ("orders", 0))
    else:
        disk.overtake = lambda: flush(orders, ("orders", 0))
    with pytest.raises(SinkError, match="holds only rows of orders, and topology t reads returns; it may be another"):
        flush(returns, ("returns", 0))
    flush(orders, ("orders", 1))
    assert {stream.topic for stream in audit(tmp_path).found.streams} == {"orders"}
    assert not list(Layout(tmp_path).staging.rglob("part-*"))


def test_those_that_start_together_with_a_topic_in_common_go_on(tmp_path: Path) -> None:
    """Tasks of one sink, and two runs of which one reads a topic more, write to a directory that was empty."""
    first, second = writer(tmp_path, "orders", name="a"), writer(tmp_path, "orders", name="b")
    both = writer(tmp_path, "orders", "returns", name="c")
    flush(both, ("returns", 0), ("orders", 0))
    flush(first, ("orders", 1))
    flush(second, ("orders", 2))
    assert audit(tmp_path).exit_code == 0
