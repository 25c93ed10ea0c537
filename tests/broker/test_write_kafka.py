"""KafkaBolt on a real broker: with workers, stopped by SIGTERM, and while brokers are away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from bolts.kafka import KafkaBolt
from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster, TopicPartition
from downspout.kafka.producer import KafkaProducerPort
from downspout.producing.settings import FLUSH_S_MAX
from downspout.testing import run_bolt
from tests.kafka.broker_stage import read_whole, wait_until

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS, EACH, WAIT_S = 4, 3_000, 30.0

pytestmark = pytest.mark.broker


@pytest.fixture
def filled(cluster: KafkaCluster, topic_name: str) -> str:
    """A topic of 12,000 records, and an empty one beside it."""
    cluster.ensure_topic(topic_name, PARTITIONS)
    cluster.ensure_topic(f"{topic_name}-out", PARTITIONS)
    producer = cluster.producer()
    for number in range(PARTITIONS * EACH):
        producer.send(topic_name, key=b"k%d" % number, value=b"m%d" % number, partition=number % PARTITIONS)
    producer.flush(60)
    producer.close()
    return topic_name


def start(broker: EmbeddedKafka, topic: str, home: Path, *options: str) -> subprocess.Popen[bytes]:
    given = {"kafka.bootstrap": broker.bootstrap, "kafka.topics": topic, "kafka.group": topic}
    given |= {"produce.topic": f"{topic}-out"}
    target = "exact" if "exact" in options else "loud"
    command = [sys.executable, "-m", "downspout", "run", f"tests/broker/{target}_topology.py"]
    command += [option for option in options if option != target]
    command += [f"--set={key}={value}" for key, value in given.items()]
    environment = os.environ | {"DOWNSPOUT_HOME": str(home / "home"), "PYTHONPATH": str(ROOT)}
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def written(cluster: KafkaCluster, topic: str) -> Counter[bytes]:
    """Return what is in the topic that was written to."""
    partitions = [TopicPartition(f"{topic}-out", number) for number in range(PARTITIONS)]
    return Counter(record.value or b"" for record in read_whole(cluster, partitions))


EXPECTED = {b"M%d" % number: 1 for number in range(PARTITIONS * EACH)}


@pytest.mark.sweep
@pytest.mark.parametrize("options", [["--workers", "2"], ["--set=spout:kafka.emit=chunk"]], ids=["workers", "chunks"])
def test_a_topic_is_written_to_another(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, filled: str, tmp_path: Path,
    processes: list[subprocess.Popen[bytes]], options: list[str],
) -> None:  # fmt: skip
    """Each record once, and all is committed; with two workers, and with chunks before a stock bolt."""
    run = start(kafka_broker, filled, tmp_path, "--until", "end", *options)
    processes.append(run)
    assert run.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    assert written(cluster, filled) == EXPECTED
    assert {entry.offset for entry in cluster.group_offsets(filled).values()} == {EACH}


@pytest.mark.sweep
def test_a_run_that_is_stopped_writes_what_is_out(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, filled: str, tmp_path: Path,
    processes: list[subprocess.Popen[bytes]],
) -> None:  # fmt: skip
    """After SIGTERM all that was emitted is written and committed: the next run goes on there, none is twice."""
    for number in range(2):
        run = start(kafka_broker, filled, tmp_path, *(["--until", "end"] if number else []))
        processes.append(run)
        if not number:
            wait_until(lambda: written(cluster, filled), WAIT_S)
            run.send_signal(signal.SIGTERM)
        assert run.wait(WAIT_S) in (0, 143, 130), (tmp_path / "log").read_text()
    assert written(cluster, filled) == EXPECTED


EXACT = Counter({b"m%d.%d" % (number, half): 1 for number in range(PARTITIONS * EACH) for half in range(2)})


def test_workers_that_are_killed_double_nothing(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, filled: str, tmp_path: Path,
    processes: list[subprocess.Popen[bytes]],
) -> None:  # fmt: skip
    """Two workers with three transactional tasks each: a worker is killed, then all of the run; then it is stopped."""
    more = ["exact", "--workers", "2"]
    for number in range(3):
        before = written(cluster, filled).total()
        run = start(kafka_broker, filled, tmp_path, *more, *(["--until", "end"] if number == 2 else []))
        processes.append(run)
        if number < 2:
            # On a busy machine the run before may have written all there is by the time that it was looked at.
            wait_until(
                lambda before=before: written(cluster, filled).total() > before or before == EXACT.total(), WAIT_S
            )
            workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            for worker in workers[: 1 if number else None]:
                os.kill(int(worker), signal.SIGKILL)
            if number:
                time.sleep(1)
                run.send_signal(signal.SIGTERM)
            else:
                run.kill()
        assert run.wait(WAIT_S) in (0, -9, 143, 130), (tmp_path / "log").read_text()
    assert written(cluster, filled) == EXACT
    assert {entry.offset for entry in cluster.group_offsets(filled).values()} == {EACH}


def test_a_second_run_fences_the_first(
    cluster: KafkaCluster, kafka_broker: EmbeddedKafka, filled: str, tmp_path: Path,
    processes: list[subprocess.Popen[bytes]],
) -> None:  # fmt: skip
    """The first one stops at its next poll or commit, and says why; each result is committed once."""
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(start(kafka_broker, filled, tmp_path / name, "exact"))
        processes.append(runs[-1])
        wait_until(lambda: written(cluster, filled), WAIT_S)
    producer, more, until = cluster.producer(), 0, time.monotonic() + WAIT_S
    while runs[0].poll() is None and time.monotonic() < until:
        producer.send(filled, key=None, value=b"more%d" % more, partition=more % PARTITIONS)
        producer.flush(10)
        more += 1
        time.sleep(0.1)
    producer.close()
    said = (tmp_path / "first" / "log").read_text()
    assert runs[0].returncode == 14, said
    # Both runs are the same member of the group. The first hears of the other from whatever it asks Kafka for first.
    assert "stop one of the two runs" in said or "run it once, with --workers N" in said, said
    runs[1].send_signal(signal.SIGTERM)
    runs[1].wait(WAIT_S)
    last = start(kafka_broker, filled, tmp_path, "exact", "--until", "end")
    processes.append(last)
    assert last.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    assert written(cluster, filled) == EXACT | {b"more%d.%d" % (n, half): 1 for n in range(more) for half in range(2)}


def test_a_transactional_id_that_expired_is_no_fault_of_a_record(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Brokers forget the id of a run that was idle for long: it goes on with a new producer, and no record fails."""
    forgetful = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
    }
    expected = Counter[bytes]()
    with EmbeddedKafka(tmp_path / "kafka", properties=forgetful) as broker:
        cluster = KafkaCluster(broker.bootstrap)
        for name in ("in", "in-out"):
            cluster.ensure_topic(name, PARTITIONS)
        producer = cluster.producer()
        options = [f"--json={tmp_path / 'facts.json'}", "--set=kafka.retries_max=0", "--set=kafka.dead_letter_topic=d"]
        run = start(broker, "in", tmp_path, "exact", *options)
        processes.append(run)
        for again in range(2):
            if again:
                wait_until(lambda: not has_transactional_ids(broker), WAIT_S)
            for number in range(50):
                value = b"m%d-%d" % (again, number)
                producer.send("in", key=None, value=value, partition=number % PARTITIONS)
                expected.update({value + b".%d" % half: 1 for half in range(2)})
            producer.flush(10)
            wait_until(lambda: written(cluster, "in").total() >= expected.total(), WAIT_S)
        producer.close()
        run.send_signal(signal.SIGTERM)
        assert run.wait(WAIT_S) in (0, 143, 130), (tmp_path / "log").read_text()
        assert written(cluster, "in") == expected
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert (facts["errors"], facts["reports"]["spout"]["dead_lettered"]) == ([], 0)


