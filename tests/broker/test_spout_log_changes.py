"""Logs that change under the spout: records deleted, compacted, aborted; topics made again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from downspout.broker import EmbeddedKafka
from downspout.errors import DataLossError
from downspout.testing import UNHURRIED
from tests.broker.scene import Member, Scene, repeated, run_until
from tests.kafka.stage import unique

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUICK = UNHURRIED | {"log.cleaner.backoff.ms": "200"}
LATER_MS = 600_000
SLOW_RETRY: dict[str, Any] = {"retry_delay_ms": LATER_MS, "retry_delay_ms_max": LATER_MS}
"""A failed record waits until the test sends the clock ahead."""
SMALL_STEPS: dict[str, Any] = {
    "poll_records_max": 10,
    "emits_per_next_max": 10,
    "kafka__client__max_partition_fetch_bytes": 1,
}
"""With batches of ten: what is not emitted yet is, but for one batch, still at the broker."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("changes"), properties=QUICK) as made:
        yield made


@pytest.fixture
def scene(broker: EmbeddedKafka) -> Iterator[Scene]:
    with Scene(broker.bootstrap, unique("changes")) as made:
        yield made


def lag(member: Member) -> float:
    return member.figure("lag")


# --- delete_records ---


def half_way(scene: Scene, **settings: Any) -> Member:
    """Return a spout that has acked 0 to 9, failed 10 to 14, has 15 to 39 out, and does not know the rest."""
    scene.fill(100, batch=10)
    member = scene.member(**SLOW_RETRY, **SMALL_STEPS, **settings)
    run_until(lambda: len(member.emitted) >= 40, member)
    assert member.offsets == list(range(40))
    member.ack(range(10))
    member.fail(range(10, 15))
    return member


def test_deleted_records_stop_the_run_by_default(scene: Scene) -> None:
    """The error says how many are lost and where; what is acked is committed, and nothing past the loss."""
    member = half_way(scene)
    scene.cluster.delete_records(scene.topic, 0, 60)
    with pytest.raises(DataLossError) as caught:
        run_until(lambda: False, member)
    unread = 60 - len(member.emitted)
    assert f"{scene.topic}[0]@" in str(caught.value)
    assert f"{5 + unread} offsets below 60 " in str(caught.value)
    member.spout.close()
    assert scene.committed() == 10


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_deleted_records_are_counted_and_passed(scene: Scene, policy: str) -> None:
    """Failed and unread ones are lost, each counted once; what was out still counts, and a late fail is a loss too."""
    member = half_way(scene, on_data_loss=policy)
    scene.cluster.delete_records(scene.topic, 0, 60)
    run_until(lambda: lag_known(member) and member.figure("lost") > 0, member)
    read = [offset for offset in member.offsets if offset < 60]
    unread = 60 - len(read) + (40 if policy == "latest" else 0)
    assert member.figure("lost") == 5 + unread
    scene.fill(5)
    rest = list(range(100, 105)) if policy == "latest" else list(range(60, 105))
    run_until(lambda: len(member.emitted) >= len(read) + len(rest), member)
    assert member.offsets == [*read, *rest]
    member.ack([*read[15:30], *rest])
    member.fail(read[30:])
    scene.clock.sleep(LATER_MS / 1000 + 1)
    scene.commit_all(member, p0=105)
    assert member.figure("lost") == 5 + unread + len(read[30:])
    assert (lag(member), member.figure("compacted"), member.figure("dead_lettered")) == (0, 0, 0)


def lag_known(member: Member) -> bool:
    return member.figure("partitions") == 1


@pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
def test_a_failed_record_deleted_at_the_very_end_is_not_sought_for_ever(scene: Scene, policy: str) -> None:
    """It is lost like any other, the commit reaches the end, and what is written next arrives."""
    scene.fill(10)
    member = scene.member(**SLOW_RETRY, on_data_loss=policy)
    run_until(lambda: len(member.emitted) == 10, member)
    member.ack(range(9))
    member.fail([9])
    scene.cluster.delete_records(scene.topic, 0, 10)
    assert scene.bounds() == (10, 10)
    scene.clock.sleep(LATER_MS / 1000 + 1)
    if policy == "fail":
        with pytest.raises(DataLossError, match=r"1 offsets below 10 "):
            run_until(lambda: False, member)
        return
    scene.commit_all(member, p0=10)
    assert (member.figure("lost"), member.figure("retry_waiting")) == (1, 0)
    scene.fill(1)
    run_until(lambda: len(member.emitted) == 11, member)
    assert member.offsets[-1] == 10


# --- the log cleaner ---

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
}


@pytest.fixture
def compacted(broker: EmbeddedKafka) -> Iterator[Scene]:
    """A topic that the cleaner looks after: 60 records of which it will leave the last ten, and one that follows."""
    with Scene(broker.bootstrap, unique("compacted"), 1, COMPACTED) as made:
        made.fill(60, key=lambda n: b"%d" % (n % 10), batch=5)
        yield made


LEFT = [*range(50, 60), 60]


def clean(scene: Scene) -> None:
    """Let the cleaner have all but one more record (it leaves the open segment alone), and wait until it was there."""
    with scene.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, scene.topic, {"segment.ms": "1"})])
    scene.fill(1, key=lambda n: b"last", start_ms=1_000_000)
    run_until(lambda: scene.offsets() == LEFT)


