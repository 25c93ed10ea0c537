"""The spout's options on a real broker: guarantees, starts, topics, sharing and translators."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from downspout.kafka import OffsetAndMetadata, Record
from tests.broker.scene import Scene, repeated, run_until
from tests.kafka.stage import unique
from tests.spout.spout_driver import MANY

if TYPE_CHECKING:
    from downspout.broker import EmbeddedKafka

pytestmark = pytest.mark.broker

HERE = "tests.broker.test_spout_choices"
GUARANTEES = ["AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE", "AUTO_COMMIT"]
RECORDS = 10
COMMITTED, BEGINNING, END, TIMESTAMP, OFFSET = 4, 0, RECORDS, 7, 6

# partition 0 has no commit, 1 one by this topology's id, 2 one by another's
STARTS = {
    "EARLIEST": (BEGINNING, COMMITTED, BEGINNING),
    "LATEST": (END, COMMITTED, END),
    "UNCOMMITTED_EARLIEST": (BEGINNING, COMMITTED, COMMITTED),
    "UNCOMMITTED_LATEST": (END, COMMITTED, COMMITTED),
    "TIMESTAMP": (TIMESTAMP, COMMITTED, TIMESTAMP),
    "UNCOMMITTED_TIMESTAMP": (TIMESTAMP, COMMITTED, COMMITTED),
    "OFFSETS": (OFFSET, COMMITTED, OFFSET),
    "UNCOMMITTED_OFFSETS": (OFFSET, COMMITTED, COMMITTED),
}


@pytest.fixture
def scene(kafka_broker: EmbeddedKafka) -> Iterator[Scene]:
    with Scene(kafka_broker.bootstrap, unique("choice")) as made:
        yield made


# --- guarantees and starts ---


@pytest.fixture(scope="module")
def begun(kafka_broker: EmbeddedKafka) -> Iterator[tuple[str, dict[int, OffsetAndMetadata]]]:
    """A topic of three full partitions, and what two spouts of two topologies have committed for the last two."""
    with Scene(kafka_broker.bootstrap, unique("starts"), 3) as made:
        for partition in range(3):
            made.fill(RECORDS, partition)
        for index, topology in ((1, "orders-1"), (2, "another-1")):
            member = made.member(None, task=(index, 3), mode="assign", topology_id=topology)
            run_until(lambda member=member: len(member.emitted) == RECORDS, member)
            member.ack(range(COMMITTED), index)
            member.spout.close()
        commits = {number: commit for number, commit in made.commits((1, 2)).items() if commit is not None}
        assert [commit.offset for commit in commits.values()] == [COMMITTED, COMMITTED]
        yield made.topic, commits


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("start", STARTS)
def test_where_reading_starts(
    kafka_broker: EmbeddedKafka, begun: tuple[str, dict[int, OffsetAndMetadata]], start: str, guarantee: str
) -> None:
    """Each strategy goes by the commit and by who made it, under each guarantee; then all is read and committed."""
    topic, commits = begun
    with Scene(kafka_broker.bootstrap, topic, 3, group=unique("g")) as scene:
        for partition, commit in commits.items():
            scene.put_commit(commit, partition)
        member = scene.member(
            start=start,
            start_timestamp_ms=1000 + TIMESTAMP,
            start_offsets=[f"{topic}[{partition}]={OFFSET}" for partition in range(3)],
            guarantee=guarantee,
            topology__max__spout__pending=MANY,
            commit_period_ms=200 if guarantee == "AUTO_COMMIT" else 30_000,
        )
        expected = {(p, o) for p, first in enumerate(STARTS[start]) for o in range(first, RECORDS)}
        run_until(lambda: len(member.emitted) >= len(expected), member, answer=True)
        scene.commit_all(member, p0=RECORDS, p1=RECORDS, p2=RECORDS)
        assert set(member.places) == expected
        assert not repeated(member)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_planned_restart_goes_on_behind_the_last_record(scene: Scene, guarantee: str) -> None:
    """Closed after all was answered and started again, a spout emits what is new, under each guarantee."""
    scene.fill(RECORDS)
    settings: dict[str, Any] = {"guarantee": guarantee, "topology__max__spout__pending": MANY}
    first = scene.member(**settings)
    run_until(lambda: len(first.emitted) == RECORDS, first, answer=True)
    first.spout.close()
    assert scene.committed() == RECORDS
    scene.fill(5)
    second = scene.member(**settings)
    run_until(lambda: len(second.emitted) >= 5, second)
    assert second.offsets == list(range(RECORDS, RECORDS + 5))


def test_what_trickles_in_is_gathered_for_chunks(scene: Scene) -> None:
    """One record each few milliseconds makes a chunk each tenth of a second, and not one for each record or two."""
    member = scene.member(emit="chunk", chunk_records_max=1000)
    scene.fill(1)
    run_until(lambda: bool(member.emitted), member)
    sender = threading.Thread(target=scene.fill, args=(300,), kwargs={"batch": 1})
    began = time.monotonic()
    sender.start()
    try:
        run_until(lambda: sum(rows.num_rows for _, rows in member.emitted) == 301, member)
    finally:
        sender.join()
    tenths = (time.monotonic() - began) / 0.1  # twenty or so, and more on a machine that is slow to write
    assert len(member.emitted) < 1.5 * tenths + 30


# --- topics and sharing ---


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
def test_topics_that_match_later_are_read_from_their_beginning(kafka_broker: EmbeddedKafka, mode: str) -> None:
    """Only whole names match, and the spout's own dead letters are left out."""
    word = unique("orders")
    with Scene(kafka_broker.bootstrap, f"no-{word}-1") as scene:
        scene.fill(2)
        dead = f"{word}-dead"
        member = scene.member(
            1 if mode == "subscribe" else None,
            topics=None,
            pattern=f"{word}-.*",
            mode=mode,
            fields=["topic", "offset", "value"],
            dead_letter_topic=dead,
            kafka__client__metadata_max_age_ms=300,
            kafka__client__heartbeat_interval_ms=200,
        )
        run_until(lambda: member.session.assignment.epochs.arrived, member)
        for name in (f"{word}-1", f"{word}-2", dead):
            scene.cluster.ensure_topic(name, 2)
            scene.fill(3, 1, topic=name)
            run_until(lambda name=name: name == dead or name in {v[0] for _, v in member.emitted}, member, answer=True)
        run_until(lambda: len(member.emitted) >= 6, member, answer=True)
        run_until(lambda: member.figure("partitions") == 4, member, answer=True)
        found = sorted((values[0], values[1]) for _, values in member.emitted)
        assert found == [(f"{word}-{number}", offset) for number in (1, 2) for offset in range(3)]


