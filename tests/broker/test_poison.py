"""Poison on a real broker: records that always fail, in a process that is killed half-way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench.check import check
from bench.contenders import filled, topology
from bench.flights import PARTITIONS, publish, spoiled
from downspout.broker import EmbeddedKafka
from downspout.dead_letters import DeadLetter, read_dead_letters
from downspout.kafka import cluster_for
from tests.broker.poison_topology import BRAKE

ROOT = Path(__file__).resolve().parents[2]
COUNT = 40_000
SHARE = 0.01

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.sweep
def test_each_poison_record_is_dead_lettered_once_after_kill_9(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Killed with some letters written, the run ends with one letter per poison record and one row per other record."""
    out, poison = tmp_path / "out", set(np.flatnonzero(spoiled(np.arange(COUNT), SHARE)).tolist())
    publish(kafka_broker.bootstrap, topic_name, COUNT, share=SHARE)
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    settings = ("parquet.flush_rows=1000", "kafka.commit_period_ms=100", "kafka.poll_records_max=200")
    command = topology(*settings, file=Path(__file__).with_name("poison_topology.py"))
    line = filled(
        (*command, "--until", "end"), python=sys.executable, bootstrap=kafka_broker.bootstrap, topic=topic_name,
        group=topic_name, out=out,
    )  # fmt: skip
    processes.append(subprocess.Popen(line, cwd=ROOT, env={**environment, BRAKE: "0.002"}))
    deadline = time.monotonic() + 120
    while not letters(kafka_broker, topic_name):
        assert processes[0].poll() is None, "the run was over before it could be killed"
        assert time.monotonic() < deadline, "no letter is written"
        time.sleep(0.01)
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    assert len(letters(kafka_broker, topic_name)) < len(poison), "all letters were there before the kill"

    done = subprocess.run(line, cwd=ROOT, env=environment, timeout=250, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    check(out, COUNT, SHARE)
    found = letters(kafka_broker, topic_name)
    assert sorted(letter.offset * PARTITIONS + letter.partition for letter in found) == sorted(poison)
    assert {letter.attempts for letter in found} <= {4, 5}


def letters(broker: EmbeddedKafka, group: str) -> list[DeadLetter]:
    return list(read_dead_letters(cluster_for(broker.bootstrap), f"{group}.dead-letters"))
