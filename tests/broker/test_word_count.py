"""`downspout run topologies/word_count.py --until end` as its users run it: a process, a real broker, kill -9."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import cluster_for
from downspout.sink import Layout

ROOT = Path(__file__).resolve().parents[2]
# The run, which keeps its entries in the log below a number: it waits there to be killed, however late we are.
STAYS_BELOW = """
import sys, time
from downspout.cli import main
from downspout.sink.log import CommitLog
append, last = CommitLog.append, int(sys.argv.pop(1))
def stay(log, entry):
    while entry.number >= last:
        time.sleep(600)
    return append(log, entry)
CommitLog.append = stay
sys.exit(main(sys.argv[1:]))
"""
WAIT_S = 120.0
WORDS = ["to", "be", "or", "not", "that", "is", "the", "question", "whether", "'tis", "nobler", "in", "mind", "Ü"]

pytestmark = pytest.mark.broker


def lines(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randrange(0, 12))) for _ in range(count)]


def publish(broker: EmbeddedKafka, topic: str, text: list[str]) -> None:
    cluster = cluster_for(broker.bootstrap)
    cluster.ensure_topic(topic, 3)
    producer = cluster.producer()
    for number, line in enumerate(text):
        producer.send(topic, key=None, value=line.encode(), partition=number % 3)
    producer.flush()
    producer.close()


def command(broker: EmbeddedKafka, topic: str, out: Path, *program: str) -> list[str]:
    program = program or ("-m", "downspout")
    return [
        sys.executable, *program, "run", "topologies/word_count.py", "--until", "end",
        "--set", f"kafka.bootstrap={broker.bootstrap}", "--set", f"kafka.topics={topic}",
        "--set", f"kafka.group={topic}", "--set", f"parquet.directory={out}", "--set", "parquet.flush_rows=2000",
        "--set", "kafka.commit_period_ms=200",
    ]  # fmt: skip


def finished(out: Path) -> Counter[str]:
    files = [str(path) for path in out.glob("*.parquet")]
    counts: Counter[str] = Counter()
    for row in ds.dataset(files).to_table().to_pylist() if files else []:
        counts[row["word"]] += row["count"]
    return counts


@pytest.mark.sweep
def test_finished_counts_are_exact_after_kill_9(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Killed again and again in the middle, the run ends in the counts that Python's Counter has."""
    text = lines(30_000, seed=1)
    publish(kafka_broker, topic_name, text)
    out = tmp_path / "counts"
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home")}
    for entries in (1, 3, 5):
        held = command(kafka_broker, topic_name, out, "-c", STAYS_BELOW, str(entries + 2))
        process = subprocess.Popen(held, cwd=ROOT, env=environment)
        processes.append(process)
        deadline = time.monotonic() + WAIT_S
        while len(list(Layout(out).log.glob("*.json"))) < entries:
            assert process.poll() is None, "the run was over before it could be killed"
            assert time.monotonic() < deadline, "the run writes nothing"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
    assert 0 < finished(out).total() < sum(len(line.split()) for line in text)
    done = subprocess.run(
        command(kafka_broker, topic_name, out), cwd=ROOT, env=environment, timeout=200, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert finished(out) == Counter(word for line in text for word in line.split())


@pytest.mark.sweep
def test_a_second_run_finds_nothing_and_a_third_only_what_is_new(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path
) -> None:
    """A run that has nothing to do ends by itself; what is produced later is counted once, on top."""
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home")}
    out = tmp_path / "counts"
    all_lines: list[str] = []
    for seed in (1, None, 2):
        if seed is not None:
            text = lines(300, seed)
            publish(kafka_broker, topic_name, text)
            all_lines += text
        done = subprocess.run(
            command(kafka_broker, topic_name, out),
            cwd=ROOT,
            env=environment,
            timeout=200,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert finished(out) == Counter(word for line in all_lines for word in line.split())
