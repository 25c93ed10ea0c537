"""ParquetBolt on Storm, into a bucket: each row exists once, despite kills and failed requests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from demos.s3 import FaultProxy
from downspout.audit.audit import audit
from downspout.kafka import KafkaCluster
from downspout.sink import read_table
from tests.object_store_faults import Faults, options_of
from tests.sink.cloud_support import server_of
from tests.storm.support import Place, children

pytestmark = [pytest.mark.storm, pytest.mark.slow]

RECORDS = 8_000
KILLED = ("bolts.parquet.ParquetBolt", "spouts.kafka.KafkaSpout")
TOPOLOGY = """\
from streamparse import Topology

from bolts.parquet import ParquetBolt
from spouts.kafka import KafkaSpout


class Stored(Topology):
    config = {{"topology.max.spout.pending": 2000, "topology.message.timeout.secs": 10}}
    spout = KafkaSpout.spec(topics=["{topic}"], fields=["origin", "value"], commit_period_ms=500)
    store = ParquetBolt.spec(
        inputs=[spout], par=2, directory="{url}", schema={{"value": "string"}}, flush_age_s=1,
        storage_options={options},
    )
"""


@pytest.mark.sweep
def test_rows_survive_deaths_and_a_store_with_faults(
    storm: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sinks share a bucket through 503s, lost answers, and the death of a sink and of the spout."""
    topic = storm.publish(RECORDS)
    url = f"s3://bucket/{topic}"
    with server_of("s3proxy") as server, FaultProxy(server, Faults()) as proxy:
        options = options_of(proxy.url, tmp_path)
        text = TOPOLOGY.format(topic=topic, url=url, options=options)
        (storm.project / "topologies" / f"{topic}.py").write_text(text, encoding="utf-8")
        code, output = storm.sparse("submit", "-n", topic)
        assert code == 0, output
        for number, name in enumerate(KILLED):
            storm.wait_for(topic, RECORDS - RECORDS // (len(KILLED) + 2) * (number + 1))
            if pids := children(storm.workers_group(), name):
                os.kill(pids[0], signal.SIGKILL)
        storm.wait_for(topic, 0)
        code, output = storm.sparse("kill", "-n", topic, "--wait", "0")
        assert code == 0, output
        assert {text.partition(" ")[0] for text in proxy.injected} == {"slow", "lose"}
        proxy.fault = lambda line: None
        monkeypatch.setenv("DOWNSPOUT_PARQUET_STORAGE_OPTIONS", ",".join(options))
        assert sorted(read_table(url).column("value").to_pylist()) == sorted(f"value {n}" for n in range(RECORDS))
        assert audit(url, cluster=KafkaCluster(storm.kafka.bootstrap), deep=True).exit_code == 0
