"""What acks and idempotence promise, and what they do not: shown on three brokers that are paused and killed.

The figures in ``docs/concepts/delivery.md`` are those of these tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import streamparse
from kafka import KafkaProducer
from streamparse import Topology

from bolts.kafka import KafkaBolt
from downspout.broker import EmbeddedCluster
from downspout.errors import DataLossError
from downspout.kafka import Sent, partition_of_key
from downspout.testing import TopologyResult, run_topology
from spouts.kafka import KafkaSpout
from tests.broker.fault_proxy import FaultProxy, fault_proxy
from tests.broker.replicas import ALL, WAIT_S, Replicas, acknowledged, answers, send
from tests.kafka.broker_stage import wait_until
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EACH = 5
EARLY, LATE, NEW = ([b"%s-%d" % (when, number) for number in range(EACH)] for when in (b"early", b"late", b"new"))
FETCH_S = 0.7
"""So long a fetch that a follower had open when it was paused may wait for records (replica.fetch.wait.max.ms, 0.5 s):
those that come meanwhile are its answer, and it reads them when it goes on."""
CLOCK: Any = SimpleNamespace(monotonic=time.monotonic, wall=time.time, sleep=time.sleep)


@pytest.fixture(scope="module")
def replicas(three_brokers: EmbeddedCluster) -> Iterator[Replicas]:
    three_brokers.start()
    made = Replicas(three_brokers)
    yield made
    made.close()


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with fault_proxy() as made:
        yield made


# --- acks 0 ---------------------------------------------------------------------------------------------


class Rows(streamparse.Spout):
    outputs: ClassVar = ["message"]

    def next_tuple(self) -> None:
        pass


def write(replicas: Replicas, rows: list[Any], *, timeout_s: int = 60, **settings: Any) -> TopologyResult:
    """Let a KafkaBolt write rows; those that fail come again at once."""

    class Flow(Topology):
        rows = Rows.spec()
        bolt = KafkaBolt.spec(inputs=[rows], **settings)

    bootstrap = replicas.brokers.node(1).bootstrap  # another one may be paused
    config = {"kafka.bootstrap": bootstrap, "topology.message.timeout.secs": timeout_s}
    return run_topology(Flow, spouts={"rows": rows}, config=config, clock=CLOCK)


def test_without_acks_a_record_that_is_too_large_is_acked_and_not_there(replicas: Replicas) -> None:
    """It counts as unknown, as the others do, and nothing counts as sent."""
    topic = replicas.create(max_message_bytes=2000)
    small, large = [{"message": str(n)} for n in range(EACH)], {"message": "x" * 3000}
    result = write(replicas, [*small, large], topic=topic, acks="0", batch_bytes=1)
    assert len(result.acked("rows")) == EACH + 1
    (bolt,) = result.components["bolt"]
    report = bolt.report()
    assert (report["unknown"], report["sent"], report["refused"]) == (EACH + 1, 0, 0)
    wait_until(lambda: len(replicas.readable(topic)) == EACH)


# --- the leader is killed -------------------------------------------------------------------------------


@dataclass
class Killed:
    """A fault, and what it did: followers were paused, records written, the leader killed, the followers resumed.

    Attributes:
        on_leader: what the leader had in its logs when it was killed, by acks.
        watermarks: how far a consumer could read by then.
        acknowledged: which of the later records were acknowledged: before the leader was killed, and by the end.
        kept: what a consumer reads under the next leader.
        logs: what each node has in its logs once all are in sync again, the killed one too.
    """

    topics: dict[str, str]
    on_leader: dict[str, list[bytes | None]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, tuple[list[bytes], list[bytes]]] = field(default_factory=dict)
    kept: dict[str, list[bytes | None]] = field(default_factory=dict)
    logs: dict[str, list[list[bytes | None]]] = field(default_factory=dict)


def kill_the_leader(replicas: Replicas) -> Killed | None:
    """Return what happens; None: the followers were paused for so long that they had left the ISR, or too shortly.

    They leave it when a broker's session is over, after 2.5 s here. On a busy machine the leader may answer late a
    fetch that was open at the pause: then its follower has the records.
    """
    found = Killed({acks: replicas.create() for acks in ("1", "all")})
    producers = {acks: replicas.producer(acks=acks, request_timeout_ms=2_000) for acks in found.topics}
    for acks, topic in found.topics.items():
        send(producers[acks], topic, EARLY)
        acknowledged(producers[acks], EACH)
    for topic in found.topics.values():
        wait_until(lambda topic=topic: replicas.readable(topic) == EARLY)
    with replicas.paused(2, 3):
        time.sleep(FETCH_S)
        for acks, topic in found.topics.items():
            send(producers[acks], topic, LATE)
        early = {"1": acknowledged(producers["1"], EACH)}
        wait_until(lambda: len(replicas.on_disk(1, found.topics["all"])) == 2 * EACH)
        found.watermarks = {acks: replicas.end(1, topic) for acks, topic in found.topics.items()}
        early["all"] = [value for sent in producers["all"].results() for value in sent.tokens]
        replicas.kill(1)
    found.on_leader = {acks: replicas.on_disk(1, topic) for acks, topic in found.topics.items()}
    if not all(leads_anew(replicas, topic) for topic in found.topics.values()):
        replicas.brokers.start()
        return None
    for acks, topic in found.topics.items():
        found.acknowledged[acks] = early[acks], early[acks] or acknowledged(producers[acks], EACH)
        found.kept[acks] = replicas.readable(topic)
        send(producers[acks], topic, NEW)
        acknowledged(producers[acks], EACH)
    replicas.brokers.start()
    if found.kept["1"] != EARLY:
        return None
    for acks, topic in found.topics.items():
        replicas.await_isr(topic, set(ALL))
        found.logs[acks] = [replicas.on_disk(node, topic) for node in ALL]
    return found


def leads_anew(replicas: Replicas, topic: str) -> bool:
    """Wait until a follower leads, and return True; or until none can, as the leader was alone in sync when it died."""
    nobody = (-1, {1})
    wait_until(lambda: replicas.state(topic)[0] in (2, 3) or replicas.state(topic) == nobody, WAIT_S)
    return replicas.state(topic) != nobody


@pytest.fixture(scope="module")
def killed(replicas: Replicas) -> Killed:
    """The leader of these topics was killed while its followers were behind, and came back in the end."""
    # On a busy machine a pause gets longer than it was to be, and the followers leave the ISR: then once more.
    return eventually(lambda: kill_the_leader(replicas))


@pytest.mark.sweep
def test_with_acks_1_acknowledged_records_are_lost_with_their_leader(killed: Killed) -> None:
    """All five that followers had not fetched are gone, though each was acknowledged."""
    assert killed.acknowledged["1"] == (LATE, LATE)
    assert killed.on_leader["1"] == EARLY + LATE
    assert killed.kept["1"] == EARLY


def test_with_acks_all_the_same_fault_loses_nothing_acknowledged(killed: Killed) -> None:
    """Nobody acknowledged the five before the leader died; they are sent again, and are there once."""
    assert killed.acknowledged["all"] == ([], LATE)
    assert killed.on_leader["all"] == EARLY + LATE
    assert killed.kept["all"] == EARLY + LATE


def test_a_consumer_reads_up_to_the_high_watermark(killed: Killed) -> None:
    """The leader's log ends (LEO) behind the five, its followers' before them, and what not all have is not read."""
    assert {acks: len(log) for acks, log in killed.on_leader.items()} == {"1": 2 * EACH, "all": 2 * EACH}
    assert killed.watermarks == {"1": EACH, "all": EACH}


def test_a_leader_that_comes_back_cuts_what_the_next_one_does_not_have(killed: Killed) -> None:
    """Its log is then the same as that of the others, with the records of the next leader in the place of the lost."""
    assert killed.logs == {"1": [EARLY + NEW] * 3, "all": [EARLY + LATE + NEW] * 3}


# --- partitions without a leader ------------------------------------------------------------------------


def test_a_keyed_record_waits_for_its_partition(replicas: Replicas) -> None:
    """While that has no leader, records with other keys and without keys are written elsewhere."""
    topic = replicas.create({0: [1], 1: [2], 2: [3]}, min_insync_replicas=1)
    producer = replicas.producer(metadata_max_age_ms=300, request_timeout_ms=2_000)
    keys = {partition_of_key(b"key-%d" % number, 3): b"key-%d" % number for number in range(50)}
    send(producer, topic, [b"known"])
    assert acknowledged(producer, 1)
    replicas.kill(1)
    replicas.await_leader(topic, -1)
    wait_until(lambda: list(producer._batches._queue.partitions(topic).available) == [1, 2])
    for partition, key in keys.items():
        send(producer, topic, [b"keyed-%d" % partition], key=key, partition=None)
    for number in range(20):
        send(producer, topic, [b"free-%d" % number], partition=None)
    elsewhere = answers(producer, 22)
    assert {sent.error for sent in elsewhere} == {None}
    assert {sent.partition for sent in elsewhere} == {1, 2}
    assert replicas.state(topic)[0] == -1
    replicas.brokers.start()
    (late,) = answers(producer, 1)
    assert (late.tokens, late.partition, late.error) == ([b"keyed-0"], 0, None)


# --- idempotence ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idempotent", "copies"), [(True, 1), (False, 2)], ids=["idempotent", "not"])
def test_a_record_whose_answer_is_lost_is_there_once_with_idempotence_alone(
    replicas: Replicas, proxy: FaultProxy, idempotent: bool, copies: int
) -> None:
    """All replicas have it when its answer is lost; it is sent again by the client itself."""
    topic = replicas.create()
    producer = replicas.producer(proxy_url=proxy.url, enable_idempotence=idempotent)
    send(producer, topic, [b"first"])
    acknowledged(producer, 1)
    proxy.lose(1)
    send(producer, topic, [b"lost"])
    assert acknowledged(producer, 1) == [b"lost"]
    assert proxy.lost == 1
    assert replicas.readable(topic) == [b"first"] + [b"lost"] * copies


def test_idempotence_is_of_one_producer_and_one_partition(replicas: Replicas) -> None:
    """The same record to two partitions, from the next producer, or sent once more by a user, is another record."""
    topic = replicas.create({0: ALL, 1: ALL})
    one, two = replicas.producer(), replicas.producer()
    for producer, partition in ((one, 0), (one, 1), (two, 0), (one, 0)):
        send(producer, topic, [b"same"], key=b"key", partition=partition)
        assert acknowledged(producer, 1)
    assert (len(replicas.readable(topic, 0)), len(replicas.readable(topic, 1))) == (3, 1)


def run(replicas: Replicas, topic: str, home: Path, proxy: FaultProxy) -> subprocess.Popen[bytes]:
    """Start a process that writes what is in ``topic`` to another one, through the proxy."""
    given = {"kafka.bootstrap": replicas.brokers.bootstrap, "kafka.topics": topic, "kafka.group": topic}
    given |= {"produce.topic": f"{topic}-out", "kafka.client.proxy_url": proxy.url}
    command = [sys.executable, "-m", "downspout", "run", "tests/broker/loud_topology.py", "--until", "end"]
    command += [f"--set={key}={value}" for key, value in given.items()]
    environment = os.environ | {"DOWNSPOUT_HOME": str(home / "home"), "PYTHONPATH": str(ROOT)}
    with (home / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)


@pytest.mark.sweep
def test_a_restart_between_send_and_ack_writes_a_record_again(
    replicas: Replicas, proxy: FaultProxy, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """It is written when the process is killed, and its offset is not committed: the bolt writes at least once."""
    topic = replicas.create()
    replicas.cluster.ensure_topic(f"{topic}-out", 1)
    producer = replicas.producer()
    send(producer, topic, [b"m"])
    acknowledged(producer, 1)
    proxy.keep()
    for number in (1, 2):
        processes.append(run(replicas, topic, tmp_path, proxy))
        if number == 1:
            wait_until(lambda: proxy.lost, WAIT_S)
            processes[0].kill()
            proxy.lose(0)
        processes[-1].wait(WAIT_S)
    assert processes[-1].returncode == 0, (tmp_path / "log").read_text()
    assert replicas.readable(f"{topic}-out") == [b"M"] * 2


# --- too few replicas in sync ---------------------------------------------------------------------------


def heard(tup: Any, sent: Sent) -> None:
    """Let the follower go on after the first failure: a user's callback."""
    if sent.error is not None:
        SCENES[-1].resume(2)


