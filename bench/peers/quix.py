"""Quix Streams: its JSON deserializer, and a batching sink of ours that writes typed Parquet at each checkpoint.

A checkpoint is made every 100,000 messages: the sink is flushed, then the offsets are committed. At least once.
"""

from __future__ import annotations

import sys

from flights_parquet import ROWS_PER_FILE, table_of, write_durably
from quixstreams import Application
from quixstreams.sinks import BatchingSink, SinkBatch

bootstrap, topic, group, directory, records = sys.argv[1:]


class ParquetSink(BatchingSink):
    """One file of each partition for each checkpoint."""

    def write(self, batch: SinkBatch) -> None:
        table = table_of(
            [item.value for item in batch], [batch.partition] * batch.size, [item.offset for item in batch]
        )
        write_durably(table, directory, f"part-{batch.partition}-{batch.start_offset}")


app = Application(
    broker_address=bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_every=ROWS_PER_FILE,
    commit_interval=60.0, auto_create_topics=False, loglevel="WARNING",
)  # fmt: skip
flights = app.topic(topic, key_deserializer="bytes", value_deserializer="json")
app.dataframe(flights).sink(ParquetSink())
app.run(count=int(records), collect=False)
