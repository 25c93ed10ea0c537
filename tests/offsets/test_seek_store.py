"""``downspout offsets`` with a spout whose offsets are in a store: the store's offsets are moved."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from downspout.kafka import TopicPartition
from downspout.ledger import decode
from downspout.spout import StoreContext, open_store
from downspout.testing import FakeKafka
from tests.spark.handover_support import Command
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill

ZERO = TopicPartition(TOPIC, 0)


@pytest.fixture
def kafka(bare_kafka: FakeKafka) -> FakeKafka:
    bare_kafka.create_topic(TOPIC, 1)
    fill(bare_kafka, 20)
    return bare_kafka


@pytest.fixture
def command(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(kafka.bootstrap, capsys)


@pytest.fixture(params=["sqlite", "parquet"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:///{tmp_path / 'store'}"


def stand(kafka: Kafka, store: str) -> tuple[int | None, int | None]:
    opened = open_store(store, StoreContext(GROUP))
    found, copy = opened.list().get(ZERO), kafka.committed(GROUP).get(ZERO)
    opened.close()
    return found and found.offset, copy and copy.offset


def read(kafka: Kafka, store: str, *acked: range, **settings: object) -> Driver:
    """Let a spout read all, ack these, commit, and end."""
    spout = Driver(kafka, offset_store=store, **settings)  # type: ignore[arg-type]
    spout.run(16)
    for offsets in acked:
        spout.ack(offsets)
    spout.commit()
    spout.spout.close()
    return spout


pytestmark = pytest.mark.fake_only("what is between store and group is the same on a broker")


def test_a_spout_goes_on_where_its_store_was_moved(kafka: Kafka, command: Command, store: str) -> None:
    """Store and group move together, forward and back; what is done beyond the offset stays done on the way forward."""
    read(kafka, store, range(5), range(8, 10))
    at = ("seek", GROUP, "--store", store, "--yes")
    facts = command.facts(*at, "--to-offset", "7")
    (move,) = facts["groups"][0]["moves"]
    assert (move["from"], move["to"], move["done_kept"], stand(kafka, store)) == (5, 7, [[8, 10]], (7, 7))
    assert read(kafka, store, range(10, 12)).offsets == [7, *range(10, 20)]
    command.facts(*at, "--shift-by", "-3")
    assert stand(kafka, store) == (4, 4)
    assert read(kafka, store).offsets == list(range(4, 20))


def test_the_setting_says_where_the_store_is(
    kafka: Kafka, command: Command, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run would take from the environment or the file holds here, too; `--store kafka` is the group."""
    read(kafka, store, range(5))
    monkeypatch.setenv("DOWNSPOUT_KAFKA_OFFSET_STORE", store)
    command.facts("seek", GROUP, "--to-offset", "7", "--yes")
    assert stand(kafka, store) == (7, 7)
    command.facts("seek", GROUP, "--to-offset", "9", "--yes", "--store", "kafka")
    assert stand(kafka, store) == (7, 9)


def test_a_group_that_was_moved_without_its_store_is_told_at_the_start(
    kafka: Kafka, command: Command, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The spout goes by the store; that the group is ahead or behind is said, with the command that helps."""
    read(kafka, store, range(5))
    for to in (2, 9):
        command.facts("seek", GROUP, "--to-offset", str(to), "--yes")
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tests.spout"):
            assert read(kafka, store).offsets[0] == 5
        (said,) = [record.getMessage() for record in caplog.records if "continuing from" in record.getMessage()]
        assert f"group {GROUP} has committed orders[0]@{to}, but {store} holds orders[0]@5" in said
        assert f"downspout offsets seek {GROUP} --store {store} --topic {TOPIC}:0 --to-offset {to}" in said


def test_an_owner_that_was_not_noticed_stores_nothing_over_a_move(kafka: Kafka, command: Command, store: str) -> None:
    """One by assignment is no member of the group; the move claims its partitions."""
    spout = Driver(kafka, member=None, mode="assign", offset_store=store)
    spout.run(16)
    spout.ack(range(5))
    spout.commit()
    said = command.refused("seek", GROUP, "--store", store, "--to-offset", "2", "--yes")
    assert "a spout that reads by assignment" in said
    code, _, _ = command.run("seek", GROUP, "--store", store, "--to-offset", "2", "--yes", "--force")
    assert code == 0
    spout.ack(range(5, 10))
    with pytest.raises(Exception, match="was claimed by another process"):
        spout.commit()
    assert stand(kafka, store) == (2, 2)


def test_what_a_store_holds_is_exported(kafka: Kafka, command: Command, store: str, tmp_path: Path) -> None:
    """As a file for `seek`, and as options of a Spark source: by the store, though the group says something else."""
    read(kafka, store, range(5), range(8, 10))
    command.facts("seek", GROUP, "--to-offset", "2", "--yes")
    _, out, _ = command.run("export", GROUP, "--store", store, "--to", "json")
    (found,) = json.loads(out)["offsets"]
    assert (found["offset"], found["done"]) == (5, [[8, 10]])
    facts = command.facts("export", GROUP, "--store", store, "--to", "spark")
    assert facts["startingOffsets"] == {TOPIC: {"0": 5}}


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_store_holds_is_deleted(kafka: Kafka, command: Command, store: str, whole: bool) -> None:
    read(kafka, store, range(5))
    more = () if whole else ("--topic", TOPIC)
    facts = command.facts("delete", GROUP, "--store", store, *more)
    assert (facts["deleted"], stand(kafka, store)) == ([{"topic": TOPIC, "partition": 0, "offset": 5}], (5, 5))
    command.facts("delete", GROUP, "--store", store, "--yes", *more)
    assert stand(kafka, store) == (None, None)


def test_what_is_no_store_is_refused(command: Command) -> None:
    """The option is named, and the nearest scheme."""
    said = command.refused("seek", GROUP, "--to-earliest", "--store", "sqlit:///x.db")
    assert "--store = 'sqlit:///x.db' is not an offset store" in said
    assert "Try: sqlite:///…" in command.refused("export", GROUP, "--to", "csv", "--store", "sqlite:offs.db")
    said = command.refused("export", GROUP, "--to", "csv", "--store", "sqlite://offs.db")
    assert "--store = 'sqlite://offs.db' does not name a database. Try: sqlite:///" in said


@pytest.mark.parametrize("to", ["csv", "spark"])
def test_a_store_that_is_not_there_is_not_made_by_a_command_that_reads(
    command: Command, tmp_path: Path, to: str
) -> None:
    """Its name was mistyped: the group has committed nothing in it, and no file with that name is left behind."""
    store = f"sqlite:///{tmp_path / 'nope.db'}"
    said = command.refused("export", GROUP, "--to", to, "--store", store)
    assert f"group {GROUP} has committed nothing in {store}. Try: kafka.group of the spout, and --store" in said
    assert command.run("seek", GROUP, "--to-earliest", "--force", "--topic", TOPIC, "--store", store)[0] == 0
    assert not list(tmp_path.iterdir())


def test_the_metadata_is_of_the_topic(kafka: Kafka, command: Command, store: str) -> None:
    """A move writes what the spout would write: the topology's id, and ranges that hold for this topic alone."""
    read(kafka, store, range(5), range(8, 10))
    command.facts("seek", GROUP, "--store", store, "--to-offset", "6", "--yes")
    opened = open_store(store, StoreContext(GROUP))
    found = opened.list()[ZERO]
    opened.close()
    metadata = decode(6, found.metadata, topic_id=kafka.topic_id(TOPIC))
    assert (metadata.topology_id, metadata.done) == ("orders-1", ((8, 10),))