def has_transactional_ids(broker: EmbeddedKafka) -> bool:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        return any(admin.list_transactions().values())
    finally:
        admin.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path / "kafka") as broker:
        yield broker


@pytest.mark.sweep
def test_the_end_is_bounded_while_brokers_are_away(own: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bolt with records out waits for them once, for 5 s, and then the run ends."""
    KafkaCluster(own.bootstrap).ensure_topic("out", 1)
    waited: list[float] = []
    flush = KafkaProducerPort.flush

    def noted(producer: Any, timeout_s: float = 30.0) -> None:
        waited.append(timeout_s)
        flush(producer, timeout_s)

    def send_into_the_dark(bolt: Any, tup: Any, send: Any = KafkaBolt._send) -> None:
        if tup.values.message == "2":
            own.stop()
        send(bolt, tup)

    monkeypatch.setattr(KafkaProducerPort, "flush", noted)
    monkeypatch.setattr(KafkaBolt, "_send", send_into_the_dark)
    spec = KafkaBolt.spec(topic="out")
    config = {"kafka.bootstrap": own.bootstrap, "run.drain_s": 0.5, "topology.message.timeout.secs": 60}
    clock = SimpleNamespace(monotonic=time.monotonic, wall=time.time, sleep=time.sleep)
    result = run_bolt(spec, [{"message": str(n)} for n in range(5)], config=config, clock=clock, until=None, for_s=2.0)
    assert result.counts("bolt").executed == 5
    assert waited == [FLUSH_S_MAX]


def test_records_that_are_sent_again_are_counted(cluster: KafkaCluster, topic_name: str) -> None:
    """Three records share a batch with one that the broker refuses: they are written at the second try."""
    cluster.ensure_topic(topic_name, 1, {"cleanup.policy": "compact"})
    producer = cluster.producer()
    for key in (b"a", None, b"b", b"c"):
        producer.send(topic_name, key=key, value=b"x", token=str(key))
    producer.flush()
    results = producer.results()
    assert sum(len(sent.tokens) for sent in results if sent.error is None) == 3
    assert producer.retried == 3
    producer.close()
