"""The claims of the page on counting about plain bolts, under ``kill -9``."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from downspout.broker import EmbeddedKafka
from downspout.kafka import KafkaCluster
from tests.command import ROOT, cli

PAGE = ROOT / "docs" / "how-to" / "count-in-batches.md"
TOPOLOGY = """
import os, signal
from collections import Counter
from streamparse import BatchingBolt, Bolt, Topology
from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout

{page}

class Killed(Count):
    seen = 0

    def process(self, tup):
        super().process(tup)
        Killed.seen += 1
        if Killed.seen == 500 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

class Words(Topology):
    config = {{"topology.max.spout.pending": 100}}
    spout = KafkaSpout.spec(topics=["words"], fields=["value"], commit_period_ms=1)
    count = Killed.spec(inputs=[spout], config={{"topology.tick.tuple.freq.secs": {tick_s}}})
    sink = ParquetBolt.spec(inputs=[count], directory="counts", schema={{"word": "string", "count": "int64"}})
"""

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("example", "tick_s", "loses"), [(0, 3600, True), (1, 1, False)], ids=["acks, then emits", "BatchingBolt"]
)
def test_what_a_kill_loses(
    kafka_broker: EmbeddedKafka, topic_name: str, tmp_path: Path, example: int, tick_s: int, loses: bool
) -> None:
    """A bolt that acks before it emits loses counts at a kill; a BatchingBolt loses none."""
    cluster = KafkaCluster(kafka_broker.bootstrap)
    cluster.ensure_topic(topic_name, 1)
    producer = cluster.producer()
    for number in range(1000):
        producer.send(topic_name, key=None, value=f"word {number % 7}".encode(), partition=0)
    producer.flush()
    producer.close()
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "words.py"
    file.write_text(
        TOPOLOGY.format(page=blocks[example], tick_s=tick_s).replace('["words"]', f'["{topic_name}"]'), encoding="utf-8"
    )
    command = ("run", file, "--until", "end", "--set", f"kafka.bootstrap={kafka_broker.bootstrap}")
    cli(*command, "--set", f"kafka.group={topic_name}", cwd=tmp_path, code=-signal.SIGKILL)
    cli(*command, "--set", f"kafka.group={topic_name}", cwd=tmp_path)
    counted = sum(ds.dataset(tmp_path / "counts").to_table()["count"].to_pylist())
    assert (counted < 1000) == loses
