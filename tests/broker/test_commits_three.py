"""Commits on three brokers while the group's coordinator dies, moves, cannot write, or is missing."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from kafka.admin import KafkaAdminClient

from downspout.broker import OFFSETS_TOPIC, EmbeddedCluster, partition_of_group
from downspout.errors import BrokerError
from downspout.kafka import KafkaCluster, OffsetAndMetadata, TopicPartition
from tests.broker.replicas import ALL, WAIT_S, Replicas
from tests.broker.scene import Member, Scene, repeated, run_until
from tests.kafka.broker_stage import patiently, wait_until
from tests.kafka.commit_log import CommitLog
from tests.kafka.stage import unique

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.usefixtures("hurried")]

WAYS = ["sync", "async", "combined"]
RECORDS = 10
FAILED = re.compile(r"commit failed, retrying: (\w+)")


@pytest.fixture(scope="module")
def replicas(three_brokers: EmbeddedCluster) -> Iterator[Replicas]:
    three_brokers.start()
    made = Replicas(three_brokers)
    yield made
    made.close()


class Home:
    """Where the commits of some groups are: a partition of Kafka's own topic, whose leader is their coordinator."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        first = unique("commits")
        asker = replicas.cluster.consumer(group=first)
        patiently(lambda: asker.committed([TopicPartition("nothing", 0)]))  # Kafka makes its topic for the first one
        asker.close()
        self._partitions = len(KafkaCluster(replicas.brokers.bootstrap).leaders(OFFSETS_TOPIC))
        self.partition = partition_of_group(first, self._partitions)
        self.await_isr(*ALL)
        self.coordinator = self.await_coordinator(*ALL)
        self.others = sorted({*ALL} - {self.coordinator})

    def group(self) -> str:
        """Return the name of a new group that is at home here."""
        names = (unique("commits") for _ in itertools.count())
        return next(name for name in names if partition_of_group(name, self._partitions) == self.partition)

    def await_isr(self, *nodes: int) -> None:
        self._replicas.await_isr(OFFSETS_TOPIC, set(nodes), self.partition)

    def await_coordinator(self, *nodes: int) -> int:
        """Wait until one of these is the coordinator (-1: none is); return which."""
        return self._replicas.await_leader(OFFSETS_TOPIC, *nodes, partition=self.partition)

    def move(self, nodes: Sequence[int]) -> None:
        where = TopicPartition(OFFSETS_TOPIC, self.partition)
        admin = KafkaAdminClient(bootstrap_servers=self._replicas.brokers.bootstrap)

        def has_moved() -> bool:  # asked again, since a controller may refuse while a broker comes back
            admin.alter_partition_reassignments({where: list(nodes)})
            return self._replicas.state(OFFSETS_TOPIC, self.partition)[1] == set(nodes)

        try:
            wait_until(has_moved, WAIT_S)
        finally:
            admin.close()


@pytest.fixture
def home(replicas: Replicas) -> Iterator[Home]:
    """A home for groups; all brokers run at the end, and have the commits."""
    made = Home(replicas)
    yield made
    replicas.brokers.start()
    made.move(ALL)


class Spouts:
    """A spout for each way to commit, all of one topic, each in a group of its own with the same coordinator.

    They have committed ten records, and commit five times a second.
    """

    def __init__(self, replicas: Replicas, home: Home, nodes: Sequence[int], stack: ExitStack) -> None:
        topic = replicas.create({0: nodes}, min_insync_replicas=1)
        self._log = CommitLog(replicas.brokers.bootstrap)
        stack.callback(self._log.close)
        self._log.forget()
        bootstrap = replicas.brokers.bootstrap
        self._scenes = [stack.enter_context(Scene(bootstrap, topic, group=home.group())) for _ in WAYS]
        self.fill()
        ways = zip(WAYS, self._scenes, strict=True)
        self.members = [scene.member(commit=way, commit_period_ms=200) for way, scene in ways]
        self.run_until(lambda member: member.figure("committed") == RECORDS)

    def fill(self) -> None:
        self._scenes[0].fill(RECORDS)

    def run_until(self, holds: Callable[[Member], bool]) -> None:
        run_until(lambda: all(map(holds, self.members)), *self.members, answer=True, patience_s=WAIT_S)

    def go_on(self, caplog: pytest.LogCaptureFixture) -> None:
        """Ten more records are committed, none comes twice, no stored offset ever fell, and each kind warned once."""
        self.run_until(lambda member: member.figure("committed") == 2 * RECORDS)
        for scene in self._scenes:
            assert scene.committed() == 2 * RECORDS
            stored = [commit.offset for commit in self._log.commits(scene.group)]
            assert stored[-1] == 2 * RECORDS
            assert stored == sorted(stored)
        assert [repeated(member) for member in self.members] == [{}, {}, {}]
        warned = Counter(found[1] for record in caplog.records if (found := FAILED.search(record.getMessage())))
        assert all(count <= len(WAYS) for count in warned.values()), warned  # each spout warns for itself