SCENES: list[Replicas] = []
"""Where the callback finds the brokers."""


@pytest.mark.sweep
def test_too_few_replicas_fail_the_tuple_until_they_are_back(replicas: Replicas) -> None:
    """The error names the partition, who is in sync and who is not, and a cure; the next try is written, once."""
    topic = replicas.create({0: [1, 2]}, min_insync_replicas=2)
    SCENES.append(replicas)
    with replicas.paused(2):
        replicas.await_isr(topic, {1})
        result = write(replicas, [{"message": "m"}], timeout_s=9, topic=topic, callback=f"{__name__}.heard")
    assert len(result.acked("rows")) == 1, result.errors
    assert result.errors[0].endswith(
        f": bolt: {topic}[0] has fewer replicas in sync (ISR) than its min.insync.replicas: NotEnoughReplicasError: "
        "in sync: broker 1; not in sync: broker 2. Try: start the brokers that hold its other replicas, or lower "
        "min.insync.replicas"
    )
    assert replicas.readable(topic) == [b"m"]


# --- unclean election -----------------------------------------------------------------------------------


class Ack(streamparse.Bolt):
    outputs: ClassVar = []

    def process(self, tup: Any) -> None:
        pass


def read_on(replicas: Replicas, topic: str, **settings: Any) -> TopologyResult:
    """Let a spout read a topic to its end, and commit."""

    class Flow(Topology):
        spout = KafkaSpout.spec(topics=[topic], group=topic, fields=["value"], **settings)
        bolt = Ack.spec(inputs=[spout])

    node = next(node for node in replicas.brokers.alive if node not in replicas.away)
    return run_topology(Flow, config={"kafka.bootstrap": replicas.brokers.node(node).bootstrap}, clock=CLOCK)