def test_what_the_cleaner_took_blocks_nothing(compacted: Scene) -> None:
    """Reading from the beginning, the spout emits what is left; commit and lag pass the gaps up to the end."""
    clean(compacted)
    member = compacted.member()
    run_until(lambda: len(member.emitted) == len(LEFT), member, answer=True)
    compacted.commit_all(member, p0=61)
    assert member.offsets == LEFT
    assert [member.figure(name) for name in ("lag", "lost", "compacted", "retry_waiting")] == [0, 0, 0, 0]


def test_a_failed_record_that_the_cleaner_took_is_resolved(compacted: Scene) -> None:
    """Its retry finds what follows it instead: it is counted as compacted, not as lost, and holds nothing back."""
    member = compacted.member(**SLOW_RETRY, retry_cache_bytes=0)
    run_until(lambda: len(member.emitted) == 60, member)
    failed = [3, 17, 55]
    member.fail(failed)
    member.ack(set(range(60)) - set(failed))
    clean(compacted)
    run_until(lambda: len(member.emitted) == 61, member)
    member.ack([60])
    compacted.commit_all(member, p0=3)
    compacted.clock.sleep(LATER_MS / 1000 + 1)
    run_until(lambda: len(member.emitted) == 62, member)
    assert member.offsets[60:] == [60, 55]
    member.ack([55])
    compacted.commit_all(member, p0=61)
    assert [member.figure(name) for name in ("compacted", "lost", "lag", "retry_waiting")] == [2, 0, 0, 0]


# --- transactions ---


def test_aborted_records_are_not_emitted_and_leave_no_lag(scene: Scene) -> None:
    """Only what was committed leaves, the rest is counted; the commit covers it and the markers, at the end too."""
    scene.fill(5)
    scene.transaction([b"no"] * 3, commit=False)
    scene.transaction([b"yes"] * 2, commit=True)
    scene.transaction([b"no"] * 4, commit=False)
    begin, end = scene.bounds()
    assert (begin, end) == (0, 17)
    member = scene.member(fields=["offset", "value"])
    run_until(lambda: len(member.emitted) >= 7, member, answer=True)
    scene.commit_all(member, p0=end)
    assert member.offsets == [0, 1, 2, 3, 4, 9, 10]
    assert {values[1] for _, values in member.emitted} == {"0", "1", "2", "3", "4", "yes"}
    assert [member.figure(name) for name in ("lag", "lost", "compacted", "skipped", "aborted")] == [0, 0, 0, 0, 7]


# --- topics that are made again ---


def test_a_smaller_topic_made_again_under_a_spout_is_read_whole(scene: Scene) -> None:
    """Each new record arrives once, late acks of the old ones count for nothing, nothing is committed past the end."""
    scene.fill(50)
    member = scene.member(on_data_loss="earliest", fields=["offset", "origin"])
    run_until(lambda: len(member.emitted) == 50, member)
    member.ack(range(40))
    scene.commit_all(member, p0=40)
    late = member.last_id(45)
    member.answered = len(member.emitted)
    scene.recreate(1, member)
    scene.fill(12)
    run_until(lambda: len(member.emitted) >= 62, member)
    member.spout.ack(late)
    assert member.offsets[50:] == list(range(12))
    assert len({values[1].topic_id for _, values in member.emitted[50:]}) == 1
    assert member.emitted[50][1][1].topic_id != member.emitted[0][1][1].topic_id
    assert member.figure("lost") == 10
    member.ack(range(12))
    scene.commit_all(member, p0=12)
    assert member.figure("stale") == 1


@pytest.mark.parametrize("left", [False, True], ids=["as Kafka does it", "with the commit left"])
def test_a_smaller_topic_made_again_between_runs_is_read_whole(scene: Scene, left: bool) -> None:
    """The second run reads it from its beginning, also where a commit of the old topic is still there."""
    scene.fill(50)
    first = scene.member()
    run_until(lambda: len(first.emitted) == 50, first)
    first.ack([*range(30), *range(35, 50)])
    first.spout.close()
    commit = scene.commits()[0]
    assert commit is not None
    assert commit.offset == 30
    scene.recreate(1)
    scene.fill(40)  # fewer than before, and more than were committed
    if left:
        scene.put_commit(commit)
        stops = scene.member()
        with pytest.raises(DataLossError, match="created again"):
            run_until(lambda: False, stops)
        stops.spout.close()
        assert scene.commits()[0] == commit
    second = scene.member(on_data_loss="earliest" if left else "fail")
    run_until(lambda: len(second.emitted) >= 40, second, answer=True)
    assert second.offsets == list(range(40))
    scene.commit_all(second, p0=40)


# --- commits that are forgotten ---


def test_commits_forgotten_under_a_spout_are_made_again(scene: Scene) -> None:
    """By assign nobody is a member, so Kafka may forget commits of a spout that runs: its next one is whole again."""
    scene.fill(10)
    member = scene.member(member=None, mode="assign")
    run_until(lambda: len(member.emitted) == 10, member, answer=True)
    scene.commit_all(member, p0=10)
    with scene.admin() as admin:
        admin.delete_group_offsets(scene.group, [scene.tp()])
    assert scene.committed() is None
    scene.fill(3)
    run_until(lambda: len(member.emitted) == 13, member, answer=True)
    scene.commit_all(member, p0=13)
    assert not repeated(member)
