"""One broker of three is silent: its connections stay, and nothing is answered. The others are asked, and work goes on.

On loopback a dead port refuses at once; a process that is paused is as silent as one behind a cut network.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from downspout.broker import EmbeddedCluster
from downspout.kafka import KafkaCluster
from tests.broker.replicas import ALL, WAIT_S, Replicas
from tests.broker.test_write_kafka import written
from tests.kafka.broker_stage import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
TIMES = 3
PAUSE_S = 8.0
"""Longer than a broker's session here (2.5 s) and than a transaction may take."""
TRANSACTION_MS = 6_500


@pytest.fixture(scope="module")
def replicas(three_brokers: EmbeddedCluster) -> Iterator[Replicas]:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    three_brokers.start()
    made = Replicas(three_brokers)
    yield made
    made.close()
    logging.getLogger("kafka").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("node", ALL)
def test_starts_and_questions_go_to_those_that_answer(replicas: Replicas, node: int) -> None:
    """Whatever stands first in the bootstrap list, and whatever chance draws."""
    topic = replicas.create({0: ALL, 1: ALL, 2: ALL})
    bootstrap = replicas.brokers.bootstrap
    with replicas.paused(node):
        for _ in range(TIMES):
            cluster = KafkaCluster(bootstrap)
            assert set(cluster.leaders(topic)) == {0, 1, 2}
            assert cluster.group_offsets(topic) == {}
            consumer = cluster.consumer(group=topic)
            assert consumer.topic_ids([topic])
            consumer.close()
            cluster.producer().close()


def test_a_transactional_run_goes_on_through_silent_brokers_and_a_pause_of_its_own(
    replicas: Replicas, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Each broker is silent for longer than a session, then a worker stands still for longer than a transaction may
    take: no process ends, each result is there once, no record is a dead letter, and the log names who was silent."""
    cluster, topic = KafkaCluster(replicas.brokers.bootstrap), replicas.create(dict.fromkeys(range(4), ALL))
    cluster.ensure_topic(f"{topic}-out", 4)
    given = {
        "kafka.bootstrap": replicas.brokers.bootstrap, "kafka.topics": topic, "kafka.group": topic,
        "kafka.retries_max": 0, "kafka.dead_letter_topic": f"{topic}-bad", "topology.message.timeout.secs": 6,
        "kafka.session_timeout_ms": 6_000, "produce.topic": f"{topic}-out",
        "produce.transaction_timeout_ms": TRANSACTION_MS,
    }  # fmt: skip
    command = [sys.executable, "-m", "downspout", "run", "tests/broker/exact_topology.py", "--workers", "2"]
    command += [f"--set={key}={value}" for key, value in given.items()]
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    path, sent = tmp_path / "log", Counter[bytes]()
    with path.open("wb") as log:
        run = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    processes.append(run)
    producer = replicas.producer()

    def feed(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            number = sum(sent.values())
            producer.send(topic, key=None, value=b"m%d" % number, partition=number % 4, token=number)
            sent[b"m%d" % number] += 1
            producer.results()
            time.sleep(0.01)

    def caught_up() -> bool:
        assert run.poll() is None, path.read_text()
        producer.results()
        return written(cluster, topic).keys() >= expected().keys()

    def expected() -> Counter[bytes]:
        return Counter({b"%b.%d" % (value, half): 1 for value in sent for half in range(2)})

    feed(1)
    wait_until(caught_up, WAIT_S)
    for node in ALL:
        with replicas.paused(node):
            feed(PAUSE_S)
        wait_until(caught_up, WAIT_S)
    worker = int(Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[0])
    os.kill(worker, signal.SIGSTOP)
    feed(2 * TRANSACTION_MS / 1000)
    os.kill(worker, signal.SIGCONT)
    wait_until(caught_up, WAIT_S)
    run.send_signal(signal.SIGTERM)
    assert run.wait(WAIT_S) == 143, path.read_text()
    assert written(cluster, topic) == expected()
    assert f"{topic}-bad" not in cluster.topics()
    said = path.read_text()
    # One whose partitions have a new leader before a line is due keeps nobody waiting, and is not named.
    lines = [f"broker {node} ({replicas.brokers.node(node).bootstrap}) has not answered since " for node in ALL]
    assert any(line in said for line in lines), said
    assert "ends with" not in said