def test_eleven_partitions_are_counted_out_to_three_tasks(kafka_broker: EmbeddedKafka) -> None:
    """By assign, each task reads and commits its share, and together they read everything once."""
    with Scene(kafka_broker.bootstrap, unique("eleven"), 11) as scene:
        for partition in range(11):
            scene.fill(4, partition)
        tasks = [scene.member(None, task=(index, 3), mode="assign") for index in range(3)]
        run_until(lambda: sum(len(task.emitted) for task in tasks) >= 44, *tasks, answer=True)
        shares = [{partition for partition, _ in task.places} for task in tasks]
        assert shares == [{0, 3, 6, 9}, {1, 4, 7, 10}, {2, 5, 8}]
        scene.commit_all(*tasks, **{f"p{partition}": 4 for partition in range(11)})
        assert not repeated(*tasks)


# --- translators ---


def several(record: Record) -> list[list[Any]]:
    return [[record.offset, number] for number in range(int(record.value or 0))]


def whole(record: Record) -> list[Any]:
    return [bytes(record.value or b"").decode()]


def test_translators_by_topic_make_any_number_of_tuples(scene: Scene) -> None:
    """A record is done when each of its tuples is, fails when one does, and is passed over where it has none."""
    other = f"{scene.topic}-other"
    scene.cluster.ensure_topic(other)
    scene.fill(4)
    scene.fill(2, topic=other)
    entries = [f"{scene.topic}={HERE}.several(offset number origin)@many", f"{HERE}.whole(text)"]
    member = scene.member(topics=[scene.topic, other], translator=entries)
    run_until(lambda: len(member.emitted) >= 8, member)
    many = [
        (tup_id, values)
        for (tup_id, values), stream in zip(member.emitted, member.streams, strict=True)
        if stream == "many"
    ]
    assert [values[:2] for _, values in many] == [[1, 0], [2, 0], [2, 1], [3, 0], [3, 1], [3, 2]]
    assert [values[2].path for _, values in many][-2:] == ["translator.1", "translator.2"]
    assert [values for (_, values), s in zip(member.emitted, member.streams, strict=True) if s == "default"] == [
        ["0"],
        ["1"],
    ]
    for tup_id, values in member.emitted:
        (member.spout.fail if values[:2] == [3, 1] else member.spout.ack)(tup_id)
    run_until(lambda: len(member.emitted) >= 11, member)
    assert [values[:2] for _, values in member.emitted[8:]] == [[3, 0], [3, 1], [3, 2]]
    assert scene.committed() in (None, 0, 3)
    for tup_id, _ in member.emitted[8:]:
        member.spout.ack(tup_id)
    scene.commit_all(member, p0=4)
    assert member.figure("filtered") == 1
