"""The how-to on sinks of one's own: its sink holds each row once through kills, is audited exact, and is compared."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster
from tests.command import ROOT, cli

PAGE = ROOT / "docs" / "how-to" / "write-a-sink.md"
RECORDS, KILLS = 600, 4
DYING = """
import os, signal
from pathlib import Path

deaths, published, link = len(list(Path().glob("death-*"))), [], os.link


def dying_link(*places):
    # The second flush of a process is its last: by turns it is killed before and after the file has its name.
    published.append(places)
    if is_last := len(published) == 2 and deaths < {kills}:
        Path(f"death-{{deaths}}").touch()
    if is_last and deaths % 2 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    link(*places)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)


os.link = dying_link
"""


@pytest.mark.broker
def test_the_sink_of_the_page_holds_each_row_once_through_kills(
    tmp_path: Path, kafka_broker: EmbeddedKafka, topic_name: str
) -> None:
    """It is killed while it writes; afterwards two workers finish, and each record has one line."""
    programs = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert list(programs) == ["jsonlines.py", "orders.py"]
    programs["orders.py"] = programs["orders.py"].replace('"orders"', f'"{topic_name}"') + DYING.format(kills=KILLS)
    for name, program in programs.items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    cluster = KafkaCluster(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 2)
    producer = cluster.producer()
    for number in range(RECORDS):
        value = json.dumps({"id": number, "item": f"item {number}"}).encode()
        producer.send(topic_name, key=None, value=value, partition=number % 2)
    producer.flush()
    producer.close()
    given = {
        "kafka.bootstrap": kafka_broker.bootstrap, "kafka.group": topic_name, "kafka.emit": "record",
        "kafka.poll_records_max": 50, "parquet.flush_rows": 40, "topology.max.spout.pending": 200,
    }  # fmt: skip
    command = ["run", "orders.py", "--until", "end", *(f"--set={key}={value}" for key, value in given.items())]
    for _ in range(KILLS):
        cli(*command, cwd=tmp_path, code=-signal.SIGKILL)
    cli(*command, "--workers", "2", cwd=tmp_path)
    audit = ["audit", "output/orders", "--topology", "orders.py", f"--set=kafka.group={topic_name}"]
    said = cli(*audit, "--bootstrap", kafka_broker.bootstrap, cwd=tmp_path).stdout
    assert f"exact: {RECORDS} offsets are in the files, each exactly once" in said
    engines = ["--engines", "local-record,local-chunk", f"--set=kafka.bootstrap={kafka_broker.bootstrap}"]
    assert "equal on local-record, local-chunk" in cli("compare", "orders.py", *engines, cwd=tmp_path).stdout
    files = sorted((tmp_path / "output" / "orders").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    assert len(files) > KILLS
    assert sorted(row["id"] for row in rows) == list(range(RECORDS))
