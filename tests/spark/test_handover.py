"""``downspout offsets`` between a spout and a Spark checkpoint; test_handover_live.py runs the query too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from downspout.errors import BrokerError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.offsets import commit_moves, plan_moves
from tests.kafka.broker_stage import wait_until
from tests.spark.handover_support import Command, write_checkpoint
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, end, fill

ZERO = TopicPartition(TOPIC, 0)
EXPORT = (GROUP, "--to", "spark")


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka whose topic has twenty records in one partition."""
    bare_kafka.create_topic(TOPIC)
    fill(bare_kafka, 20)
    return bare_kafka


@pytest.fixture
def command(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(kafka.bootstrap, capsys)


def killed(kafka: Kafka, *acked: range, **settings: object) -> Driver:
    """Let a spout read all, ack and commit these, and be killed."""
    spout = Driver(kafka, **settings)  # type: ignore[arg-type]
    spout.run()
    for offsets in acked:
        spout.ack(offsets)
    spout.commit()
    spout.die()
    return spout


def imported(tmp_path: Path, *lines: str) -> tuple[str, ...]:
    """Return how to import from a checkpoint whose last batch ends so."""
    write_checkpoint(tmp_path / "checkpoint", "\n".join(lines))
    return (GROUP, "--from-checkpoint", str(tmp_path / "checkpoint"))


# --- export ---


def test_progress_is_written_as_options(kafka: Kafka, command: Command) -> None:
    """The commit becomes startingOffsets, what is acked beyond it skipOffsets, with the topic's id."""
    killed(kafka, range(5), range(8, 11), range(14, 15))
    found = command.facts("export", *EXPORT)
    skipped = {TOPIC: {"id": kafka.topic_id(TOPIC), "0": [[8, 11], [14, 15]]}}
    assert (found["startingOffsets"], found["skipOffsets"]) == ({TOPIC: {"0": 5}}, skipped)
    assert (found["group"], found["members"], found["notes"]) == (GROUP, [], [])
    assert found["options"]["subscribe"] == TOPIC
    code, out, err = command.run("export", *EXPORT)
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{name} = {value}" for name, value in found["options"].items()]


def test_without_gaps_both_sources_take_it(kafka: Kafka, command: Command) -> None:
    """With nothing acked beyond the commit there is nothing to skip; the JVM connector reads committed records, too."""
    killed(kafka, range(5))
    ours, theirs = command.facts("export", *EXPORT), command.facts("export", *EXPORT, "--for", "jvm")
    assert "skipOffsets" not in ours["options"]
    assert theirs["options"] == ours["options"] | {"kafka.isolation.level": "read_committed"}


def test_the_connector_cannot_skip(kafka: Kafka, command: Command) -> None:
    """For the JVM connector an export with gaps is refused with partition, ranges and what to do."""
    killed(kafka, range(5), range(8, 11), range(14, 15), range(16, 17), range(18, 19))
    said = command.refused("export", *EXPORT, "--for", "jvm")
    assert "orders[0]@5 has 8–10, 14, 16 and 1 more range done beyond it" in said
    assert "Try: start the topology and stop it cleanly" in said


def test_a_partition_without_a_commit_is_read_from_its_beginning(kafka: Kafka, command: Command) -> None:
    """A partition that appeared while no spout ran is exported as its beginning, and said to be."""
    killed(kafka, range(5))
    kafka.add_partitions(TOPIC, 2)
    found = command.facts("export", *EXPORT)
    assert found["startingOffsets"] == {TOPIC: {"0": 5, "1": -2}}
    assert found["notes"] == ["no commit for orders[1]: read from the beginning"]


def test_live_members_are_named(kafka: Kafka, command: Command) -> None:
    """While a spout runs an export says so: what it processes from now on would be processed twice."""
    spout = Driver(kafka)
    spout.run()
    spout.ack(range(3))
    spout.commit()
    (member,) = command.facts("export", *EXPORT)["members"]
    code, _, err = command.run("export", *EXPORT)
    assert (code, member) == (0, "shop.reader.0.1")
    assert "note: shop.reader.0.1 are still in the group: Spark would process again" in err


def test_records_that_are_gone_are_named(kafka: Kafka, command: Command) -> None:
    """A commit below the beginning of the log is exported as it is, with a note: failOnDataLoss is the query's."""
    killed(kafka, range(5))
    kafka.delete_records(TOPIC, 0, 7)
    (note,) = command.facts("export", *EXPORT)["notes"]
    assert note.startswith("deleted from Kafka before it was processed")
    assert "orders[0]@5 (the log begins at 7)" in note


def test_a_group_without_commits_is_refused(kafka: Kafka, command: Command) -> None:
    """A mistyped group or topic is an error, and no start at the beginning."""
    assert "group reders has committed nothing. Try: kafka.group" in command.refused(
        "export", "reders", "--to", "spark"
    )
    killed(kafka, range(5))
    kafka.create_topic("other")
    assert "has committed nothing for other" in command.refused("export", *EXPORT, "--topic", "other")
    assert "nowhere does not exist" in command.refused("export", *EXPORT, "--topic", "nowhere")


def recreate(kafka: Kafka, records: int) -> None:
    """Delete the topic and create it again, and let the group's old commit be there still."""
    commit = kafka.committed(GROUP)[ZERO]
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC)
    fill(kafka, records)
    outsider = kafka.consumer(group=GROUP)
    outsider.commit({ZERO: OffsetAndMetadata(commit.offset, commit.metadata, -1)})
    outsider.close()


