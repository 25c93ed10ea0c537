"""Members that join, leave and die on a real broker: state that moves with partitions, and records processed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from downspout.ledger import decode
from tests.broker.scene import KILLED_MS, Member, Scene, repeated, run_until
from tests.kafka.stage import unique

if TYPE_CHECKING:
    from downspout.broker import EmbeddedKafka

pytestmark = pytest.mark.broker

Place = tuple[int, int]
LATER_MS = 600_000
SLOW_RETRY = {"retry_delay_ms": LATER_MS, "retry_delay_ms_max": LATER_MS}
"""A failed record waits until the test sends the clock ahead."""
QUICK_GROUP = {"kafka__client__heartbeat_interval_ms": 200}
"""Members hear of a rebalance soon."""
RECORDS = 100


@pytest.fixture
def scene(kafka_broker: EmbeddedKafka) -> Iterator[Scene]:
    with Scene(kafka_broker.bootstrap, unique("group"), 2) as made:
        for partition in range(2):
            made.fill(RECORDS, partition)
        yield made


def read_all(scene: Scene, **settings: Any) -> Member:
    """Return a member that owns both partitions and has everything out."""
    member = scene.member(**QUICK_GROUP, **settings)
    run_until(lambda: len(member.emitted) == 2 * RECORDS, member)
    return member


def told(scene: Scene, partition: int) -> set[int]:
    """Return the offsets that the group's commit calls done: those below it, and those in its metadata."""
    commit = scene.commits([partition])[partition]
    assert commit is not None
    progress = decode(commit.offset, commit.metadata, topic_id=scene.topic_id())
    return {*range(commit.offset), *(o for start, end in progress.done for o in range(start, end))}


def test_a_planned_hand_over_with_holes_moves_what_is_done(scene: Scene) -> None:
    """The new owner emits the failed records, which come again anyhow, and none of those acked beyond them."""
    one = read_all(scene, **SLOW_RETRY)
    holes = {0, 7, 8, 31, 99}
    one.answer(lambda place: place[1] in holes)
    two = scene.member(member=2, **QUICK_GROUP, **SLOW_RETRY)
    run_until(lambda: len(two.emitted) >= len(holes), one, two)
    [moved] = {partition for partition, _ in two.places}
    assert two.offsets == sorted(holes)
    assert told(scene, moved) == set(range(RECORDS)) - holes
    assert scene.committed(moved) == 0
    two.answer()
    scene.clock.sleep(LATER_MS / 1000 + 1)
    run_until(lambda: one.figure("retries") == len(holes), one, two)
    one.answer()
    scene.commit_all(one, two, p0=RECORDS, p1=RECORDS)
    assert repeated(one, two) == {(partition, offset): 2 for partition in range(2) for offset in holes}


def test_a_killed_member_costs_what_was_out_and_what_it_had_not_made_known(scene: Scene) -> None:
    """Who takes over after its session repeats exactly the records that its last commit did not call done."""
    dead = read_all(scene, session_timeout_ms=KILLED_MS)
    known = {offset for offset in range(RECORDS) if offset % 5}
    for partition in range(2):
        dead.ack(sorted(known), partition)
    scene.clock.sleep(31)
    run_until(lambda: all(told(scene, p) == known for p in range(2)), dead)
    since = set(range(0, 50, 5))
    for partition in range(2):
        dead.ack(sorted(since), partition)  # done, and nobody knows
    dead.kill()
    heir = scene.member(member=2, **QUICK_GROUP)
    expected = {(partition, offset) for partition in range(2) for offset in range(RECORDS) if offset not in known}
    run_until(lambda: len(heir.emitted) >= len(expected), heir, answer=True)
    assert sorted(heir.places) == sorted(expected)
    assert repeated(dead, heir) == dict.fromkeys(expected, 2)
    scene.commit_all(heir, p0=RECORDS, p1=RECORDS)
    assert heir.figure("lost") == 0


class Churn:
    """Members that answer late, a record that fails until it is released, and commits that are looked at each turn."""

    def __init__(self, scene: Scene, partitions: int, held: Place) -> None:
        self.scene = scene
        self.partitions = partitions
        self.held: Place | None = held
        self.fails: Counter[Place] = Counter()
        self.active: list[Member] = []
        self.everybody: list[Member] = []
        self.written = 0
        self._seen: dict[int, int] = {}
        self._turn = 0

    def join(self, number: int) -> Member:
        retries = {"retry_delay_ms": 200, "retries_max": 10_000, "timeouts_max": 10_000}
        member = self.scene.member(member=number, poll_records_max=20, **retries, **QUICK_GROUP)
        self.active.append(member)
        self.everybody.append(member)
        return member

    def leave(self, member: Member) -> None:
        """Stop a member as Storm does: acks still come, and when nothing is out it leaves."""
        member.spout.deactivate()
        member.answer(self._fails)
        self.active.remove(member)
        assert member.spout.session is None

    def write(self, count: int) -> None:
        """Append to each partition, and run until all of it was emitted, while answers come late."""
        for partition in range(self.partitions):
            self.scene.fill(count, partition)
        self.written += count
        self.run(lambda: len(self.emitted()) == self.written * self.partitions)

    def run(self, holds: Any) -> None:
        run_until(holds, *self.active, each=self._between)

    def emitted(self) -> set[Place]:
        return {place for member in self.everybody for place in member.places}

    def _fails(self, place: Place) -> bool:
        fails = place == self.held
        self.fails[place] += fails
        return fails

    def _between(self) -> None:
        self._turn += 1
        for member in self.active:
            if self._turn % 4 == 0 or member.spout.waits_for_acks():
                member.answer(self._fails)
        for partition, commit in self.scene.commits(range(self.partitions)).items():
            offset = 0 if commit is None else commit.offset
            assert offset >= self._seen.get(partition, 0), f"the commit of {partition} went back to {offset}"
            self._seen[partition] = offset


def test_three_come_and_go_while_a_fourth_holds_a_failed_record(kafka_broker: EmbeddedKafka) -> None:
    """Nothing is emitted twice but what failed, commits never go back, and in the end each record is done."""
    partitions, held = 6, (4, 3)
    with Scene(kafka_broker.bootstrap, unique("churn"), partitions) as scene:
        churn = Churn(scene, partitions, held)
        holder = churn.join(4)
        churn.write(20)
        churn.run(lambda: churn.fails[held] > 0)
        others = []
        for number in (1, 2, 3):
            others.append(churn.join(number))
            churn.run(lambda: others[-1].figure("partitions") > 0)
            churn.write(20)
        for member in others:
            churn.leave(member)
            churn.write(20)
        churn.run(lambda: holder.figure("partitions") == partitions)
        assert scene.committed(held[0]) == held[1]
        churn.held = None
        churn.run(lambda: holder.figure("retry_waiting") == holder.figure("in_flight") == 0)
        scene.commit_all(holder, **{f"p{partition}": churn.written for partition in range(partitions)})
        counts = Counter(place for member in churn.everybody for place in member.places)
        assert counts == {
            (partition, offset): 1 + churn.fails[partition, offset]
            for partition in range(partitions)
            for offset in range(churn.written)
        }
        assert all(member.emitted for member in others)
