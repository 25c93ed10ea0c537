"""Bytewax: its KafkaSource, Arrow's JSON reader over each batch, a sink of ours that writes Parquet.

Progress is in Bytewax's own recovery store, as its guide recommends, not in a consumer group: a snapshot every ten
seconds, for which the sink writes its rows. After a restart in between, it writes rows again.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
import pyarrow as pa
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from flights_parquet import ROWS_PER_FILE, table_of_json, write_durably

bootstrap, topic, group, directory, records = sys.argv[1:]


class Part(StatefulSinkPartition):
    """The output of the only worker."""

    def __init__(self, files: int) -> None:
        self.files = files
        self.tables: list[pa.Table] = []
        self.rows = 0

    def write_batch(self, values: list[pa.Table]) -> None:
        self.tables += values
        self.rows += sum(table.num_rows for table in values)
        if self.rows >= ROWS_PER_FILE:
            self.write()

    def snapshot(self) -> int:
        self.write()
        return self.files

    def close(self) -> None:
        self.write()

    def write(self) -> None:
        if self.tables:
            write_durably(pa.concat_tables(self.tables), directory, f"part-{self.files}")
            self.files += 1
            self.tables, self.rows = [], 0


class ParquetSink(FixedPartitionedSink):
    """Files of Parquet, numbered."""

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
        return Part(resume_state or 0)


def parse(batch: list) -> list[tuple[str, pa.Table]]:
    """Turn some messages into a table."""
    if not batch:
        return []
    return [("all", table_of_json([m.value for m in batch], [m.partition for m in batch], [m.offset for m in batch]))]


flow = Dataflow("flights")
messages = op.input("kafka", flow, KafkaSource([bootstrap], [topic], tail=False))
op.output("parquet", op.flat_map_batch("parse", messages, parse), ParquetSink())

recovery = Path(f"{directory}.recovery")
recovery.mkdir(parents=True)
init_db_dir(recovery, 1)
cli_main(flow, epoch_interval=timedelta(seconds=10), recovery_config=RecoveryConfig(str(recovery)))
