"""A move's description, against sets of offsets; and moves of several groups."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downspout import offset_ranges
from downspout.kafka import OffsetAndMetadata, TopicPartition
from downspout.ledger import CommitMetadata, decode, encode
from downspout.offsets import Standing, commit_for
from tests.spark.handover_support import Command
from tests.spout.spout_driver import TOPIC, Kafka, fill

END = 60
ZERO = TopicPartition(TOPIC, 0)


@given(
    begin=st.integers(0, 20),
    before=st.none() | st.integers(20, 40),
    beyond=st.sets(st.integers(0, END - 1)),
    target=st.integers(0, END),
    keep=st.booleans(),
)
def test_a_move_counts_what_is_read_again_and_what_is_skipped(
    begin: int, before: int | None, beyond: set[int], target: int, keep: bool
) -> None:
    """By sets: again is done before and not after, skipped is done after and not before; the metadata says the same."""
    first = begin if before is None else before
    target = max(begin, target)
    done = [] if before is None else offset_ranges.of_offsets(offset for offset in beyond if offset > first)
    standing = Standing(ZERO, before, CommitMetadata("shop-1", 3, tuple(done)), False, begin, END, END, "id")
    move = commit_for(standing, target, "shop-1", keep=keep)

    def offsets(ranges: object) -> set[int]:
        return {offset for start, end in ranges for offset in range(start, end)}

    done_before = set(range(begin, first)) | offsets(done)
    done_after = set(range(begin, move.to)) | offsets(move.done_after)
    assert offsets(move.again) == done_before - done_after
    assert offsets(move.skipped) == done_after - done_before
    assert offsets(move.forgotten) == offsets(done) - done_after
    assert move.to >= target
    assert set(range(target, move.to)) <= (offsets(done) if keep else set())
    assert offsets(move.done_after) == ({o for o in offsets(done) if o > move.to} if keep else set())
    found = decode(move.to, move.metadata, topic_id="id")
    assert (found.topology_id, found.done, found.isolation.ended) == ("shop-1", move.done_after, True)


def test_nothing_of_a_topic_that_was_made_again_is_done() -> None:
    """The commit before is of the earlier topic: nothing is read again, and what the new place passes is skipped."""
    standing = Standing(ZERO, 50, CommitMetadata(), True, 0, 20, 20, "id")
    move = commit_for(standing, 20, "shop-1", keep=False)
    assert (move.again, move.skipped) == ([], [(0, 20)])
    move = commit_for(standing, 0, "shop-1", keep=False)
    assert (move.again, move.skipped) == ([], [])


def test_what_a_cut_log_does_not_have_is_not_read_again() -> None:
    """A commit beyond the end counts as done what there is, and no more."""
    standing = Standing(ZERO, 50, CommitMetadata("shop-1"), False, 0, 20, 20, "id")
    assert commit_for(standing, 10, "shop-1", keep=False).again == [(10, 20)]


def test_what_the_commit_has_no_room_for_is_not_called_skipped() -> None:
    """A file may name more ranges than a commit holds: the others are read again, and the plan says so."""
    standing = Standing(ZERO, 0, CommitMetadata("shop-1"), False, 0, 10**9, 10**9, "id")
    chance = random.Random(1)
    beyond = [(n + gap, n + gap + 1) for n in range(0, 9_000_000, 1_000) for gap in [chance.randint(1, 998)]]
    move = commit_for(standing, 0, "shop-1", keep=False, beyond=beyond)
    assert move.done_after == decode(0, move.metadata, topic_id="id").done
    assert 0 < offset_ranges.count(move.skipped) < len(beyond)


@pytest.fixture
def kafka(bare_kafka: Kafka) -> Kafka:
    """A Kafka with ten records, and two groups that stand at 3 and 7."""
    bare_kafka.create_topic(TOPIC)
    fill(bare_kafka, 10)
    for group, offset in (("one", 3), ("two", 7)):
        consumer = bare_kafka.consumer(group=group)
        text = encode(offset, topology_id=group, task=3, topic_id=bare_kafka.topic_id(TOPIC))
        consumer.commit({ZERO: OffsetAndMetadata(offset, text, -1)})
        consumer.close()
    return bare_kafka


def test_several_groups_move_by_one_file(kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export of two groups has the group in each line, and brings both back."""
    command, path = Command(kafka.bootstrap, capsys), tmp_path / "offsets.csv"
    _, out, _ = command.run("export", "one", "two", "--to", "csv")
    assert out == "one,orders,0,3\ntwo,orders,0,7\n"
    path.write_text(out, encoding="utf-8")
    command.facts("seek", "one", "two", "--to-offset", "5", "--yes")
    assert [kafka.committed(group)[ZERO].offset for group in ("one", "two")] == [5, 5]
    _, out, _ = command.run("seek", "one", "two", "--from-file", str(path), "--yes")
    assert out.count("1 partition moved") == 2
    assert [kafka.committed(group)[ZERO].offset for group in ("one", "two")] == [3, 7]


def test_no_group_moves_where_one_cannot(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    """All groups are planned before any is moved; each is named once; Spark continues one."""
    command = Command(kafka.bootstrap, capsys)
    assert "group three has committed nothing" in command.refused("seek", "one", "three", "--to-latest", "--yes")
    assert "group one is named twice" in command.refused("seek", "one", "one", "--to-latest", "--yes")
    assert "--to spark takes one group" in command.refused("export", "one", "two", "--to", "spark")
    assert kafka.committed("one")[ZERO].offset == 3