@pytest.mark.sweep
def test_records_that_an_unclean_election_cuts_are_reported(replicas: Replicas) -> None:
    """A replica leads that was not in sync: five acknowledged records are gone, and the spout that has read them stops.

    The old leader cuts its own log when it comes back.
    """
    topic = replicas.create({0: [1, 3]}, min_insync_replicas=1, unclean_leader_election_enable=True)
    producer = replicas.producer(request_timeout_ms=2_000)
    send(producer, topic, EARLY)
    acknowledged(producer, EACH)
    with replicas.paused(3):
        replicas.await_isr(topic, {1})
        send(producer, topic, LATE)
        assert acknowledged(producer, EACH) == LATE
        assert len(read_on(replicas, topic).acked("spout")) == 2 * EACH
        replicas.kill(1)
    replicas.await_leader(topic, 3)
    assert replicas.readable(topic) == EARLY
    with pytest.raises(DataLossError, match=r"\[0\]@10: the log ends at 5: it was truncated"):
        read_on(replicas, topic)
    assert replicas.on_disk(1, topic) == EARLY + LATE
    replicas.brokers.start()
    replicas.await_isr(topic, {1, 3})
    assert replicas.on_disk(1, topic) == EARLY
    assert len(read_on(replicas, topic, on_data_loss="earliest").acked("spout")) == EACH


# --- the last stable offset -----------------------------------------------------------------------------


def test_a_reader_of_committed_transactions_stops_before_an_open_one(replicas: Replicas) -> None:
    """The high watermark is behind its records, the last stable offset before them, until it is ended."""
    topic = replicas.create()
    producer = KafkaProducer(bootstrap_servers=replicas.brokers.bootstrap.split(","), transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, value=b"m", partition=0).get(WAIT_S)
    wait_until(lambda: replicas.end(1, topic) == 1)
    assert replicas.end(1, topic, committed=True) == 0
    producer.commit_transaction()
    wait_until(lambda: replicas.end(1, topic, committed=True) == 2)  # a transaction's end is a record too
    producer.close()
    assert replicas.readable(topic) == [b"m"]
