"""The how-to on growing columns: its topology, its edit and its commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import cluster_for

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "evolve-a-schema.md"


@pytest.mark.broker
def test_the_commands_of_the_page_run(tmp_path: Path, kafka_broker: EmbeddedKafka, topic_name: str) -> None:
    """A run, the page's edit, and another run with more records: both versions in one table, the audit exact."""
    text = PAGE.read_text(encoding="utf-8")
    program, reading = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"```\n(downspout run.*?)```", text, re.DOTALL)
    run, edit, again, audit = commands.strip().splitlines()
    (tmp_path / "orders.py").write_text(program.replace('"orders"', f'"{topic_name}"'), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DOWNSPOUT_KAFKA_BOOTSTRAP": kafka_broker.bootstrap}

    def do(command: str) -> str:
        words = command.replace("downspout ", f"{sys.executable} -m downspout ", 1)
        done = subprocess.run(
            words, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    cluster = cluster_for(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    producer = cluster.producer()
    for number in range(20):
        if number == 10:
            producer.flush()
            do(run)
            do(edit)
        value = b'{"id": %d, "word": "w", "price": 1.25}' % (number if number < 10 else 2**40 + number)
        producer.send(topic_name, key=None, value=value, partition=0)
    producer.flush()
    producer.close()
    do(again)
    assert "20" in do(audit)
    (tmp_path / "read.py").write_text(reading, encoding="utf-8")
    assert do(f"{sys.executable} read.py") == "['id', 'word', 'price']\n"