@pytest.mark.sweep
def test_a_coordinator_that_dies(replicas: Replicas, home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """Another broker has the commits, and gets the next ones."""
    caplog.set_level(logging.WARNING, "tests.spout")
    with ExitStack() as stack:
        spouts = Spouts(replicas, home, home.others, stack)
        replicas.kill(home.coordinator)
        spouts.fill()
        spouts.go_on(caplog)
        assert home.await_coordinator(*home.others) in home.others


@pytest.mark.sweep
def test_a_coordinator_that_moves(replicas: Replicas, home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """The broker that had the commits lives, and is not the coordinator any more: the spouts find the new one."""
    caplog.set_level(logging.WARNING, "tests.spout")
    with ExitStack() as stack:
        spouts = Spouts(replicas, home, ALL, stack)
        home.move(home.others)
        assert home.await_coordinator(*home.others) != home.coordinator
        spouts.fill()
        spouts.go_on(caplog)


@pytest.mark.sweep
def test_commits_that_too_few_replicas_would_have(
    replicas: Replicas, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Below min.insync.replicas commits fail: they are tried again, counted, and warned of once; reading goes on."""
    caplog.set_level(logging.WARNING, "tests.spout")
    with ExitStack() as stack:
        spouts = Spouts(replicas, home, [home.coordinator], stack)
        for node in home.others:
            replicas.kill(node)
        home.await_isr(home.coordinator)
        spouts.fill()
        spouts.run_until(lambda member: member.figure("commits_failed") >= 2 and len(member.emitted) == 2 * RECORDS)
        assert [member.figure("committed") for member in spouts.members] == [RECORDS] * 3
        assert any(FAILED.search(record.getMessage()) for record in caplog.records)
        replicas.brokers.start()
        spouts.go_on(caplog)


def opened(member: Callable[[], Member]) -> Member:
    """Open a spout as a user does who starts it again: the bootstrap may be the broker that was just killed."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return member()
        except BrokerError:
            if time.monotonic() > until:
                raise


def test_a_start_while_the_coordinator_is_away(
    replicas: Replicas, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """No answer is not taken for no commit: in each mode it waits for another broker, and goes on at the commit."""
    caplog.set_level(logging.INFO, "tests.spout")
    topic, bootstrap = replicas.create({0: home.others}, min_insync_replicas=1), replicas.brokers.bootstrap
    with ExitStack() as stack:
        scenes = [stack.enter_context(Scene(bootstrap, topic, group=home.group())) for _ in range(2)]
        scenes[0].fill(RECORDS)
        for scene in scenes:
            scene.put_commit(OffsetAndMetadata(6, "", -1))
        replicas.kill(home.coordinator)
        start = "UNCOMMITTED_LATEST"
        members = [
            opened(lambda: scenes[0].member(None, mode="assign", start=start)),
            opened(lambda: scenes[1].member(1, mode="subscribe", start=start)),
        ]
        run_until(lambda: all(len(member.emitted) == 4 for member in members), *members, answer=True, patience_s=WAIT_S)
        assert [member.offsets for member in members] == [[6, 7, 8, 9]] * 2
        assert not [record for record in caplog.records if "is new to" in record.getMessage()]
