"""``downspout offsets seek``, ``delete`` and ``export`` to files, on a fake and on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka import errors

from downspout.errors import BrokerError
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.ledger import AT_WORK, decode, encode
from downspout.offsets import Place, TargetKind, commit_moves, plan_seek
from downspout.offsets.seeking import empty_group
from downspout.testing import FakeKafka
from tests.spark.handover_support import Command
from tests.spout.spout_driver import GROUP, TOPIC, Driver, Kafka, fill

ZERO, ONE = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka whose topic has twenty records in each of two partitions."""
    bare_kafka.create_topic(TOPIC, 2)
    fill(bare_kafka, 20, 0)
    fill(bare_kafka, 20, 1)
    return bare_kafka


@pytest.fixture
def command(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(kafka.bootstrap, capsys)


def read(kafka: Kafka, *acked: range, **settings: object) -> None:
    """Let a spout read all, ack these of partition 0 and all of partition 1, commit, and be killed."""
    spout = Driver(kafka, **settings)  # type: ignore[arg-type]
    spout.run(16)
    for offsets in acked:
        spout.ack(offsets)
    spout.ack(range(20), 1)
    spout.commit()
    spout.die()


def stand(kafka: Kafka) -> dict[int, int]:
    return {tp.partition: found.offset for tp, found in kafka.committed(GROUP).items()}


def done(kafka: Kafka, tp: TopicPartition = ZERO) -> tuple[tuple[int, int], ...]:
    """Return what the group's commit says is done beyond it."""
    found = kafka.committed(GROUP)[tp]
    return decode(found.offset, found.metadata, topic_id=kafka.topic_id(TOPIC)).done


# --- moving ---


def test_a_preview_changes_nothing_and_twice_is_nothing_to_do(kafka: Kafka, command: Command) -> None:
    """Without --yes all stays, with it the group moves, and then there is nothing to do."""
    read(kafka, range(5))
    before = kafka.committed(GROUP)
    code, out, err = command.run("seek", GROUP, "--to-offset", "3")
    assert (code, err, kafka.committed(GROUP)) == (0, "", before)
    assert "2 partitions would be moved" in out
    assert "nothing was changed: add --yes to do it" in out
    facts = command.facts("seek", GROUP, "--to-offset", "3", "--yes")
    (group,) = facts["groups"]
    assert [(m["partition"], m["from"], m["to"], m["again"]) for m in group["moves"]] == [(0, 5, 3, 2), (1, 20, 3, 17)]
    assert stand(kafka) == {0: 3, 1: 3}
    code, out, _ = command.run("seek", GROUP, "--to-offset", "3", "--yes")
    assert out == "2 partitions already there\nnothing to do\n"


def test_a_spout_goes_on_where_the_group_was_moved(kafka: Kafka, command: Command) -> None:
    """The topology id stays in the commit, so that a spout obeys it even with kafka.start=LATEST."""
    read(kafka, range(5))
    command.facts("seek", GROUP, "--to-offset", "17", "--yes")
    spout = Driver(kafka, start="LATEST")
    spout.run(16)
    assert sorted(spout.offsets) == [17, 17, 18, 18, 19, 19]


def test_back_is_again_and_forward_keeps_what_is_done(kafka: Kafka, command: Command) -> None:
    """What is done beyond the commit stays done on the way forward, and is forgotten on the way back."""
    read(kafka, range(5), range(8, 11), range(15, 16))
    only = ("seek", GROUP, "--topic", f"{TOPIC}:0")
    (move,) = command.facts(*only, "--to-offset", "6", "--yes")["groups"][0]["moves"]
    assert (move["skipped"], move["done_kept"], stand(kafka)[0], done(kafka)) == (
        1, [[8, 11], [15, 16]], 6, ((8, 11), (15, 16)),
    )  # fmt: skip
    (move,) = command.facts(*only, "--to-offset", "4", "--yes")["groups"][0]["moves"]
    assert (move["again"], move["done_forgotten"], done(kafka)) == (2 + 3 + 1, [[8, 11], [15, 16]], ())
    assert stand(kafka) == {0: 4, 1: 20}


def test_a_place_in_what_is_done_becomes_its_end(kafka: Kafka, command: Command) -> None:
    """The commit goes to the first offset that is not done, and the preview says so; --done forget goes there."""
    read(kafka, range(5), range(8, 11))
    where = ("seek", GROUP, "--topic", f"{TOPIC}:0", "--to-offset", "9")
    _, out, _ = command.run(*where)
    assert "orders[0]@9 and the offsets after it are already done: 11 is the first that is not" in out
    command.facts(*where, "--done", "forget", "--yes")
    assert (stand(kafka)[0], done(kafka)) == (9, ())


def test_back_can_keep_what_is_done(kafka: Kafka, command: Command) -> None:
    read(kafka, range(5), range(8, 11))
    command.facts("seek", GROUP, "--topic", f"{TOPIC}:0", "--to-earliest", "--done", "keep", "--yes")
    assert (stand(kafka)[0], done(kafka)) == (0, ((8, 11),))


def test_what_lies_outside_the_log_becomes_its_end_or_is_refused(kafka: Kafka, command: Command) -> None:
    """Each clamped partition is named; --strict refuses them all, and nothing moves."""
    read(kafka, range(5))
    kafka.delete_records(TOPIC, 0, 4)
    said = command.refused("seek", GROUP, "--shift-by", "-20", "--strict", "--yes")
    assert "orders[0]: -15 is below the beginning of the log: 4 instead" in said
    assert stand(kafka) == {0: 5, 1: 20}
    code, _, err = command.run("seek", GROUP, "--to-offset", "500", "--yes")
    assert (code, stand(kafka)) == (0, {0: 20, 1: 20})
    assert "note: orders[0]: 500 is beyond the end of the log: 20 instead" in err


def test_nothing_moves_where_one_partition_does_not_exist(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """An unknown topic or partition is an error before anything is written."""
    read(kafka, range(5))
    before = kafka.committed(GROUP)
    assert "orders[7] does not exist" in command.refused("seek", GROUP, "--topic", "orders:0,7", "--to-latest", "--yes")
    path = tmp_path / "offsets.csv"
    path.write_text("orders,0,1\norders,2,1\n", encoding="utf-8")
    assert "orders[2] does not exist" in command.refused("seek", GROUP, "--from-file", str(path), "--yes")
    path.write_text("orders,0,1\nordres,0,1\n", encoding="utf-8")
    assert "ordres does not exist" in command.refused("seek", GROUP, "--from-file", str(path), "--yes")
    assert kafka.committed(GROUP) == before


def test_a_file_without_what_is_named_is_refused(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """A misspelt --topic is no "nothing to do": the topic or partition that the file lacks is named."""
    read(kafka, range(5))
    before = kafka.committed(GROUP)
    path = tmp_path / "offsets.csv"
    path.write_text("orders,0,1\n", encoding="utf-8")
    words = ("seek", GROUP, "--from-file", str(path), "--yes", "--topic")
    assert "no position is given for ordres" in command.refused(*words, "ordres")
    assert "no position is given for orders[1]" in command.refused(*words, "orders:0,1")
    assert kafka.committed(GROUP) == before
    command.facts(*words, "orders:0")
    assert stand(kafka) == {0: 1, 1: 20}


def test_spark_takes_whole_topics(kafka: Kafka, command: Command) -> None:
    """Partitions after --topic are for the files: the error does not say that such a topic does not exist."""
    read(kafka, range(5))
    assert "takes whole topics" in command.refused("export", GROUP, "--to", "spark", "--topic", "orders:0")


def test_a_group_that_never_committed_is_refused(kafka: Kafka, command: Command) -> None:
    """A wrong name makes no new group; --force makes one that is meant."""
    said = command.refused("seek", GROUP, "--topic", TOPIC, "--to-offset", "4", "--yes")
    assert "group readers has committed nothing" in said
    assert "--force gives a new group its first commits" in said
    assert "name a --topic" in command.refused("seek", GROUP, "--to-latest", "--force", "--yes")
    command.facts("seek", GROUP, "--topic", f"{TOPIC}:1", "--to-offset", "4", "--force", "--yes")
    assert stand(kafka) == {1: 4}


def test_a_shift_needs_a_commit(kafka: Kafka, command: Command) -> None:
    """A named partition without a commit cannot be shifted; where no topic is named, it is left alone."""
    read(kafka, range(5))
    kafka.add_partitions(TOPIC, 3)
    assert "no commit for orders[2]" in command.refused("seek", GROUP, "--topic", TOPIC, "--shift-by", "-1", "--yes")
    facts = command.facts("seek", GROUP, "--shift-by", "-1", "--yes")
    assert any("no commit for orders[2]: left unchanged" in note for note in facts["notes"])
    assert stand(kafka) == {0: 4, 1: 19}


def test_a_group_stays_below_an_open_transaction(kafka: Kafka, command: Command) -> None:
    """The end is where a reader of committed records gets to: a commit beyond would look like lost data."""
    read(kafka, range(5))
    transaction = kafka.transaction()
    transaction.send(TOPIC, b"x", partition=0)
    command.facts("seek", GROUP, "--to-latest", "--yes")
    transaction.commit()
    assert stand(kafka)[0] == 20


# --- files ---


def test_an_export_is_taken_back(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """JSON brings a group back to where it stood, with what was done beyond; CSV brings back the offsets."""
    read(kafka, range(5), range(8, 11))
    before, path = stand(kafka), tmp_path / "offsets"
    for form, ranges in (("csv", ()), ("json", ((8, 11),))):
        code, out, err = command.run("export", GROUP, "--to", form)
        assert code == 0
        assert ("JSON can" in err) == (form == "csv")
        path.write_text(out, encoding="utf-8")
        if form == "json":
            command.facts("seek", GROUP, "--to-latest", "--done", "forget", "--yes")
            command.facts("seek", GROUP, "--from-file", str(path), "--yes")
        else:
            assert out == "orders,0,5\norders,1,20\n"
            command.facts("seek", GROUP, "--to-earliest", "--yes")
            command.facts("seek", GROUP, "--from-file", str(path), "--yes")
            assert (stand(kafka), done(kafka)) == (before, ranges)
            command.facts("delete", GROUP, "--yes")
            read(kafka, range(5), range(8, 11))
    assert (stand(kafka), done(kafka)) == (before, ((8, 11),))


def test_an_export_of_a_topic_that_was_made_again_is_refused(kafka: Kafka, command: Command, tmp_path: Path) -> None:
    """The JSON names the topic's id: offsets of the old topic mean nothing in the new one."""
    read(kafka, range(5))
    path = tmp_path / "offsets"
    path.write_text(command.run("export", GROUP, "--to", "json")[1], encoding="utf-8")
    text = path.read_text(encoding="utf-8").replace(kafka.topic_id(TOPIC), "AAAAAAAAAAAAAAAAAAAAAA")
    path.write_text(text, encoding="utf-8")
    assert "deleted and created again since the file" in command.refused("seek", GROUP, "--from-file", str(path))


# --- who is at work ---


def test_a_live_group_is_refused(kafka: Kafka, command: Command) -> None:
    """Members are named, in a preview too, and nothing moves; for delete as well."""
    spout = Driver(kafka)
    spout.run()
    spout.commit()
    before = stand(kafka)
    for words in (("seek", GROUP, "--to-earliest"), ("delete", GROUP), ("delete", GROUP, "--topic", TOPIC)):
        for yes in ((), ("--yes",)):
            said = command.refused(*words, *yes)
            assert "group readers: shop.reader.0.1 is a live member" in said
            assert "--remove-members" in said
    assert stand(kafka) == before


def test_a_static_member_that_is_gone_can_be_removed(kafka: Kafka, command: Command) -> None:
    """It holds the group until its session ends; --remove-members does not wait for that."""
    spout = Driver(kafka, session_timeout_ms=1_800_000)
    spout.run()
    spout.commit()
    spout.crash()
    assert "is a live member" in command.refused("seek", GROUP, "--to-offset", "3", "--remove-members")
    command.facts("seek", GROUP, "--to-offset", "3", "--remove-members", "--yes")
    assert stand(kafka) == {0: 3, 1: 3}


@pytest.mark.fake_only("virtual time; on a broker the end of a session is the broker's own business")
def test_the_session_of_a_member_that_is_gone_is_waited_for(bare_kafka: FakeKafka) -> None:
    """The wait ends with the session, or with its own time and the names of who is still there."""
    kafka = bare_kafka
    kafka.create_topic(TOPIC)
    spout = Driver(kafka)
    spout.run()
    spout.crash()
    clock = kafka.clock
    with pytest.raises(BrokerError, match=r"shop\.reader\.0\.1 is a live member"):
        empty_group(kafka, GROUP, wait_s=2, sleep=clock.sleep, clock=clock.monotonic)
    empty_group(kafka, GROUP, wait_s=60, sleep=clock.sleep, clock=clock.monotonic)
    assert kafka.group_members(GROUP) == []


def test_a_spout_that_reads_by_assignment_is_known_by_its_commits(kafka: Kafka, command: Command) -> None:
    """It is no member; its commits are young and say that it has not ended. --force tells the risk, and moves."""
    spout = Driver(kafka, mode="assign", member=None)
    spout.run(16)
    spout.ack(range(5))
    spout.commit()
    spout.crash()
    said = command.refused("seek", GROUP, "--topic", f"{TOPIC}:0", "--to-offset", "3", "--yes")
    assert "a spout that reads by assignment (kafka.mode=assign) may commit for it: orders[0]@5 was committed" in said
    assert "by topology orders-1, task 3, not ended since" in said
    facts = command.facts("seek", GROUP, "--topic", f"{TOPIC}:0", "--to-offset", "3", "--force", "--yes")
    assert any("and overwrites it" in note for note in facts["notes"])
    assert stand(kafka)[0] == 3
    command.facts("seek", GROUP, "--topic", f"{TOPIC}:0", "--to-offset", "4", "--yes")  # a moved commit is at rest


def test_names_in_commits_cannot_command_a_terminal(kafka: Kafka, command: Command) -> None:
    """Anybody may commit any topology id: in an error and in a note its invisible characters are escaped."""
    consumer = kafka.consumer(group=GROUP)
    text = encode(5, topology_id="x\x1b[2Jy", task=3, topic_id=kafka.topic_id(TOPIC), isolation=AT_WORK)
    consumer.commit({ZERO: OffsetAndMetadata(5, text, -1)})
    consumer.close()
    assert "by topology x\\x1b[2Jy, task 3" in command.refused("seek", GROUP, "--to-offset", "3", "--yes")
    assert "by topology x\\x1b[2Jy, task 3" in command.run("seek", GROUP, "--to-offset", "3", "--force")[2]


@pytest.mark.fake_only("an hour passes")
def test_a_spout_that_does_not_renew_its_commits_is_gone(kafka: FakeKafka, command: Command) -> None:
    """A spout at work sends its commits again within an hour."""
    spout = Driver(kafka, mode="assign", member=None)
    spout.run(16)
    spout.ack(range(5))
    spout.ack(range(5), 1)
    spout.commit()
    spout.crash()
    kafka.clock.sleep(3_700)
    assert command.facts("seek", GROUP, "--to-offset", "3", "--yes")["notes"] == []


# --- all or nothing ---


@pytest.mark.fake_only("a broker that stores one partition and refuses another needs access rules")
@pytest.mark.parametrize("known", [True, False])
def test_what_was_stored_of_a_refused_commit_is_taken_back(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The broker stores one partition and refuses the other: the first is put back, or deleted where it was new."""
    if known:
        read(kafka, range(5))
    before = kafka.committed(GROUP)
    plan = plan_seek(kafka, GROUP, Place(TargetKind.OFFSET, 3), {TOPIC: frozenset()}, force=True)
    stored = kafka.group(GROUP).commit

    def refuse_one(offsets: dict[TopicPartition, OffsetAndMetadata], *who: object) -> None:
        stored({tp: offset for tp, offset in offsets.items() if tp != ONE}, *who)  # type: ignore[arg-type]
        if ONE in offsets:
            raise errors.TopicAuthorizationFailedError({TOPIC})

    monkeypatch.setattr(kafka.group(GROUP), "commit", refuse_one)
    with pytest.raises(BrokerError, match=r"no permission for topic orders.*Nothing was moved.*ACL"):
        plan.apply(kafka)
    assert {tp: (e.offset, e.metadata) for tp, e in kafka.committed(GROUP).items()} == {
        tp: (e.offset, e.metadata) for tp, e in before.items()
    }


@pytest.mark.fake_only("an answer is lost")
def test_a_commit_whose_answer_is_lost_is_looked_for(kafka: FakeKafka) -> None:
    """What was stored is done; what was not is an error that says that nothing was moved."""
    read(kafka, range(5))
    for applied in (False, True):
        plan = plan_seek(kafka, GROUP, Place(TargetKind.OFFSET, 3), {TOPIC: frozenset()})
        kafka.faults.fail_next("commit", errors.KafkaTimeoutError("lost"), applied=applied)
        if applied:
            commit_moves(kafka, GROUP, plan.moves)
        else:
            with pytest.raises(BrokerError, match="Nothing was moved"):
                commit_moves(kafka, GROUP, plan.moves)
        assert stand(kafka) == ({0: 3, 1: 3} if applied else {0: 5, 1: 20})


@pytest.mark.fake_only("what lies between a plan and its commit")
def test_a_commit_that_was_made_meanwhile_is_not_overwritten(kafka: FakeKafka) -> None:
    """A plan holds for the commits that it was made of: where one has changed, none is moved."""
    read(kafka, range(5))
    plan = plan_seek(kafka, GROUP, Place(TargetKind.OFFSET, 3), {TOPIC: frozenset()})
    consumer = kafka.consumer(group=GROUP)
    consumer.commit({ZERO: OffsetAndMetadata(9, "", -1)})
    with pytest.raises(BrokerError, match=r"commit for orders\[0\] changed meanwhile.*nothing was moved"):
        plan.apply(kafka)
    assert stand(kafka) == {0: 9, 1: 20}


# --- deleting ---


def test_commits_are_deleted_by_partition_and_by_group(kafka: Kafka, command: Command) -> None:
    read(kafka, range(5))
    assert "orders[9] does not exist" in command.refused("delete", GROUP, "--topic", f"{TOPIC}:9", "--yes")
    facts = command.facts("delete", GROUP, "--topic", f"{TOPIC}:1")
    assert (facts["deleted"], facts["dry_run"]) == ([{"topic": TOPIC, "partition": 1, "offset": 20}], True)
    assert stand(kafka) == {0: 5, 1: 20}
    command.facts("delete", GROUP, "--topic", f"{TOPIC}:1", "--yes")
    assert stand(kafka) == {0: 5}
    command.facts("delete", GROUP, "--yes")
    assert stand(kafka) == {}
    assert command.run("delete", GROUP, "--yes")[1] == "nothing to do: group readers has no such commits\n"


def test_commits_of_a_spout_that_reads_by_assignment_are_not_deleted(kafka: Kafka, command: Command) -> None:
    """It would commit again, and the command would have said that the commit is gone; --force tells the risk."""
    spout = Driver(kafka, mode="assign", member=None)
    spout.run(16)
    spout.ack(range(5))
    spout.commit()
    spout.crash()
    for words in ((), ("--topic", f"{TOPIC}:0")):
        assert "a spout that reads by assignment" in command.refused("delete", GROUP, *words, "--yes")
    assert stand(kafka)[0] == 5
    facts = command.facts("delete", GROUP, "--force", "--yes")
    assert any("and overwrites it" in note for note in facts["notes"])
    assert stand(kafka) == {}


def test_json_is_one_value(kafka: Kafka, command: Command) -> None:
    """What is said beside the plan is in the same value, under notes."""
    read(kafka, range(5))
    _, out, err = command.run("seek", GROUP, "--to-latest", "--json")
    assert err == ""
    assert set(json.loads(out)) == {"dry_run", "groups", "notes"}
