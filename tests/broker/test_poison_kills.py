"""A record that kills the process, on a real broker: the process is started again until it is through."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from downspout.broker import EmbeddedKafka
from downspout.dead_letters import read_dead_letters
from downspout.kafka import cluster_for
from tests.broker.killing_topology import KILLER

ROOT = Path(__file__).resolve().parents[2]
COUNT = 60
KILLS_AT = 40

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.sweep
def test_a_record_that_kills_the_process_is_found(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed by it again and again, the topology gets through: one dead letter, and every other record in one row."""
    cluster = cluster_for(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    producer = cluster.producer()
    for number in range(COUNT):
        value = KILLER if number == KILLS_AT else str(number).encode()
        producer.send(topic_name, key=None, value=value, partition=0)
    producer.flush(60)
    producer.close()
    settings = {
        "kafka.bootstrap": kafka_broker.bootstrap, "kafka.topics": topic_name, "kafka.group": topic_name,
        "parquet.directory": tmp_path / "out",
    }  # fmt: skip
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    topology = "tests/broker/killing_topology.py"
    line = [sys.executable, "-m", "downspout", "run", topology, "--until", "end", "--quiet", *options]
    environment = os.environ | {"DOWNSPOUT_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    ends: list[int] = []
    while not ends or (ends[-1] == -signal.SIGKILL and len(ends) < 20):
        done = subprocess.run(line, cwd=ROOT, env=environment, timeout=120, capture_output=True, text=True)
        ends.append(done.returncode)
    with capsys.disabled():
        print(f"\nthrough after {len(ends) - 1} restarts")
    assert ends[-1] == 0, done.stdout + done.stderr
    assert len(ends) == 5 + 3 + 1, "killed twice free, three times in smaller windows, three times alone, and through"
    rows = ds.dataset([str(path) for path in (tmp_path / "out").glob("*.parquet")]).to_table(columns=["number"])
    assert Counter(rows["number"].to_pylist()) == Counter(number for number in range(COUNT) if number != KILLS_AT)
    letters = list(read_dead_letters(cluster, f"{topic_name}.dead-letters"))
    assert [letter.offset for letter in letters] == [KILLS_AT]
    assert (letters[0].record.value, letters[0].attempts, letters[0].kind) == (KILLER, 3, "crash")