def test_a_commit_of_an_earlier_topic_is_refused(kafka: Kafka, command: Command) -> None:
    """Offsets of a topic that was created again since mean nothing, however long the new one is."""
    killed(kafka, range(5))
    recreate(kafka, 30)
    assert "orders[0]@5: group readers committed this for an earlier topic" in command.refused("export", *EXPORT)


def test_a_commit_beyond_the_log_is_refused(kafka: Kafka, command: Command) -> None:
    """A log that ends below what was processed is lost data, and no start."""
    outsider = kafka.consumer(group=GROUP)
    outsider.commit({ZERO: OffsetAndMetadata(25, "", -1)})
    outsider.close()
    said = command.refused("export", *EXPORT)
    assert "orders[0]@25: group readers has processed the offsets below, but the log ends at 20" in said


# --- import ---


def test_an_open_transaction_is_no_end(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    transaction = kafka.transaction()
    transaction.send(TOPIC, b"open", partition=0)
    outsider = kafka.consumer(group=GROUP)
    outsider.commit({ZERO: OffsetAndMetadata(21, "", -1)})
    assert command.facts("export", *EXPORT)["startingOffsets"] == {TOPIC: {"0": 21}}
    outsider.commit({ZERO: OffsetAndMetadata(5, "", -1)})
    outsider.close()
    options = imported(tmp_path, '{"orders":{"0":21}}')
    said = command.refused("import", *options)
    assert "orders[0]@21: a transaction that is still open begins at 20" in said
    transaction.commit()
    wait_until(lambda: end(kafka) == 22)  # the answer comes before the marker is in the log
    assert command.facts("import", *options)["moves"][0]["to"] == 21


def test_a_spout_starts_where_the_query_stands(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """An import moves the group to the end of the last batch, and the spout goes on there without an unclean start."""
    killed(kafka, range(5))
    found = command.facts("import", *imported(tmp_path, '{"orders":{"0":12}}'), "--yes")
    assert found["moves"] == [{"topic": TOPIC, "partition": 0, "from": 5, "to": 12, "in_checkpoint": 12}]
    assert (found["dry_run"], found["checkpoint"]["batch"], found["unchanged"]) == (False, 0, 0)
    spout = Driver(kafka)
    spout.run()
    assert spout.offsets == list(range(12, 20))
    assert spout.figure("unclean") == 0


@pytest.mark.parametrize("start", ["EARLIEST", "LATEST", "UNCOMMITTED_LATEST"])
def test_every_strategy_starts_there(kafka: Kafka, command: Command, tmp_path: Path, start: str) -> None:
    """The commit is by the topology that committed before, so no kafka.start overrules it."""
    killed(kafka, range(5))
    command.facts("import", *imported(tmp_path, '{"orders":{"0":12}}'), "--yes")
    spout = Driver(kafka, start=start)
    spout.run()
    assert spout.offsets == list(range(12, 20))


def test_a_group_that_never_was(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """A new group starts there by default; a kafka.start that asks who committed needs the topology's id."""
    options = imported(tmp_path, '{"orders":{"0":12}}')
    assert "give --topology-id" in command.facts("import", *options)["notes"][0]
    assert command.facts("import", *options, "--topology-id", "orders-7-1", "--yes")["notes"] == []
    spout = Driver(kafka, topology_id="orders-7-1", start="EARLIEST")
    spout.run()
    assert spout.offsets == list(range(12, 20))


def test_nothing_is_done_without_yes(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    killed(kafka, range(5))
    before = kafka.committed(GROUP)
    code, out, err = command.run("import", *imported(tmp_path, '{"orders":{"0":12}}'))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "the query stands at the end of batch 0",
        "orders[0]: 5 → 12",
        "1 partition would be moved",
        "nothing was changed: add --yes to do it",
    ]
    assert kafka.committed(GROUP) == before


def test_what_the_spout_has_done_beyond_stays_done(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """Ranges above the query's place are kept, and a place inside one moves to its end: nothing is read twice."""
    killed(kafka, range(5), range(8, 11), range(14, 16))
    options = imported(tmp_path, '{"orders":{"0":9}}')
    code, out, _ = command.run("import", *options, "--yes")
    assert code == 0
    assert "orders[0]: 5 → 11 (the query is at 9; the spout has already processed the offsets between)" in out
    spout = Driver(kafka)
    spout.run()
    assert spout.offsets == [11, 12, 13, 16, 17, 18, 19]


def test_failed_attempts_are_kept(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """A record that has failed before the hand-over keeps its count."""
    first = Driver(kafka, retries_max=3)
    first.run()
    first.ack(range(9))
    first.fail([12])
    first.commit()
    first.die()
    command.facts("import", *imported(tmp_path, '{"orders":{"0":10}}'), "--yes")
    spout = Driver(kafka, retries_max=1)
    spout.run()
    assert 12 in spout.offsets
    spout.fail([12])
    spout.ack(set(range(10, 20)) - {12})
    spout.run(20)
    spout.commit()
    assert spout.figure("dead_lettered") == 1


def test_a_place_that_is_the_same_changes_nothing(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """Where the group stands already nothing is committed, and done twice an import does no more."""
    killed(kafka, range(5), range(8, 11))
    before = kafka.committed(GROUP)
    options = imported(tmp_path, '{"orders":{"0":5}}')
    assert (command.facts("import", *options, "--yes")["moves"], kafka.committed(GROUP)) == ([], before)
    assert "orders[0]: is already at 5" in command.run("import", *options)[1]


def test_the_group_of_a_java_spout(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """Progress of Storm's Java spout is exported as it is; an import keeps its topology, in the form that it reads."""
    java = '{"topologyId":"shop-1-99","taskId":7,"threadName":"Thread-14-reader-executor[7, 7]"}'
    outsider = kafka.consumer(group=GROUP)
    outsider.commit({ZERO: OffsetAndMetadata(5, java, -1)})
    outsider.close()
    assert command.facts("export", *EXPORT, "--for", "jvm")["startingOffsets"] == {TOPIC: {"0": 5}}
    command.facts("import", *imported(tmp_path, '{"orders":{"0":12}}'), "--yes")
    told = json.loads(kafka.committed(GROUP)[ZERO].metadata)
    assert (set(told), told["topologyId"], told["taskId"]) == ({"topologyId", "taskId", "threadName"}, "shop-1-99", 7)
    spout = Driver(kafka, topology_id="shop-1-99", start="EARLIEST")
    spout.run()
    assert spout.offsets == list(range(12, 20))


def test_a_living_group_is_refused(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """While the spout runs nothing is committed behind its back, nor planned; who joins after the plan is noticed."""
    options = imported(tmp_path, '{"orders":{"0":12}}')
    moves = plan_moves(kafka, GROUP, {ZERO: 12})
    spout = Driver(kafka)
    spout.run()
    said = command.refused("import", *options)
    assert "group readers: shop.reader.0.1 is a live member. Try: stop the topology" in said
    with pytest.raises(BrokerError, match="group readers has live members by now: nothing was committed"):
        commit_moves(kafka, GROUP, moves)


def test_a_group_is_moved_back_by_force_alone(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """Back is refused with both places; forced, all from there is processed again."""
    killed(kafka, range(9), range(12, 15))
    options = imported(tmp_path, '{"orders":{"0":6}}')
    said = command.refused("import", *options, "--yes")
    assert "group readers would be moved back: orders[0] from 9 to 6" in said
    assert kafka.committed(GROUP)[ZERO].offset == 9
    code, out, _ = command.run("import", *options, "--yes", "--force")
    assert (code, "orders[0]: 9 → 6 (back)" in out) == (0, True)
    spout = Driver(kafka)
    spout.run()
    assert spout.offsets == list(range(6, 20))


def test_a_topic_that_was_created_again(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """A checkpoint beyond the log is refused always; where the group knows an earlier topic, unless forced."""
    killed(kafka, range(5))
    recreate(kafka, 10)
    options = imported(tmp_path, '{"orders":{"0":12}}')
    assert "orders[0]@12 lies beyond the end of the log, 10" in command.refused("import", *options, "--force")
    (tmp_path / "checkpoint" / "offsets" / "0").write_text('v1\n{}\n{"orders":{"0":7}}')
    assert "orders[0]: the topic was deleted and created again since" in command.refused("import", *options)
    command.facts("import", *options, "--force", "--yes")
    spout = Driver(kafka)
    spout.run()
    assert spout.offsets == [7, 8, 9]


def test_later_partitions_begin_at_their_beginning(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """A partition that neither checkpoint nor group knows starts at its beginning, whatever kafka.start says."""
    killed(kafka, range(5))
    kafka.add_partitions(TOPIC, 2)
    fill(kafka, 3, partition=1)
    code, out, _ = command.run("import", *imported(tmp_path, '{"orders":{"0":20}}'), "--yes")
    assert (code, "orders[1]: starts at 0 (not in the checkpoint: its beginning)" in out) == (0, True)
    spout = Driver(kafka, start="LATEST")
    spout.run()
    assert spout.offsets == [0, 1, 2]


def test_only_the_topics_that_are_meant(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """--topic takes one topic of a query over several; one that the checkpoint does not hold is an error."""
    kafka.create_topic("other")
    options = imported(tmp_path, '{"orders":{"0":12},"other":{"0":0}}', '{"logOffset":4}')
    assert [move["topic"] for move in command.facts("import", *options)["moves"]] == [TOPIC, "other"]
    (only,) = command.facts("import", *options, "--topic", "other")["moves"]
    assert (only["topic"], only["to"]) == ("other", 0)
    assert "1 source of the query not reading Kafka: left out" in command.facts("import", *options)["notes"]
    assert "holds no such topic: its topics are orders, other" in command.refused("import", *options, "--topic", "x")
    elsewhere = imported(tmp_path / "b", '{"orders":{"0":12,"5":1}}')
    assert "orders[5] does not exist" in command.refused("import", *elsewhere)


def test_an_unfinished_batch_is_named(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """The group goes to the end of the last finished batch, and the command tells of the one after it."""
    killed(kafka, range(5))
    batches = ('{"orders":{"0":9}}', '{"orders":{"0":14}}')
    folder = write_checkpoint(tmp_path / "c", *batches, finished=1)
    found = command.facts("import", GROUP, "--from-checkpoint", str(folder), "--yes")
    assert (found["checkpoint"]["batch"], found["checkpoint"]["unfinished"], found["moves"][0]["to"]) == (0, 1, 9)
    assert found["notes"][0].startswith("batch 1, up to orders[0]@14, was started but not finished")
