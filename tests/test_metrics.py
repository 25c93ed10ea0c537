"""The table of metrics explains all metrics that components report."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from streamparse import Topology

from bolts.dead_letter import DeadLetterBolt
from bolts.kafka import KafkaBolt
from bolts.lookup import LookupBolt
from bolts.parquet import ParquetBolt
from bolts.parse import JsonParseBolt
from downspout.engine import Counts
from downspout.metrics import METRICS
from downspout.testing import run_topology
from spouts.kafka import KafkaSpout
from tests.spout.spout_driver import Kafka


def test_what_components_report_is_in_the_table(bare_kafka: Kafka, tmp_path: Path) -> None:
    kafka = bare_kafka
    kafka.create_topic("in", 1)
    kafka.create_topic("out", 1)
    kafka.produce("in", b'{"code": "a"}')
    kafka.produce("in", b"no JSON")
    (tmp_path / "names.csv").write_text("code,name\na,A\n")

    class All(Topology):
        lines = KafkaSpout.spec(topics=["in"], group="g", fields=["origin", "value"], emit="chunk")
        parse = JsonParseBolt.spec(inputs=[lines], fields=["code"])
        lookup = LookupBolt.spec(
            inputs=[parse], table=str(tmp_path / "names.csv"), key="code", add=["name"], fields=["code"]
        )
        letters = DeadLetterBolt.spec(inputs=[parse["rejects"]], config={"kafka.group": "g"})
        rows = ParquetBolt.spec(inputs=[lookup], directory=str(tmp_path / "rows"), schema={"code": "string"})
        out = KafkaBolt.spec(inputs=[lookup], topic="out", fields={"message": "name"}, transactional=True)

    result = run_topology(All, config={"kafka.bootstrap": kafka.bootstrap, "run.until": "end"}, clock=kafka.clock)
    reported = {name for report in result.run.reports.values() for name in report}
    assert {"acked", "transactions_fenced", "flushes", "missing", "incomplete", "rejected"} <= reported
    assert reported | {field.name for field in fields(Counts)} - {"tasks"} <= METRICS.keys()
