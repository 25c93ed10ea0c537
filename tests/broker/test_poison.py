"""Poison on a real broker: records that always fail, in a process that is killed half-way."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.poison import command, numbers, publish
from downspout.kafka.deadletter import DeadLetter, read_dead_letters
from downspout.kafka.embedded import EmbeddedKafka
from downspout.kafka.port import cluster_for

ROOT = Path(__file__).resolve().parents[2]
COUNT = 40_000
EVERY = 100

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_each_poison_record_is_dead_lettered_once_after_kill_9(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Killed with some letters written, the run ends with one letter per poison record and one row per other record."""
    cluster, out = cluster_for(kafka_broker.bootstrap), tmp_path / "out"
    publish(cluster, topic_name, COUNT, EVERY)
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    line = command(
        kafka_broker.bootstrap, topic_name, topic_name, out, "parquet.flush_rows=1000", "kafka.commit_period_ms=100",
        "kafka.poll_records_max=200",
    )  # fmt: skip
    processes.append(subprocess.Popen(line, cwd=ROOT, env=environment))
    deadline = time.monotonic() + 60
    while not letters(kafka_broker, topic_name) and processes[0].poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes[0].poll() is None, "the run was over before it could be killed"
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    assert len(letters(kafka_broker, topic_name)) < COUNT // EVERY, "all letters were there before the kill"

    done = subprocess.run(line, cwd=ROOT, env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    healthy = [number for number in range(COUNT) if number % EVERY != EVERY // 2]
    assert numbers(out) == Counter(healthy)
    found = letters(kafka_broker, topic_name)
    assert len({letter.origin for letter in found}) == len(found) == COUNT // EVERY
    assert {letter.letter.value for letter in found} == {b"poison"}
    assert {letter.attempts for letter in found} <= {4, 5}


def letters(broker: EmbeddedKafka, group: str) -> list[DeadLetter]:
    """Return the dead letters, each origin once."""
    return list(read_dead_letters(cluster_for(broker.bootstrap), f"{group}.dead-letters"))
